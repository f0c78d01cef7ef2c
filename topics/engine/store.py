"""Store: the one way from the rules to bytes. It finds records by their locator.

Deleted records are flagged in the segment when they are in an extent, else in memory
(`DeleteFlags`), until they are sealed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from topics.engine.locators import Locator
from topics.formats.buffers import Buffer
from topics.formats.disk.records import View
from topics.formats.ranges import IndexRun

FLAGS_STEP = 4096


class Unreadable(Exception):
    """Bytes at a locator are not those that were written there. The store logs it once."""


class Store(Protocol):
    """Finds records by the locator that was given when they were committed."""

    def records(self, locator: Locator) -> View:
        """The records at a locator; valid until the next change of the store. Reading them may
        raise `Unreadable`.
        """

    def delete_flags(self, locator: Locator) -> Buffer | None:
        """A byte for each record, 1: deleted; None when none is. May raise `Unreadable`."""

    def flag_deleted(
        self, locator: Locator, count: int, runs: Sequence[IndexRun], size: int
    ) -> None:
        """Flag these of the ``count`` records of a locator, of ``size`` bytes, as deleted."""

    def release(self, locators: Sequence[Locator]) -> None:
        """Free what these locators find: the topic has no record there any more."""

    def release_later(self, locators: Sequence[Locator]) -> None:
        """Free records that are in no segment when there is time: millions may go at once."""


class DeleteFlags(dict[int, bytes | bytearray]):
    """Delete flags that are kept in memory, by locator."""

    __slots__ = ()

    def flag(self, locator: int, count: int, runs: Sequence[IndexRun]) -> None:
        """As `Store.flag_deleted`."""
        flags = self.get(locator)
        if flags is None:
            if count == 1:
                # One object for all writes of one record, and these are most.
                self[locator] = b"\1"
                return
            flags = self[locator] = bytearray(count)
        if isinstance(flags, bytearray):
            for start, stop in runs:
                flags[start:stop] = b"\1" * (stop - start)

    def forget(self, locators: Iterable[int]) -> None:
        """Drop the flags of these locators."""
        if self:
            for locator in locators:
                self.pop(locator, None)


def first_live(deleted: Buffer, start: int, stop: int) -> int:
    """Index of the first record of the range that is not deleted, ``stop`` when there is none."""
    for begin in range(start, stop, FLAGS_STEP):
        end = min(begin + FLAGS_STEP, stop)
        live = len(bytes(deleted[begin:end]).lstrip(b"\1"))
        if live:
            return end - live
    return stop


def last_live(deleted: Buffer, start: int, stop: int) -> int:
    """Index of the last record of the range that is not deleted, -1 when there is none."""
    for end in range(stop, start, -FLAGS_STEP):
        begin = max(end - FLAGS_STEP, start)
        live = len(bytes(deleted[begin:end]).rstrip(b"\1"))
        if live:
            return begin + live - 1
    return -1
