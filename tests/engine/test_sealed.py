"""Sealed records: extents take the place of writes, and nothing else changes."""

from __future__ import annotations

from tests.engine.shard_support import Desk, fill
from topics.engine.locators import in_extent
from topics.engine.record_index import IndexEntry
from topics.engine.removal import cut_to, delete_runs
from topics.engine.sealed import parts, seal
from topics.engine.topic import Topic
from topics.formats.ranges import SeqRun


def extent(first_seq: int, count: int, index: int) -> IndexEntry:
    return IndexEntry(first_seq, count, in_extent(1, index), 10_000, 0)


def state(topic: Topic) -> tuple[int, int, int]:
    return topic.start_seq, topic.count, topic.bytes


def layout(topic: Topic) -> list[tuple[int, int, int]]:
    """First seq, records and live records of each entry."""
    index = topic.index
    return [(*index.entry(at)[:2], index.live_count(at)) for at in range(len(index))]


def test_extents_cut_writes_anew_and_leave_counts_and_bytes(desk: Desk) -> None:
    fill(desk, 2, 3, 4)
    topic = desk.engine.topic("a")
    before = state(topic)
    assert seal(topic, [extent(1, 4, 0), extent(5, 5, 1)], desk) == []
    assert layout(topic) == [(1, 4, 4), (5, 5, 5)]
    assert state(topic) == before
    assert topic.index.totals(0, 2) == before[1:]
    assert [*topic.index.locators()] == [in_extent(1, 0), in_extent(1, 1)]
    assert topic.sealed_seq == 9


def test_extents_are_put_in_part_by_part_and_no_write_reaches_over_two(desk: Desk) -> None:
    fill(desk, 2, 3, 4, 1, 2)
    topic = desk.engine.topic("a")
    before = state(topic)
    extents = [extent(1, 2, 0), extent(3, 1, 1), extent(4, 3, 2), extent(7, 3, 3), extent(10, 3, 4)]
    found = []
    for part in parts(topic, extents):
        found.append([entry.first_seq for entry in part])
        seal(topic, part, desk)
        assert state(topic) == before
        assert topic.index.totals(0, len(topic.index)) == before[1:]
    assert found == [[1], [3, 4, 7], [10]]
    assert [first_seq for first_seq, _, _ in layout(topic)] == [1, 3, 4, 7, 10]
    assert [*parts(topic, extents)] == []


def test_what_went_meanwhile_is_gone_from_the_extents_too(desk: Desk) -> None:
    fill(desk, 2, 3, 4)
    topic = desk.engine.topic("a")
    cut_to(topic, 2, desk)
    delete_runs(topic, [SeqRun(4, 3)], desk)
    before = state(topic)
    seal(topic, [extent(1, 5, 0), extent(6, 4, 1)], desk)
    assert layout(topic) == [(1, 5, 2), (6, 4, 3)]
    assert state(topic) == before
    assert topic.index.totals(0, 2) == before[1:]


def test_an_extent_in_which_nothing_lives_is_not_used(desk: Desk) -> None:
    fill(desk, 2, 3, 4)
    topic = desk.engine.topic("a")
    cut_to(topic, 6, desk)
    assert seal(topic, [extent(1, 5, 0), extent(6, 4, 1)], desk) == [in_extent(1, 0)]
    assert layout(topic) == [(6, 4, 4)]


def test_writes_between_extents_stay_where_they_are(desk: Desk) -> None:
    fill(desk, 2, 3, 4)
    topic = desk.engine.topic("a")
    between = topic.index.entry(1)
    seal(topic, [extent(1, 2, 0), extent(6, 4, 1)], desk)
    assert layout(topic) == [(1, 2, 2), (3, 3, 3), (6, 4, 4)]
    assert topic.index.entry(1) == between
