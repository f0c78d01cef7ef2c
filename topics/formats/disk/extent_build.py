"""Building of extents: encodes records as the bytes of one extent (layout: ``segment.py``).

    `take` ... `take`    return the blob, one part per step
    `tables`             yields the tables, after the last record

A step takes less than a millisecond, even on machines with slow memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator

import cbor2
import crc32c

from topics.formats.buffers import Buffer
from topics.formats.disk.extent_view import ExtentView
from topics.formats.disk.records import AbstractView, RecordFlags, RecordsView, Texts
from topics.formats.disk.segment import (
    CHUNK_BYTES,
    BadSegment,
    ExtentKey,
    TablesHead,
    encode_tables_head,
)
from topics.formats.disk.text_table import TextTable

# The limits of one step.
STEP_BYTES = 256 << 10
STEP_SLICES = 32
STEP_RECORDS = 512  # A record with a unique tag takes 1 us.
STEP_PLAIN = 4096  # The limit for records without tag and node, which take a tenth of this time.
_NODES, _TAGS, _METAS, _ONE_NODE = map(
    int, (RecordFlags.NODES, RecordFlags.TAGS, RecordFlags.METAS, RecordFlags.ONE_NODE)
)

ViewSlice = tuple[RecordsView | ExtentView, int, int]
"""The records ``start`` to ``stop`` (exclusive) of a write or of another extent."""


class ViewSlices:
    """An iterator over record ranges that can also consume a part of a range.

    ``head`` is the rest of the current range, or None at the end.
    """

    def __init__(self, slices: Iterable[ViewSlice]) -> None:
        self._rest = iter(slices)
        self.head = next(self._rest, None)

    def take_to(self, index: int) -> None:
        """Consume the records of the current range before ``index``."""
        assert self.head is not None
        view, _, stop = self.head
        self.head = (view, index, stop) if index < stop else next(self._rest, None)


class ExtentBuilder:
    """Encodes one extent, step by step.

    ``bytes_max`` and ``records_max`` limit the blob. ``full`` is set when the next record does not
    fit.
    """

    def __init__(self, first_seq: int, bytes_max: int, records_max: int) -> None:
        self.first_seq, self._bytes_max, self._records_max = first_seq, bytes_max, records_max
        self.full = False
        self.count = self.size = 0  # number of records in the blob, and its size in bytes
        self.flags = self.keys_len = 0
        self.first_ts = self.last_ts = 0
        self._ends = array("I")
        self._nodes, self._tags, self._meta_lens = TextTable(), TextTable(), array("I")
        self._chunk_crcs, self._chunk_crc = array("I"), 0
        self._keys: list[bytes] = []
        self._keyed: AbstractView | None = None
        self._rest_keys: Iterator[ExtentKey] = iter(())  # unread keys of the source extent
        self._next_key: ExtentKey | None = None
        self._last_key_seq = 0

    def take(self, slices: ViewSlices) -> bytes:
        """Add the records of one step, and return the bytes that were added to the blob.

        If the next record does not fit, ``full`` is set and the result is empty.
        """
        blobs: list[Buffer] = []
        seq = self.first_seq + self.count
        last: tuple[AbstractView, int] | None = None
        size_max = min(self.size + STEP_BYTES, self._bytes_max)
        worth = STEP_RECORDS if slices.head is not None and slices.head[0].has_texts else STEP_PLAIN
        count_max = min(self.count + worth, self._records_max)
        while slices.head is not None and len(blobs) < STEP_SLICES:
            view, start, stop = slices.head
            end = self._fitting(view, start, stop, size_max, count_max)
            if end == start:
                size = self.size + view.size(start, start + 1)
                if blobs or (self.count and size > self._bytes_max):
                    break
                end = start + 1  # The record exceeds the limit of a step, so it gets its own step.
            if not self.count:
                self.first_ts = view.ts(start)
            blobs.append(self._add(view, start, end))
            last = view, end - 1
            slices.take_to(end)
        if last:
            self.last_ts = last[0].ts(last[1])
        self.full = not blobs or self.count >= self._records_max
        taken = b"".join(blobs)
        begin = b'{"$seq":%d,' % seq
        assert not blobs or taken.startswith(begin), "the chunks of a source are contiguous"
        self._checksum(taken)
        return taken

    def _fitting(
        self, view: AbstractView, start: int, stop: int, size_max: int, count_max: int
    ) -> int:
        """Return the index up to which this step may take records of the range."""
        stop = min(stop, start + count_max - self.count)
        if self.size + view.size(start, stop) <= size_max:
            return stop
        return view.fit(start, stop, size_max - self.size)

    def _add(self, view: RecordsView | ExtentView, start: int, stop: int) -> Buffer:
        if view.has_texts:
            self._add_texts(view, start, stop)
        if view.flags & _METAS:
            self._meta_lens.frombytes(bytes(4 * (self.count - len(self._meta_lens))))
            self._meta_lens.extend(view.column(_METAS, start, stop))
        ends = view.ends
        if view.count > 1:
            begin = ends[start - 1] if start else 0
            blob = view.part(begin, ends[stop - 1])
            self._ends.extend(map((self.size - begin).__add__, ends[start:stop]))
        else:
            blob = view.blob
            self._ends.append(self.size + len(blob))
        self.count += stop - start
        self.size += len(blob)
        return blob

    def _add_texts(self, view: RecordsView | ExtentView, start: int, stop: int) -> None:
        node_texts, tag_texts, key = _texts_and_key(view)
        flags, count = int(view.flags), self.count
        if flags & (_NODES | _ONE_NODE):
            alike = flags & _ONE_NODE or view.count == 1
            nodes = b"\1" * (stop - start) if alike else view.column(_NODES, start, stop)
            self._nodes.add(count, node_texts, nodes)
        if flags & _TAGS:
            tags = b"\1" if view.count == 1 else view.column(_TAGS, start, stop)
            self._tags.add(count, tag_texts, tags)
        # If the records of a write are in several extents, each of them contains its key.
        first_seq = self.first_seq + count - start
        if isinstance(view, ExtentView):
            self._add_keys(view, first_seq + start, first_seq + stop)
        elif key is not None and self._keyed is not view:
            self._keyed = view
            self._keys.append(cbor2.dumps(ExtentKey(key, first_seq, view.count, view.ts(0))))

    def _add_keys(self, view: ExtentView, seq: int, end_seq: int) -> None:
        """Add the keys of the writes that have records from ``seq`` to ``end_seq`` (exclusive).

        Keys that have already been added are omitted.
        """
        if self._keyed is not view:
            self._keyed, self._rest_keys = view, view.keys_one_by_one()
            self._next_key = next(self._rest_keys, None)
        while (key := self._next_key) is not None and key.first_seq < end_seq:
            if key.first_seq > self._last_key_seq and key.first_seq + key.record_count > seq:
                self._last_key_seq = key.first_seq
                self._keys.append(cbor2.dumps(key))
            self._next_key = next(self._rest_keys, None)

    def _checksum(self, taken: bytes) -> None:
        """Update the checksums of the chunks with the next bytes of the blob."""
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
        """Yield the bytes of the tables in several buffers. Empty buffers only end a step."""
        if self.size % CHUNK_BYTES:
            self._chunk_crcs.append(self._chunk_crc)
        nodes, tags = self._nodes, self._tags
        for texts in (nodes, tags):
            if texts.refs:
                texts.fill(self.count)
                yield from (b"" for _ in texts.sort())
        posting_ends = postings = b""
        for posting_ends, postings in tags.postings():  # noqa: B007 - the last item counts
            yield b""
        self._set_flags()
        keys = b"\x9f%b\xff" % b"".join(self._keys) if self._keys else b""
        self.keys_len = len(keys)
        yield self._tables_head(len(postings) // 4)
        yield from self._columns()
        chunk_crcs, node_ends, tag_ends = self._chunk_crcs, nodes.ends, tags.ends
        ends = (chunk_crcs.tobytes(), node_ends.tobytes(), tag_ends.tobytes(), posting_ends)
        yield b"".join((*ends, postings))
        for texts in (nodes, tags):
            yield from texts.parts
        yield keys

    def _set_flags(self) -> None:
        nodes, meta_lens = self._nodes, self._meta_lens
        if any(meta_lens):
            meta_lens.frombytes(bytes(4 * (self.count - len(meta_lens))))
            self.flags |= _METAS
        if self._tags.ends:
            self.flags |= _TAGS
        if nodes.ends:
            self.flags |= _ONE_NODE if len(nodes.ends) == 1 and 0 not in nodes.refs else _NODES

    def _tables_head(self, posting_count: int) -> bytes:
        node_ends, tag_ends = self._nodes.ends, self._tags.ends
        head = TablesHead(
            node_count=len(node_ends),
            node_bytes=node_ends[-1] if node_ends else 0,
            tag_count=len(tag_ends),
            tag_bytes=tag_ends[-1] if tag_ends else 0,
            posting_count=posting_count,
            chunk_count=len(self._chunk_crcs),
            keys_len=self.keys_len,
        )
        return encode_tables_head(head)

    def _columns(self) -> Iterator[bytes]:
        """Yield the tables that have a row for each record."""
        yield self._ends.tobytes()
        if self.flags & _NODES:
            yield self._nodes.refs.tobytes()
        if self.flags & _TAGS:
            yield self._tags.refs.tobytes()
        if self.flags & _METAS:
            yield self._meta_lens.tobytes()


def _texts_and_key(view: RecordsView | ExtentView) -> tuple[Texts, Texts, str | None]:
    """Return the nodes and the tags as `AbstractView.texts`, and the idempotency key of a write."""
    if isinstance(view, ExtentView):
        return *view.texts(), None
    ext = view.ext()
    return ext.get("n", ()), ext.get("t", ()), ext.get("k")


def check_extent(view: ExtentView) -> Iterator[tuple[int, str]]:
    """Yield ``(offset in the file, reason)`` for each error in an extent.

    The checksum of its tables must be correct. Programs that check for damage use this function. It
    builds the extent again from its own records and compares the result.
    """
    entry = view.entry
    found = []
    for start in range(0, entry.blob_bytes, CHUNK_BYTES):
        try:
            view.part(start, min(start + CHUNK_BYTES, entry.blob_bytes))
        except BadSegment as error:
            found.append((error.offset, error.reason))
    try:
        yield from found or _contradictions(view)
    except (cbor2.CBORError, AssertionError, LookupError, TypeError, ValueError):
        yield entry.tables_at, "the tables of the extent do not match its records"


def _contradictions(view: ExtentView) -> Iterator[tuple[int, str]]:
    entry, count = view.entry, view.count
    built, slices = (
        ExtentBuilder(entry.first_seq, entry.blob_bytes, count),
        ViewSlices([(view, 0, count)]),
    )
    while slices.head is not None and not built.full:
        built.take(slices)
    tables = b"".join(built.tables())
    if tables != view.tables or built.flags != entry.flags:
        yield entry.tables_at, "the tables do not match the records"
    if (built.first_ts, built.last_ts) != (entry.first_ts, entry.last_ts):
        yield entry.offset, "the times in the directory do not match the records"
    nothing = bytes(count)
    columns = [
        view.column(flag, 0, count) if entry.flags & flag else nothing
        for flag in (_NODES, _TAGS, _METAS)
    ]
    nodes = b"\1" * count if entry.flags & _ONE_NODE else columns[0]
    begin = 0
    for index, (end, node, tag, meta) in enumerate(
        zip(view.ends, nodes, *columns[1:], strict=True)
    ):
        record, seq = bytes(view.part(begin, end)), entry.first_seq + index
        head = b'{"$seq":%d,"$ts":%d' % (seq, view.ts(index))
        head += b',"$node":' + view.nodes.text(node) if node else b""
        head += b',"$tag":' + view.tags.text(tag) if tag else b""
        if not record.startswith(head + b',"data":') or not record.endswith(b"},"):
            yield entry.offset + begin, f"the record of seq {seq} does not match the tables"
        elif meta and record[-meta - 2 :][: len(b',"meta":')] != b',"meta":':
            yield entry.offset + begin, f"the record of seq {seq} lacks its meta"
        begin = end
