"""Effective priority and its bands."""

from __future__ import annotations

import pytest

from topics.engine import priority
from topics.engine.priority import BANDS, NEW_BAND, RECENT, TOP_BAND, band_of, recency_priority
from topics.formats.api.topic_config import PRIORITY_LIMIT


@pytest.mark.parametrize(
    ("age_ms", "expected"),
    [
        *((0, 500), (1, 499), (29_999, 250), (30_000, 250), (30_001, 249), (60_000, 125)),
        *((90_000, 62), (268_900, 1), (269_000, 0), (300_000, 0), (10**12, 0)),
    ],
)
def test_priority_halves_with_the_age_of_the_last_read(age_ms: int, expected: int) -> None:
    assert recency_priority(age_ms) == expected


def test_a_read_that_is_noted_with_a_later_clock_is_a_read_of_now() -> None:
    assert recency_priority(-40) == RECENT


@pytest.mark.parametrize(
    ("effective", "band"),
    [
        *((-1000, 0), (-1, 0), (0, 1), (1, 2), (249, 2), (250, 3), (749, 3), (750, 4), (1000, 4)),
    ],
)
def test_bands_begin_where_the_table_says(effective: int, band: int) -> None:
    assert band_of(effective) == band


def test_the_tables_of_the_docstring_are_the_code() -> None:
    text = priority.__doc__ or ""
    rows = [line.split() for line in text.splitlines() if line[4:5].isdigit()]
    assert [int(row[0]) for row in rows] == [*reversed(range(BANDS))]
    for row in rows:
        lowest, highest = (int(row[1]), int(row[3])) if row[2] == "to" else (int(row[1]),) * 2
        assert {band_of(lowest), band_of(highest)} == {int(row[0])}
        assert band_of(highest + 1) != int(row[0]) or highest == PRIORITY_LIMIT
    (ages,) = (
        line.split()[2:] for line in text.splitlines() if "effective priority  " in line[:28]
    )
    assert ages == ["500", "250", "125", "62", "1", "0"]
    assert (band_of(PRIORITY_LIMIT), band_of(0)) == (TOP_BAND, NEW_BAND)
