"""Reads an extent of a segment in place (bytes: ``segment.py``)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence, Set
from itertools import accumulate, pairwise

import cbor2
import crc32c

from topics.formats.disk.records import RecordFlags, View
from topics.formats.disk.segment import CHUNK_BYTES, TABLES_HEAD, BadSegment, ExtentEntry, ExtentKey

_NODES, _TAGS, _METAS = map(int, (RecordFlags.NODES, RecordFlags.TAGS, RecordFlags.METAS))


class Dictionary:
    """Distinct JSON strings in the order of their bytes. A *ref* counts them from 1."""

    __slots__ = ("_bytes", "_ends")

    def __init__(self, ends: memoryview, text: memoryview) -> None:
        self._ends, self._bytes = ends, text

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def whole(self) -> bool:
        """Whether the texts fill the bytes, to the last."""
        return len(self._bytes) == (self._ends[-1] if len(self) else 0)

    def text(self, ref: int) -> bytes:
        """The JSON string."""
        return bytes(self._bytes[self._ends[ref - 2] if ref > 1 else 0 : self._ends[ref - 1]])

    def lens(self, refs: Sequence[int]) -> list[int]:
        """Bytes of each, 0 for ref 0."""
        ends = self._ends
        return [ref and (ends[ref - 1] - ends[ref - 2] if ref > 1 else ends[0]) for ref in refs]

    def find(self, text: bytes) -> int:
        """Its ref, 0 when it is not there."""
        refs = range(1, len(self) + 1)
        index = bisect_left(refs, text, key=self.text)
        return index + 1 if index < len(refs) and self.text(index + 1) == text else 0

    def span(self, prefix: bytes) -> tuple[int, int]:
        """How many come before those that begin with ``prefix``, and before what follows on them."""
        refs = range(1, len(self) + 1)
        start = bisect_left(refs, prefix, key=self.text)
        return start, bisect_right(
            refs, prefix, start, key=lambda ref: self.text(ref)[: len(prefix)]
        )


def _bad_segment(offset: int, reason: str) -> Exception:
    return BadSegment(offset, reason)


class ExtentView(View):
    """Reads an extent in place. Checks its tables at once, and each chunk of the blob when it is
    first touched.

    ``data`` is the whole file; ``checked`` says that its tables have been checked before. ``fail``
    makes the exception that is raised for damage, of an offset in the file and a reason.
    """

    __slots__ = (
        "_bad",
        "_checked",
        "_chunk_crcs",
        "_data",
        "_ends",
        "_fail",
        "_keys",
        "_meta_lens",
        "_node_refs",
        "_posting_ends",
        "_postings",
        "_tag_refs",
        "entry",
        "nodes",
        "tags",
    )  # fmt: skip

    def __init__(
        self, entry: ExtentEntry, data: memoryview, fail: Callable[[int, str], Exception] = _bad_segment, *, checked: bool = False
    ) -> None:  # fmt: skip
        super().__init__(entry.flags, entry.record_count)
        self.entry, self._fail = entry, fail
        start, count, flags = entry.tables_at, entry.record_count, entry.flags
        if not TABLES_HEAD.size <= entry.tables_len <= entry.length <= len(data) - entry.offset:
            raise fail(entry.offset, "the extent is cut")
        if (
            not checked
            and crc32c.crc32c(data[start : start + entry.tables_len]) != entry.tables_crc
        ):
            raise fail(start, "the tables of the extent are damaged")
        node_count, node_bytes, tag_count, tag_bytes, posting_count, chunk_count, keys_len = (
            TABLES_HEAD.unpack_from(data, start)
        )
        parts = (
            *(count, *(count * bool(flags & flag) for flag in (_NODES, _TAGS, _METAS))),
            *(chunk_count, node_count, tag_count, tag_count, posting_count),
        )  # fmt: skip
        bounds = [start + TABLES_HEAD.size + 4 * length for length in accumulate(parts, initial=0)]
        if bounds[
            -1
        ] + node_bytes + tag_bytes + keys_len != start + entry.tables_len or chunk_count != -(
            -entry.blob_bytes // CHUNK_BYTES
        ):
            raise fail(start, "the tables of the extent have other lengths than they say")
        tables = [data[begin:end].cast("I") for begin, end in pairwise(bounds)]
        (
            self._ends,
            self._node_refs,
            self._tag_refs,
            self._meta_lens,
            self._chunk_crcs,
            node_ends,
            tag_ends,
        ) = tables[:7]
        self._posting_ends, self._postings = tables[7:]
        nodes_at = bounds[-1]
        tags_at = nodes_at + node_bytes
        self.nodes = Dictionary(node_ends, data[nodes_at:tags_at])
        self.tags = Dictionary(tag_ends, data[tags_at : tags_at + tag_bytes])
        self._keys = data[tags_at + tag_bytes : start + entry.tables_len]
        self._data = data[entry.offset : entry.offset + entry.blob_bytes]
        self._checked = bytearray(chunk_count)
        self._bad: set[int] = set()  # chunks that are known to be damaged

    @property
    def ends(self) -> memoryview:
        """End of each record in the blob."""
        return self._ends

    @property
    def blob(self) -> memoryview:
        """The rendered records, checked to the last."""
        return self.part(0, len(self._data))

    @property
    def postings(self) -> Iterator[tuple[int, memoryview]]:
        """``(tag's ref, indexes of its records)``, all of them."""
        return ((ref, self._records(ref - 1, ref)) for ref in range(1, len(self.tags) + 1))

    def find_tag(self, tag: bytes) -> Sequence[int]:
        """Indexes of the records with this tag, a JSON string; ascending."""
        ref = self.tags.find(tag)
        return self._records(ref - 1, ref) if ref else ()

    def find_prefix(self, prefix: bytes) -> Sequence[int]:
        """Indexes of the records whose tag begins with ``prefix``, a JSON string without its
        closing quote. Ascending for each tag.
        """
        start, stop = self.tags.span(prefix)
        return self._records(start, stop) if start < stop else ()

    def tagged(self, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
        """``(index, tag as a JSON string)`` of each record in the range that has a tag."""
        return (
            (index, self.tags.text(ref))
            for index, ref in enumerate(self._tag_refs[start:stop], start)
            if ref
        )

    def idempotency_keys(self) -> Iterator[ExtentKey]:
        """Writes that had an idempotency key, in the order of their seqs."""
        return (
            ExtentKey(*fields) for fields in (cbor2.loads(bytes(self._keys)) if self._keys else ())
        )

    def _records(self, start: int, stop: int) -> memoryview:
        ends = self._posting_ends
        return self._postings[ends[start - 1] if start else 0 : ends[stop - 1]]

    def part(self, begin: int, end: int) -> memoryview:
        """Part of the blob, checked."""
        first, last = begin // CHUNK_BYTES, -(-end // CHUNK_BYTES)
        if self._checked.find(0, first, last) >= 0:
            self._check(first, last)
        return self._data[begin:end]

    def _check(self, first: int, last: int) -> None:
        for chunk in range(first, last):
            if not self._is_whole(chunk):
                raise self._fail(self.entry.offset + chunk * CHUNK_BYTES, "records are damaged")

    def _is_whole(self, chunk: int) -> bool:
        if not self._checked[chunk] and chunk not in self._bad:
            start = chunk * CHUNK_BYTES
            if crc32c.crc32c(self._data[start : start + CHUNK_BYTES]) == self._chunk_crcs[chunk]:
                self._checked[chunk] = 1
            else:
                self._bad.add(chunk)
        return self._checked[chunk] == 1

    def bad_run(self, start: int, stop: int) -> tuple[int, int] | None:
        """As `View.bad_run`: records that stand, if only in part, in damaged chunks."""
        ends, run = self._ends, (stop, stop)
        for chunk in range(self._begin(start) // CHUNK_BYTES, -(-self._begin(stop) // CHUNK_BYTES)):
            begin, end = chunk * CHUNK_BYTES, (chunk + 1) * CHUNK_BYTES
            first, last = (
                bisect_right(ends, begin, start, stop),
                bisect_left(ends, end, start, stop),
            )
            if first > run[1] or run[0] < stop <= run[1]:
                break
            if not self._is_whole(chunk):
                run = min(run[0], first), min(last + 1, stop)
        return run if run[0] < stop else None

    def column(self, flag: int, start: int, stop: int) -> Sequence[int]:
        """Part of a table; only of one of which ``flags`` say that it is there."""
        table = (
            self._node_refs
            if flag == _NODES
            else self._tag_refs
            if flag == _TAGS
            else self._meta_lens
        )
        return table[start:stop]

    def _refs_of(self, nodes: Set[bytes]) -> Set[int]:
        return {ref for ref in map(self.nodes.find, nodes) if ref}

    def _node_lens(self, refs: Sequence[int]) -> list[int]:
        return self.nodes.lens(refs)

    def _tag_lens(self, refs: Sequence[int]) -> list[int]:
        return self.tags.lens(refs)
