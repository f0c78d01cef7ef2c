"""Record index: where the live records of one topic are stored. It has one entry for each write or
extent.

    column      type  contents
    first_seqs  u64   seq of the first record
    counts      u32   number of records, live or not
    locators    u64   where the store finds the records
    sizes       u32   rendered bytes of the live records; 0 if no record is live
    ts          i64   `$ts` of the first record

The columns are arrays, so an entry takes 32 bytes and needs no Python object.

A sparse dict counts the removed records of the entries that also have live records. Such records
were deleted, or the topic begins above them. The index only stores their number. The delete flags
of an entry (`Store.delete_flags`) specify *which* of its records are deleted, and
``Topic.start_seq`` is where the topic begins.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, MutableSequence, Sequence
from typing import NamedTuple, cast

from topics.engine.locators import FIRST_EXTENT, Locator

_EMPTY = array("Q")  # shared by all empty indexes: most topics are idle
_NO_LOCATORS = cast("MutableSequence[Locator]", _EMPTY)
_NONE_REMOVED: dict[int, int] = {}  # shared by all indexes whose ``removed`` is empty
# `RecordIndex.drop` shortens the arrays only if more than this number of entries have been dropped.
FRONT_SLACK_ENTRIES = 16


class IndexEntry(NamedTuple):
    """Contiguous records with one locator. ``ts`` is the `$ts` of the first record."""

    first_seq: int
    record_count: int
    locator: Locator
    size: int
    ts: int

    @property
    def last_seq(self) -> int:
        """Return the seq of the last record."""
        return self.first_seq + self.record_count - 1


class RecordIndex:
    """Entries in seq order. There may be gaps between the seqs of two entries.

    The index of an entry counts from the first entry that was not dropped.
    """

    __slots__ = (
        "_counts",
        "_first_seqs",
        "_front",
        "_locators",
        "_sizes",
        "_ts",
        "dead_entries",
        "removed",
    )

    def __init__(self) -> None:
        # By first seq of an entry: the number of removed records, if other records of it are live.
        self.removed = _NONE_REMOVED
        self._reset()

    def _reset(self) -> None:
        self._first_seqs = self._counts = self._sizes = self._ts = _EMPTY
        self._locators = _NO_LOCATORS
        self._front = 0  # number of dropped entries at the start of the arrays
        self.dead_entries = 0  # number of entries without live records

    def __len__(self) -> int:
        return len(self._locators) - self._front

    def add(self, first_seq: int, count: int, locator: Locator, size: int, ts: int) -> None:
        """Append an entry."""
        if self._locators is _NO_LOCATORS:
            self._first_seqs, self._counts = array("Q"), array("I")
            self._locators = cast("MutableSequence[Locator]", array("Q"))
            self._sizes, self._ts = array("I"), array("q")
        self._first_seqs.append(first_seq)
        self._counts.append(count)
        self._locators.append(locator)
        self._sizes.append(size)
        self._ts.append(ts)

    # Lookup

    def entry(self, index: int) -> tuple[int, int, Locator, int]:
        """Return ``(first_seq, count, locator, size)`` of an entry."""
        index += self._front
        return (
            self._first_seqs[index],
            self._counts[index],
            self._locators[index],
            self._sizes[index],
        )

    def entries(self, start: int, stop: int) -> Iterator[tuple[int, int, Locator, int]]:
        """Return ``(first_seq, count, locator, size)`` of the entries ``start`` to ``stop``
        (exclusive).
        """
        some = slice(start + self._front, stop + self._front)
        return zip(
            self._first_seqs[some],
            self._counts[some],
            self._locators[some],
            self._sizes[some],
            strict=True,
        )

    def full_entry(self, index: int) -> IndexEntry:
        """Return an entry with all of its columns."""
        return IndexEntry(*self.entry(index), self._ts[index + self._front])

    def find(self, seq: int) -> int:
        """Return the index of the entry that contains ``seq``, or else of the next entry after it.

        Return ``len(self)`` if there is neither.
        """
        index = bisect_right(self._first_seqs, seq, self._front) - 1
        if index >= self._front and seq < self._first_seqs[index] + self._counts[index]:
            return index - self._front
        return index + 1 - self._front

    def find_ts(self, ts: int) -> int:
        """Return the index of the first entry whose first record has a `$ts` of ``ts`` or later."""
        return bisect_left(self._ts, ts, self._front) - self._front

    def find_locator(self, lsn: int) -> int:
        """Return the index of the first entry in the log at ``lsn`` or later.

        All entries after it must also be in the log.
        """
        locators = self._locators
        return bisect_left(
            range(self._front, len(locators)),
            True,
            key=lambda at: lsn <= locators[at] < FIRST_EXTENT,
        )

    def live_count(self, index: int) -> int:
        """Return the number of live records of an entry."""
        first_seq, count, _, size = self.entry(index)
        return count - self.removed.get(first_seq, 0) if size else 0

    def totals(self, start: int, stop: int) -> tuple[int, int]:
        """Return the number and the bytes of the live records in a range of entries."""
        start, stop = start + self._front, stop + self._front
        counts, sizes = self._counts[start:stop], self._sizes[start:stop]
        live = (
            sum(count for count, size in zip(counts, sizes, strict=True) if size)
            if self.dead_entries
            else sum(counts)
        )
        if self.removed:
            live -= sum(
                [self.removed.get(first_seq, 0) for first_seq in self._first_seqs[start:stop]]
            )
        return live, sum(sizes)

    def locators(self, start: int = 0, stop: int | None = None) -> Sequence[Locator]:
        """Return the locators of a range of entries, by default of all entries."""
        return self._locators[
            start + self._front : len(self._locators) if stop is None else stop + self._front
        ]

    def from_seq(self, seq: int) -> Iterator[IndexEntry]:
        """Yield the entries that contain ``seq`` or a later seq. The index may change between two
        steps.
        """
        while (index := self.find(seq)) < len(self):
            entry = self.full_entry(index)
            yield entry
            seq = entry.last_seq + 1

    def entries_between(self, lsn_from: int, lsn_to: int, seq: int = 0) -> Iterator[IndexEntry]:
        """Yield the writes in the log between two LSNs that contain ``seq`` or later seqs, in seq
        order.

        ``lsn_to`` is exclusive. The index may change between two steps.
        """
        for entry in self.from_seq(seq):
            if entry.locator >= FIRST_EXTENT or entry.locator < lsn_from:
                continue
            if entry.locator >= lsn_to:
                return
            yield entry

    def parts_with_gaps(self, begin: int, end: int) -> Iterator[tuple[int, int, Locator | None]]:
        """Yield the parts of the seqs from ``begin`` to ``end`` (exclusive) in which not all
        records are live.

        Each part is ``(first_seq, count, locator)``. The locator is None for a gap between entries
        and for an entry without live records. Otherwise the part is an entry with both live and
        removed records. The first and the last part may extend beyond the range.
        """
        start, removed, expected = self.find(begin) + self._front, self.removed, begin
        stop = bisect_left(self._first_seqs, end, start)
        # Most ranges are complete, which this check detects without a loop in Python.
        if not (removed or self.dead_entries) and self._is_without_holes(start, stop, begin, end):
            return
        for index, (first_seq, count, size) in enumerate(
            zip(
                self._first_seqs[start:stop],
                self._counts[start:stop],
                self._sizes[start:stop],
                strict=True,
            ),
            start,
        ):
            if first_seq > expected:
                yield expected, first_seq - expected, None
            if not size:
                yield first_seq, count, None
            elif first_seq in removed:
                yield first_seq, count, self._locators[index]
            expected = first_seq + count
        if expected < end:
            yield expected, end - expected, None

    def _is_without_holes(self, start: int, stop: int, begin: int, end: int) -> bool:
        """Return whether the entries ``start`` to ``stop`` contain all seqs from ``begin`` to
        ``end``.
        """
        if start == stop:
            return begin == end
        first, last = self._first_seqs[start], stop - 1
        behind = self._first_seqs[last] + self._counts[last]
        return first <= begin and behind >= end and sum(self._counts[start:stop]) == behind - first

    # Removing

    def take(self, index: int, count: int, size: int) -> int:
        """Count ``count`` live records of an entry as removed, and return the bytes to subtract.

        ``size`` is the number of their bytes. It may be an estimate if the records cannot be read,
        so the result is bounded by the bytes of the entry.
        """
        first_seq, total, _, left = self.entry(index)
        removed = self.removed.get(first_seq, 0) + count
        assert removed <= total, "a record is removed only once"
        # If no record of the entry is left, mark the entry as dead. Otherwise store the new number.
        if removed == total:
            self._sizes[index + self._front] = 0
            self.removed.pop(first_seq, None)
            self.dead_entries += 1
            return left
        taken = min(size, left - 1)  # the remaining live records have at least one byte
        self._add_removed(first_seq, removed)
        self._sizes[index + self._front] = left - taken
        return taken

    def _add_removed(self, first_seq: int, count: int) -> None:
        if self.removed is _NONE_REMOVED:
            self.removed = {}
        self.removed[first_seq] = count

    def drop(self, number: int) -> None:
        """Remove the first ``number`` entries.

        The arrays are shortened only when enough entries have been dropped, so that fewer than 32
        entries are copied for each dropped entry.
        """
        if self.removed:
            self._drop_removed(0, number)
        if self.dead_entries:
            self.dead_entries -= self._sizes[self._front : self._front + number].count(0)
        self._front += number
        if self._front == len(self._locators):
            self._reset()
        elif self._front > FRONT_SLACK_ENTRIES + len(self._locators) // 32:
            for column in (self._first_seqs, self._locators, self._counts, self._sizes, self._ts):
                del column[: self._front]
            self._front = 0

    def replace(
        self, first: int, stop: int, entries: Sequence[IndexEntry], removed: Sequence[int]
    ) -> None:
        """Replace the entries ``first`` to ``stop`` (exclusive) with ``entries``.

        ``removed`` has the number of removed records of each new entry. Each new entry must have at
        least one live record.
        """
        assert first < stop, "at least one entry is replaced"
        self._drop_removed(first, stop)
        start, end = first + self._front, stop + self._front
        self.dead_entries -= self._sizes[start:end].count(0)
        self._first_seqs[start:end] = array("Q", [entry.first_seq for entry in entries])
        self._counts[start:end] = array("I", [entry.record_count for entry in entries])
        self._locators[start:end] = cast(
            "Iterable[Locator]", array("Q", [entry.locator for entry in entries])
        )
        self._sizes[start:end] = array("I", [entry.size for entry in entries])
        self._ts[start:end] = array("q", [entry.ts for entry in entries])
        for entry, count in zip(entries, removed, strict=True):
            if count:
                self._add_removed(entry.first_seq, count)
        if self._front == len(self._locators):
            self._reset()

    def _drop_removed(self, first: int, stop: int) -> None:
        if self.removed:
            for first_seq in self._first_seqs[first + self._front : stop + self._front]:
                self.removed.pop(first_seq, None)

    def bytes_used(self) -> int:
        """Return the memory of the arrays in bytes, including spare capacity."""
        columns = (self._first_seqs, self._locators, self._counts, self._sizes, self._ts)
        return sum(column.__sizeof__() for column in columns if column is not _EMPTY)
