"""Where the live records of one topic lie: one entry for each write, in three arrays (20 bytes an entry)."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import Protocol

from topics.formats.records import RecordsView


class RecordStore(Protocol):
    """Finds the records of a write again by the place that was noted when they were committed."""

    def records(self, place: int) -> RecordsView:
        """The write at ``place``; valid until the next change of the store."""


class FrameIndex:
    """Writes in seq order. Seqs are contiguous inside a write; between two writes there may be a hole."""

    __slots__ = ("_counts", "_first_seqs", "_places")

    def __init__(self) -> None:
        self._first_seqs = array("Q")
        self._places = array("Q")
        self._counts = array("I")

    def __len__(self) -> int:
        return len(self._places)

    def add(self, first_seq: int, count: int, place: int) -> None:
        """Note a write after all others."""
        self._first_seqs.append(first_seq)
        self._counts.append(count)
        self._places.append(place)

    def entry(self, index: int) -> tuple[int, int, int]:
        """``(first_seq, count, place)``."""
        return self._first_seqs[index], self._counts[index], self._places[index]

    def find(self, seq: int) -> int:
        """Index of the write that holds ``seq``, or of the next one after it; ``len(self)`` when there is none."""
        index = bisect_right(self._first_seqs, seq) - 1
        if index >= 0 and seq < self._first_seqs[index] + self._counts[index]:
            return index
        return index + 1

    def latest_places(self) -> Iterator[int]:
        """Places of all writes, the newest first."""
        return reversed(self._places)

    def first_seq(self) -> int | None:
        """Lowest seq held, None when empty."""
        return self._first_seqs[0] if self._first_seqs else None

    def bytes_used(self) -> int:
        """Memory of the three arrays, spare room included."""
        return sum(part.__sizeof__() for part in (self._first_seqs, self._places, self._counts))
