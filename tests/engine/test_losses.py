"""Losses: readers are told of exactly what a restart, damage or the source of a router took."""

from __future__ import annotations

import pytest

from tests.engine.shard_support import Desk, expire, fill, seqs_of, told
from topics.engine.losses import lose, lose_damaged, next_loss, trim_to
from topics.formats.ranges import SeqRange


def test_a_topic_goes_on_behind_what_a_restart_took(desk: Desk) -> None:
    fill(desk, 2)
    topic = desk.engine.topic("a")
    lose(topic, SeqRange(3, 5))
    assert (topic.head_seq, topic.losses) == (5, ((3, 5),))
    page = desk.read("a", 2)
    assert (told(page), page.next_from_seq) == ((3, 5, "mixed"), 5)
    lose(topic, SeqRange(6, 7))
    assert topic.losses == ((3, 7),)


def test_a_damaged_write_leaves_the_index_with_all_that_it_counted(desk: Desk) -> None:
    fill(desk, 2, 3, 1)
    topic = desk.engine.topic("a")
    size = topic.bytes
    gone = topic.index.entry(1)[3]
    lose_damaged(topic, 1, desk)
    assert (topic.count, topic.bytes, len(topic.index)) == (3, size - gone, 2)
    page = desk.read("a", 2)
    assert told(page) == (3, 5, "damaged")
    assert seqs_of(desk.read("a", 5)) == [6]


def test_records_that_were_deleted_before_are_not_lost(desk: Desk) -> None:
    desk.append("a", records=[{"data": n, "tag": "no" if n == 3 else "yes"} for n in range(4)])
    desk.append("a", "next")
    desk.commit()
    desk.delete_records("a", match="no")
    desk.delete_records("a", before_seq=2)
    desk.commit()
    topic = desk.engine.topic("a")
    lose_damaged(topic, 0, desk)
    assert topic.damage_floor == 4, "seqs 2 and 3 were damaged"
    assert (topic.count, topic.earliest_seq) == (1, 5)
    assert told(desk.read("a", 1)) == (2, 4, "damaged"), "a gap runs across what was deleted"


def test_a_damaged_write_at_the_start_moves_the_start_and_its_floor(desk: Desk) -> None:
    fill(desk, 2, 1)
    topic = desk.engine.topic("a")
    lose_damaged(topic, 0, desk)
    assert (topic.earliest_seq, topic.damage_floor, topic.damaged) == (3, 3, ())


# Seqs that are burnt for what the source of a router has lost


def test_seqs_burnt_above_live_records_are_told_in_place(desk: Desk) -> None:
    fill(desk, 2)
    topic = desk.engine.topic("a")
    trim_to(topic, SeqRange(3, 4))
    trim_to(topic, SeqRange(5, 5))
    fill(desk, 1)
    assert (topic.head_seq, topic.next_seq, topic.count) == (6, 7, 3)
    assert (topic.trimmed, topic.trim_floor, topic.evict_floor) == (((3, 5),), 1, 1)
    page = desk.read("a")
    assert (told(page), seqs_of(page), page.next_from_seq) == (None, [1, 2], 2)
    assert [told(desk.read("a", cursor)) for cursor in (2, 3, 4, 5)] == [
        (3, 5, "source_trim"),
        (4, 5, "source_trim"),
        (5, 5, "source_trim"),
        None,
    ]
    assert seqs_of(desk.read("a", 3)) == [6]


@pytest.mark.parametrize("deleted", [0, 2])
def test_seqs_burnt_where_nothing_lives_are_a_floor_at_once(desk: Desk, deleted: int) -> None:
    fill(desk, *[1] * deleted)
    desk.delete_records("a", before_seq=99)
    desk.commit()
    topic = desk.engine.topic("a")
    trim_to(topic, SeqRange(deleted + 1, deleted + 3))
    assert (topic.trimmed, topic.trim_floor) == ((), deleted + 4)
    assert (topic.earliest_seq, topic.head_seq) == (deleted + 4, deleted + 3)
    assert told(desk.read("a", deleted)) == (deleted + 1, deleted + 3, "source_trim")
    assert told(desk.read("a", deleted + 3)) is None


@pytest.mark.parametrize(
    ("how", "reason"), [("delete", "source_trim"), ("cap", "mixed"), ("ttl", "mixed")]
)
def test_burnt_seqs_are_a_floor_once_nothing_lives_before_them(
    desk: Desk, how: str, reason: str
) -> None:
    fill(desk, 2, ttl_ms=100)
    topic = desk.engine.topic("a")
    trim_to(topic, SeqRange(3, 4))
    desk.later(60)
    fill(desk, 2)
    if how == "delete":
        desk.delete_records("a", before_seq=3)
    elif how == "cap":
        desk.put("a", cap_records=2)
    else:
        desk.later(60)
        expire(desk)
    desk.commit()
    assert (topic.earliest_seq, topic.trim_floor, topic.trimmed) == (5, 5, ())
    assert told(desk.read("a")) == (1, 4, reason)
    assert told(desk.read("a", 2)) == (3, 4, "source_trim"), "no other cause took what is above it"


def test_a_replay_over_a_newer_state_burns_nothing_twice(desk: Desk) -> None:
    fill(desk, 1)
    topic = desk.engine.topic("a")
    for first in (2, 6):
        trim_to(topic, SeqRange(first, first + 1))
        topic.next_seq += 2
        fill(desk, 2)
    before = (topic.trimmed, topic.head_seq, topic.next_seq, topic.start_seq, topic.floors)
    assert before[0] == ((2, 3), (6, 7))
    trim_to(topic, SeqRange(2, 3))
    assert before == (
        *(topic.trimmed, topic.head_seq, topic.next_seq),
        *(topic.start_seq, topic.floors),
    )


def test_the_next_loss_is_the_first_of_all_causes(desk: Desk) -> None:
    fill(desk, 1)
    topic = desk.engine.topic("a")
    topic.losses = (SeqRange(9, 10), SeqRange(20, 21))
    topic.damaged = (SeqRange(5, 6), SeqRange(11, 11))
    topic.trimmed = (SeqRange(7, 8),)
    found, seq = [], 1
    while (loss := next_loss(topic, seq, 20)) is not None:
        found.append(loss)
        seq = loss.last + 1
    assert found == [
        (5, 6, "damaged"),
        (7, 8, "source_trim"),
        (9, 10, "mixed"),
        (11, 11, "damaged"),
        (20, 21, "mixed"),
    ]
    assert next_loss(topic, 6, 6) == (5, 6, "damaged"), "a range that has begun before"
    assert next_loss(topic, 12, 19) is None
