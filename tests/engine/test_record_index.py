"""Record index: cheap removal at the front, little memory, and exact ranges between two LSNs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.engine.locators import (
    Locator,
    in_extent,
    in_log,
    in_memory,
    is_extent,
    is_in_log,
    is_in_memory,
)
from topics.engine.record_index import RecordIndex
from topics.engine.store import FLAGS_STEP, DeleteFlagTable, first_live, last_live


def test_dropping_the_front_is_cheap_and_the_remaining_entries_are_found() -> None:
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


def test_an_entry_takes_less_than_forty_bytes_and_an_empty_index_none() -> None:
    index = RecordIndex()
    assert index.bytes_used() == 0
    for number in range(100_000):
        index.add(number, 1, in_log(number), 50, number)
    assert index.bytes_used() < 40 * 100_000
    while len(index) > 50_000:
        index.drop(1)
    assert index.bytes_used() < 40 * 60_000


# Locators: each kind has its range of 64-bit numbers


EDGES = [
    *((in_log(0), "log"), (in_log(2**62 - 1), "log"), (in_extent(0, 0), "extent")),
    *((in_extent(2**38 - 1, 2**24 - 1), "extent"), (in_memory(0), "memory")),
    (in_memory(2**63 - 1), "memory"),
]


@pytest.mark.parametrize(("locator", "kind"), EDGES)
def test_every_locator_has_exactly_one_kind(locator: Locator, kind: str) -> None:
    answers = (is_in_log(locator), is_extent(locator), is_in_memory(locator))
    assert answers == tuple(kind == each for each in ("log", "extent", "memory"))


# Store


@given(st.binary(max_size=12).map(lambda raw: bytes(byte & 1 for byte in raw)), st.data())
def test_the_first_and_the_last_live_record_of_a_range_are_found(
    deleted: bytes, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(deleted)))
    stop = data.draw(st.integers(start, len(deleted)))
    live = [index for index in range(start, stop) if not deleted[index]]
    assert first_live(deleted, start, stop) == (live[0] if live else stop)
    assert last_live(deleted, start, stop) == (live[-1] if live else -1)


@pytest.mark.parametrize("live", [0, 1, FLAGS_STEP - 1, FLAGS_STEP, 3 * FLAGS_STEP + 4])
def test_a_single_live_record_among_many_deleted_ones_is_found(live: int) -> None:
    deleted = bytearray(b"\1" * (3 * FLAGS_STEP + 5))
    deleted[live] = 0
    assert first_live(deleted, 0, len(deleted)) == live
    assert last_live(memoryview(deleted), 0, len(deleted)) == live


def test_delete_flags_of_one_locator_accumulate() -> None:
    flags = DeleteFlagTable()
    assert flags.get(7) is None
    flags.flag(7, 5, [(0, 1)])
    flags.flag(7, 5, [(3, 5)])
    flags.flag(8, 2, [(1, 2)])
    assert flags.get(7) == b"\1\0\0\1\1"
    assert flags.get(8) == b"\0\1"


def test_all_deleted_writes_of_one_record_share_one_object() -> None:
    flags = DeleteFlagTable()
    for locator in (1, 2):
        flags.flag(locator, 1, [(0, 1)])
    flags.flag(1, 1, [(0, 1)])
    assert flags.get(1) == b"\1"
    assert flags.get(1) is flags.get(2)


def test_delete_flags_of_released_locators_are_dropped() -> None:
    flags = DeleteFlagTable()
    flags.flag(1, 2, [(0, 1)])
    flags.flag(2, 2, [(0, 1)])
    flags.drop([1, 99])
    assert (len(flags), flags.get(1), flags.get(2)) == (1, None, b"\1\0")
