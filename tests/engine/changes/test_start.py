"""Start: where topics go on after a restart, and what their readers are told."""

from __future__ import annotations

import pytest

from tests.engine.shard_support import Desk, fill, seqs_of, told
from topics.engine.changes import start
from topics.engine.replay import Replay
from topics.engine.topic import RESERVE_MIN
from topics.formats.disk.frame_bodies import TS_AHEAD_MS
from topics.formats.disk.frames import FrameHeader, FrameKind
from topics.formats.ranges import SeqRange


def started(desk: Desk, *, clean: bool, tail_may_be_lost: bool) -> list[FrameKind]:
    """The kinds of the frames with which the process starts."""
    frames = start.decide(
        Replay(desk.engine.table), desk.now, clean=clean, tail_may_be_lost=tail_may_be_lost
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
def test_a_topic_goes_on_above_its_reserved_seqs_where_some_may_have_been_shown_and_lost(
    desk: Desk, durability: str, clean: bool, tail_may_be_lost: bool, is_skipping: bool
) -> None:
    fill(desk, 3, durability=durability)
    topic = desk.engine.topic("a")
    topic.reserved_seq = RESERVE_MIN  # also of a class that was another one before
    frames = started(desk, clean=clean, tail_may_be_lost=tail_may_be_lost)
    if is_skipping:
        assert (topic.head_seq, topic.next_seq) == (RESERVE_MIN, RESERVE_MIN + 1)
        assert told(desk.read("a", 3)) == (4, RESERVE_MIN, "mixed")
        assert frames == [FrameKind.TOPIC]
    else:
        assert (topic.head_seq, topic.next_seq, frames) == (3, 4, [])
        assert told(desk.read("a", 3)) is None
    assert seqs_of(desk.read("a")) == [1, 2, 3]


def test_records_in_memory_go_on_at_the_reserved_ts(desk: Desk) -> None:
    fill(desk, 1, durability="ephemeral")
    ceiling = desk.engine.table.reserved_ts = desk.now.ts + 77_000
    started(desk, clean=False, tail_may_be_lost=False)
    assert desk.engine.topic("a").last_ts == ceiling


def test_a_write_that_was_found_damaged_before_the_stop_does_not_come_back(desk: Desk) -> None:
    fill(desk, 2, 3, 1)
    topic = desk.engine.topic("a")
    topic.damaged = (SeqRange(3, 5),)
    started(desk, clean=True, tail_may_be_lost=False)
    assert (topic.count, len(topic.index)) == (3, 2)
    assert seqs_of(desk.read("a", 5)) == [6]
    assert told(desk.read("a", 2)) == (3, 5, "damaged")


def test_a_start_reserves_ts_and_a_replay_of_it_knows_them(desk: Desk) -> None:
    table = desk.engine.table
    started(desk, clean=True, tail_may_be_lost=False)
    assert (table.reserved_ts, table.reserving_ts) == (desk.now.ts + TS_AHEAD_MS,) * 2
    header = FrameHeader(b"", 0, 0, 0, 0, 0, 500, 0, 0, 0, FrameKind.START, 0, 0)
    start.replay(Replay(table), header, b"", False)
    assert table.reserved_ts == 500 + TS_AHEAD_MS
