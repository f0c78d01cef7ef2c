"""Store: flags of deleted records in memory, and the live records beside them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.engine.store import FLAGS_STEP, DeleteFlags, first_live, last_live


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
def test_one_live_record_is_found_among_many_steps_of_deleted_ones(live: int) -> None:
    deleted = bytearray(b"\1" * (3 * FLAGS_STEP + 5))
    deleted[live] = 0
    assert first_live(deleted, 0, len(deleted)) == live
    assert last_live(memoryview(deleted), 0, len(deleted)) == live


def test_flags_add_up_by_locator() -> None:
    flags = DeleteFlags()
    assert flags.of(7) is None
    flags.flag(7, 5, [(0, 1)])
    flags.flag(7, 5, [(3, 5)])
    flags.flag(8, 2, [(1, 2)])
    assert flags.of(7) == b"\1\0\0\1\1"
    assert flags.of(8) == b"\0\1"


def test_all_deleted_writes_of_one_record_share_one_object() -> None:
    flags = DeleteFlags()
    for locator in (1, 2):
        flags.flag(locator, 1, [(0, 1)])
    flags.flag(1, 1, [(0, 1)])
    assert flags.of(1) == b"\1"
    assert flags.of(1) is flags.of(2)


def test_flags_of_released_locators_are_forgotten() -> None:
    flags = DeleteFlags()
    flags.flag(1, 2, [(0, 1)])
    flags.flag(2, 2, [(0, 1)])
    flags.forget([1, 99])
    assert (len(flags), flags.of(1), flags.of(2)) == (1, None, b"\1\0")
