"""Locators: where a topic's index finds records again. 64-bit unsigned integers.

    kind     bits 63, 62   the other bits              what it locates
    LOG      0, 0          LSN                         an APPEND frame of the log
    EXTENT   0, 1          segment << 24 | extent      an extent of a segment
    MEMORY   1, 0          number                      records of an `ephemeral` topic

The kinds are ranges of numbers, so one comparison tells them apart. Locators are kept in
``array("Q")``; no other module knows how they are composed.
"""

from __future__ import annotations

from typing import NewType

Locator = NewType("Locator", int)

FIRST_EXTENT = 1 << 62
FIRST_MEMORY = 1 << 63
EXTENT_INDEX_BITS = 24
_EXTENT_INDEX_MASK = (1 << EXTENT_INDEX_BITS) - 1


def in_log(lsn: int) -> Locator:
    """The APPEND frame at this LSN."""
    return Locator(lsn)


def in_extent(segment: int, index: int) -> Locator:
    """The extent with this index in the directory of a segment."""
    return Locator(FIRST_EXTENT | segment << EXTENT_INDEX_BITS | index)


def in_memory(number: int) -> Locator:
    """Records in memory; ``number`` names them for the life of the process."""
    return Locator(FIRST_MEMORY | number)


def is_in_log(locator: int) -> bool:
    """Whether it locates a frame of the log."""
    return locator < FIRST_EXTENT


def is_extent(locator: int) -> bool:
    """Whether it locates an extent of a segment."""
    return FIRST_EXTENT <= locator < FIRST_MEMORY


def is_in_memory(locator: int) -> bool:
    """Whether it locates records in memory."""
    return locator >= FIRST_MEMORY


def lsn_of(locator: int) -> int:
    """LSN of the frame that a LOG locator locates."""
    assert locator < FIRST_EXTENT, "the locator is of the kind LOG"
    return locator


def split_locator(locator: int) -> tuple[int, int]:
    """``(segment, index of the extent)`` of an EXTENT locator."""
    return (locator & ~FIRST_EXTENT) >> EXTENT_INDEX_BITS, locator & _EXTENT_INDEX_MASK
