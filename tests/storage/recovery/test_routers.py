"""Routers after a restart: all acknowledged changes are restored, at whichever frame the
log ends.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.engine.routing.test_graph import router
from tests.support.log import Client, log_files
from tests.support.recovery import frames_of
from topics.engine.changes import router_changes
from topics.engine.changes.router_changes import RouterChange
from topics.engine.routing.graph import Router
from topics.formats.api.diff_body import TagMatch
from topics.formats.disk.frames import FRAME_HEADER_BYTES, FrameKind
from topics.storage.wal.log_progress import LogProgress

Known = tuple[dict[int, Router], int]


def known(client: Client) -> Known:
    return dict(client.engine.routers.by_id), client.engine.routers.last_id


def apply(client: Client, change: RouterChange) -> None:
    reply = client.submit(change)
    assert client.wait() is None
    assert isinstance(reply[0], LogProgress)


def put(client: Client, each: Router) -> None:
    apply(client, router_changes.put(client.engine.table, each, client.now))


def remove(client: Client, *router_ids: int) -> None:
    apply(client, router_changes.remove(client.engine.table, router_ids, client.now))


def busy(client: Client, after_change: Callable[[Client], None] = lambda _: None) -> None:
    """Apply changes of every kind to routers of every kind. ``after_change`` is called after each
    change.
    """
    first = router(1, "ab", filter=TagMatch("Glob", "x"))
    steps: list[Callable[[], object]] = [
        lambda: put(client, first),
        lambda: client.append("a", 1, 2),
        lambda: put(client, router(2, "bc", guarantee="exactly_once")),
        lambda: put(client, replace(router(3, "ad", "a->b"), base_total=7)),
        lambda: client.delete("a"),
        lambda: put(client, router(4, "xy")),
        lambda: put(client, replace(router(3, "ad", "a->b", preserve_tag=False), base_total=7)),
        lambda: remove(client, 2, 4),
        lambda: put(client, router(5, "xy")),
        lambda: remove(client, 5),
    ]
    for step in steps:
        step()
        after_change(client)


@pytest.mark.parametrize("stop", [False, True])
def test_routers_are_restored_as_they_were(tmp_path: Path, stop: bool) -> None:
    client = Client(tmp_path)
    busy(client)
    before = known(client)
    assert before == (
        {3: replace(router(3, "ad", "a->b", preserve_tag=False), base_total=7)},
        5,
    )
    for _ in range(2):  # A second restart changes nothing
        if stop:
            client.stop()
        else:
            client.kill()
        client = Client(tmp_path)
        assert known(client) == before
    client.kill()


@pytest.mark.slow
def test_a_kill_between_any_two_frames_keeps_all_changes_acknowledged_before_it(
    tmp_path: Path,
) -> None:
    acknowledged: list[tuple[int, Known]] = [(0, ({}, 0))]
    client = Client(tmp_path / "data")
    busy(client, lambda client: acknowledged.append((client.wal.next_lsn, known(client))))
    path = log_files(tmp_path / "data")[0]
    client.kill()
    content = path.read_bytes()
    for offset, header in frames_of(path):
        expected = [each for lsn, each in acknowledged if lsn <= header.lsn][-1]
        is_router_frame = header.kind in (FrameKind.ROUTER_SET, FrameKind.ROUTERS_GONE)
        for cut in range(offset, offset + FRAME_HEADER_BYTES + 2, 13 if is_router_frame else 99):
            target = tmp_path / "cut"
            shutil.rmtree(target, ignore_errors=True)
            (target / "wal" / "00").mkdir(parents=True)
            (target / "wal" / "00" / path.name).write_bytes(
                content[:cut].ljust(len(content), b"\0")
            )
            client = Client(target, boot="another")
            assert known(client) == expected, (header, cut)
            client.kill()
