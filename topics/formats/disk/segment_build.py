"""Builds a segment from the records of a log, in steps between which others may run (bytes:
``segment.py``).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import merge
from itertools import accumulate, islice
from typing import NamedTuple

import cbor2
import crc32c

from topics.formats.buffers import Buffer
from topics.formats.disk.packed import PackedTexts
from topics.formats.disk.records import RecordFlags, RecordsView, View
from topics.formats.disk.segment import (
    CHUNK_BYTES,
    ENTRY_BYTES,
    HEADER_BYTES,
    TABLES_HEAD,
    TRAILER_BYTES,
    ExtentEntry,
    ExtentKey,
    SegmentHeader,
    Trailer,
    encode_entry,
    encode_header,
    encode_trailer,
    padding,
)

# A longer stretch becomes several extents: the tables of one are read and checked at one go,
# whatever is asked of it.
EXTENT_BYTES = 64 << 20
EXTENT_RECORDS = 1 << 16
# What one step of a build does at most: less than a millisecond, also where memory is slow.
STEP_BYTES = 256 << 10
STEP_PIECES = 32
STEP_RECORDS = 512  # taken in; a record with a tag of its own costs a microsecond ...
STEP_PLAIN = 4096  # ... and one without tag and node a tenth of it
STEP_ROWS = 4096  # of a table
STEP_TEXTS = 512
RUN_TEXTS = 1024
STEP_EXTENTS = 256
_NODES, _TAGS, _METAS, _ONE_NODE = map(
    int, (RecordFlags.NODES, RecordFlags.TAGS, RecordFlags.METAS, RecordFlags.ONE_NODE)
)

Piece = tuple[RecordsView, int, int]
"""Records ``start`` to ``stop`` (exclusive) of a write."""


class Source(NamedTuple):
    """A stretch of one topic's contiguous seqs; what the pieces hold follows on one another."""

    topic_id: int
    first_seq: int
    pieces: Iterable[Piece]


DeadFlags = Callable[[int, int, int], Buffer | None]
"""Flags of the records that ``topic_id, first_seq, count`` name, one byte each; None: all live."""


def _all_live(_topic_id: int, _first_seq: int, _count: int) -> Buffer | None:
    return None


def build(
    header: SegmentHeader,
    sources: Iterable[Source],
    dead: DeadFlags = _all_live,
    *,
    extent_bytes: int = EXTENT_BYTES,
    extent_records: int = EXTENT_RECORDS,
) -> Iterator[bytes]:
    """The file's bytes, piece after piece. Each takes a millisecond at most to come, and may be
    empty.

    Sources and their pieces are asked for one by one; ``dead`` is asked when all records are
    through.
    """
    yield encode_header(header)
    at = HEADER_BYTES
    entries: list[ExtentEntry] = []
    for topic_id, seq, pieces in sources:
        left = _Pieces(pieces)
        while left.head is not None:
            extent = _Extent(seq, extent_bytes, extent_records)
            while left.head is not None and not extent.full:
                yield extent.take(left)
            yield bytes(padding(extent.size, 8))
            tables_len = crc = 0
            for part in extent.tables():
                tables_len += len(part)
                crc = crc32c.crc32c(part, crc)
                yield part
            length = extent.size + padding(extent.size, 8) + tables_len
            entries.append(ExtentEntry(
                topic_id, seq, at, length, 0, extent.first_ts, extent.last_ts, extent.count, extent.size, tables_len, crc, extent.flags
            ))  # fmt: skip
            yield bytes(padding(length))
            at += length + padding(length)
            seq += extent.count
    yield from _ending(entries, at, dead)


def _ending(entries: list[ExtentEntry], flags_at: int, dead: DeadFlags) -> Iterator[bytes]:
    record_count = 0
    for start in range(0, len(entries), STEP_EXTENTS):
        flags = []
        for index, entry in enumerate(entries[start : start + STEP_EXTENTS], start):
            flags.append(
                dead(entry.topic_id, entry.first_seq, entry.record_count)
                or bytes(entry.record_count)
            )
            assert len(flags[-1]) == entry.record_count, "one flag for each record"
            entries[index] = entry._replace(flags_at=flags_at + record_count)
            record_count += entry.record_count
        yield b"".join(flags)
    yield bytes(padding(record_count))
    crc = 0
    for start in range(0, len(entries), STEP_EXTENTS):
        part = b"".join(map(encode_entry, entries[start : start + STEP_EXTENTS]))
        crc = crc32c.crc32c(part, crc)
        yield part
    directory_at = flags_at + record_count + padding(record_count)
    file_length = directory_at + ENTRY_BYTES * len(entries) + TRAILER_BYTES
    yield encode_trailer(
        Trailer(directory_at, flags_at, record_count, file_length, len(entries), crc)
    )


class _Texts:
    """Nodes or tags of the records so far: a ref for each record, 0 for none; in order of
    appearance until `sort`.
    """

    def __init__(self) -> None:
        self._places: dict[bytes, int] = {}
        self.refs = array("I")
        self.parts: list[bytes] = []  # the texts, so many in one
        self.ends = array("I")  # of the texts in order

    def add(self, count: int, texts: Sequence[bytes], refs: Sequence[int]) -> None:
        """The next records' refs into ``texts``, from 1; there were ``count`` records before."""
        self.fill(count)
        places = self._places
        if len(refs) == 1:
            ref = refs[0]
            self.refs.append(places.setdefault(texts[ref - 1], len(places) + 1) if ref else 0)
            return
        table = {
            ref: places.setdefault(texts[ref - 1], len(places) + 1) if ref else 0
            for ref in set(refs)
        }
        self.refs.extend(map(table.__getitem__, refs))

    def fill(self, count: int) -> None:
        """Records without a text, up to ``count`` in all."""
        if len(self.refs) < count:
            self.refs.frombytes(bytes(4 * (count - len(self.refs))))

    def sort(self) -> Iterator[None]:
        """Put all texts in order into ``parts``, and let refs name their places there. Yields now
        and then.
        """
        unsorted, runs = iter(self._places), []
        while run := sorted(islice(unsorted, RUN_TEXTS)):
            runs.append(PackedTexts(run))
            yield
        merged = merge(*runs)
        new_refs = array("I", bytes(4 * (len(self._places) + 1)))
        while part := list(islice(merged, STEP_TEXTS)):
            for ref, text in enumerate(part, len(self.ends) + 1):
                new_refs[self._places[text]] = ref
            self.parts.append(b"".join(part))
            _accumulate(self.ends, map(len, part))
            yield
        refs, self.refs = self.refs, array("I")
        for start in range(0, len(refs), STEP_ROWS):
            self.refs.extend(map(new_refs.__getitem__, refs[start : start + STEP_ROWS]))
            yield

    def postings(self) -> Iterator[tuple[bytes, bytes]]:
        """When sorted: the ends of the postings, and the postings, at the very end; empty ones
        before.
        """
        if not self.ends:
            return
        counts = array("I", bytes(4 * (len(self.ends) + 1)))
        for start in range(0, len(self.refs), STEP_ROWS):
            for ref in self.refs[start : start + STEP_ROWS]:
                counts[ref] += 1
            yield b"", b""
        counts[0] = 0
        at = array(
            "I", [0]
        )  # where the next record of each ref goes: at first where the ref's records begin, at last where they end
        for start in range(0, len(counts), STEP_ROWS):
            _accumulate(at, counts[start : start + STEP_ROWS])
            yield b"", b""
        postings = array("I", bytes(4 * at.pop()))
        for start in range(0, len(self.refs), STEP_ROWS):
            for index, ref in enumerate(self.refs[start : start + STEP_ROWS], start):
                if ref:
                    postings[at[ref]] = index
                    at[ref] += 1
            yield b"", b""
        yield at[1:].tobytes(), postings.tobytes()


def _accumulate(ends: array[int], lens: Iterable[int]) -> None:
    """Add the ends of what has these lengths and follows on the rest."""
    sums = accumulate(lens, initial=ends[-1] if ends else 0)
    next(sums)
    ends.extend(sums)


class _Pieces:
    """Pieces, of which the first may be taken in part. ``head`` is what is left of it, None at the
    end.
    """

    def __init__(self, pieces: Iterable[Piece]) -> None:
        self._rest = iter(pieces)
        self.head = next(self._rest, None)

    def pass_to(self, index: int) -> None:
        """What comes before ``index`` in the first piece is taken."""
        assert self.head is not None
        view, _, stop = self.head
        self.head = (view, index, stop) if index < stop else next(self._rest, None)


class _Extent:
    """An extent on its way: what was taken so far."""

    def __init__(self, first_seq: int, bytes_max: int, records_max: int) -> None:
        self.first_seq, self._bytes_max, self._records_max = first_seq, bytes_max, records_max
        self.full = False
        self.count = self.size = 0  # records and bytes of the blob so far
        self.flags = 0
        self.first_ts = self.last_ts = 0
        self._ends = array("I")
        self._nodes, self._tags, self._meta_lens = _Texts(), _Texts(), array("I")
        self._chunk_crcs, self._chunk_crc = array("I"), 0
        self._keys: list[bytes] = []
        self._keyed: RecordsView | None = None

    def take(self, pieces: _Pieces) -> bytes:
        """Add what is worth a step, or find that this extent is full; the bytes that were added."""
        blobs: list[Buffer] = []
        seq = self.first_seq + self.count
        last: tuple[View, int] | None = None
        size_max = min(self.size + STEP_BYTES, self._bytes_max)
        worth = STEP_RECORDS if pieces.head is not None and pieces.head[0].has_ext else STEP_PLAIN
        count_max = min(self.count + worth, self._records_max)
        while pieces.head is not None and len(blobs) < STEP_PIECES:
            view, start, stop = pieces.head
            end = self._fitting(view, start, stop, size_max, count_max)
            if end == start:
                if blobs or (
                    self.count and self.size + view.size(start, start + 1) > self._bytes_max
                ):
                    break
                end = start + 1  # a record longer than a step
            if not self.count:
                self.first_ts = view.ts(start)
            blobs.append(self._add(view, start, end))
            last = view, end - 1
            pieces.pass_to(end)
        if last:
            self.last_ts = last[0].ts(last[1])
        self.full = not blobs or self.count >= self._records_max
        taken = b"".join(blobs)
        assert not blobs or taken.startswith(b'{"$seq":%d,' % seq), (
            "the pieces of a stretch follow on one another"
        )
        self._checksum(taken)
        return taken

    def _fitting(
        self, view: RecordsView, start: int, stop: int, size_max: int, count_max: int
    ) -> int:
        """How far the piece may be taken."""
        stop = min(stop, start + count_max - self.count)
        if self.size + view.size(start, stop) <= size_max:
            return stop
        return view.fit(start, stop, size_max - self.size)

    def _add(self, view: RecordsView, start: int, stop: int) -> Buffer:
        if view.has_ext:
            self._add_texts(view, start, stop)
        if view.flags & _METAS:
            self._meta_lens.frombytes(bytes(4 * (self.count - len(self._meta_lens))))
            self._meta_lens.extend(view.column(_METAS, start, stop))
        blob, ends = view.blob, view.ends
        if view.count > 1:
            begin = ends[start - 1] if start else 0
            blob = blob[begin : ends[stop - 1]]
            self._ends.extend(map((self.size - begin).__add__, ends[start:stop]))
        else:
            self._ends.append(self.size + len(blob))
        self.count += stop - start
        self.size += len(blob)
        return blob

    def _add_texts(self, view: RecordsView, start: int, stop: int) -> None:
        ext, flags, count = view.ext(), int(view.flags), self.count
        if flags & (_NODES | _ONE_NODE):
            alike = flags & _ONE_NODE or view.count == 1
            self._nodes.add(
                count,
                ext["n"],
                b"\1" * (stop - start) if alike else view.column(_NODES, start, stop),
            )
        if flags & _TAGS:
            self._tags.add(
                count, ext["t"], b"\1" if view.count == 1 else view.column(_TAGS, start, stop)
            )
        key = ext.get("k")
        if (
            key is not None and self._keyed is not view
        ):  # a write in several extents has its key in each of them
            self._keyed = view
            self._keys.append(
                cbor2.dumps(ExtentKey(key, self.first_seq + count - start, view.count, view.ts(0)))
            )

    def _checksum(self, taken: bytes) -> None:
        """Go on with the checksums of the chunks."""
        filled = (self.size - len(taken)) % CHUNK_BYTES
        data = memoryview(taken)
        while data:
            part, data = data[: CHUNK_BYTES - filled], data[CHUNK_BYTES - filled :]
            self._chunk_crc = crc32c.crc32c(part, self._chunk_crc)
            filled = (filled + len(part)) % CHUNK_BYTES
            if not filled:
                self._chunk_crcs.append(self._chunk_crc)
                self._chunk_crc = 0

    def tables(self) -> Iterator[bytes]:
        """The tables, part after part; empty ones while they are being made."""
        if self.size % CHUNK_BYTES:
            self._chunk_crcs.append(self._chunk_crc)
        nodes, tags, meta_lens = self._nodes, self._tags, self._meta_lens
        for texts in (nodes, tags):
            if texts.refs:
                texts.fill(self.count)
                yield from (b"" for _ in texts.sort())
        posting_ends = postings = b""
        for posting_ends, postings in tags.postings():  # noqa: B007 - the last are meant
            yield b""
        if any(meta_lens):
            meta_lens.frombytes(bytes(4 * (self.count - len(meta_lens))))
            self.flags |= _METAS
        if tags.ends:
            self.flags |= _TAGS
        if nodes.ends:
            self.flags |= _ONE_NODE if len(nodes.ends) == 1 and 0 not in nodes.refs else _NODES
        keys = b"\x9f%b\xff" % b"".join(self._keys) if self._keys else b""
        node_ends, tag_ends = nodes.ends, tags.ends
        yield TABLES_HEAD.pack(
            len(node_ends), node_ends[-1] if node_ends else 0, len(tag_ends), tag_ends[-1] if tag_ends else 0,
            len(postings) // 4, len(self._chunk_crcs), len(keys),
        )  # fmt: skip
        yield self._ends.tobytes()
        if self.flags & _NODES:
            yield nodes.refs.tobytes()
        if self.flags & _TAGS:
            yield tags.refs.tobytes()
        if self.flags & _METAS:
            yield meta_lens.tobytes()
        yield b"".join(
            (
                self._chunk_crcs.tobytes(),
                node_ends.tobytes(),
                tag_ends.tobytes(),
                posting_ends,
                postings,
            )
        )
        for texts in (nodes, tags):
            yield from texts.parts
        yield keys
