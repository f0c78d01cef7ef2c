"""Losses: what a restart or damage takes, and that readers are told of exactly that."""

from __future__ import annotations

from tests.engine.shard_support import Desk, fill, seqs_of, told
from topics.engine.losses import lose, lose_damaged
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
