"""Caps and age, one sentence each; the long runs are in test_topic_machine.py and topic_walk.py."""

from __future__ import annotations

import pytest

from tests.engine.shard_support import Desk, expire, fill, seqs_of, told
from topics.engine.changes.append import Append
from topics.engine.dedupe import DedupeEntry
from topics.errors import TopicFull


def test_no_more_records_than_the_cap_are_visible(desk: Desk) -> None:
    fill(desk, 3, 4, 2, cap_records=4)
    topic = desk.engine.topic("a")
    assert (topic.count, topic.earliest_seq, topic.evict_floor) == (4, 6, 6)
    page = desk.read("a")
    assert seqs_of(page) == [6, 7, 8, 9]
    assert told(page) == (1, 5, "cap")


def test_a_cursor_at_the_floor_reads_on_in_silence(desk: Desk) -> None:
    fill(desk, 3, 4, cap_records=4)
    assert told(desk.read("a", 2)) == (3, 3, "cap")
    assert told(desk.read("a", 3)) is None


def test_bytes_are_capped_to_the_byte(desk: Desk) -> None:
    fill(desk, 1, 1, 1)
    size = desk.engine.topic("a").bytes // 3
    for cap, left in ((3 * size, 3), (3 * size - 1, 2), (size, 1), (size - 1, 0)):
        desk.put("a", cap_bytes=cap)
        desk.commit()
        assert (desk.engine.topic("a").count, desk.engine.topic("a").bytes) == (left, left * size)


def test_a_write_larger_than_the_cap_keeps_its_newest_records(desk: Desk) -> None:
    fill(desk, 10, cap_records=3)
    assert seqs_of(desk.read("a")) == [8, 9, 10]


def test_a_relaxed_cap_brings_nothing_back(desk: Desk) -> None:
    fill(desk, 5, cap_records=2)
    desk.put("a", cap_records=0)
    desk.commit()
    assert (desk.engine.topic("a").earliest_seq, desk.engine.topic("a").count) == (4, 2)


def test_a_tightened_cap_counts_when_it_is_committed(desk: Desk) -> None:
    fill(desk, 5)
    desk.put("a", cap_records=2)
    assert desk.engine.topic("a").count == 5
    desk.undo()
    assert desk.engine.topic("a").count == 5
    desk.put("a", cap_records=2)
    desk.commit()
    assert desk.engine.topic("a").count == 2


def test_deleted_records_take_no_room_under_a_cap(desk: Desk) -> None:
    desk.put("a", cap_records=3)
    desk.append(
        "a",
        records=[
            {"data": number, "tag": "even" if number % 2 == 0 else "odd"} for number in range(3)
        ],
    )
    desk.commit()
    desk.delete_records("a", match="odd")
    desk.append("a", 3)
    desk.commit()
    assert seqs_of(desk.read("a")) == [1, 3, 4]
    assert desk.engine.topic("a").evict_floor == 1


@pytest.mark.parametrize(
    ("before", "count", "fits"),
    [(0, 3, True), (0, 4, False), (2, 1, True), (2, 2, False), (3, 1, False)],
)
def test_a_topic_that_rejects_takes_a_write_whole_or_not_at_all(
    desk: Desk, before: int, count: int, fits: bool
) -> None:
    desk.put("a", cap_records=3, discard="reject")
    if before:
        desk.append("a", *range(before))  # on its way counts too
    if fits:
        assert isinstance(desk.append("a", *range(count)), Append)
    else:
        with pytest.raises(TopicFull) as refused:
            desk.append("a", *range(count))
        assert refused.value.detail["topic"] == "a"
        assert desk.engine.topic("a").next_seq == before + 1
    desk.commit()
    assert desk.engine.topic("a").earliest_seq == 1


def test_a_write_that_does_not_fit_makes_no_topic(desk: Desk) -> None:
    with pytest.raises(TopicFull):
        desk.append("a", 1, 2, config={"discard": "reject", "cap_records": 1})
    assert desk.engine.topics == {}


def test_a_retry_is_answered_also_when_the_topic_is_full(desk: Desk) -> None:
    desk.put("a", cap_records=1, discard="reject")
    desk.append("a", 1, key="k")
    desk.commit()
    assert desk.append("a", 2, key="k") == DedupeEntry(1, 1)


def test_room_that_a_failed_write_held_is_given_back(desk: Desk) -> None:
    fill(desk, cap_records=1, discard="reject")
    desk.append("a", 1)
    desk.undo()
    assert isinstance(desk.append("a", 1), Append)


def test_a_record_is_gone_when_it_is_older_than_its_ttl(desk: Desk) -> None:
    fill(desk, 2, ttl_ms=10)
    desk.later(5)
    desk.append("a", "young")
    desk.commit()
    desk.later(5)
    assert expire(desk) is None
    desk.later(1)
    moved = expire(desk)
    assert moved is not None
    page = desk.read("a")
    assert seqs_of(page) == [3]
    assert told(page) == (1, 2, "ttl")


def test_cap_and_age_together_are_mixed(desk: Desk) -> None:
    fill(desk, 1, 1, 1, 1, cap_records=3, ttl_ms=10)
    desk.later(11)
    expire(desk)
    assert told(desk.read("a", 0)) == (1, 4, "mixed")
    assert told(desk.read("a", 1)) == (2, 4, "ttl")
