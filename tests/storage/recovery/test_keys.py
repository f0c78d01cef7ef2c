"""Idempotency keys after a restart: exactly the unexpired keys are restored, for the rest of their
window.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.log import (
    START,
    Client,
)
from topics.engine.now import Now

# Idempotency keys


@pytest.mark.parametrize(("ms", "deduped"), [(119_999, True), (120_000, False)])
def test_a_restart_does_not_extend_the_window_of_a_key(
    ms: int, deduped: bool, tmp_path: Path
) -> None:
    client = Client(tmp_path / "data")
    client.append("a", 1, key="k")
    client.kill()
    # After a reboot, the monotonic clock starts from another value.
    client = Client(tmp_path / "data", now=Now(START.ts + ms, 17))
    assert client.append("a", 2, key="k")[1] is deduped
    client.kill()


def test_a_key_expires_at_the_end_of_its_window_after_a_restart(tmp_path: Path) -> None:
    client = Client(tmp_path / "data")
    client.append("a", 1, key="k")
    client.kill()
    client = Client(tmp_path / "data", now=Now(START.ts + 100_000, 17))
    client.later(19_999)
    assert client.append("a", 2, key="k")[1]
    client.later(1)
    assert not client.append("a", 2, key="k")[1]
    client.kill()


def test_a_key_does_not_expire_because_the_wall_clock_was_set_back(tmp_path: Path) -> None:
    client = Client(tmp_path / "data")
    client.append("a", 1, key="k")
    client.kill()
    client = Client(tmp_path / "data", now=Now(START.ts - 10_000_000, 17))
    assert client.append("a", 2, key="k") == (1, True)
    client.append("a", 3)
    assert b'"$ts":%d,"data":3' % START.ts in client.records("a")
    client.kill()


def unexpired(client: Client, name: str, *keys: str) -> list[str]:
    """Return the keys that have not expired."""
    topic = client.engine.topic(name)
    return [
        key
        for key in keys
        if topic.dedupe.find(
            key, client.now.ms, topic.config.idempotency_window_ms, topic.keys_from_seq
        )
    ]


# Each step: milliseconds to wait, then a key to write with or a window to set.
WINDOWS: list[list[tuple[int, str | int]]] = [
    [(0, 100), (0, "a"), (60, "b"), (60, 1000), (10, "c")],
    [(0, 1000), (0, "a"), (60, 10), (5, "b"), (1, 1000), (0, "c")],
    [(0, 100), (0, "a"), (90, "b"), (60, 5000), (50, 100_000), (0, "c")],
    [(0, 100), (0, "a"), (150, "b"), (10, 50), (39, 5000), (0, 100_000)],
    [(0, 100), (0, "a"), (100, 1000)],
    [(0, 100), (0, "a"), (99, 1000)],
    [(0, 0), (0, "a"), (0, 1000), (0, "b")],
    [(0, 1000), (0, "a"), (0, 0), (0, "b"), (0, 1000), (5, "c")],
]


@pytest.mark.parametrize("steps", WINDOWS, ids=str)
@pytest.mark.parametrize("pause_ms", [0, 30, 930])
def test_a_restart_restores_exactly_the_unexpired_keys_after_changes_of_the_window(
    steps: list[tuple[int, str | int]], pause_ms: int, tmp_path: Path
) -> None:
    client = Client(tmp_path / "data")
    client.put("t")
    for wait_ms, step in steps:
        client.later(wait_ms)
        if isinstance(step, str):
            client.append("t", step, key=step)
        else:
            client.put("t", idempotency_window_ms=step)
    client.later(pause_ms)
    before = unexpired(client, "t", "a", "b", "c")
    client.kill()
    client = Client(tmp_path / "data", now=client.now)
    assert unexpired(client, "t", "a", "b", "c") == before
    client.kill()
