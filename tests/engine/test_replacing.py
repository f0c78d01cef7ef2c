"""Replaced entries: extents take the place of writes or other extents; nothing else changes."""

from __future__ import annotations

import pytest

from tests.engine.shard_support import Desk, fill
from topics.engine import replacing
from topics.engine.locators import Locator, in_extent
from topics.engine.record_index import IndexEntry
from topics.engine.removal import cut_to, delete_runs
from topics.engine.replacing import parts, replace_entries
from topics.engine.topic import Topic
from topics.formats.ranges import SeqRun


def extent(first_seq: int, count: int, index: int, segment: int = 1) -> IndexEntry:
    return IndexEntry(first_seq, count, in_extent(segment, index), 10_000, 0)


def replace(topic: Topic, desk: Desk, *extents: IndexEntry, end_seq: int = 0) -> list[Locator]:
    bounds = extents[0].first_seq, end_seq or extents[-1].last_seq + 1
    return replace_entries(topic, extents, *bounds, desk)


def state(topic: Topic) -> tuple[int, int, int]:
    return topic.start_seq, topic.count, topic.bytes


def layout(topic: Topic) -> list[tuple[int, int, int]]:
    """First seq, records and live records of each entry."""
    index = topic.index
    return [(*index.entry(at)[:2], index.live_count(at)) for at in range(len(index))]


@pytest.fixture
def topic(desk: Desk) -> Topic:
    """Three writes: of 2, 3 and 4 records."""
    fill(desk, 2, 3, 4)
    return desk.engine.topic("a")


def test_one_extent_takes_the_place_of_others(topic: Topic, desk: Desk) -> None:
    before = state(topic)
    replace(topic, desk, extent(1, 2, 0), extent(3, 3, 1), extent(6, 4, 2))
    replace(topic, desk, extent(1, 5, 0, segment=2))
    assert layout(topic) == [(1, 5, 5), (6, 4, 4)]
    assert state(topic) == before
    assert topic.sealed_seq == 9


def test_extents_are_put_in_part_by_part_and_no_write_reaches_over_two(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replacing, "STEP_EXTENTS", 1)
    fill(desk, 2, 3, 4, 1, 2)
    topic = desk.engine.topic("a")
    before = state(topic)
    extents = [extent(1, 2, 0), extent(3, 1, 1), extent(4, 3, 2), extent(7, 3, 3), extent(10, 3, 4)]
    found = []
    for part, first_seq, end_seq in parts(topic, extents, 1, 12):
        found.append(([entry.first_seq for entry in part], first_seq, end_seq))
        replace_entries(topic, part, first_seq, end_seq, desk)
        assert state(topic) == before
        assert topic.index.totals(0, len(topic.index)) == before[1:]
    assert found == [([1], 1, 3), ([3, 4, 7], 3, 10), ([10], 10, 13)]
    assert [first_seq for first_seq, _, _ in layout(topic)] == [1, 3, 4, 7, 10]
    assert [*parts(topic, [], 5, 4)] == []
    assert [*parts(topic, [], 5, 6)] == [([], 5, 7)]


def test_what_went_meanwhile_is_gone_from_the_extents_too(topic: Topic, desk: Desk) -> None:
    cut_to(topic, 2, desk)
    delete_runs(topic, [SeqRun(4, 3)], desk)
    before = state(topic)
    replace(topic, desk, extent(1, 5, 0), extent(6, 4, 1))
    assert layout(topic) == [(1, 5, 2), (6, 4, 3)]
    assert state(topic) == before
    assert topic.index.totals(0, 2) == before[1:]


def test_what_was_dead_between_two_extents_is_left_out(desk: Desk) -> None:
    fill(desk, 9)
    topic = desk.engine.topic("a")
    delete_runs(topic, [SeqRun(4, 3)], desk)
    before = state(topic)
    replace(topic, desk, extent(1, 3, 0), extent(7, 3, 1))
    assert layout(topic) == [(1, 3, 3), (7, 3, 3)]
    assert state(topic) == before
    assert topic.index.totals(0, 2) == before[1:]


def test_records_in_memory_stay_where_they_are(desk: Desk) -> None:
    fill(desk, 2, 3)
    fill(desk, 2, 1, durability="ephemeral")
    fill(desk, 4, durability="disk")
    topic = desk.engine.topic("a")
    before, between = state(topic), [topic.index.entry(at) for at in (2, 3)]
    replace(topic, desk, extent(1, 5, 0), extent(9, 4, 1))
    assert layout(topic) == [(1, 5, 5), (6, 2, 2), (8, 1, 1), (9, 4, 4)]
    assert [topic.index.entry(at) for at in (1, 2)] == between
    assert state(topic) == before


def test_a_topic_that_is_empty_by_now_stays_so(desk: Desk) -> None:
    fill(desk, 1)
    topic = desk.engine.topic("a")
    topic.index.drop(1)
    assert replace(topic, desk, extent(1, 1, 0)) == [in_extent(1, 0)]
    assert len(topic.index) == 0
