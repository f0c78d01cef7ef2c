"""Extent view: reads an extent of a segment in place (layout: ``segment.py``).

The checksum of the tables is verified when the view is created. The checksum of each 64 KiB chunk
of the blob is verified when the chunk is first read. The views of an extent and of a write have a
common interface (`AbstractView`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence, Set
from functools import partial
from io import BytesIO
from itertools import accumulate, pairwise

import cbor2
import crc32c

from topics.formats.disk.records import AbstractView, RecordFlags, Texts
from topics.formats.disk.segment import (
    CHUNK_BYTES,
    TABLES_HEAD_BYTES,
    BadSegment,
    ExtentEntry,
    ExtentKey,
    decode_tables_head,
)

SORT_COST = 4  # Sorting an index takes as much time as comparing this number of refs.
_NODES, _TAGS, _METAS = map(int, (RecordFlags.NODES, RecordFlags.TAGS, RecordFlags.METAS))


class Dictionary:
    """Distinct JSON strings, sorted by their bytes. A *ref* is the number of a string, from 1."""

    __slots__ = ("_bytes", "_ends")

    def __init__(self, ends: memoryview, text: memoryview) -> None:
        self._ends, self._bytes = ends, text

    def __len__(self) -> int:
        return len(self._ends)

    def text(self, ref: int) -> bytes:
        """Return the JSON string of a ref."""
        return bytes(self._bytes[self._ends[ref - 2] if ref > 1 else 0 : self._ends[ref - 1]])

    def __getitem__(self, index: int) -> bytes:
        return self.text(index + 1)

    def lens(self, refs: Sequence[int]) -> list[int]:
        """Return the length of the text of each ref, 0 for ref 0."""
        ends = self._ends
        return [ref and (ends[ref - 1] - ends[ref - 2] if ref > 1 else ends[0]) for ref in refs]

    def find(self, text: bytes) -> int:
        """Return the ref of ``text``, or 0 if it is not in the dictionary."""
        refs = range(1, len(self) + 1)
        index = bisect_left(refs, text, key=self.text)
        return index + 1 if index < len(refs) and self.text(index + 1) == text else 0

    def span(self, prefix: bytes) -> tuple[int, int]:
        """Return the index range (start, stop) of the texts that begin with ``prefix``."""
        refs, length = range(1, len(self) + 1), len(prefix)
        start = bisect_left(refs, prefix, key=self.text)
        return start, bisect_right(refs, prefix, start, key=lambda ref: self.text(ref)[:length])


def _bad_segment(offset: int, reason: str) -> Exception:
    return BadSegment(offset, reason)


def _can_read_all(_begin: int, _end: int) -> bool:
    return True


class ExtentView(AbstractView):
    """The records of an extent.

    ``data`` is the complete file. ``checked`` is true if the tables have already been verified.
    ``fail`` creates the exception for damage, given an offset in the file and a reason.
    ``can_read`` returns whether the bytes between two offsets of the file can be read. It is called
    once for the tables and once for each chunk, and again after `renew`.
    """

    __slots__ = (
        *("_bad", "_can_read", "_checked", "_chunk_crcs", "_data", "_ends", "_fail", "_keys"),
        *("_meta_lens", "_node_refs", "_posting_ends", "_postings", "_tag_refs"),
        *("entry", "nodes", "tables", "tags"),
    )

    def __init__(
        self,
        entry: ExtentEntry,
        data: memoryview,
        fail: Callable[[int, str], Exception] = _bad_segment,
        can_read: Callable[[int, int], bool] = _can_read_all,
        *,
        checked: bool = False,
    ) -> None:
        super().__init__(entry.flags, entry.record_count)
        self.entry, self._fail, self._can_read = entry, fail, can_read
        start, available = entry.tables_at, len(data) - entry.offset
        if not TABLES_HEAD_BYTES <= entry.tables_len <= entry.length <= available:
            raise fail(entry.offset, "the extent is truncated")
        if not can_read(start, start + entry.tables_len):
            raise fail(start, "the tables of the extent cannot be read")
        self.tables = data[start : start + entry.tables_len]
        if not checked and crc32c.crc32c(self.tables) != entry.tables_crc:
            raise fail(start, "the tables of the extent are damaged")
        self._read_tables(self.tables)
        self._data = data[entry.offset : entry.offset + entry.blob_bytes]
        # The state of each chunk. 0: not checked. 1: intact and readable. 2: it was intact, but
        # `can_read` must be called again.
        self._checked = bytearray(len(self._chunk_crcs))
        self._bad: set[int] = set()  # chunks that are damaged or cannot be read

    def renew(self) -> None:
        """Prepare the view for later reads: call ``can_read`` again for the tables and the chunks.

        In the meantime, the kernel may have evicted pages of the file from memory. Raises the
        exception of ``fail`` if the tables cannot be read.
        """
        start = self.entry.tables_at
        if not self._can_read(start, start + self.entry.tables_len):
            raise self._fail(start, "the tables of the extent cannot be read")
        self._checked = self._checked.replace(b"\1", b"\2")

    def _read_tables(self, tables: memoryview) -> None:
        entry, count, head = self.entry, self.entry.record_count, decode_tables_head(tables, 0)
        flags = entry.flags
        lengths = (
            *(count, *(count * bool(flags & flag) for flag in (_NODES, _TAGS, _METAS))),
            *(head.chunk_count, head.node_count, head.tag_count, head.tag_count),
            head.posting_count,
        )
        bounds = [TABLES_HEAD_BYTES + 4 * length for length in accumulate(lengths, initial=0)]
        nodes_at = bounds[-1]
        tags_at = nodes_at + head.node_bytes
        keys_at = tags_at + head.tag_bytes
        chunk_count = -(-entry.blob_bytes // CHUNK_BYTES)
        if keys_at + head.keys_len != len(tables) or head.chunk_count != chunk_count:
            raise self._fail(entry.tables_at, "the tables of the extent do not match their head")
        ends, node_refs, tag_refs, meta_lens, chunk_crcs, node_ends, tag_ends, *postings = [
            tables[begin:end].cast("I") for begin, end in pairwise(bounds)
        ]
        self._ends, self._chunk_crcs = ends, chunk_crcs
        self._node_refs, self._tag_refs, self._meta_lens = node_refs, tag_refs, meta_lens
        self._posting_ends, self._postings = postings
        self.nodes = Dictionary(node_ends, tables[nodes_at:tags_at])
        self.tags = Dictionary(tag_ends, tables[tags_at:keys_at])
        self._keys = tables[keys_at:]

    @property
    def ends(self) -> memoryview:
        """The end of each record in the blob, including its comma."""
        return self._ends

    @property
    def blob(self) -> memoryview:
        """All rendered records, after verifying their checksums."""
        return self.part(0, len(self._data))

    def find_tag(self, tag: bytes) -> Sequence[int]:
        """Return the ascending indexes of the records with ``tag``, which is a JSON string."""
        ref = self.tags.find(tag)
        return self._records(ref - 1, ref) if ref else ()

    def find_prefix(self, prefix: bytes) -> Sequence[int]:
        """Return the indexes of the records whose tag begins with ``prefix``.

        ``prefix`` is a JSON string without its closing quote. The indexes are grouped by tag, and
        ascending for each tag.
        """
        start, stop = self.tags.span(prefix)
        return self._records(start, stop) if start < stop else ()

    def with_prefix(self, prefix: bytes, begin: int, end: int) -> Sequence[int]:
        """Return the indexes of `find_prefix` from ``begin`` to ``end`` (exclusive), ascending."""
        start, stop = self.tags.span(prefix)
        found = self._records(start, stop) if start < stop else ()
        if len(found) <= (end - begin) // SORT_COST:
            return [index for index in sorted(found) if begin <= index < end]
        refs = self._tag_refs[begin:end]
        return [index for index, ref in enumerate(refs, begin) if start < ref <= stop]

    def tagged(self, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
        """Yield ``(index, tag as a JSON string)`` for each record in the range that has a tag."""
        return (
            (index, self.tags.text(ref))
            for index, ref in enumerate(self._tag_refs[start:stop], start)
            if ref
        )

    @property
    def keys_len(self) -> int:
        """The size of the idempotency keys in bytes."""
        return len(self._keys)

    @property
    def has_texts(self) -> bool:
        """Whether there is a key, a node or a tag."""
        return len(self._keys) > 0 or len(self.nodes) > 0 or len(self.tags) > 0

    def idempotency_keys(self) -> Iterator[ExtentKey]:
        """Return the writes with an idempotency key, in the order of their seqs."""
        keys = cbor2.loads(bytes(self._keys)) if self._keys else ()
        # `tuple.__new__` is faster than `ExtentKey`. Startup may read millions of keys.
        return map(partial(tuple.__new__, ExtentKey), keys)

    def keys_one_by_one(self) -> Iterator[ExtentKey]:
        """Yield the same writes as `idempotency_keys`, but decode them one by one."""
        keys = bytes(self._keys)
        stream = BytesIO(keys)
        stream.seek(1)  # Skip the head of the CBOR array, which has indefinite length.
        while stream.tell() < len(keys) - 1:
            yield ExtentKey(*cbor2.load(stream))

    def _records(self, start: int, stop: int) -> memoryview:
        ends = self._posting_ends
        return self._postings[ends[start - 1] if start else 0 : ends[stop - 1]]

    def part(self, begin: int, end: int) -> memoryview:
        """Return bytes of the blob after verifying the checksums of their chunks."""
        first, last = begin // CHUNK_BYTES, -(-end // CHUNK_BYTES)
        if self._checked.count(1, first, last) < last - first:
            self._check(first, last)
        return self._data[begin:end]

    def _check(self, first: int, last: int) -> None:
        for chunk in range(first, last):
            if not self._is_intact(chunk):
                raise self._fail(self.entry.offset + chunk * CHUNK_BYTES, "records are damaged")

    def _is_intact(self, chunk: int) -> bool:
        if self._checked[chunk] != 1 and chunk not in self._bad:
            start, at = chunk * CHUNK_BYTES, self.entry.offset
            data = self._data[start : start + CHUNK_BYTES]
            if self._can_read(at + start, at + start + len(data)) and (
                self._checked[chunk] == 2 or crc32c.crc32c(data) == self._chunk_crcs[chunk]
            ):
                self._checked[chunk] = 1
            else:
                self._bad.add(chunk)
        return self._checked[chunk] == 1

    def bad_run(self, start: int, stop: int) -> tuple[int, int] | None:
        """Return the first run of records that are at least partly in damaged chunks, or None."""
        ends, run = self._ends, (stop, stop)
        for chunk in range(self._begin(start) // CHUNK_BYTES, -(-self._begin(stop) // CHUNK_BYTES)):
            begin, end = chunk * CHUNK_BYTES, (chunk + 1) * CHUNK_BYTES
            first = bisect_right(ends, begin, start, stop)
            last = bisect_left(ends, end, start, stop)
            if first > run[1] or run[0] < stop <= run[1]:
                break
            if not self._is_intact(chunk):
                run = min(run[0], first), min(last + 1, stop)
        return run if run[0] < stop else None

    def column(self, flag: int, start: int, stop: int) -> Sequence[int]:
        """Return rows ``start`` to ``stop`` of the table for ``flag``, which must be present."""
        if flag == _NODES:
            return self._node_refs[start:stop]
        return (self._tag_refs if flag == _TAGS else self._meta_lens)[start:stop]

    def texts(self) -> tuple[Texts, Texts]:
        """Return the dictionaries of nodes and tags."""
        return self.nodes, self.tags

    def _refs_of(self, nodes: Set[bytes]) -> Set[int]:
        return {ref for ref in map(self.nodes.find, nodes) if ref}

    def _node_lens(self, refs: Sequence[int]) -> list[int]:
        return self.nodes.lens(refs)

    def _tag_lens(self, refs: Sequence[int]) -> list[int]:
        return self.tags.lens(refs)
