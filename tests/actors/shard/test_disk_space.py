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
from tests.support.shard import ShardHarness
from topics.actors.link.board import ShardState
from topics.actors.link.liveness import DISK_STALLED_S
from topics.actors.shard import disk_space
from topics.storage.recovery.shard_recovery import recover
from topics.storage.wal.log import Wal
from topics.storage.wal.log_file import NoSpace

FILE_BYTES = 64 << 10
FULL = NoSpace(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[ShardHarness]:
    async with trio.open_nursery() as nursery:
        yield ShardHarness(tmp_path, nursery)
        nursery.cancel_scope.cancel()


def state(harness: ShardHarness) -> Any:
    harness.loop.context.disk_space.show()
    return harness.cells.state


async def test_without_space_growing_requests_are_rejected_and_freeing_requests_are_executed(
    harness: ShardHarness,
) -> None:
    harness.make("a")
    harness.append("a", 1, 2)
    harness.synced()
    harness.answers()
    assert state(harness) == ShardState.READY
    harness.log.lacks_space = True
    assert state(harness) == ShardState.NO_ROOM
    grow = [harness.append("a", 3), harness.append_many("a", b"{}"), harness.put("new")]
    assert harness.answers() == [(number, "not_ready") for number in grow]
    assert harness.seqs("a") == [1, 2]
    free = [
        harness.delete_records("a", before_seq=2),
        harness.put("a", cap_records=1),
        harness.delete("a"),
    ]
    harness.synced()
    assert harness.answers() == [(number, 200) for number in free]
    harness.log.lacks_space = False
    assert state(harness) == ShardState.READY


async def test_a_refusal_states_whether_the_disk_is_full_or_the_log_is_broken(
    harness: ShardHarness,
) -> None:
    harness.log.lacks_space = True
    harness.append("a", 1)
    harness.log.lacks_space = False
    harness.failed(OSError(errno.EIO, "broken"))
    harness.append("a", 1)
    details = [answer["data"]["detail"]["reason"] for answer in harness.wire.answers()]
    assert details == ["disk_full", "read_only"]
    assert state(harness) == ShardState.READ_ONLY


async def test_a_shard_rejects_writes_until_the_log_has_space_for_its_start(
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
        harness = ShardHarness(tmp_path, nursery, shard=shard)
        nursery.start_soon(harness.loop.follow_log)
        assert state(harness) == ShardState.NO_ROOM
        refused = [harness.append("a", 1), harness.delete("a"), harness.put("a")]
        assert harness.answers() == [(number, "not_ready") for number in refused]
        monkeypatch.setattr(Wal, "allocate_files", lambda wal: found.is_set() and real(wal))
        nursery.start_soon(harness.loop.context.disk_space.run)
        found.set()
        with trio.fail_after(10):
            while harness.cells.state != ShardState.READY:  # noqa: ASYNC110 - no event is set
                await trio.sleep(0.001)
        harness.append("a", 1)
        harness.loop.end_iteration()
        with trio.fail_after(10):
            while not harness.wire.sent:  # noqa: ASYNC110 - no event is set
                await trio.sleep(0.001)
        assert [status for _, status in harness.answers()] == [201]
        nursery.cancel_scope.cancel()
    shard.wal.stop()


# A disk that hangs


async def test_writes_are_rejected_and_reads_served_while_the_disk_hangs(
    harness: ShardHarness,
) -> None:
    harness.make("a", durability="fsync")
    waiting = harness.append("a", 1)
    harness.flush()
    for now in range(12):
        harness.loop.context.disk.check(now)
    assert harness.cells.disk_silent_ms == 11_000
    refused, read = harness.append("a", 2), harness.diff("a")
    assert sorted(harness.answers()) == [(refused, "not_ready"), (read, 200)]
    harness.synced()
    harness.loop.context.disk.check(12)
    again = harness.append("a", 3)
    harness.synced()
    assert harness.cells.disk_silent_ms == 0
    assert harness.answers() == [(waiting, 200), (again, 200)]


async def test_a_busy_disk_that_completes_syncs_is_not_stalled(harness: ShardHarness) -> None:
    harness.make("a", durability="fsync")
    for now in range(30):
        harness.append("a", now)
        harness.flush()
        harness.loop.context.disk.check(now)
        if now % 5 == 4:
            harness.synced()
    assert harness.cells.disk_silent_ms < 10_000
    assert {code for _, code in harness.answers()} == {200}


async def test_a_hanging_sync_is_detected_even_if_no_request_waits_for_it(
    harness: ShardHarness,
) -> None:
    harness.log.is_syncing = True
    for now in range(12):
        harness.loop.context.disk.check(now)
    assert harness.cells.disk_silent_ms == 11_000
    harness.log.is_syncing = False
    harness.loop.context.disk.check(12)
    assert harness.cells.disk_silent_ms == 0


# The loop itself hangs


async def test_a_loop_that_hangs_in_a_disk_call_is_reported_by_the_thread_that_watches_it(
    harness: ShardHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    clock = SimpleNamespace(monotonic=lambda: now, monotonic_ns=lambda: int(now * 1e9))
    monkeypatch.setattr(disk_space, "time", clock)
    shown = []
    while now < 30.0:
        harness.log.on_hang(1)
        shown.append((now, harness.cells.disk_silent_ms, harness.cells.heartbeat_ms))
        now += 0.5
    assert [silent_ms for _, silent_ms, _ in shown] == [int(at * 1000) for at, _, _ in shown]
    heartbeats = {at: heartbeat_ms for at, _, heartbeat_ms in shown}
    assert all(heartbeats[at] == at * 1000 for at in heartbeats if at < DISK_STALLED_S)
    assert heartbeats[29.5] == (DISK_STALLED_S - 0.5) * 1000, (
        "without a heartbeat, the fronts fail reads, too"
    )
    assert harness.loop.context.disk.is_stalled
    harness.loop.context.disk.check(1)
    assert harness.cells.disk_silent_ms == 0
    assert not harness.loop.context.disk.is_stalled


async def test_the_silence_of_each_disk_call_is_measured_separately(
    harness: ShardHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    clock = SimpleNamespace(monotonic=lambda: now, monotonic_ns=lambda: int(now * 1e9))
    monkeypatch.setattr(disk_space, "time", clock)
    for call in (1, 1, 3, 3):
        harness.log.on_hang(call)
        now += 1.0
    assert harness.cells.disk_silent_ms == 1000
