"""Chunks: divides many records into appends of bounded size, each with an idempotency key.

    single records --> `Chunker.add` -.
                                      +--> Chunk: number, count, records as a JSON array
    Arrow columns ---> `Chunker.cut` -'

A chunk has at most ``max_records``, and is completed before it would exceed ``max_bytes``, so its
bounds depend only on the records and these limits. A record above ``max_bytes`` forms a chunk of
its own, so that the server can refuse it without refusing other records.

A chunk has the same idempotency key (§0.8) whenever the same work is repeated:

    `run_key`       producers: the name of the run and the number of the chunk
    `ContentKeys`   files: the content of all records up to the end of the chunk
    `chunk_key`     Spark's sink: the write, partition, topic, number and bytes of the chunk
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Generic, TypeVar

M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class Chunk(Generic[M]):
    """The records of one append (§2). ``number`` counts from 0. ``records`` is a JSON array of
    ``count`` records. ``marks`` contains the marks that were passed to `Chunker.add`.
    """

    number: int
    count: int
    records: bytes
    marks: Sequence[M]


class Chunker(Generic[M]):
    """Divides a sequence of records into chunks."""

    def __init__(self, max_records: int, max_bytes: int) -> None:
        self._max_records, self._max_bytes, self._number = max_records, max_bytes, 0
        self._records: list[bytes] = []  # the records of the incomplete chunk
        self._marks: list[M] = []
        self._size = 0

    def add(self, record: bytes, mark: M) -> Iterator[Chunk[M]]:
        """Add a record and yield the completed chunks. The caller must exhaust the iterator."""
        if self._records and self._size + len(record) > self._max_bytes:
            yield from self.flush()
        self._records.append(record)
        self._marks.append(mark)
        self._size += len(record)
        if len(self._records) == self._max_records or self._size >= self._max_bytes:
            yield from self.flush()

    def flush(self) -> Iterator[Chunk[M]]:
        """Yield the incomplete chunk if it has records."""
        if not self._records:
            return
        records, marks = self._records, self._marks
        self._records, self._marks, self._size = [], [], 0
        yield self._chunk(len(records), b",".join(records), marks)

    def cut(self, offsets: Sequence[int], data: memoryview) -> Iterator[Chunk[M]]:
        """Divide the records of an Arrow string column. Record ``i`` is
        ``data[offsets[i]:offsets[i + 1]]`` including a trailing comma, which counts as one of its
        bytes. So a chunk is one slice. The last chunk contains the last record of the column.
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


def run_key(name: str, chunk: Chunk[M]) -> str:
    """Return the key of a chunk in a run with this name."""
    return f"{name}:{chunk.number + 1}"


def part_key(name: str, first: int, last: int) -> str:
    """Return the key of a part of a chunk, by the numbers of its first and last record."""
    return f"{name}:{first}-{last}"


class ContentKeys:
    """Makes the keys ``PREFIX DIGEST:COUNT``: the digest and the count of all records up to the end
    of a chunk.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix, self._digest, self._count = prefix, blake2b(digest_size=16), 0

    def key(self, records: Iterable[bytes]) -> str:
        """Return the key of the next chunk."""
        for record in records:
            self._digest.update(record + b"\n")
            self._count += 1
        return f"{self._prefix}{self._digest.hexdigest()}:{self._count}"


def chunk_key(scope: str, topic: str, partition: int, number: int, count: int, body: bytes) -> str:
    """Return the key of chunk ``number`` of ``partition``: ASCII, 46 characters. ``body`` is the
    complete request body, so a different ``node`` makes a different write.

    The bytes are part of the key, because another attempt may see different rows if the query is
    nondeterministic. Such rows are appended again, which a reader can detect. With a key that does
    not depend on the bytes, they would be dropped, which no reader can detect.
    """
    content = blake2b(body, digest_size=20).hexdigest()
    # repr() quotes the scope and the topic, so they cannot imitate other scopes or numbers.
    named = repr((scope, topic, partition, number, count, content))
    return "spark-" + blake2b(named.encode(), digest_size=20).hexdigest()
