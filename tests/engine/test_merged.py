"""Merged records: extents take the place of those that they were copied from, and nothing else
changes.
"""

from __future__ import annotations

import pytest

from tests.engine.shard_support import Desk, fill
from topics.engine.locators import Locator, in_extent, is_extent, split_locator
from topics.engine.merged import MergedExtent, replace_merged
from topics.engine.record_index import IndexEntry
from topics.engine.sealed import seal
from topics.engine.topic import Topic


def extent(first_seq: int, count: int, number: int, at: int, size: int = 0) -> IndexEntry:
    return IndexEntry(first_seq, count, in_extent(number, at), size, 0)


def is_merged(locator: Locator) -> bool:
    return is_extent(locator) and split_locator(locator)[0] in (1, 2)


def layout(topic: Topic) -> list[tuple[int, int, int, tuple[int, int]]]:
    """First seq, records, live records and extent of each entry."""
    index = topic.index
    return [
        (*index.entry(at)[:2], index.live_count(at), split_locator(index.entry(at)[2]))
        for at in range(len(index))
    ]


@pytest.fixture
def topic(desk: Desk) -> Topic:
    """Three extents in two segments, one in a third, and a write in the log."""
    fill(desk, 4, 4, 4, 4, 2)
    topic = desk.engine.topic("a")
    for first, number in ((1, 1), (5, 1), (9, 2), (13, 3)):
        seal(topic, [extent(first, 4, number, first)], desk)
    return topic


def sizes(topic: Topic, *entries: int) -> int:
    return sum(topic.index.entry(at)[3] for at in entries)


def test_one_extent_takes_the_place_of_three(topic: Topic, desk: Desk) -> None:
    before = topic.count, topic.bytes, topic.start_seq
    merged = MergedExtent(extent(1, 12, 9, 0, sizes(topic, 0, 1, 2)), 0)
    replace_merged(topic, [merged], 1, 12, is_merged, desk)
    assert layout(topic)[:2] == [(1, 12, 12, (9, 0)), (13, 4, 4, (3, 13))]
    assert (topic.count, topic.bytes, topic.start_seq) == before


def test_an_extent_may_become_several_without_what_was_dead_between_them(
    topic: Topic, desk: Desk
) -> None:
    for at, gone in ((0, 1), (1, 3)):
        topic.bytes -= topic.index.take(at, gone, 30 * gone)
        topic.count -= gone
    left = sizes(topic, 0), sizes(topic, 1, 2)
    copies = [
        MergedExtent(extent(1, 4, 9, 0, left[0]), 1),
        MergedExtent(extent(8, 5, 9, 1, left[1]), 0),
    ]
    # Seqs 5 to 7 are the dead ones of the second extent.
    before = topic.count, topic.bytes
    replace_merged(topic, copies, 1, 12, is_merged, desk)
    assert layout(topic)[:3] == [(1, 4, 3, (9, 0)), (8, 5, 5, (9, 1)), (13, 4, 4, (3, 13))]
    assert (topic.count, topic.bytes) == before
    assert topic.index.totals(0, 2) == (8, sum(left))


def test_entries_that_are_not_merged_stay_between_others(topic: Topic, desk: Desk) -> None:
    def is_one(locator: Locator) -> bool:
        return is_extent(locator) and split_locator(locator) in ((1, 1), (2, 9))

    copies = [
        MergedExtent(extent(1, 4, 9, 0, sizes(topic, 0)), 0),
        MergedExtent(extent(9, 4, 9, 1, sizes(topic, 2)), 0),
    ]
    replace_merged(topic, copies, 1, 12, is_one, desk)
    assert [found[3] for found in layout(topic)[:4]] == [(9, 0), (1, 5), (9, 1), (3, 13)]


def test_a_guessed_size_is_corrected(topic: Topic, desk: Desk) -> None:
    true = sizes(topic, 0, 1, 2)
    topic.bytes -= topic.index.take(0, 1, 1)  # one byte for a record that is longer
    topic.count -= 1
    before = topic.bytes
    merged = MergedExtent(extent(1, 12, 9, 0, true - 20), 1)
    replace_merged(topic, [merged], 1, 12, is_merged, desk)
    assert topic.bytes == before - 19


def test_what_lives_must_be_the_same(topic: Topic, desk: Desk) -> None:
    with pytest.raises(AssertionError, match="as many records live"):
        replace_merged(topic, [MergedExtent(extent(1, 11, 9, 0, 100), 0)], 1, 12, is_merged, desk)


def test_a_topic_that_is_empty_by_now_stays_so(desk: Desk) -> None:
    fill(desk, 1)
    topic = desk.engine.topic("a")
    topic.index.drop(1)
    replace_merged(topic, [], 1, 12, is_merged, desk)
    assert len(topic.index) == 0
