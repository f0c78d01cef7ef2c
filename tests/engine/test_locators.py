"""Locators: each kind has its range of 64-bit numbers."""

from __future__ import annotations

from array import array

import pytest

from topics.engine.locators import (
    Locator,
    in_extent,
    in_log,
    in_memory,
    is_extent,
    is_in_log,
    is_in_memory,
    lsn_of,
    split_locator,
)

EDGES = [
    *((in_log(0), "log"), (in_log(2**62 - 1), "log"), (in_extent(0, 0), "extent")),
    *((in_extent(2**38 - 1, 2**24 - 1), "extent"), (in_memory(0), "memory")),
    (in_memory(2**63 - 1), "memory"),
]


@pytest.mark.parametrize(("locator", "kind"), EDGES)
def test_every_locator_is_of_one_kind(locator: Locator, kind: str) -> None:
    answers = (is_in_log(locator), is_extent(locator), is_in_memory(locator))
    assert answers == tuple(kind == each for each in ("log", "extent", "memory"))


@pytest.mark.parametrize(("locator", "kind"), EDGES)
def test_a_locator_fits_the_column_of_the_index(locator: Locator, kind: str) -> None:
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
