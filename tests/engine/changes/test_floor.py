"""Floor moved: what is shown as gone stays gone, and the log is told."""

from __future__ import annotations

from tests.engine.shard_support import Desk, expire, fill
from topics.engine.now import Now
from topics.formats.disk.frames import FrameKind


def test_a_floor_that_was_shown_stays_when_the_clock_steps_back(desk: Desk) -> None:
    fill(desk, 2, ttl_ms=10)
    desk.later(11)
    expire(desk)
    desk.now = Now(desk.now.ts - 1000, desk.now.ms)
    assert expire(desk) is None
    assert (desk.engine.topic("a").earliest_seq, desk.engine.topic("a").count) == (3, 0)
    desk.put("a", ttl_ms=0)
    desk.commit()
    assert desk.engine.topic("a").earliest_seq == 3


def test_the_log_is_told_again_of_a_floor_whose_frame_was_lost(desk: Desk) -> None:
    fill(desk, 1, ttl_ms=10)
    desk.later(11)
    moved = desk.engine.expire(desk.engine.topic("a"), desk.now)
    assert moved is not None
    assert [frame.kind for frame in moved.frames] == [FrameKind.FLOOR]
    assert not moved.sync
    assert expire(desk) is None
    desk.engine.undo(moved)
    assert expire(desk) is not None
