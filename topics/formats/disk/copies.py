"""Forwarded copies: the body of a FORWARD frame, and the records that it represents. Integers are
little-endian.

A FORWARD frame records the copies that routers with the same source and the same cursor have
appended to their dests, and the new cursor of these routers. The frame contains the copied records
once for all dests, as its *payload*, or it refers to earlier frames of the same log file that
contain them. `Copier` renders the copies for one dest. A frame without runs (``record_count`` 0)
only moves cursors, or skips seqs of the dests for records that the source has lost. Layout of the
body:

    part     size       present when  meaning
    ext      ext_len    always        CBOR map
    pad      0 to 3     always        zeros, so that the offset of the rows modulo 4 is 2
    rows     20 per row always        a row for each dest
    runs     28 per run copies        the records that are copied, in the order of the copies
    payload  the rest   "p"           records, laid out as the body of an APPEND frame

Only the first three keys of ext are always present. The others are omitted if their value is 0 or
empty. Keys of ext:

    key  value  meaning
    d    int    number of rows
    n    int    number of runs
    c    int    cursor of the routers: the last seq of the source that has been forwarded
    h    int    hop count of the copies
    b    int    bytes of all copies of one dest, counted from the end of their `$ts`
    l    int    number of seqs that each dest has skipped, starting at its ``first_seq``
    m    array  stamps that runs refer to: (router, source, id of the source, its epoch)
    o    array  own stamp of each dest: (source, id of the source, its epoch, routers in the order
                of rows)
    p    array  the payload's flags, record_count and ext_len

A row:

    offset  size  field      meaning
    0       4     back       bytes from the start of the frame to this row
    4       4     router     id of the router
    8       4     topic_id   id of the dest
    12      8     first_seq  of the copies, or of the skipped seqs; 0: the dest has none in the log

An index locates the copies in a dest by the LSN of the row. The LSN of a row modulo 4 is 2, and the
LSN of a frame is a multiple of 8, so a reader can distinguish them. Layout of a run:

    offset  size  field      meaning
    0       8     lsn        of the frame with the records (APPEND, or FORWARD with a payload), in
                             the same log file; 0: the payload of this frame
    8       8     stamp_seq  with a stamp: seq of the first of these records in the topic that the
                             stamp names; otherwise 0
    16      4     start      index of the first record in the payload or frame
    20      4     stop       index after the last record
    24      2     stamp      number of the stamp in "m" that is added to `meta`, from 1; 0: none;
                             `OWN_STAMP`: the stamp in "o"
    26      1     drops      `Drops`: the members that the copies lack
    27      1     zero

**Rendering is part of the format.** The same frame must always be rendered as the same bytes,
because offsets into copies and the sizes of copies are stored on disk, and segments are built from
the rendered bytes. A copy is the rendered record with its own `$seq` and `$ts`. Node and tag are
removed where ``drops`` specifies it. The stamp becomes the member `_topics_router` of `meta` and
replaces an earlier one. All other bytes are unchanged: `data` and `meta` are never rendered again.
The result is identical to the result of ``rendering.py`` for an append of these records without an
idempotency key and without delays.
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

from topics.formats.api.json_members import with_members, without_members
from topics.formats.buffers import Buffer
from topics.formats.disk.frames import FRAME_HEADER_BYTES, Frame, FrameHeader, FrameKind
from topics.formats.disk.records import AbstractView, RecordFlags, RecordsView, Texts
from topics.formats.disk.rendering import U32_MAX, EncodedRecords
from topics.formats.json_text import json_string

ROW = struct.Struct("<IIIQ")
assert ROW.size == 20
RUN = struct.Struct("<QQIIHBx")
assert RUN.size == 28
_BACK = struct.Struct("<I")
_ROW_PLACE = 2  # the LSN of a row modulo 4
OWN_STAMP = 0xFFFF
STAMP_MEMBER = "_topics_router"

_NODES, _TAGS, _METAS, _ONE_NODE = map(
    int, (RecordFlags.NODES, RecordFlags.TAGS, RecordFlags.METAS, RecordFlags.ONE_NODE)
)
_RECORD_FLAGS = _NODES | _TAGS | _METAS | _ONE_NODE
_NODE, _TAG, _META = b',"$node":', b',"$tag":', b',"meta":'
# A `meta` that does not match contains no stamp. A stamped `meta` contains the name itself, or a
# backslash if a part of the name is escaped.
_MAYBE_STAMPED = re.compile(rb"_topics_router|\\")


class BadCopies(ValueError):
    """The bytes are not valid runs or not a valid FORWARD frame body.

    Also raised if they contradict the frames to which they refer.
    """


class Drops(IntEnum):
    """Bits of `Run.drops`. Written to disk: never renumber, only add."""

    NODE = 1
    TAG = 2


_DROP_NODE, _DROP_TAG = int(Drops.NODE), int(Drops.TAG)
_DROPS = _DROP_NODE | _DROP_TAG


class Stamp(NamedTuple):
    """The origin of copies, which an ``exactly_once`` router adds to their `meta`."""

    router: str
    source: str
    source_id: int
    epoch: int


class Row(NamedTuple):
    """One dest of a forward. The module docstring describes the fields."""

    back: int
    router: int
    topic_id: int
    first_seq: int


class Run(NamedTuple):
    """Contiguous records that are copied. The module docstring describes the fields."""

    lsn: int
    stamp_seq: int
    start: int
    stop: int
    stamp: int = 0
    drops: int = 0


class OwnStamp(NamedTuple):
    """The stamps of routers with one source. ``routers``: their names, in the order of rows."""

    source: str
    source_id: int
    epoch: int
    routers: Sequence[str]

    def of(self, index: int) -> Stamp:
        """Return the stamp of the router in row ``index``."""
        return Stamp(self.routers[index], self.source, self.source_id, self.epoch)


class ForwardBody(NamedTuple):
    """Body of a FORWARD frame.

    ``tail_bytes`` is the size of all copies of one dest, each counted from the end of its `$ts`.
    ``skipped`` is the number of seqs that each dest has skipped, starting at its ``first_seq``;
    such a frame has no runs.
    """

    cursor: int
    hop: int
    rows: Sequence[Row]
    runs: Sequence[Run] = ()
    tail_bytes: int = 0
    skipped: int = 0
    stamps: Sequence[Stamp] = ()
    own_stamp: OwnStamp | None = None
    payload: RecordsView | None = None

    def stamps_of(self, index: int) -> Sequence[Stamp]:
        """Return the stamps to which runs refer, for the dest of row ``index``.

        The own stamp of the dest, if there is one, is the last.
        """
        return self.stamps if self.own_stamp is None else [*self.stamps, self.own_stamp.of(index)]


_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Ext(msgspec.Struct, gc=False):
    d: _Count
    n: _Count
    c: _Count
    h: _Count = 0
    b: _Count = 0
    l: _Count = 0  # noqa: E741 - the key on disk
    m: list[Stamp] = []
    o: OwnStamp | None = None
    p: tuple[_Count, _Count, _Count] | None = None


# The frame


def encode_runs(runs: Iterable[Run]) -> bytes:
    """Return the bytes of the runs, concatenated."""
    return b"".join([RUN.pack(*run) for run in runs])


def decode_runs(data: Buffer) -> list[Run]:
    """Decode runs. Raises `BadCopies` if the length is not a multiple of the size of a run."""
    if len(data) % RUN.size:
        raise BadCopies(f"{len(data)} bytes are not a multiple of the {RUN.size} bytes of a run")
    return [*map(Run._make, RUN.iter_unpack(data))]


def forward_frame(ts_ms: int, record_count: int, flags: int, body: ForwardBody) -> Frame:
    """Build a FORWARD frame.

    ``flags`` are the flags of the rendered copies, and ``record_count`` is the number of copies of
    each dest. The field ``back`` of the rows is computed; its value in ``body`` is ignored.
    """
    assert record_count == copy_count(body.runs), "the runs contain each copy once"
    assert not (body.skipped and body.runs), "a frame either skips seqs or has copies"
    held: dict[str, Any] = {"d": len(body.rows), "n": len(body.runs), "c": body.cursor}
    payload = body.payload
    optional = {
        "h": body.hop,
        "b": body.tail_bytes,
        "l": body.skipped,
        "m": [*map(tuple, body.stamps)],
        "o": body.own_stamp and [*body.own_stamp],
        "p": payload and (payload.flags, payload.count, payload.ext_len),
    }
    ext = cbor2.dumps(held | {key: value for key, value in optional.items() if value})
    begin = _rows_begin(len(ext))
    backs = range(FRAME_HEADER_BYTES + begin, U32_MAX, ROW.size)
    rows = [ROW.pack(back, *row[1:]) for back, row in zip(backs, body.rows, strict=False)]
    parts: list[Buffer] = [ext, bytes(begin - len(ext)), *rows, encode_runs(body.runs)]
    if payload is not None:
        parts.append(payload.body)
    sealed = [row for row in body.rows if row.first_seq]
    return Frame(
        *(FrameKind.FORWARD, 0, 0, ts_ms, record_count, flags, len(ext)),
        (b"".join(parts[:-1]), parts[-1]) if payload is not None else (b"".join(parts),),
        named_bytes=body.tail_bytes * len(sealed),
    )


def _rows_begin(ext_len: int) -> int:
    return ext_len + (_ROW_PLACE - ext_len) % 4


def row_lsn(frame_lsn: int, ext_len: int, index: int) -> int:
    """Return the LSN of row ``index`` of the FORWARD frame at ``frame_lsn``."""
    return frame_lsn + FRAME_HEADER_BYTES + _rows_begin(ext_len) + ROW.size * index


def is_row(lsn: int) -> bool:
    """Return whether the LSN belongs to a row and not to a frame."""
    return lsn & 3 == _ROW_PLACE


def row_offset(data: Buffer, offset: int) -> int:
    """Return the number of bytes from the start of a frame to its row at ``offset``."""
    back: int = _BACK.unpack_from(data, offset)[0]
    return back


def row_index(header: FrameHeader, lsn: int) -> int:
    """Return the index of the frame's row that is at ``lsn``."""
    return (lsn - row_lsn(header.lsn, header.ext_len, 0)) // ROW.size


def decode_forward(header: FrameHeader, body: memoryview) -> ForwardBody:
    """Decode the body of a FORWARD frame.

    Raises `BadCopies` if the body is not one that `forward_frame` can produce.
    """
    try:
        ext = msgspec.convert(cbor2.loads(bytes(body[: header.ext_len])), _Ext)
    except (cbor2.CBORError, msgspec.ValidationError) as error:
        raise BadCopies(f"the map of a FORWARD frame is invalid: {error}") from error
    begin = _rows_begin(header.ext_len)
    runs_at = begin + ROW.size * ext.d
    end = runs_at + RUN.size * ext.n
    if end > len(body) or (ext.p is None and end < len(body)):
        raise BadCopies("a FORWARD frame does not contain its rows and runs")
    rows = [*map(Row._make, ROW.iter_unpack(body[begin:runs_at]))]
    runs = decode_runs(body[runs_at:end])
    stamps = len(ext.m)
    if ext.o is not None:
        runs = [run._replace(stamp=stamps + 1) if run.stamp == OWN_STAMP else run for run in runs]
        stamps += 1
        if len(ext.o.routers) != ext.d:
            raise BadCopies("a FORWARD frame does not have a stamp for each dest")
    for run in runs:
        if run.start >= run.stop or run.stamp > stamps or run.drops > _DROPS:
            raise BadCopies(f"a FORWARD frame has an inconsistent run: {run}")
    if copy_count(runs) != header.record_count or (runs and ext.l):
        raise BadCopies("the runs of a FORWARD frame do not match its header")
    payload = None
    if ext.p is not None:
        flags, count, ext_len = ext.p
        payload = RecordsView(flags, count, ext_len, body[end:])
    return ForwardBody(ext.c, ext.h, rows, runs, ext.b, ext.l, ext.m, ext.o, payload)


def copy_count(runs: Iterable[Run]) -> int:
    """Return the number of copies that the runs represent."""
    return sum([run.stop - run.start for run in runs])


def runs_within(runs: Sequence[Run], start: int, stop: int) -> list[Run]:
    """Return runs for the copies ``start`` to ``stop`` (exclusive), counted over all runs."""
    found, before = [], 0
    for run in runs:
        skip = max(start - before, 0)
        take = min(stop - before, run.stop - run.start)
        if skip < take:
            stamp_seq = run.stamp_seq + skip if run.stamp_seq else 0
            within = run._replace(
                stamp_seq=stamp_seq, start=run.start + skip, stop=run.start + take
            )
            found.append(within)
        before += run.stop - run.start
    return found


# Rendering


def payload_of(
    chunks: Sequence[tuple[AbstractView, int, int]], first_seq: int, ts_ms: int
) -> EncodedRecords:
    """Combine records of several views into one write.

    Each item of ``chunks`` selects the records ``start`` to ``stop`` (exclusive) of a view. The
    records are unchanged except for `$seq`, which is contiguous from ``first_seq``, and `$ts`.
    """
    runs = [(view, Run(0, 0, start, stop)) for view, start, stop in chunks]
    return Copier(runs, ()).render(first_seq, ts_ms)


def view_of(encoded: EncodedRecords) -> RecordsView:
    """Return a view of encoded records that are not part of a frame."""
    flags, count, ext, parts, _ = encoded
    return RecordsView(flags, count, len(ext), memoryview(b"".join(parts)))


class Copier:
    """Renders the copies that runs represent, once for each dest.

    The constructor does the work that does not depend on `$seq` and `$ts`. ``tail_bytes`` is the
    size of all copies, each counted from the end of its `$ts`. The constructor raises `BadCopies`
    if a run refers to records that its view does not have, or if the bytes there are not records.
    Exceptions that a view raises for damaged data are propagated.
    """

    def __init__(self, chunks: Sequence[tuple[AbstractView, Run]], stamps: Sequence[Stamp]) -> None:
        for view, run in chunks:
            if not 0 <= run.start < run.stop <= view.count or run.stamp > len(stamps):
                raise BadCopies(f"the run refers to missing records: {run}")
        try:
            tails, self.flags, self._ext, self._tables = _gathered(chunks, stamps)
        except (cbor2.CBORError, ValueError, LookupError, TypeError) as error:
            raise BadCopies(f"a payload frame contains no records: {error}") from error
        self.count = len(tails)
        self._tails, self._tail_lens = tails, [*map(len, tails)]
        self.tail_bytes = sum(self._tail_lens)

    def size(self, first_seq: int, ts_ms: int) -> int:
        """Return the size of the rendered copies in bytes."""
        return copies_size(self.count, self.tail_bytes, first_seq, ts_ms)

    def first_size(self, first_seq: int, ts_ms: int) -> int:
        """Return the size of the first copy in bytes."""
        return copies_size(1, self._tail_lens[0], first_seq, ts_ms)

    def render(self, first_seq: int, ts_ms: int) -> EncodedRecords:
        """Render the copies with contiguous seqs from ``first_seq``, all with `$ts` ``ts_ms``."""
        count, ext = self.count, self._ext
        head = b'{"$seq":%%d,"$ts":%d' % ts_ms
        heads = [head % seq for seq in range(first_seq, first_seq + count)]
        ends = array("I", accumulate(map(add, map(len, heads), self._tail_lens)))
        chunks = [b""] * (2 * count)
        chunks[0::2], chunks[1::2] = heads, self._tails
        blob = b"".join(chunks)
        assert len(blob) <= U32_MAX, "a forward is bounded"
        parts = (ext, ends.tobytes(), *self._tables, blob)
        return EncodedRecords(self.flags, count, ext, parts, len(blob))


def copies_size(count: int, tail_bytes: int, first_seq: int, ts_ms: int) -> int:
    """Return the size of rendered copies in bytes without rendering them.

    ``tail_bytes`` is the size of all copies, each counted from the end of its `$ts`.
    """
    fixed = count * len(b'{"$seq":,"$ts":%d' % ts_ms) + tail_bytes
    return fixed + _digits(first_seq, first_seq + count)


def _gathered(
    chunks: Sequence[tuple[AbstractView, Run]], stamps: Sequence[Stamp]
) -> tuple[list[bytes], int, bytes, list[bytes]]:
    """Return the bytes after the `$ts` of each copy, and flags, ext and tables of all copies."""
    # The usual case: all records of one write are copied unchanged. Its tables can be reused.
    if len(chunks) == 1:
        view, run = chunks[0]
        if isinstance(view, RecordsView) and _is_verbatim(view, run):
            tails = _slices(*_records(view, 0, view.count))
            return tails, view.flags & _RECORD_FLAGS, *view.texts_and_tables()
    gathering = _Gathering([*map(_stamp_text, stamps)])
    for view, run in chunks:
        gathering.take(view, run)
    return gathering.tails, *gathering.finish()


class _Gathering:
    """Collects copies from several views. ``tails`` has the bytes after the `$ts` of each copy."""

    def __init__(self, stamps: Sequence[bytes]) -> None:
        self._stamps, self._count = stamps, 0
        self.tails: list[bytes] = []
        self._nodes, self._tags, self._meta_lens = _Texts(), _Texts(), array("I")

    def take(self, view: AbstractView, run: Run) -> None:
        """Add the copies of a run."""
        start, stop, flags, drops = run.start, run.stop, view.flags, run.drops
        records, begins, ends = _records(view, start, stop)
        # A record has its node before its tag. If only the tag is dropped, the tail begins after
        # the tag, and the node is added in front of it.
        before: list[bytes] = []
        if flags & (_NODES | _ONE_NODE | _TAGS):
            node_texts, tag_texts = view.texts()
        if flags & (_NODES | _ONE_NODE):
            refs = b"\1" * (stop - start) if flags & _ONE_NODE else view.column(_NODES, start, stop)
            nodes = _TextRun(refs, node_texts)
            if drops & _DROP_NODE:
                begins = nodes.ends_after(begins, _NODE)
            else:
                self._nodes.add(self._count, nodes)
                if drops & _DROP_TAG and flags & _TAGS:
                    before, begins = nodes.members(_NODE), nodes.ends_after(begins, _NODE)
        if flags & _TAGS:
            tags = _TextRun(view.column(_TAGS, start, stop), tag_texts)
            if drops & _DROP_TAG:
                begins = tags.ends_after(begins, _TAG)
            else:
                self._tags.add(self._count, tags)
        if run.stamp:
            tails = self._stamped(view, run, records, begins, ends)
        else:
            tails = _slices(records, begins, ends)
            if flags & _METAS:
                self._metas().extend(view.column(_METAS, start, stop))
        self.tails += map(add, before, tails) if before else tails
        self._count += stop - start

    def _stamped(
        self,
        view: AbstractView,
        run: Run,
        records: bytes,
        begins: Sequence[int],
        ends: Sequence[int],
    ) -> list[bytes]:
        """Return the bytes from ``begins`` to ``ends``, with the run's stamp in each `meta`."""
        text, tails, held = self._stamps[run.stamp - 1], [], self._metas()
        seqs = range(run.stamp_seq, run.stamp_seq + run.stop - run.start)
        lens: Sequence[int] = bytes(len(seqs))
        if view.flags & _METAS:
            lens = view.column(_METAS, run.start, run.stop)
        for begin, end, length, seq in zip(begins, ends, lens, seqs, strict=True):
            at = end - length - 2  # offset of the meta, or of the final "}," if there is none
            member = text % (seq, seq)
            sent = records[at + len(_META) : end - 2]
            meta = stamped(sent, member) if length else b"{%b}" % member
            held.append(len(_META) + len(meta))
            tails.append(b'%b,"meta":%b},' % (records[begin:at], meta))
        return tails

    def _metas(self) -> array[int]:
        """Return the lengths of the `meta` members of all collected copies, 0 for none."""
        held = self._meta_lens
        held.frombytes(bytes(4 * (self._count - len(held))))
        return held

    def finish(self) -> tuple[int, bytes, list[bytes]]:
        """Return the flags, the ext and the tables of all copies."""
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
    """The nodes or the tags of a run of records.

    ``refs`` has a ref for each record. ``texts`` maps each ref to its text, in order of appearance.
    Ref 0 means that a record has no node or tag.
    """

    __slots__ = ("refs", "texts")

    def __init__(self, refs: Sequence[int], texts: Texts) -> None:
        self.refs = refs
        self.texts = {ref: texts[ref - 1] if ref else b"" for ref in dict.fromkeys(refs)}

    def ends_after(self, begins: Sequence[int], key: bytes) -> list[int]:
        """Return the offset after this member in each record. The members start at ``begins``."""
        lens = {ref: len(key) + len(text) if ref else 0 for ref, text in self.texts.items()}
        return [*map(add, begins, map(lens.__getitem__, self.refs))]

    def members(self, key: bytes) -> list[bytes]:
        """Return this member of each record, or b"" for a record without it."""
        chunks = {ref: key + text if ref else b"" for ref, text in self.texts.items()}
        return [*map(chunks.__getitem__, self.refs)]


class _Texts:
    """The nodes or the tags of all copies: distinct texts, numbered from 1 as they appear."""

    __slots__ = ("has_gaps", "numbers", "refs")

    def __init__(self) -> None:
        self.numbers: dict[bytes, int] = {}
        self.refs = array("I")
        self.has_gaps = False  # true if a copy has no text

    def add(self, count: int, run: _TextRun) -> None:
        """Add the texts of the next copies, after ``count`` earlier copies."""
        self.fill(count)
        numbers, new_refs = self.numbers, {}
        for ref, text in run.texts.items():
            if ref:
                new_refs[ref] = numbers.setdefault(text, len(numbers) + 1)
            else:
                new_refs[ref], self.has_gaps = 0, True
        self.refs.extend(map(new_refs.__getitem__, run.refs))

    def fill(self, count: int) -> None:
        """Add copies without text until there are ``count`` copies."""
        if len(self.refs) < count:
            self.has_gaps = True
            self.refs.frombytes(bytes(4 * (count - len(self.refs))))


def stamped(meta: bytes, member: bytes) -> bytes:
    """Add the stamp ``member`` to ``meta`` (b"" for none). It replaces an earlier stamp."""
    if _MAYBE_STAMPED.search(meta):
        meta = without_members(meta, STAMP_MEMBER.__eq__)
    return with_members(meta, member)


def _stamp_text(stamp: Stamp) -> bytes:
    """Return the format string of the stamp in `meta`. Its two arguments are the record's seq."""
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


def _is_verbatim(view: AbstractView, run: Run) -> bool:
    """Return whether the copies are all records of the view, with no member removed or added."""
    return run.stop - run.start == view.count and not (run.drops or run.stamp)


def _slices(records: bytes, begins: Sequence[int], ends: Sequence[int]) -> list[bytes]:
    return [records[begin:end] for begin, end in zip(begins, ends, strict=True)]


def _records(view: AbstractView, start: int, stop: int) -> tuple[bytes, Sequence[int], list[int]]:
    """Return the records ``start`` to ``stop`` (exclusive).

    The result has their bytes, and for each record the offset after its `$ts` and the offset of its
    end.
    """
    records, ends = view.taken(start, stop)
    if len(ends) == 1:
        return records, [_head(records, 0)[1]], ends
    heads, begins = _head(records, 0), [0, *ends[:-1]]
    if heads == _head(records, begins[-1]):
        # `$seq` and `$ts` never decrease. So if they have the same length in the first and the last
        # record, they have this length in all records in between.
        length = heads[1]
        return records, [begin + length for begin in begins], ends
    return records, [begin + _head(records, begin)[1] for begin in begins], ends


def _head(records: bytes, begin: int) -> tuple[int, int]:
    """Return where `$seq` and `$ts` end, relative to the start of the record.

    These are the offsets of its first two commas.
    """
    comma = records.index(b",", begin)
    return comma - begin, records.index(b",", comma + 1) - begin


def _digits(start: int, stop: int) -> int:
    """Return the total number of digits of the numbers ``start`` to ``stop`` (exclusive)."""
    length, total = len(str(start)), 0
    while (following := 10**length) < stop:
        total += length * (following - start)
        start, length = following, length + 1
    return total + length * (stop - start)
