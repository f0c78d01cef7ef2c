"""Locators: 64-bit unsigned integers with which a topic's index refers to records in the store.

    kind     bits 63, 62   the other bits              what it refers to
    LOG      0, 0          LSN                         an APPEND frame of the log
    EXTENT   0, 1          segment << 24 | extent      an extent of a segment
    MEMORY   1, 0          number                      records of an `ephemeral` topic

Each kind is a range of numbers, so that one comparison distinguishes them. Locators are stored in
``array("Q")``. No other module composes or splits them.
"""

from __future__ import annotations

from typing import NewType

Locator = NewType("Locator", int)

FIRST_EXTENT = 1 << 62
FIRST_MEMORY = 1 << 63
EXTENT_INDEX_BITS = 24
_EXTENT_INDEX_MASK = (1 << EXTENT_INDEX_BITS) - 1


def in_log(lsn: int) -> Locator:
    """Return the locator of the APPEND frame at this LSN."""
    return Locator(lsn)


def in_extent(segment: int, index: int) -> Locator:
    """Return the locator of an extent. ``index`` is its index in the directory of the segment."""
    return Locator(FIRST_EXTENT | segment << EXTENT_INDEX_BITS | index)


def in_memory(number: int) -> Locator:
    """Return the locator of records in memory. ``number`` is unique while the process runs."""
    return Locator(FIRST_MEMORY | number)


def is_in_log(locator: int) -> bool:
    """Return whether the locator refers to a frame of the log."""
    return locator < FIRST_EXTENT


def is_extent(locator: int) -> bool:
    """Return whether the locator refers to an extent of a segment."""
    return FIRST_EXTENT <= locator < FIRST_MEMORY


def is_in_memory(locator: int) -> bool:
    """Return whether the locator refers to records in memory."""
    return locator >= FIRST_MEMORY


def lsn_of(locator: int) -> int:
    """Return the LSN of the frame that a LOG locator refers to."""
    assert locator < FIRST_EXTENT, "the locator is of the kind LOG"
    return locator


def split_locator(locator: int) -> tuple[int, int]:
    """Return ``(segment, index of the extent)`` of an EXTENT locator."""
    return (locator & ~FIRST_EXTENT) >> EXTENT_INDEX_BITS, locator & _EXTENT_INDEX_MASK
