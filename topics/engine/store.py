"""The one way from the rules to bytes: what an index calls a place, and what may be asked of one.

place         what                                               deleted records are marked
bit 63 set    records of an `ephemeral` topic, in memory         in memory (`DeleteFlags`)
bit 62 set    extent of a segment: segment << 24 | extent        in the segment
otherwise     position of an APPEND frame of the log             in memory (`DeleteFlags`), until they are sealed
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from topics.engine.locators import FIRST_EXTENT, FIRST_MEMORY, Locator
from topics.formats.buffers import Buffer
from topics.formats.disk.records import View
from topics.formats.ranges import IndexRun

RESIDENT = FIRST_MEMORY
EXTENT = FIRST_EXTENT
FLAGS_AT_ONCE = 4096


class Unreadable(Exception):
    """What stands at a place is not what was written there. Whoever raises it has it logged."""


class Store(Protocol):
    """Finds records again by the place that was noted when they were committed."""

    def records(self, locator: Locator) -> View:
        """What stands there; valid until the next change of the store. Reading it may raise
        `Unreadable`.
        """

    def delete_flags(self, locator: Locator) -> Buffer | None:
        """A byte for each record, 1 for a deleted one; None when none is. May raise `Unreadable`."""

    def flag_deleted(self, locator: Locator, runs: Sequence[IndexRun]) -> None:
        """These records are deleted."""

    def release(self, locators: Sequence[Locator]) -> None:
        """Nobody will ask for these again: no record that stands there is left in the topic."""


class DeleteFlags:
    """Flags of deleted records that are kept in memory, by place."""

    __slots__ = ("_flags",)

    def __init__(self) -> None:
        self._flags: dict[int, bytes | bytearray] = {}

    def __len__(self) -> int:
        return len(self._flags)

    def of(self, locator: int) -> bytes | bytearray | None:
        """As `Store.delete_flags`."""
        return self._flags.get(locator)

    def flag(self, locator: int, count: int, runs: Sequence[IndexRun]) -> None:
        """As `Store.flag_deleted`; the entry has ``count`` records."""
        flags = self._flags.get(locator)
        if flags is None:
            if count == 1:
                self._flags[locator] = (
                    b"\1"  # one object for all writes of one record, and these are most
                )
                return
            flags = self._flags[locator] = bytearray(count)
        if isinstance(flags, bytearray):
            for start, stop in runs:
                flags[start:stop] = b"\1" * (stop - start)

    def forget(self, locators: Iterable[int]) -> None:
        """Let go of the flags of these places."""
        if self._flags:
            for locator in locators:
                self._flags.pop(locator, None)


def first_live(dead: Buffer, start: int, stop: int) -> int:
    """Index of the first record of the range that is not deleted, ``stop`` when there is none."""
    for begin in range(start, stop, FLAGS_AT_ONCE):
        end = min(begin + FLAGS_AT_ONCE, stop)
        live = len(bytes(dead[begin:end]).lstrip(b"\1"))
        if live:
            return end - live
    return stop


def last_live(dead: Buffer, start: int, stop: int) -> int:
    """Index of the last record of the range that is not deleted, -1 when there is none."""
    for end in range(stop, start, -FLAGS_AT_ONCE):
        begin = max(end - FLAGS_AT_ONCE, start)
        live = len(bytes(dead[begin:end]).rstrip(b"\1"))
        if live:
            return begin + live - 1
    return -1


__all__ = ["EXTENT", "RESIDENT", "DeleteFlags", "Store", "Unreadable", "first_live", "last_live"]
