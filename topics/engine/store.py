"""Store: the interface through which the rules access records. It finds records by their locators.

Deleted records are marked by flags. The flags of an extent are in its segment. Other flags are in
memory (`DeleteFlagTable`) until the records are sealed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from topics.engine.locators import Locator
from topics.formats.buffers import Buffer
from topics.formats.disk.records import AbstractView
from topics.formats.ranges import IndexRun

# Number of flags that are copied and searched in one step.
FLAGS_STEP = 4096


class Unreadable(Exception):
    """The bytes at a locator are not the bytes that were written. The store logs each such error
    once.
    """


class Store(Protocol):
    """Finds records by the locators with which they were committed."""

    def records(self, locator: Locator) -> AbstractView:
        """Return the records at a locator. They are valid until the next change of the store.

        Reading them may raise `Unreadable`.
        """

    def delete_flags(self, locator: Locator) -> Buffer | None:
        """Return one byte for each record, 1 if it is deleted, or None if no record is deleted.

        May raise `Unreadable`.
        """

    def flag_deleted(
        self, locator: Locator, count: int, runs: Sequence[IndexRun], size: int
    ) -> None:
        """Flag the records in ``runs`` as deleted. The locator has ``count`` records.

        ``size`` is the number of rendered bytes of the flagged records.
        """

    def release(self, locators: Sequence[Locator]) -> None:
        """Release these locators, because the topic has no live record at them anymore."""

    def release_later(self, locators: Sequence[Locator]) -> None:
        """Release locators of records that no segment contains.

        Many locators are released in several steps, because there may be millions.
        """


class DeleteFlagTable(dict[int, bytes | bytearray]):
    """Delete flags that are kept in memory, by locator."""

    __slots__ = ()

    def flag(self, locator: int, count: int, runs: Sequence[IndexRun]) -> None:
        """Flag records as deleted, in the same way as `Store.flag_deleted`."""
        flags = self.get(locator)
        if flags is None:
            if count == 1:
                # All writes that contain a single record share this object. Most writes do.
                self[locator] = b"\1"
                return
            flags = self[locator] = bytearray(count)
        if isinstance(flags, bytearray):
            for start, stop in runs:
                flags[start:stop] = b"\1" * (stop - start)

    def drop(self, locators: Iterable[int]) -> None:
        """Drop the flags of these locators."""
        if self:
            for locator in locators:
                self.pop(locator, None)


def first_live(deleted: Buffer, start: int, stop: int) -> int:
    """Return the index of the first record in the range that is not deleted, or ``stop``."""
    for begin in range(start, stop, FLAGS_STEP):
        end = min(begin + FLAGS_STEP, stop)
        live = len(bytes(deleted[begin:end]).lstrip(b"\1"))
        if live:
            return end - live
    return stop


def last_live(deleted: Buffer, start: int, stop: int) -> int:
    """Return the index of the last record in the range that is not deleted, or -1."""
    for end in range(stop, start, -FLAGS_STEP):
        begin = max(end - FLAGS_STEP, start)
        live = len(bytes(deleted[begin:end]).rstrip(b"\1"))
        if live:
            return begin + live - 1
    return -1
