"""Locators: each kind has its range of 64-bit numbers."""

from __future__ import annotations

from array import array

import pytest

from topics.engine.locators import (
    Locator,
    LocatorKind,
    in_extent,
    in_log,
    in_memory,
    is_extent,
    is_in_log,
    is_in_memory,
    kind_of,
    lsn_of,
    split_locator,
)

EDGES = [
    (in_log(0), LocatorKind.LOG),
    (in_log(2**62 - 1), LocatorKind.LOG),
    (in_extent(0, 0), LocatorKind.EXTENT),
    (in_extent(2**38 - 1, 2**24 - 1), LocatorKind.EXTENT),
    (in_memory(0), LocatorKind.MEMORY),
    (in_memory(2**63 - 1), LocatorKind.MEMORY),
]


@pytest.mark.parametrize(("locator", "kind"), EDGES)
def test_every_locator_is_of_one_kind(locator: Locator, kind: LocatorKind) -> None:
    answers = (is_in_log(locator), is_extent(locator), is_in_memory(locator))
    assert answers == tuple(kind is each for each in LocatorKind)
    assert kind_of(locator) is kind


@pytest.mark.parametrize(("locator", "kind"), EDGES)
def test_a_locator_fits_the_column_of_the_index(locator: Locator, kind: LocatorKind) -> None:
    assert array("Q", [locator])[0] == locator


def test_an_extent_locator_gives_back_its_segment_and_its_index() -> None:
    assert in_extent(7, 3) == 1 << 62 | 7 << 24 | 3
    for segment, index in [(0, 0), (1, 2**24 - 1), (2**38 - 1, 0)]:
        locator = in_extent(segment, index)
        assert split_locator(locator) == (segment, index)


def test_a_log_locator_is_the_lsn_of_its_frame() -> None:
    assert lsn_of(in_log(4711)) == 4711
    with pytest.raises(AssertionError, match="kind LOG"):
        lsn_of(in_extent(1, 1))
