"""Chunks: a stream of encoded records, cut into append bodies.

The input is blocks in the shape of an Arrow string column: ``data`` holds the records end to end,
``offsets`` has one more entry than there are records, record ``i`` is ``data[offsets[i]:offsets[i +
1]]``. Each record is a JSON object and a comma:

    {"data":{"id":1}},{"data":{"id":2},"tag":"a"},

so a run of records is one slice, and a body is a head, slices and a tail. No work is done for each
record.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True)
class Chunk:
    """One append: ``number`` counts from 0 within a partition, ``count`` is its records, ``body``
    the finished JSON (§2).
    """

    number: int
    count: int
    body: bytes


class Chunker:
    """Greedy cuts at ``max_records`` or ``max_bytes``, whichever comes first.

    Where a cut falls depends on the records and the two limits alone, never on time or on how the
    records arrive in blocks: an attempt that gets the same rows in other blocks makes the same
    chunks, hence the same keys. ``max_bytes`` counts the records with their commas, not the few
    bytes around them. A record above ``max_bytes`` is sent alone; the server decides.
    """

    def __init__(self, max_records: int, max_bytes: int, node: str | None = None) -> None:
        if max_records < 1 or max_bytes < 1:
            raise ValueError("max_records and max_bytes are at least 1")
        self._max_records = max_records
        self._max_bytes = max_bytes
        # create:false: the topic was made before the job with the window that the keys need. A
        # topic that is deleted meanwhile must fail the job, not come back with the default window
        # of two minutes.
        origin = b"" if node is None else b'"node":' + msgspec.json.encode(node) + b","
        self._head = b'{"create":false,' + origin + b'"records":['
        self._parts: list[bytes] = []
        self._count = 0
        self._bytes = 0
        self._number = 0

    def add(self, offsets: Sequence[int], data: memoryview) -> Iterator[Chunk]:
        """Take a block and yield the chunks that it completes. ``data`` may be reused once the
        iterator is exhausted.
        """
        first, end = 0, len(offsets) - 1
        while first < end:
            last = self._fit(offsets, first, end)
            if last == first:
                yield self._cut()
                continue
            part = bytes(data[offsets[first] : offsets[last]])
            self._parts.append(part)
            self._count += last - first
            self._bytes += len(part)
            first = last
            if self._count == self._max_records:
                yield self._cut()

    def rest(self) -> Iterator[Chunk]:
        """Yield what is left, if anything is."""
        if self._count:
            yield self._cut()

    def _fit(self, offsets: Sequence[int], first: int, end: int) -> int:
        """The end of the run from ``first`` that the open chunk can take; ``first`` itself when it
        can take none.
        """
        bound = min(end, first + self._max_records - self._count)
        limit = offsets[first] + self._max_bytes - self._bytes
        last = bisect_right(offsets, limit, first + 1, bound + 1) - 1
        return last if last > first or self._count else first + 1

    def _cut(self) -> Chunk:
        records = b"".join(self._parts)
        chunk = Chunk(self._number, self._count, self._head + records[:-1] + b"]}")
        self._parts, self._count, self._bytes = [], 0, 0
        self._number += 1
        return chunk
