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
    """Cuts at ``max_records`` or ``max_bytes``, whichever comes first, and at the end of a block.

    So where a cut falls depends on the block and the two limits alone. ``max_bytes`` counts the
    records with their commas, not the few bytes around them. A record above ``max_bytes`` is sent
    alone; the server decides.
    """

    def __init__(self, max_records: int, max_bytes: int, node: str | None = None) -> None:
        self._max_records, self._max_bytes, self._number = max_records, max_bytes, 0
        # create:false: the topic was made before the job with the window that the keys need. A
        # topic that is deleted meanwhile must fail the job, not come back with the default window
        # of two minutes.
        origin = b"" if node is None else b'"node":' + msgspec.json.encode(node) + b","
        self._head = b'{"create":false,' + origin + b'"records":['

    def cut(self, offsets: Sequence[int], data: memoryview) -> Iterator[Chunk]:
        """Cut a block into chunks, numbered on from the block before."""
        first, end = 0, len(offsets) - 1
        while first < end:
            most = min(end, first + self._max_records)
            limit = offsets[first] + self._max_bytes
            last = max(first + 1, bisect_right(offsets, limit, first + 1, most + 1) - 1)
            records = data[offsets[first] : offsets[last] - 1]  # without the last comma
            yield Chunk(self._number, last - first, b"".join((self._head, records, b"]}")))
            self._number, first = self._number + 1, last
