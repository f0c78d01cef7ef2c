"""What a shard does while its disk is full, and how it comes out of that."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.support.log import START, failing
from tests.support.shard import Desk
from topics.actors.link.board import ShardState
from topics.actors.shard import room
from topics.storage.recovery.steps import recover
from topics.storage.wal.file import NoRoom
from topics.storage.wal.log import Wal

FILE_BYTES = 64 << 10
FULL = NoRoom(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    async with trio.open_nursery() as nursery:
        yield Desk(tmp_path, nursery)
        nursery.cancel_scope.cancel()


def state(desk: Desk) -> Any:
    desk.loop.context.room.show()
    return desk.words.state


async def test_short_of_room_what_grows_is_refused_and_what_frees_is_done(desk: Desk) -> None:
    desk.make("a")
    desk.append("a", 1, 2)
    desk.synced()
    desk.answers()
    assert state(desk) == ShardState.READY
    desk.log.short_of_room = True
    assert state(desk) == ShardState.NO_ROOM
    grow = [desk.append("a", 3), desk.append_many("a", b"{}"), desk.put("new")]
    assert desk.answers() == [(number, "not_ready") for number in grow]
    assert desk.seqs("a") == [1, 2]
    free = [desk.delete_records("a", before_seq=2), desk.put("a", cap_records=1), desk.delete("a")]
    desk.synced()
    assert desk.answers() == [(number, 200) for number in free]
    desk.log.short_of_room = False
    assert state(desk) == ShardState.READY


async def test_a_refusal_says_whether_the_disk_is_full_or_the_log_broken(desk: Desk) -> None:
    desk.log.short_of_room = True
    desk.append("a", 1)
    desk.log.short_of_room = False
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
        patch.setattr("topics.storage.wal.file.WalFile.holds", lambda *_: False)
        shard = start()
    monkeypatch.setattr(room, "RETRY_MIN_S", 0.001)
    found = trio.Event()
    real = Wal.find_room

    async with trio.open_nursery() as nursery:
        desk = Desk(tmp_path, nursery, shard=shard)
        nursery.start_soon(desk.loop.follow_log)
        assert state(desk) == ShardState.NO_ROOM
        refused = [desk.append("a", 1), desk.delete("a"), desk.put("a")]
        assert desk.answers() == [(number, "not_ready") for number in refused]
        monkeypatch.setattr(Wal, "find_room", lambda wal: found.is_set() and real(wal))
        nursery.start_soon(desk.loop.context.room.run)
        found.set()
        with trio.fail_after(10):
            while desk.words.state != ShardState.READY:  # noqa: ASYNC110 - no event tells
                await trio.sleep(0.001)
        desk.append("a", 1)
        desk.loop.end_turn()
        with trio.fail_after(10):
            while not desk.wire.sent:  # noqa: ASYNC110 - no event tells
                await trio.sleep(0.001)
        assert [status for _, status in desk.answers()] == [201]
        nursery.cancel_scope.cancel()
    shard.wal.stop()
