"""Copies: the body of a ROUTER frame, and the records that it stands for. Integers little-endian.

A ROUTER frame says that a router has appended copies to its dest, and how far it has come in its
source. The copies are not in it: each row names contiguous records of a *payload frame* (kind
APPEND or PAYLOAD, in the log of some shard), and `Copier` renders the copies from these. Without
copies (``record_count`` 0) the frame moves the router's cursor alone, or burns seqs of the dest for
what the source has lost; ``first_seq`` is then the first burnt seq, or 0. Body:

    part  size      present when  meaning
    ext   ext_len   always        CBOR map
    rows  32 a row  copies        in the order of the copies

Keys of ext:

    key  value  meaning
    r    int    id of the router
    c    int    its cursor: the last seq of the source that is done
    t    int    copies that it has made by then
    h    int    hop of the copies
    s    int    rendered bytes of all copies; 0 where missing
    l    int    seqs that are burnt from ``first_seq`` on; 0 where missing
    m    array  stamps: (router, source, id of the source, its epoch); empty where missing

A row:

    offset  size  field      meaning
    0       8     lsn        of the payload frame
    8       8     stamp_seq  with a stamp: seq of the first of these records in the topic that the
                             stamp names; else 0
    16      2     shard      whose log has the payload frame
    18      2     stamp      which of "m" goes into `meta`, from 1; 0: none
    20      1     drops      `Drops`: what the copies lack
    21      3     zero
    24      4     start      first of the records, as an index into the payload frame
    28      4     stop       the first record past them

**Rendering is part of the format.** The same row gives the same bytes for ever: offsets into copies
and their sizes outlive every process, and segments are built of them. A copy is the rendered record
of the payload frame with the `$seq` and `$ts` of its own; node and tag are cut out where ``drops``
says so; the stamp becomes the member `_topics_router` of `meta`, in place of an earlier one. All
other bytes stay: `data` and `meta` are never rendered again. The result is exactly what
``rendering.py`` makes of an append of these records, without a key and without delays.
"""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Iterable, Sequence
from enum import IntEnum
from itertools import accumulate
from operator import add
from typing import Annotated, Any, NamedTuple

import cbor2
import msgspec

from topics.formats.api.members import with_members, without_members
from topics.formats.buffers import Buffer
from topics.formats.disk.frames import Frame, FrameHeader, FrameKind
from topics.formats.disk.records import RecordFlags, RecordsView, Texts, View
from topics.formats.disk.rendering import U32_MAX, EncodedRecords
from topics.formats.json_text import json_string

ROW = struct.Struct("<QQHHBxxxII")
assert ROW.size == 32
STAMP_MEMBER = "_topics_router"

_NODES, _TAGS, _METAS, _ONE_NODE = map(
    int, (RecordFlags.NODES, RecordFlags.TAGS, RecordFlags.METAS, RecordFlags.ONE_NODE)
)
_RECORD_FLAGS = _NODES | _TAGS | _METAS | _ONE_NODE
_NODE, _TAG, _META = b',"$node":', b',"$tag":', b',"meta":'
# A `meta` without a match holds no stamp: the name stands there, or some of it is escaped.
_MAYBE_STAMPED = re.compile(rb"_topics_router|\\")


class BadCopies(ValueError):
    """The bytes are no rows or no body of a ROUTER frame, or they contradict what they name."""


class Drops(IntEnum):
    """Bits of `CopyRow.drops`. Written to disk: never renumber, only add."""

    NODE = 1
    TAG = 2


_DROP_NODE, _DROP_TAG = int(Drops.NODE), int(Drops.TAG)
_DROPS = _DROP_NODE | _DROP_TAG


class Stamp(NamedTuple):
    """Where copies come from, as an ``exactly_once`` router tells it in their `meta`."""

    router: str
    source: str
    source_id: int
    epoch: int


class CopyRow(NamedTuple):
    """Contiguous records of one payload frame that became copies; fields as in the table above."""

    lsn: int
    stamp_seq: int
    shard: int
    stamp: int
    drops: int
    start: int
    stop: int


class CopiesBody(NamedTuple):
    """Body of a ROUTER frame. ``size``: rendered bytes of all copies; ``trimmed``: seqs of the dest
    that are burnt from ``first_seq`` on (then there are no rows).
    """

    router: int
    cursor: int
    total: int
    hop: int
    size: int
    trimmed: int
    stamps: Sequence[Stamp]
    rows: Sequence[CopyRow]


_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Ext(msgspec.Struct, gc=False):
    r: _Count
    c: _Count
    t: _Count
    h: _Count
    s: _Count = 0
    l: _Count = 0  # noqa: E741 - the key on disk
    m: list[Stamp] = []


# The frame


def encode_rows(rows: Iterable[CopyRow]) -> bytes:
    """The rows, one behind the other."""
    return b"".join([ROW.pack(*row) for row in rows])


def decode_rows(data: Buffer) -> list[CopyRow]:
    """The rows of these bytes. Raises `BadCopies` for bytes that are no whole rows."""
    if len(data) % ROW.size:
        raise BadCopies(f"{len(data)} bytes are no rows of {ROW.size}")
    return [*map(CopyRow._make, ROW.iter_unpack(data))]


def copies_frame(
    topic_id: int, first_seq: int, ts_ms: int, record_count: int, flags: int, body: CopiesBody
) -> Frame:
    """A ROUTER frame; ``flags`` are those of the rendered copies."""
    assert record_count == copy_count(body.rows), "the rows name each copy once"
    assert not (body.trimmed and body.rows), "a frame burns seqs or has copies"
    held: dict[str, Any] = {"r": body.router, "c": body.cursor, "t": body.total, "h": body.hop}
    if body.size:
        held["s"] = body.size
    if body.trimmed:
        held["l"] = body.trimmed
    if body.stamps:
        held["m"] = [tuple(stamp) for stamp in body.stamps]
    ext = cbor2.dumps(held)
    parts = (ext, encode_rows(body.rows)) if body.rows else (ext,)
    return Frame(
        *(FrameKind.ROUTER, topic_id, first_seq, ts_ms, record_count, flags, len(ext), parts),
        named_bytes=body.size,
    )


def decode_copies(header: FrameHeader, body: Buffer) -> CopiesBody:
    """Body of a ROUTER frame. Raises `BadCopies` for bytes that `copies_frame` does not make."""
    try:
        ext = msgspec.convert(cbor2.loads(bytes(body[: header.ext_len])), _Ext)
    except (cbor2.CBORError, msgspec.ValidationError) as error:
        raise BadCopies(f"the map of a ROUTER frame: {error}") from error
    rows, stamps = rows_of_frame(header, body), ext.m
    for row in rows:
        if row.start >= row.stop or row.stamp > len(stamps) or row.drops > _DROPS:
            raise BadCopies(f"a ROUTER frame has a row that contradicts itself: {row}")
    if copy_count(rows) != header.record_count or (rows and ext.l):
        raise BadCopies("the rows of a ROUTER frame contradict its header")
    return CopiesBody(ext.r, ext.c, ext.t, ext.h, ext.s, ext.l, stamps, rows)


def rows_of_frame(header: FrameHeader, body: Buffer) -> list[CopyRow]:
    """The rows of a ROUTER frame alone, unchecked. Raises `BadCopies` as `decode_rows`."""
    return decode_rows(body[header.ext_len :]) if header.record_count else []


def copy_count(rows: Iterable[CopyRow]) -> int:
    """Copies that the rows stand for."""
    return sum([row.stop - row.start for row in rows])


def rows_within(rows: Sequence[CopyRow], start: int, stop: int) -> list[CopyRow]:
    """Rows of the copies ``start`` to ``stop`` (exclusive), counted over all rows."""
    found, before = [], 0
    for row in rows:
        skip = max(start - before, 0)
        take = min(stop - before, row.stop - row.start)
        if skip < take:
            stamp_seq = row.stamp_seq + skip if row.stamp else 0
            within = row._replace(
                stamp_seq=stamp_seq, start=row.start + skip, stop=row.start + take
            )
            found.append(within)
        before += row.stop - row.start
    return found


def payload_frame(topic_id: int, first_seq: int, ts_ms: int, encoded: EncodedRecords) -> Frame:
    """A PAYLOAD frame: records that rows may name, and that belong to no topic."""
    flags, count, ext, parts, _ = encoded
    return Frame(FrameKind.PAYLOAD, topic_id, first_seq, ts_ms, count, flags, len(ext), parts)


# Rendering


def render_copies(
    pieces: Sequence[tuple[View, CopyRow]],
    stamps: Sequence[Stamp],
    first_seq: int,
    ts_ms: int,
) -> EncodedRecords:
    """The copies that the rows stand for, each with the view of its payload frame. Raises as
    `Copier`.
    """
    return Copier(pieces, stamps).render(first_seq, ts_ms)


def payload_of(
    pieces: Sequence[tuple[View, int, int]], first_seq: int, ts_ms: int
) -> EncodedRecords:
    """Records ``start`` to ``stop`` (exclusive) of any views as one write: verbatim but for `$seq`,
    which is contiguous from ``first_seq``, and `$ts`.
    """
    rows = [(view, CopyRow(0, 0, 0, 0, 0, start, stop)) for view, start, stop in pieces]
    return Copier(rows, ()).render(first_seq, ts_ms)


def view_of(encoded: EncodedRecords) -> RecordsView:
    """A view of records that are in no frame."""
    flags, count, ext, parts, _ = encoded
    return RecordsView(flags, count, len(ext), memoryview(b"".join(parts)))


class Copier:
    """Renders the copies that rows stand for, once for each dest: what does not depend on `$seq`
    and `$ts` is done when it is made.

    Raises `BadCopies` when a row names records that its view has not, or finds no records there;
    what a view raises for damage passes.
    """

    def __init__(self, pieces: Sequence[tuple[View, CopyRow]], stamps: Sequence[Stamp]) -> None:
        for view, row in pieces:
            if not 0 <= row.start < row.stop <= view.count or row.stamp > len(stamps):
                raise BadCopies(f"there are no such records as {row}")
        try:
            tails, self.flags, self._ext, self._tables = _gathered(pieces, stamps)
        except (cbor2.CBORError, ValueError, LookupError, TypeError) as error:
            raise BadCopies(f"a payload frame holds no records: {error}") from error
        self.count = len(tails)
        self._tails, self._tail_lens = tails, [*map(len, tails)]
        self._tail_bytes = sum(self._tail_lens)

    def size(self, first_seq: int, ts_ms: int) -> int:
        """Bytes of the copies when they are rendered."""
        fixed = self.count * len(b'{"$seq":,"$ts":%d' % ts_ms) + self._tail_bytes
        return fixed + _digits(first_seq, first_seq + self.count)

    def render(self, first_seq: int, ts_ms: int) -> EncodedRecords:
        """The copies with contiguous seqs from ``first_seq``, all at ``ts_ms``."""
        count, ext = self.count, self._ext
        head = b'{"$seq":%%d,"$ts":%d' % ts_ms
        heads = [head % seq for seq in range(first_seq, first_seq + count)]
        ends = array("I", accumulate(map(add, map(len, heads), self._tail_lens)))
        pieces = [b""] * (2 * count)
        pieces[0::2], pieces[1::2] = heads, self._tails
        blob = b"".join(pieces)
        assert len(blob) <= U32_MAX, "a forward is bounded"
        parts = (ext, ends.tobytes(), *self._tables, blob)
        return EncodedRecords(self.flags, count, ext, parts, len(blob))


def _gathered(
    pieces: Sequence[tuple[View, CopyRow]], stamps: Sequence[Stamp]
) -> tuple[list[bytes], int, bytes, list[bytes]]:
    """Of each copy all behind its `$ts`; flags, ext and tables of all copies."""
    if len(pieces) == 1:
        view, row = pieces[0]
        if isinstance(view, RecordsView) and _is_verbatim(view, row):
            tails = _slices(*_records(view, 0, view.count))
            return tails, view.flags & _RECORD_FLAGS, *view.texts_and_tables()
    gathering = _Gathering([*map(_stamp_text, stamps)])
    for view, row in pieces:
        gathering.take(view, row)
    return gathering.tails, *gathering.finish()


class _Gathering:
    """Copies as they are gathered from their payloads. ``tails``: of each all behind its `$ts`."""

    def __init__(self, stamps: Sequence[bytes]) -> None:
        self._stamps, self._count = stamps, 0
        self.tails: list[bytes] = []
        self._nodes, self._tags, self._meta_lens = _Texts(), _Texts(), array("I")

    def take(self, view: View, row: CopyRow) -> None:
        """Add the copies of a row."""
        start, stop, flags, drops = row.start, row.stop, view.flags, row.drops
        records, begins, ends = _records(view, start, stop)
        before: list[bytes] = []  # nodes that are kept before tags that are not
        if flags & (_NODES | _ONE_NODE | _TAGS):
            node_texts, tag_texts = view.texts()
        if flags & (_NODES | _ONE_NODE):
            refs = b"\1" * (stop - start) if flags & _ONE_NODE else view.column(_NODES, start, stop)
            nodes = _TextRun(refs, node_texts)
            if drops & _DROP_NODE:
                begins = nodes.behind(begins, _NODE)
            else:
                self._nodes.add(self._count, nodes)
                if drops & _DROP_TAG and flags & _TAGS:
                    before, begins = nodes.members(_NODE), nodes.behind(begins, _NODE)
        if flags & _TAGS:
            tags = _TextRun(view.column(_TAGS, start, stop), tag_texts)
            if drops & _DROP_TAG:
                begins = tags.behind(begins, _TAG)
            else:
                self._tags.add(self._count, tags)
        if row.stamp:
            tails = self._stamped(view, row, records, begins, ends)
        else:
            tails = _slices(records, begins, ends)
            if flags & _METAS:
                self._metas().extend(view.column(_METAS, start, stop))
        self.tails += map(add, before, tails) if before else tails
        self._count += stop - start

    def _stamped(
        self,
        view: View,
        row: CopyRow,
        records: bytes,
        begins: Sequence[int],
        ends: Sequence[int],
    ) -> list[bytes]:
        """All from ``begins`` on, with the stamp of the row in its `meta`."""
        text, tails, held = self._stamps[row.stamp - 1], [], self._metas()
        seqs = range(row.stamp_seq, row.stamp_seq + row.stop - row.start)
        lens: Sequence[int] = bytes(len(seqs))
        if view.flags & _METAS:
            lens = view.column(_METAS, row.start, row.stop)
        for begin, end, length, seq in zip(begins, ends, lens, seqs, strict=True):
            at = end - length - 2  # of the meta, or of the end "},"
            member = text % (seq, seq)
            sent = records[at + len(_META) : end - 2]
            meta = stamped(sent, member) if length else b"{%b}" % member
            held.append(len(_META) + len(meta))
            tails.append(b'%b,"meta":%b},' % (records[begin:at], meta))
        return tails

    def _metas(self) -> array[int]:
        """Lengths of the meta pieces of all copies so far."""
        held = self._meta_lens
        held.frombytes(bytes(4 * (self._count - len(held))))
        return held

    def finish(self) -> tuple[int, bytes, list[bytes]]:
        """Flags, ext and tables of all copies."""
        nodes, tags, metas = self._nodes, self._tags, self._meta_lens
        flags, tables = 0, []
        ext: dict[str, list[bytes]] = {}
        if nodes.numbers:
            nodes.fill(self._count)
            ext["n"] = [*nodes.numbers]
            if len(nodes.numbers) == 1 and not nodes.has_gaps:
                flags |= _ONE_NODE
            else:
                flags |= _NODES
                tables.append(nodes.refs.tobytes())
        if tags.numbers:
            tags.fill(self._count)
            ext["t"] = [*tags.numbers]
            flags |= _TAGS
            tables.append(tags.refs.tobytes())
        if any(metas):
            flags |= _METAS
            tables.append(self._metas().tobytes())
        return flags, cbor2.dumps(ext) if ext else b"", tables


class _TextRun:
    """Nodes or tags of a run of records: a ref for each, and what the refs stand for, in order of
    appearance; ``texts`` has ref 0 when a record has none.
    """

    __slots__ = ("refs", "texts")

    def __init__(self, refs: Sequence[int], texts: Texts) -> None:
        self.refs = refs
        self.texts = {ref: texts[ref - 1] if ref else b"" for ref in dict.fromkeys(refs)}

    def behind(self, begins: Sequence[int], key: bytes) -> list[int]:
        """Where each record goes on behind this member, which begins at ``begins``."""
        lens = {ref: len(key) + len(text) if ref else 0 for ref, text in self.texts.items()}
        return [*map(add, begins, map(lens.__getitem__, self.refs))]

    def members(self, key: bytes) -> list[bytes]:
        """The member of each record, b"" where there is none."""
        pieces = {ref: key + text if ref else b"" for ref, text in self.texts.items()}
        return [*map(pieces.__getitem__, self.refs)]


class _Texts:
    """Nodes or tags of the copies: distinct texts, numbered from 1 in order of appearance."""

    __slots__ = ("has_gaps", "numbers", "refs")

    def __init__(self) -> None:
        self.numbers: dict[bytes, int] = {}
        self.refs = array("I")
        self.has_gaps = False  # a copy has no text

    def add(self, count: int, run: _TextRun) -> None:
        """The next copies; ``count`` copies came before."""
        self.fill(count)
        numbers, places = self.numbers, {}
        for ref, text in run.texts.items():
            if ref:
                places[ref] = numbers.setdefault(text, len(numbers) + 1)
            else:
                places[ref], self.has_gaps = 0, True
        self.refs.extend(map(places.__getitem__, run.refs))

    def fill(self, count: int) -> None:
        """Copies without a text, up to ``count`` in all."""
        if len(self.refs) < count:
            self.has_gaps = True
            self.refs.frombytes(bytes(4 * (count - len(self.refs))))


def stamped(meta: bytes, member: bytes) -> bytes:
    """``meta``, b"" for none, with this stamp in place of an earlier one."""
    if _MAYBE_STAMPED.search(meta):
        meta = without_members(meta, STAMP_MEMBER.__eq__)
    return with_members(meta, member)


def _stamp_text(stamp: Stamp) -> bytes:
    """The member of `meta`, to be filled with the seq, twice."""
    router, source, source_id, epoch = stamp
    key = json_string(f"{router}:{source_id}:{epoch}:")[:-1].replace(b"%", b"%%")
    return (
        b'"_topics_router":{"router":%b,"source":%b,"source_topic_id":%d,"source_epoch":%d,'
        b'"source_seq":%%d,"key":%b%%d"}'
    ) % (
        json_string(router).replace(b"%", b"%%"),
        json_string(source).replace(b"%", b"%%"),
        *(source_id, epoch, key),
    )


def _is_verbatim(view: View, row: CopyRow) -> bool:
    """Whether the copies are all records of the view, with nothing cut or put in."""
    return row.stop - row.start == view.count and not (row.drops or row.stamp)


def _slices(records: bytes, begins: Sequence[int], ends: Sequence[int]) -> list[bytes]:
    return [records[begin:end] for begin, end in zip(begins, ends, strict=True)]


def _records(view: View, start: int, stop: int) -> tuple[bytes, Sequence[int], list[int]]:
    """Records ``start`` to ``stop`` (exclusive): where each goes on behind its `$ts`, and ends."""
    records, ends = view.taken(start, stop)
    if len(ends) == 1:
        return records, [_head(records, 0)[1]], ends
    heads, begins = _head(records, 0), [0, *ends[:-1]]
    if heads == _head(records, begins[-1]):
        # Neither `$seq` nor `$ts` goes back, so those between are as long.
        length = heads[1]
        return records, [begin + length for begin in begins], ends
    return records, [begin + _head(records, begin)[1] for begin in begins], ends


def _head(records: bytes, begin: int) -> tuple[int, int]:
    """Where `$seq` and `$ts` of the record end, counted from its begin: at the first two commas."""
    comma = records.index(b",", begin)
    return comma - begin, records.index(b",", comma + 1) - begin


def _digits(start: int, stop: int) -> int:
    """Digits of all numbers from ``start`` to ``stop`` (exclusive)."""
    length, total = len(str(start)), 0
    while (following := 10**length) < stop:
        total += length * (following - start)
        start, length = following, length + 1
    return total + length * (stop - start)
