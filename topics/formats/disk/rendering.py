"""Rendering: encodes the records of a write as the body of an APPEND frame (``records.py``).

A record is written once and read many times. So the log contains records in the form in which
readers receive them, including `$seq` and `$ts`, each followed by a comma. A page for a reader
consists of slices of mapped files. Rendering during a read would take 0.3 us per record. For a read
of 1,000 records, this is more than all other work. Rendering when a log file is sealed would be too
late, because the newest records are read most often.

A usual write is rendered in one step, and each payload is copied once. A streamed append is
rendered run by run; its flags, ext and tables are computed for the complete write first.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import add
from typing import Any, NamedTuple

import cbor2

from topics.formats.api.append_body import AppendBody, PlainAppend, RecordIn
from topics.formats.buffers import Buffer
from topics.formats.disk.records import RecordFlags
from topics.formats.json_text import json_string

U32_MAX = 2**32 - 1
_U32 = struct.Struct("<I")


class EncodedRecords(NamedTuple):
    """The encoded records of a write. ``parts``, concatenated, are the body of the frame."""

    flags: int
    record_count: int
    ext: bytes
    parts: tuple[Buffer, ...]
    blob_bytes: int


def encode(
    request: AppendBody,
    first_seq: int,
    ts_ms: int,
    keep_key: bool,
    due: Sequence[int] | None = None,
) -> EncodedRecords:
    """Render the records with contiguous seqs from ``first_seq``, all with `$ts` ``ts_ms``.

    ``due`` is the time at which each record is due as a job, 0 for immediately. ``keep_key``: the
    frame contains the idempotency key.
    """
    records = request.records
    if isinstance(request, PlainAppend) and request.node is None and due is None:
        flags = 0
        tables: list[bytes] = []
        packed = (
            cbor2.dumps({"k": request.idempotency_key})
            if keep_key and request.idempotency_key is not None
            else b""
        )
        ends, blob = _render_plain(records, first_seq, ts_ms)
    else:
        rendering = Rendering(request, keep_key=keep_key, due=due)
        flags, tables, packed = rendering.flags, rendering.tables, rendering.ext
        rendered = rendering.render(0, len(records), first_seq, ts_ms)
        ends, blob = array("I", accumulate(map(len, rendered))).tobytes(), b"".join(rendered)
    assert len(blob) <= U32_MAX, "a write is bounded by the body limit"
    return EncodedRecords(flags, len(records), packed, (packed, ends, *tables, blob), len(blob))


def _render_plain(records: Sequence[RecordIn], first_seq: int, ts_ms: int) -> tuple[bytes, bytes]:
    """Return the ends and the blob of records that have only data.

    Most writes are of this kind, so their speed matters. Each payload is copied once.
    """
    if len(records) == 1:
        blob = b'{"$seq":%d,"$ts":%d,"data":%b},' % (first_seq, ts_ms, records[0].data)
        return _U32.pack(len(blob)), blob
    between = b'},{"$seq":%%d,"$ts":%d,"data":' % ts_ms
    heads: list[Buffer] = [between % seq for seq in range(first_seq, first_seq + len(records))]
    payloads: list[Buffer] = [record.data for record in records]
    # The end of a record and the head of the next one are one buffer, `between`. The first head is
    # shortened by the end "}," in front of it, and the same two bytes are added after the last
    # payload. So the total length is unchanged.
    ends = array("I", accumulate(map(add, map(len, heads), map(len, payloads)))).tobytes()
    heads[0] = heads[0][2:]
    pieces: list[Buffer] = [b"},"] * (2 * len(records) + 1)
    pieces[0:-1:2], pieces[1::2] = heads, payloads
    return ends, b"".join(pieces)


class Rendering:
    """Renders the records of one write, in one step or run by run.

    ``flags``, ``ext`` and ``tables`` belong to the complete write. ``due`` is as in `encode`.
    """

    def __init__(
        self, request: AppendBody, *, keep_key: bool, due: Sequence[int] | None = None
    ) -> None:
        self._records, batch_node = request.records, request.node
        nodes, self._node_refs = _intern(
            record.node if record.node is not None else batch_node for record in self._records
        )
        tags, self._tag_refs = _intern(record.tag for record in self._records)
        self._nodes = [b"", *(b',"$node":' + node for node in nodes)]
        self._tags = [b"", *(b',"$tag":' + tag for tag in tags)]
        ext: dict[str, Any] = (
            {"k": request.idempotency_key}
            if keep_key and request.idempotency_key is not None
            else {}
        )
        self.flags = 0
        self.tables: list[bytes] = []
        if nodes:
            ext["n"] = nodes
            if len(nodes) == 1 and 0 not in self._node_refs:
                self.flags |= RecordFlags.ONE_NODE
            else:
                self.flags |= RecordFlags.NODES
                self.tables.append(self._node_refs.tobytes())
        if tags:
            ext["t"] = tags
            self.flags |= RecordFlags.TAGS
            self.tables.append(self._tag_refs.tobytes())
        meta_lens = array(
            "I",
            [len(record.meta) + len(b',"meta":') if record.meta else 0 for record in self._records],
        )
        if any(meta_lens):
            self.flags |= RecordFlags.METAS
            self.tables.append(meta_lens.tobytes())
        self._meta_lens = meta_lens
        if due is not None and any(due):
            assert len(due) == len(self._records), "each record has a due time, or 0"
            self.flags |= RecordFlags.DELAYS
            ext["d"] = struct.pack(f"<{len(due)}Q", *due)
        self.ext = cbor2.dumps(ext) if ext else b""

    def render(self, start: int, stop: int, first_seq: int, ts_ms: int) -> list[bytes]:
        """Render the records ``start`` to ``stop`` (exclusive), each with its comma.

        ``first_seq`` is the seq of the first record of the write.
        """
        return [
            b'{"$seq":%d,"$ts":%d%b%b,"data":%b%b},'
            % (
                seq,
                ts_ms,
                self._nodes[node],
                self._tags[tag],
                record.data,
                b',"meta":%b' % record.meta if record.meta else b"",
            )
            for seq, record, node, tag in zip(
                range(first_seq + start, first_seq + stop),
                self._records[start:stop],
                self._node_refs[start:stop],
                self._tag_refs[start:stop],
                strict=True,
            )
        ]

    def ends(self, first_seq: int, ts_ms: int) -> array[int]:
        """Compute the end of each record in the blob without rendering the records."""
        fixed = len(b'{"$seq":,"$ts":%d,"data":},' % ts_ms)
        lengths = (
            fixed
            + len(str(seq))
            + len(self._nodes[node])
            + len(self._tags[tag])
            + len(record.data)
            + meta_len
            for seq, record, node, tag, meta_len in zip(
                range(first_seq, first_seq + len(self._records)),
                self._records,
                self._node_refs,
                self._tag_refs,
                self._meta_lens,
                strict=True,
            )
        )
        return array("I", accumulate(lengths))


def _intern(texts: Iterable[str | None]) -> tuple[list[bytes], array[int]]:
    """Return the distinct texts as JSON strings, and the ref of each text.

    The strings are in order of appearance. Refs are numbers from 1; 0 means None.
    """
    numbers: dict[str | None, int] = {None: 0}
    refs = array("I", [numbers.setdefault(text, len(numbers)) for text in texts])
    return [json_string(text) for text in numbers if text is not None], refs
