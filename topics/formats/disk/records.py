"""Records of one write: the body of an APPEND frame and of a blob file. Integers are little-endian.

    part       size        present when  meaning
    ext        ext_len     ext_len > 0   CBOR map: "k" key, "n" nodes, "t" tags, "d" delays
    ends       u32[count]  always        end of each record in the blob, including its comma
    node_refs  u32[count]  flag NODES    0: no node; n: the n-th of ext "n"
    tag_refs   u32[count]  flag TAGS     0: no tag; n: the n-th of ext "t"
    meta_lens  u32[count]  flag METAS    length of the record's `,"meta":META`, 0: none
    blob       the rest    always        rendered records, each followed by a comma

"k" is the write's idempotency key. Nodes and tags are JSON strings, as bytes. The flag DELAYS means
that there are delays, with a u64 for each record: the time at which the record is due as a job, in
milliseconds since 1970, or 0 if it is due immediately. An extent of a segment has no delays. A
rendered record is the JSON object that readers receive:

    {"$seq":7,"$ts":1748450000123,"$node":"a","$tag":"t","data":DATA,"meta":META}

So a read of many records is one slice of the blob. Members must be cut out of records only for a
reader that requests fewer members. The flag ONE_NODE means that every record has the first node of
"n". This is common, because most batches have one writer, and it saves the table of node refs.
``rendering.py`` writes this layout. The views in this module read it in place.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence, Set
from enum import IntEnum
from typing import Any, Protocol

import cbor2

from topics.formats.buffers import Buffer
from topics.formats.json_text import json_string
from topics.formats.ranges import IndexRun

# The maximum length of a record up to the end of its `$ts`, with 20 digits each for the seq and the
# time.
_HEAD_MAX = len(b'{"$seq":,"$ts":,') + 20 + 20
_NODE_LEN, _TAG_LEN = len(b',"$node":'), len(b',"$tag":')
_KEY = cbor2.dumps("k")  # the first key of the ext map if the write has an idempotency key
_LIVE = re.compile(rb"[^\x01]+")


class RecordFlags(IntEnum):
    """The optional parts that a write has. Written to disk: never renumber, only add."""

    NODES = 1
    TAGS = 2
    METAS = 4
    ONE_NODE = 8
    EXTERNAL = 16  # The frame's body is only ext. The complete body is in a blob file (blob.py).
    DELAYS = 32


# Plain integers, because the operators of an enum take more time than the rest of a short read.
_NODES, _TAGS, _METAS, _ONE_NODE = map(
    int, (RecordFlags.NODES, RecordFlags.TAGS, RecordFlags.METAS, RecordFlags.ONE_NODE)
)
_DELAYS = int(RecordFlags.DELAYS)


class Texts(Protocol):
    """A sequence of JSON strings."""

    def __getitem__(self, index: int, /) -> bytes: ...


class AbstractView:
    """The common interface of a write in the log and an extent of a segment.

    Both contain ``count`` rendered records with contiguous seqs. Records are addressed by an index
    from 0.
    """

    __slots__ = ("count", "flags")

    def __init__(self, flags: int, count: int) -> None:
        self.flags, self.count = flags, count

    # Methods that the two subclasses implement

    @property
    def ends(self) -> memoryview:
        """The end of each record in the blob, including its comma."""
        raise NotImplementedError

    @property
    def blob(self) -> memoryview:
        """The rendered records."""
        raise NotImplementedError

    def part(self, begin: int, end: int) -> memoryview:
        """Return the bytes ``begin`` to ``end`` (exclusive) of the blob."""
        raise NotImplementedError

    def column(self, flag: int, start: int, stop: int) -> Sequence[int]:
        """Return rows ``start`` to ``stop`` of the table for ``flag``, which must be present."""
        raise NotImplementedError

    def texts(self) -> tuple[Texts, Texts]:
        """Return the nodes and the tags. Ref n refers to item n - 1."""
        raise NotImplementedError

    def _refs_of(self, nodes: Set[bytes]) -> Set[int]:
        """Return the refs of these nodes."""
        raise NotImplementedError

    def _node_lens(self, refs: Sequence[int]) -> list[int]:
        """Return the length of each ref's node as a JSON string. The length for ref 0 is 0."""
        raise NotImplementedError

    def _tag_lens(self, refs: Sequence[int]) -> list[int]:
        """Return the length of each ref's tag as a JSON string. The length for ref 0 is 0."""
        raise NotImplementedError

    def tagged(self, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
        """Yield ``(index, tag as a JSON string)`` for each record in the range that has a tag."""
        raise NotImplementedError

    # Methods that use those above

    def _begin(self, index: int) -> int:
        return self.ends[index - 1] if index else 0

    def size(self, start: int, stop: int) -> int:
        """Return the size of the records ``start`` to ``stop`` (exclusive), with their commas."""
        return self._begin(stop) - self._begin(start)

    def ts(self, index: int) -> int:
        """Return the ``$ts`` of a record."""
        begin = self._begin(index)
        head = bytes(self.part(begin, min(begin + _HEAD_MAX, self.ends[index])))
        at = head.index(b',"$ts":') + len(b',"$ts":')
        return int(head[at : head.index(b",", at)])

    def taken(self, start: int, stop: int) -> tuple[bytes, list[int]]:
        """Return the records ``start`` to ``stop`` (exclusive), and where each ends in them."""
        all_ends = self.ends
        first = all_ends[start - 1] if start else 0
        ends = all_ends[start:stop].tolist()
        records = bytes(self.part(first, ends[-1]))
        return records, [end - first for end in ends] if first else ends

    def fit(self, start: int, stop: int, budget: int) -> int:
        """Return the index after the last record that still fits into ``budget`` bytes.

        The records are counted from ``start``, and at most up to ``stop`` (exclusive).
        """
        ends = self.ends
        begin = ends[start - 1] if start else 0
        return bisect_right(ends, begin + budget, start, stop)

    def keeps_all(
        self, nodes: Set[bytes], include_tags: bool, include_meta: bool, include_data: bool = True
    ) -> bool:
        """Return whether a reader with these options receives every record unchanged."""
        if not include_data:
            return False
        flags = self.flags
        if (flags & _TAGS and not include_tags) or (flags & _METAS and not include_meta):
            return False
        return not nodes or not flags & (_NODES | _ONE_NODE)

    def slice(self, start: int, stop: int) -> memoryview:
        """Return the records ``start`` to ``stop`` (exclusive) unchanged, joined by commas.

        The range must contain at least one record.
        """
        ends = self.ends
        return self.part(ends[start - 1] if start else 0, ends[stop - 1] - 1)

    def all_records(self) -> memoryview:
        """Return all records unchanged, joined by commas."""
        return self.slice(0, self.count)

    def bad_run(self, start: int, stop: int) -> tuple[int, int] | None:  # noqa: ARG002 - has no checksums
        """Return ``(start, stop)`` of the first run of damaged records in the range, or None."""
        return None

    def wanted(
        self, start: int, stop: int, nodes: Set[bytes], dead: Buffer | None
    ) -> tuple[int, int] | None:
        """Return the first and the last index that `select` would return, or None.

        This function does not read the records themselves.
        """
        flags = self.flags
        skipped = self._refs_of(nodes) if nodes else frozenset[int]()
        if flags & _ONE_NODE and skipped:
            return None
        refs: Sequence[int] = (
            self.column(_NODES, start, stop) if flags & _NODES and skipped else bytes(stop - start)
        )
        found = [
            at
            for at, ref in enumerate(refs, start)
            if not (ref and ref in skipped) and (dead is None or dead[at] != 1)
        ]
        return (found[0], found[-1]) if found else None

    def select(
        self,
        start: int,
        stop: int,
        nodes: Set[bytes],
        include_tags: bool,
        include_meta: bool,
        dead: Buffer | None = None,
        include_data: bool = True,
    ) -> list[tuple[int, bytes]]:
        """Return ``(index, rendered)`` of each record in the range that the reader receives.

        Records whose node is in ``nodes`` are omitted, and members that the reader excludes are
        removed. ``dead`` has a byte for each record in the view; records with value 1 are omitted.
        If data is excluded, meta is excluded, too.
        """
        flags = self.flags
        skipped = self._refs_of(nodes) if nodes else frozenset[int]()
        if flags & _ONE_NODE and skipped:
            return []
        nothing: Sequence[int] = bytes(stop - start)
        node_refs = self.column(_NODES, start, stop) if flags & _NODES else nothing
        node_lens, tag_lens, meta_lens = self._lens_to_cut(
            start, stop, node_refs, include_tags, include_meta, include_data
        )
        first = self._begin(start)
        stops = self.ends[start:stop]
        records = bytes(self.part(first, stops[-1])) if start < stop else b""
        marks: Sequence[int] = nothing if dead is None else dead[start:stop]
        found, end = [], 0
        for index, stop_at, node, node_len, tag_len, meta_len, mark in zip(
            range(start, stop), stops, node_refs, node_lens, tag_lens, meta_lens, marks, strict=True
        ):
            begin, end = end, stop_at - first
            if mark == 1 or (node and node in skipped):
                continue
            if tag_len or not include_data:
                # A record starts with {"$seq":S,"$ts":T, whose only comma is before "$ts". The node
                # follows, then the tag.
                at = records.index(b",", records.index(b",", begin) + 1)
                if node_len:
                    at += node_len + _NODE_LEN
                if include_data:
                    record = records[begin:at] + records[at + tag_len + _TAG_LEN : end - 1]
                elif tag_len and include_tags:
                    record = records[begin : at + tag_len + _TAG_LEN] + b"}"
                else:
                    record = records[begin:at] + b"}"
            else:
                record = records[begin : end - 1]
            if meta_len:
                record = record[: -meta_len - 1] + b"}"
            found.append((index, record))
        return found

    def _lens_to_cut(
        self,
        start: int,
        stop: int,
        node_refs: Sequence[int],
        include_tags: bool,
        include_meta: bool,
        include_data: bool,
    ) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
        """Return the lengths of the node, the tag and the meta of each record in the range.

        A length that `select` does not need for its cuts is 0.
        """
        flags, count = self.flags, stop - start
        node_lens: Sequence[int] = bytes(count)
        tag_lens, meta_lens = node_lens, node_lens
        cuts_tags = bool(flags & _TAGS) and not include_tags
        if flags & _TAGS and not (include_tags and include_data):
            tag_lens = self._tag_lens(self.column(_TAGS, start, stop))
        if flags & (_NODES | _ONE_NODE) and (cuts_tags or not include_data):
            node_lens = self._node_lens(b"\1" * count if flags & _ONE_NODE else node_refs)
        if flags & _METAS and include_data and not include_meta:
            meta_lens = self.column(_METAS, start, stop)
        return node_lens, tag_lens, meta_lens


def live_runs(dead: Buffer | None, start: int, stop: int) -> Iterator[IndexRun]:
    """Yield the runs of live records in the range. Only records with flag 1 are dead."""
    if start >= stop:
        return
    if dead is None:
        yield start, stop
        return
    for run in _LIVE.finditer(dead, start, stop):
        yield run.span()


class RecordsView(AbstractView):
    """Reads the records of one write in place. Bytes are copied only when a slice is converted."""

    __slots__ = ("body", "ext_len")

    def __init__(self, flags: int, count: int, ext_len: int, body: memoryview) -> None:
        self.flags, self.count, self.ext_len, self.body = flags, count, ext_len, body

    def _table(self, number: int) -> memoryview:
        start = self.ext_len + 4 * self.count * number
        return self.body[start : start + 4 * self.count].cast("I")

    @property
    def ends(self) -> memoryview:
        """The end of each record in the blob, including its comma."""
        start = self.ext_len
        return self.body[start : start + 4 * self.count].cast("I")

    @property
    def blob(self) -> memoryview:
        """The rendered records."""
        return self.body[self.ext_len + 4 * self.count * (1 + (self.flags & 7).bit_count()) :]

    def ext(self) -> dict[str, Any]:
        """Return the CBOR map with the key, the nodes, the tags and the delays."""
        return cbor2.loads(bytes(self.body[: self.ext_len])) if self.ext_len else {}

    @property
    def length(self) -> int:
        """The size of the complete body in bytes."""
        return len(self.body)

    @property
    def has_texts(self) -> bool:
        """Whether there is a key, a node, a tag or a delay."""
        return self.ext_len > 0

    def delays(self) -> list[int]:
        """Return the time at which each record is due as a job, 0 for immediately.

        The list is empty if no record is delayed.
        """
        return decode_delays(self.body[: self.ext_len]) if self.flags & _DELAYS else []

    def all_records(self) -> memoryview:
        """Return all records unchanged, joined by commas. Most reads call this method, so it does
        not read the table of ends.
        """
        return self.body[self.ext_len + 4 * self.count * (1 + (self.flags & 7).bit_count()) : -1]

    def part(self, begin: int, end: int) -> memoryview:
        """Return the bytes ``begin`` to ``end`` (exclusive) of the blob."""
        return self.blob[begin:end]

    def column(self, flag: int, start: int, stop: int) -> Sequence[int]:
        """Return rows ``start`` to ``stop`` of the table for ``flag``, which must be present."""
        number = 1 + (self.flags & 7 & (flag - 1)).bit_count()
        return self._table(number)[start:stop]

    def texts(self) -> tuple[Texts, Texts]:
        """Return the nodes and the tags. Ref n refers to item n - 1."""
        ext = self.ext()
        return ext.get("n", ()), ext.get("t", ())

    def taken(self, start: int, stop: int) -> tuple[bytes, list[int]]:
        """Return the records ``start`` to ``stop`` (exclusive), and where each ends in them."""
        if self.count > 1:
            return super().taken(start, stop)
        records = bytes(self.blob)
        return records, [len(records)]

    def texts_and_tables(self) -> tuple[bytes, list[bytes]]:
        """Return the ext map without key and delays, and each table except ``ends``."""
        start, step, body = self.ext_len, 4 * self.count, self.body
        ext = bytes(body[:start])
        if self.flags & _DELAYS or ext[1 : 1 + len(_KEY)] == _KEY:
            held = self.ext()
            kept = {name: held[name] for name in ("n", "t") if name in held}
            ext = cbor2.dumps(kept) if kept else b""
        start += step
        stop = start + step * (self.flags & 7).bit_count()
        return ext, [bytes(body[at : at + step]) for at in range(start, stop, step)]

    def _refs_of(self, nodes: Set[bytes]) -> Set[int]:
        return {ref for ref, node in enumerate(self.ext().get("n", ()), 1) if node in nodes}

    def _node_lens(self, refs: Sequence[int]) -> list[int]:
        lens = [0, *map(len, self.ext().get("n", ()))]
        return [lens[ref] for ref in refs]

    def _tag_lens(self, refs: Sequence[int]) -> list[int]:
        lens = [0, *map(len, self.ext().get("t", ()))]
        return [lens[ref] for ref in refs]

    def tagged(self, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
        """Yield ``(index, tag as a JSON string)`` for each record in the range that has a tag."""
        if not self.flags & _TAGS:
            return iter(())
        tags = [b"", *self.ext()["t"]]
        return (
            (index, tags[ref])
            for index, ref in enumerate(self.column(_TAGS, start, stop), start)
            if ref
        )


def decode_delays(ext: Buffer) -> list[int]:
    """Return the delays in the ext map of a write that has flag DELAYS."""
    delays: bytes = cbor2.loads(bytes(ext))["d"]
    return [*struct.unpack(f"<{len(delays) // 8}Q", delays)]


def blob_bytes(body_len: int, ext_len: int, count: int, flags: int) -> int:
    """Return the size of the blob in a body that has these properties."""
    return body_len - ext_len - 4 * count * (1 + (flags & 7).bit_count())


def json_nodes(nodes: Iterable[str]) -> frozenset[bytes]:
    """Convert node ids to the form in which frames contain them, for exact comparison (§4)."""
    return frozenset(map(json_string, nodes))
