"""Floor moved: what is shown as gone stays gone, and the log is told."""

from __future__ import annotations

from tests.engine.shard_support import Desk, expire, fill
from topics.engine.changes import floor
from topics.engine.now import Now
from topics.engine.replay import Replay
from topics.formats.disk.frame_bodies import Floors, floor_frame
from topics.formats.disk.frames import FrameHeader, FrameKind


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


def replayed(desk: Desk, replay: Replay, start_seq: int, lsn: int) -> tuple[int, int, int]:
    """Earliest seq, evict floor and count after a FLOOR frame at ``lsn``."""
    topic = desk.engine.topic("a")
    frame = floor_frame(topic.id, start_seq, Floors(1, start_seq, 1, 1, 1))
    header = FrameHeader(b"", 0, lsn, 0, topic.id, start_seq, 0, 0, 0, 0, frame.kind, 0, 0)
    floor.replay(replay, header, b"".join(frame.parts), False)
    return topic.earliest_seq, topic.evict_floor, topic.count


def test_a_replay_takes_away_what_was_too_old(desk: Desk) -> None:
    fill(desk, 2, 3)
    replay = Replay(desk.engine.table)
    assert replayed(desk, replay, 4, lsn=10) == (4, 4, 2)
    assert replayed(desk, replay, 2, lsn=20) == (4, 4, 2), "an older floor brings nothing back"


def test_a_floor_that_the_checkpoint_knows_is_not_replayed(desk: Desk) -> None:
    fill(desk, 2, 3)
    replay = Replay(desk.engine.table)
    replay.note_restored(desk.engine.topic("a"), 5, lsn=100)
    assert replayed(desk, replay, 4, lsn=99) == (1, 1, 5)
    assert replayed(desk, replay, 4, lsn=100) == (4, 4, 2)


def test_a_cap_that_a_replay_applied_too_early_takes_nothing_that_age_had_taken(desk: Desk) -> None:
    fill(desk, 3)
    topic, replay = desk.engine.topic("a"), Replay(desk.engine.table)
    topic.cap_floor = 2  # of a write before the frame, which was committed after it
    assert replayed(desk, replay, 4, lsn=10) == (4, 4, 0)
    assert (topic.cap_floor, topic.ttl_floor) == (1, 4)


def test_what_a_cap_took_behind_the_frame_stays_taken_by_it(desk: Desk) -> None:
    fill(desk, 3, 3)
    topic, replay = desk.engine.topic("a"), Replay(desk.engine.table)
    topic.cap_floor = 5
    replayed(desk, replay, 4, lsn=10)
    assert (topic.cap_floor, topic.ttl_floor) == (5, 4)
