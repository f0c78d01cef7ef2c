"""Deletes: what becomes of them when the log has no room."""

from __future__ import annotations

import errno
import os

from tests.support.shard import Desk
from topics.formats.disk.frames import FrameKind
from topics.storage.wal.file import NoRoom

FULL = NoRoom(errno.ENOSPC, os.strerror(errno.ENOSPC))


async def test_a_deletion_that_failed_leaves_its_topic_as_it_was(desk: Desk) -> None:
    desk.make("a", durability="ephemeral")
    desk.append("a", "kept")
    desk.answers()
    gone = desk.delete("a")
    new = desk.append("a", "of another topic")
    desk.failed(FULL)
    assert desk.answers() == [(new, "not_ready")]
    desk.failed(FULL)  # alone it could have had the reserve
    assert desk.answers() == [(gone, "not_ready")]
    assert desk.seqs("a") == [1]
    again = desk.append("a", "next")
    assert desk.answers() == [(again, 200)]
    assert desk.seqs("a") == [1, 2]


async def test_a_delete_that_met_a_full_disk_among_appends_is_done_once_more_by_itself(
    desk: Desk,
) -> None:
    desk.make("a")
    desk.append("a", 1, 2)
    desk.make("b")
    desk.append("b", 1)
    desk.synced()
    desk.answers()
    some, whole = desk.delete_records("a", before_seq=2), desk.delete("b")
    lost = desk.append("a", "lost")
    desk.failed(FULL)
    assert desk.answers() == [(lost, "not_ready")]
    assert [frame.kind for frame in list(desk.log.frames.values())[-2:]] == [
        FrameKind.DELETE,
        FrameKind.TOPIC_DELETED,
    ]
    desk.synced()
    assert desk.answers() == [(some, 200), (whole, 200)]
    assert desk.seqs("a") == [2]
