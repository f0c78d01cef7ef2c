"""Retries: a change that makes room is tried once more, in a group of its own."""

from __future__ import annotations

import errno
import os

from tests.support.shard import Desk
from topics.formats.disk.frames import FrameKind
from topics.storage.wal.file import NoRoom

FULL = NoRoom(errno.ENOSPC, os.strerror(errno.ENOSPC))
BROKEN = OSError(errno.EIO, os.strerror(errno.EIO))


async def test_what_is_tried_again_shares_its_group_with_no_other_change(desk: Desk) -> None:
    desk.make("a")
    desk.append("a", 1)
    desk.written()
    desk.answers()
    deletion = desk.delete_records("a", before_seq=2)
    desk.failed(FULL)
    before = len(desk.log.groups)
    lost = desk.append("a", 2)
    desk.flush()
    assert len(desk.log.groups) == before + 1
    kinds = [frame.kind for frame in desk.log.frames.values()]
    assert kinds[-2:] == [FrameKind.DELETE, FrameKind.APPEND]
    desk.synced()
    assert desk.answers() == [(deletion, 200), (lost, 200)]


async def test_what_failed_twice_or_for_another_reason_is_refused(desk: Desk) -> None:
    desk.make("a")
    desk.append("a", 1)
    desk.written()
    desk.answers()
    twice = desk.delete_records("a", before_seq=2)
    desk.failed(FULL)
    assert desk.answers() == []
    desk.failed(FULL)
    assert desk.answers() == [(twice, "not_ready")]
    other = desk.delete_records("a", before_seq=2)
    desk.failed(BROKEN)
    assert desk.answers() == [(other, "not_ready")]


async def test_a_request_whose_front_has_gone_is_not_tried_again(desk: Desk) -> None:
    desk.make("a")
    desk.append("a", 1)
    desk.written()
    desk.delete_records("a", before_seq=2)
    desk.flush()
    desk.session.close()
    groups = len(desk.log.groups)
    desk.failed(FULL)
    assert len(desk.log.groups) == groups
