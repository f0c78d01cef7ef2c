"""Record index: cheap at its front, small in memory, exact between two LSNs."""

from __future__ import annotations

from topics.engine.locators import in_extent, in_log, in_memory
from topics.engine.record_index import IndexEntry, RecordIndex


def test_the_front_of_an_index_goes_cheaply_and_entries_are_found_by_what_is_left() -> None:
    index = RecordIndex()
    for number in range(1000):
        index.add(1 + 2 * number, 2, in_log(number), 50, number)
    for dropped in range(1, 1000):
        index.drop(1)
        assert (len(index), index.find(2 * dropped + 1), index.find(1), index.entry(0)[0]) == (
            1000 - dropped,
            0,
            0,
            2 * dropped + 1,
        )
        assert index.find_ts(dropped + 1) == min(1, 1000 - dropped)
    index.drop(1)
    assert (len(index), index.bytes_used()) == (0, 0)


def test_an_entry_takes_less_than_forty_bytes_and_none_takes_nothing() -> None:
    index = RecordIndex()
    assert index.bytes_used() == 0
    for number in range(100_000):
        index.add(number, 1, in_log(number), 50, number)
    assert index.bytes_used() < 40 * 100_000
    while len(index) > 50_000:
        index.drop(1)
    assert index.bytes_used() < 40 * 60_000


def test_only_writes_of_the_log_lie_between_two_lsns() -> None:
    index = RecordIndex()
    locators = [
        *(in_extent(0, 0), in_log(10), in_memory(0), in_log(20), in_memory(1)),
        *(in_log(30), in_log(40)),
    ]
    for seq, locator in enumerate(locators):
        index.add(seq, 1, locator, 50, 0)
    assert [entry.locator for entry in index.entries_between(20, 40)] == [20, 30]
    found = index.entries_between(10, 99)
    assert next(found) == IndexEntry(1, 1, in_log(10), 50, 0)
    index.drop(4)  # meanwhile
    assert [entry.locator for entry in found] == [30, 40]
