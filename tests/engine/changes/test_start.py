"""The first frames of a process: at which seqs topics continue after a restart, and which losses
readers see.
"""

from __future__ import annotations

import pytest

from tests.engine.shard_support import (
    EngineHarness,
    body_of,
    expire,
    fill,
    gap_of,
    header_of,
    seqs_of,
)
from topics.engine.changes import floor, start
from topics.engine.changes.replay_dispatch import REPLAYS, replay_frame
from topics.engine.replay import Replay, StateMismatch
from topics.engine.topic import RESERVE_MIN
from topics.engine.topic_table import TopicTable
from topics.formats.disk.frame_bodies import TS_AHEAD_MS, Floors, floor_frame, lost_frame
from topics.formats.disk.frames import (
    FrameHeader,
    FrameKind,
)
from topics.formats.ranges import SeqRange


def started(harness: EngineHarness, *, clean: bool, tail_may_be_lost: bool) -> list[FrameKind]:
    """Return the kinds of the frames that a starting process writes."""
    frames = start.decide(
        Replay(harness.engine.table), harness.now, clean=clean, tail_may_be_lost=tail_may_be_lost
    )
    return [frame.kind for frame in frames]


@pytest.mark.parametrize(
    ("durability", "clean", "tail_may_be_lost", "is_skipping"),
    [
        *(("disk", False, True, True), ("disk", False, False, False), ("disk", True, True, False)),
        *(("ephemeral", False, False, True), ("ephemeral", True, False, False)),
        ("fsync", False, True, False),
    ],
)
def test_a_topic_continues_above_its_reserved_seqs_if_records_that_readers_saw_may_be_lost(
    harness: EngineHarness, durability: str, clean: bool, tail_may_be_lost: bool, is_skipping: bool
) -> None:
    fill(harness, 3, durability=durability)
    topic = harness.engine.topic("a")
    topic.reserved_seq = RESERVE_MIN  # Seqs may also be reserved under an earlier durability class
    frames = started(harness, clean=clean, tail_may_be_lost=tail_may_be_lost)
    if is_skipping:
        assert (topic.head_seq, topic.next_seq) == (RESERVE_MIN, RESERVE_MIN + 1)
        assert gap_of(harness.read("a", 3)) == (4, RESERVE_MIN, "mixed")
        assert frames == [FrameKind.TOPIC]
    else:
        assert (topic.head_seq, topic.next_seq, frames) == (3, 4, [])
        assert gap_of(harness.read("a", 3)) is None
    assert seqs_of(harness.read("a")) == [1, 2, 3]


def test_skipped_seqs_are_lost_to_readers_and_never_assigned(harness: EngineHarness) -> None:
    fill(harness, 3)
    topic = harness.engine.topic("a")
    (frame,) = start.skip_seqs(harness.engine.table, 1000, harness.now)
    assert frame.kind == FrameKind.TOPIC
    assert (topic.head_seq, topic.next_seq) == (1003, 1004)
    assert topic.reserved_seq >= 1003
    assert seqs_of(harness.read("a")) == [1, 2, 3]
    assert gap_of(harness.read("a", 3)) == (4, 1003, "mixed")
    assert gap_of(harness.read("a", 700)) == (
        701,
        1003,
        "mixed",
    )  # read before the copy was promoted
    fill(harness, 1)
    assert seqs_of(harness.read("a", 1003)) == [1004]


def test_a_topic_in_memory_continues_at_the_reserved_ts(harness: EngineHarness) -> None:
    fill(harness, 1, durability="ephemeral")
    ceiling = harness.engine.table.reserved_ts = harness.now.ts + 77_000
    started(harness, clean=False, tail_may_be_lost=False)
    assert harness.engine.topic("a").last_ts == ceiling


def test_a_write_that_was_reported_as_damaged_stays_deleted_after_a_restart(
    harness: EngineHarness,
) -> None:
    fill(harness, 2, 3, 1)
    topic = harness.engine.topic("a")
    topic.damaged = (SeqRange(3, 5),)
    started(harness, clean=True, tail_may_be_lost=False)
    assert (topic.count, len(topic.index)) == (3, 2)
    assert seqs_of(harness.read("a", 5)) == [6]
    assert gap_of(harness.read("a", 2)) == (3, 5, "damaged")


def test_a_start_reserves_timestamps_and_its_replay_restores_them(harness: EngineHarness) -> None:
    table = harness.engine.table
    started(harness, clean=True, tail_may_be_lost=False)
    assert (table.reserved_ts, table.reserving_ts) == (harness.now.ts + TS_AHEAD_MS,) * 2
    header = FrameHeader(b"", 0, 0, 0, 0, 0, 500, 0, 0, 0, FrameKind.START, 0, 0)
    start.replay(Replay(table), header, b"", False)
    assert table.reserved_ts == 500 + TS_AHEAD_MS


# FLOOR frames


def test_an_undone_floor_is_written_to_the_log_again(harness: EngineHarness) -> None:
    fill(harness, 1, ttl_ms=10)
    harness.later(11)
    moved = harness.engine.expire(harness.engine.topic("a"), harness.now)
    assert moved is not None
    assert [frame.kind for frame in moved.frames] == [FrameKind.FLOOR]
    assert not moved.sync
    assert expire(harness) is None
    harness.engine.undo(moved)
    assert expire(harness) is not None


def replayed(
    harness: EngineHarness, replay: Replay, start_seq: int, lsn: int
) -> tuple[int, int, int]:
    """Return the earliest seq, the evict floor and the count after a FLOOR frame at `lsn`."""
    topic = harness.engine.topic("a")
    frame = floor_frame(topic.id, start_seq, Floors(1, start_seq, 1, 1, 1))
    floor.replay(replay, header_of(frame, lsn), body_of(frame), False)
    return topic.earliest_seq, topic.evict_floor, topic.count


def test_a_replayed_floor_removes_expired_records(harness: EngineHarness) -> None:
    fill(harness, 2, 3)
    replay = Replay(harness.engine.table)
    assert replayed(harness, replay, 4, lsn=10) == (4, 4, 2)
    assert replayed(harness, replay, 2, lsn=20) == (4, 4, 2), "an older floor brings nothing back"


def test_a_floor_frame_that_the_checkpoint_covers_is_ignored(harness: EngineHarness) -> None:
    fill(harness, 2, 3)
    replay = Replay(harness.engine.table)
    replay.note_restored(harness.engine.topic("a"), 5, lsn=100)
    assert replayed(harness, replay, 4, lsn=99) == (1, 1, 5)
    assert replayed(harness, replay, 4, lsn=100) == (4, 4, 2)


def test_a_replay_attributes_expired_records_to_age_even_if_a_cap_removed_them_first(
    harness: EngineHarness,
) -> None:
    fill(harness, 3)
    topic, replay = harness.engine.topic("a"), Replay(harness.engine.table)
    topic.cap_floor = 2  # Set by a write before the FLOOR frame that was committed after the frame
    assert replayed(harness, replay, 4, lsn=10) == (4, 4, 0)
    assert (topic.cap_floor, topic.ttl_floor) == (1, 4)


def test_records_that_a_cap_removed_above_the_floor_stay_attributed_to_the_cap(
    harness: EngineHarness,
) -> None:
    fill(harness, 3, 3)
    topic, replay = harness.engine.topic("a"), Replay(harness.engine.table)
    topic.cap_floor = 5
    replayed(harness, replay, 4, lsn=10)
    assert (topic.cap_floor, topic.ttl_floor) == (5, 4)


# LOST frames


def lose(replay: Replay, topic_id: int, first_seq: int, seqs: int, *, lsn: int = 1 << 20) -> None:
    frame = lost_frame([(topic_id, first_seq, seqs)], 64)
    replay_frame(replay, header_of(frame, lsn), b"", False)


def started_lost(harness: EngineHarness, replay: Replay) -> list[FrameKind]:
    frames = start.decide(replay, harness.now, clean=False, tail_may_be_lost=False)
    return [frame.kind for frame in frames]


def test_a_lost_frame_reserves_the_id_of_an_unknown_topic(harness: EngineHarness) -> None:
    replay = Replay(harness.engine.table)
    lose(replay, 77, 1, 5)
    fill(harness, 1)
    assert harness.engine.topic("a").id > 77


def test_seqs_deleted_before_the_damage_are_not_reported_as_lost(harness: EngineHarness) -> None:
    fill(harness, 3)
    topic, replay = harness.engine.topic("a"), Replay(harness.engine.table)
    harness.delete_records("a", before_seq=3)
    harness.commit()
    lose(replay, topic.id, 1, 2)
    assert gap_of(harness.read("a")) is None
    assert seqs_of(harness.read("a")) == [3]


def test_only_a_topic_without_a_later_write_skips_the_seqs_that_it_may_have_lost(
    harness: EngineHarness,
) -> None:
    fill(harness, 3)
    topic, replay = harness.engine.topic("a"), Replay(harness.engine.table)
    lose(replay, 0, 0, 100)
    lose(replay, 0, 0, 10)
    harness.append("a", 4)
    harness.commit()
    assert started_lost(harness, replay) == []
    assert topic.next_seq == 5
    lose(replay, 0, 0, 100)
    lose(replay, 0, 0, 10)
    assert started_lost(harness, replay) == [FrameKind.TOPIC]
    assert topic.next_seq == 115
    assert gap_of(harness.read("a", 4)) == (5, 114, "damaged")
    assert started_lost(harness, replay) == [], "the frame of the first start says so"


def test_one_lost_frame_reports_losses_of_several_topics(harness: EngineHarness) -> None:
    fill(harness, 3)
    harness.put("b")
    harness.commit()
    replay, a, b = Replay(harness.engine.table), *map(harness.engine.topic, "ab")
    frame = lost_frame([(a.id, 4, 2), (b.id, 1, 7), (0, 0, 5)], 112)
    replay_frame(replay, header_of(frame), body_of(frame), False)
    assert (gap_of(harness.read("a", 3)), gap_of(harness.read("b"))) == (
        (4, 5, "damaged"),
        (1, 7, "damaged"),
    )
    assert {*replay.uncertain_heads} == {a.id, b.id}


# Dispatch of frames by kind


def of_kind(kind: int) -> FrameHeader:
    return FrameHeader(b"", 0, 0, 0, 1, 1, 0, 0, 0, 0, kind, 0, 0)


def test_every_frame_kind_has_a_replay_function() -> None:
    """Frames with records are the exception: `LogReplay` replays them, because it knows their log
    file.
    """
    with_records = {FrameKind.APPEND, FrameKind.FORWARD}
    assert {*REPLAYS} == {*FrameKind} - with_records


def test_a_frame_of_an_unknown_kind_is_a_misfit() -> None:
    with pytest.raises(StateMismatch, match="kind is unknown"):
        replay_frame(Replay(TopicTable()), of_kind(250), b"", False)


@pytest.mark.parametrize(
    "kind",
    [
        FrameKind.TOPIC_DELETED,
        FrameKind.DELETE,
        FrameKind.LEASE,
        FrameKind.FLOOR,
        FrameKind.SEQS_RESERVED,
    ],
)
def test_a_frame_of_an_unknown_topic_is_allowed_only_below_the_checkpoint(kind: FrameKind) -> None:
    replay = Replay(TopicTable())
    replay_frame(replay, of_kind(kind), b"", True)
    with pytest.raises(StateMismatch, match="unknown topic"):
        replay_frame(replay, of_kind(kind), b"", False)
