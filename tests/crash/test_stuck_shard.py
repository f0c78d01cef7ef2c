"""A shard that does not respond."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.crash.reading import data_of
from tests.crash.test_kill import topics_of
from tests.support.api import Api, ok
from tests.support.server import Server

pytestmark = pytest.mark.slow


def test_a_shard_that_does_not_respond_delays_no_other_shard_and_recovers(tmp_path: Path) -> None:
    with Server(tmp_path / "data", shards=2) as server:
        (stuck_topic,), (other_topic,) = topics_of(0, 2), topics_of(1, 2)
        with Api(server.address) as api:
            for topic in (stuck_topic, other_topic):
                ok(api.put(topic, {"durability": "fsync"}), 201)
            ok(api.append(stuck_topic, "before"))
        server.wait_roles(3)
        with server.stopped("shard 0"):
            outcomes = [_with_short_timeout(server, stuck_topic) for _ in range(2)]
            with Api(server.address) as api:
                for number in range(30):
                    ok(api.append(other_topic, number))
                assert len(data_of(api, other_topic)) == 30
        with Api(server.address) as api:
            answer = api.append(stuck_topic, "during", idempotency_key="during")
            while answer.status == 503:
                time.sleep(0.05)
                answer = api.append(stuck_topic, "during", idempotency_key="during")
            ok(answer)
            ok(api.append(stuck_topic, "after"))
            assert data_of(api, stuck_topic) == ["before", "during", "after"]
    assert all(outcome in (None, 503) for outcome in outcomes), outcomes


def _with_short_timeout(server: Server, topic: str) -> int | None:
    """Append with a timeout of one second. Return the status, or None if there was no response."""
    with Api(server.address, timeout_s=1) as api:
        try:
            return api.append(topic, "during", idempotency_key="during").status
        except TimeoutError:
            return None
