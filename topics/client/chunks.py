"""Chunks: many records as appends of a bounded size, each with an idempotency key.

    single records --> `Chunker.add` -.
                                      +--> Chunk: number, count, records as a JSON array
    Arrow columns ---> `Chunker.cut` -'

A chunk ends at ``max_records`` or before ``max_bytes`` would be exceeded, so its bounds depend on
the records and the two limits alone. A record above ``max_bytes`` is a chunk by itself: the server
decides, and its refusal concerns no other record.

Keys (§0.8) must be equal for equal work. What work is equal depends on the loader:

    a sink of Spark   `chunk_key`: the write, the partition, the topic, the number and the bytes
    a file            the content of all records up to the end of the chunk (`topics.cli.loading`)
    a producer        the name of the run and the number of the chunk
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Generic, TypeVar

M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class Chunk(Generic[M]):
    """The records of one append (§2). ``number`` counts from 0, ``records`` is a JSON array of
    ``count`` records, and ``marks`` has what `Chunker.add` got with each.
    """

    number: int
    count: int
    records: bytes
    marks: Sequence[M]


class Chunker(Generic[M]):
    """Divides a sequence of records into chunks."""

    def __init__(self, max_records: int, max_bytes: int) -> None:
        self._max_records, self._max_bytes, self._number = max_records, max_bytes, 0
        self._records: list[bytes] = []  # of the chunk that is not complete
        self._marks: list[M] = []
        self._size = 0

    def add(self, record: bytes, mark: M) -> Iterator[Chunk[M]]:
        """Add a record and yield the chunks that are complete. Exhaust the iterator."""
        if self._records and self._size + len(record) > self._max_bytes:
            yield from self.flush()
        self._records.append(record)
        self._marks.append(mark)
        self._size += len(record)
        if len(self._records) == self._max_records or self._size >= self._max_bytes:
            yield from self.flush()

    def flush(self) -> Iterator[Chunk[M]]:
        """Yield the chunk that is not complete, if it has records."""
        if not self._records:
            return
        records, marks = self._records, self._marks
        self._records, self._marks, self._size = [], [], 0
        yield self._chunk(len(records), b",".join(records), marks)

    def cut(self, offsets: Sequence[int], data: memoryview) -> Iterator[Chunk[M]]:
        """Divide the records of an Arrow string column, each of which has a comma at its end and
        counts with it. Record ``i`` is ``data[offsets[i]:offsets[i + 1]]``, so a chunk is one
        slice. The end of the column ends a chunk.
        """
        first, end = 0, len(offsets) - 1
        while first < end:
            most = min(end, first + self._max_records)
            limit = offsets[first] + self._max_bytes
            last = max(first + 1, bisect_right(offsets, limit, first + 1, most + 1) - 1)
            yield self._chunk(last - first, data[offsets[first] : offsets[last] - 1], ())
            first = last

    def _chunk(self, count: int, records: bytes | memoryview, marks: Sequence[M]) -> Chunk[M]:
        self._number += 1
        return Chunk(self._number - 1, count, b"".join((b"[", records, b"]")), marks)


def chunk_key(scope: str, topic: str, partition: int, number: int, count: int, body: bytes) -> str:
    """The key of chunk ``number`` of ``partition``: ASCII, 46 characters. ``body`` is the whole
    request body, so another ``node`` is another write.

    The bytes are part of the key because an attempt may see other rows (a nondeterministic query).
    These are appended again, which a reader can notice. A key without the bytes would drop them,
    which no reader can notice.
    """
    content = blake2b(body, digest_size=20).hexdigest()
    # repr() quotes the two free texts, so no scope can be written that looks like another scope
    # with other numbers.
    named = repr((scope, topic, partition, number, count, content))
    return "spark-" + blake2b(named.encode(), digest_size=20).hexdigest()
