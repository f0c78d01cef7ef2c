"""Tests of a shard whose disk is full or does not respond, and of its recovery."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from tests.support.log import START, failing
from tests.support.shard import Desk
from topics.actors.link.board import ShardState
from topics.actors.link.liveness import DISK_STALLED_S
from topics.actors.shard import disk_space
from topics.storage.recovery.shard_recovery import recover
from topics.storage.wal.log import Wal
from topics.storage.wal.log_file import NoSpace

FILE_BYTES = 64 << 10
FULL = NoSpace(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    async with trio.open_nursery() as nursery:
        yield Desk(tmp_path, nursery)
        nursery.cancel_scope.cancel()


def state(desk: Desk) -> Any:
    desk.loop.context.disk_space.show()
    return desk.cells.state


async def test_short_of_room_what_grows_is_refused_and_what_frees_is_done(desk: Desk) -> None:
    desk.make("a")
    desk.append("a", 1, 2)
    desk.synced()
    desk.answers()
    assert state(desk) == ShardState.READY
    desk.log.lacks_space = True
    assert state(desk) == ShardState.NO_ROOM
    grow = [desk.append("a", 3), desk.append_many("a", b"{}"), desk.put("new")]
    assert desk.answers() == [(number, "not_ready") for number in grow]
    assert desk.seqs("a") == [1, 2]
    free = [desk.delete_records("a", before_seq=2), desk.put("a", cap_records=1), desk.delete("a")]
    desk.synced()
    assert desk.answers() == [(number, 200) for number in free]
    desk.log.lacks_space = False
    assert state(desk) == ShardState.READY


async def test_a_refusal_says_whether_the_disk_is_full_or_the_log_broken(desk: Desk) -> None:
    desk.log.lacks_space = True
    desk.append("a", 1)
    desk.log.lacks_space = False
    desk.failed(OSError(errno.EIO, "broken"))
    desk.append("a", 1)
    details = [answer["data"]["detail"]["reason"] for answer in desk.wire.answers()]
    assert details == ["disk_full", "read_only"]
    assert state(desk) == ShardState.READ_ONLY


async def test_a_start_that_the_log_has_no_room_for_serves_reads_until_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start() -> Any:
        return recover(tmp_path, 0, 1, START, wal_file_bytes=FILE_BYTES, wal_sync_ms=60_000)

    start().wal.stop()
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", failing(errno.ENOSPC))
        patch.setattr("topics.storage.wal.spares.SpareFiles.take_reserve", lambda _: None)
        patch.setattr("topics.storage.wal.log_file.WalFile.holds", lambda *_: False)
        shard = start()
    monkeypatch.setattr(disk_space, "RETRY_MIN_S", 0.001)
    found = trio.Event()
    real = Wal.allocate_files

    async with trio.open_nursery() as nursery:
        desk = Desk(tmp_path, nursery, shard=shard)
        nursery.start_soon(desk.loop.follow_log)
        assert state(desk) == ShardState.NO_ROOM
        refused = [desk.append("a", 1), desk.delete("a"), desk.put("a")]
        assert desk.answers() == [(number, "not_ready") for number in refused]
        monkeypatch.setattr(Wal, "allocate_files", lambda wal: found.is_set() and real(wal))
        nursery.start_soon(desk.loop.context.disk_space.run)
        found.set()
        with trio.fail_after(10):
            while desk.cells.state != ShardState.READY:  # noqa: ASYNC110 - no event tells
                await trio.sleep(0.001)
        desk.append("a", 1)
        desk.loop.end_iteration()
        with trio.fail_after(10):
            while not desk.wire.sent:  # noqa: ASYNC110 - no event tells
                await trio.sleep(0.001)
        assert [status for _, status in desk.answers()] == [201]
        nursery.cancel_scope.cancel()
    shard.wal.stop()


# How long the disk has not answered


# A disk that hangs


async def test_writes_are_refused_while_the_disk_does_not_answer_and_reads_are_not(
    desk: Desk,
) -> None:
    desk.make("a", durability="fsync")
    waiting = desk.append("a", 1)
    desk.flush()
    for now in range(12):
        desk.loop.context.disk.check(now)
    assert desk.cells.disk_silent_ms == 11_000
    refused, read = desk.append("a", 2), desk.diff("a")
    assert sorted(desk.answers()) == [(refused, "not_ready"), (read, 200)]
    desk.synced()
    desk.loop.context.disk.check(12)
    again = desk.append("a", 3)
    desk.synced()
    assert desk.cells.disk_silent_ms == 0
    assert desk.answers() == [(waiting, 200), (again, 200)]


async def test_a_disk_that_is_busy_but_moves_is_not_stalled(desk: Desk) -> None:
    desk.make("a", durability="fsync")
    for now in range(30):
        desk.append("a", now)
        desk.flush()
        desk.loop.context.disk.check(now)
        if now % 5 == 4:
            desk.synced()
    assert desk.cells.disk_silent_ms < 10_000
    assert {code for _, code in desk.answers()} == {200}


async def test_a_sync_that_nobody_waits_for_may_hang_as_well(desk: Desk) -> None:
    desk.log.is_syncing = True
    for now in range(12):
        desk.loop.context.disk.check(now)
    assert desk.cells.disk_silent_ms == 11_000
    desk.log.is_syncing = False
    desk.loop.context.disk.check(12)
    assert desk.cells.disk_silent_ms == 0


# The loop itself hangs


async def test_a_loop_that_hangs_in_the_disk_is_shown_by_the_thread_that_watches_it(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    clock = SimpleNamespace(monotonic=lambda: now, monotonic_ns=lambda: int(now * 1e9))
    monkeypatch.setattr(disk_space, "time", clock)
    shown = []
    while now < 30.0:
        desk.log.on_hang(1)
        shown.append((now, desk.cells.disk_silent_ms, desk.cells.heartbeat_ms))
        now += 0.5
    assert [silent_ms for _, silent_ms, _ in shown] == [int(at * 1000) for at, _, _ in shown]
    beats = {at: beat_ms for at, _, beat_ms in shown}
    assert all(beats[at] == at * 1000 for at in beats if at < DISK_STALLED_S)
    assert beats[29.5] == (DISK_STALLED_S - 0.5) * 1000, "then the fronts end reads, too"
    assert desk.loop.context.disk.is_stalled
    desk.loop.context.disk.check(1)
    assert desk.cells.disk_silent_ms == 0
    assert not desk.loop.context.disk.is_stalled


async def test_each_call_of_the_loop_has_its_own_silence(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    clock = SimpleNamespace(monotonic=lambda: now, monotonic_ns=lambda: int(now * 1e9))
    monkeypatch.setattr(disk_space, "time", clock)
    for call in (1, 1, 3, 3):
        desk.log.on_hang(call)
        now += 1.0
    assert desk.cells.disk_silent_ms == 1000
