"""Linked copies: the body of a ROUTER frame of version 0.1, which is only read. Integers
little-endian.

A ROUTER frame has copies of one dest. Each row names contiguous records of a payload frame (kind
APPEND or PAYLOAD) in the log of some shard: of the own, or of another, kept by a hard link
(``storage/linked.py``). Body:

    part  size      meaning
    ext   ext_len   CBOR map
    rows  32 a row  in the order of the copies

Keys of ext, those from "s" on missing where they are 0 or empty: "r" id of the router, "c" its
cursor, "t" copies that it has made, "h" hop, "s" rendered bytes of all copies, "l" burnt seqs, "m"
stamps. A row:

    offset  size  field      meaning
    0       8     lsn        of the payload frame
    8       8     stamp_seq  as in ``copies.py``
    16      2     shard      whose log has the payload frame
    18      2     stamp      which of "m", from 1; 0: none
    20      1     drops      `Drops`
    21      3     zero
    24      4     start      first of the records
    28      4     stop       the first record past them
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import cbor2
import msgspec

from topics.formats.buffers import Buffer
from topics.formats.disk.copies import BadCopies, Run, Stamp
from topics.formats.disk.frames import FrameHeader

ROW = struct.Struct("<QQHHBxxxII")
assert ROW.size == 32

_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Ext(msgspec.Struct, gc=False):
    r: _Count
    c: _Count
    t: _Count
    h: _Count
    s: _Count = 0
    l: _Count = 0  # noqa: E741 - the key on disk
    m: list[Stamp] = []


class LinkedCopies(NamedTuple):
    """Body of a ROUTER frame. ``rows``: the shard that has the payload, and the run of it."""

    router: int
    cursor: int
    total: int
    hop: int
    size: int
    trimmed: int
    stamps: Sequence[Stamp]
    rows: Sequence[tuple[int, Run]]


def decode(header: FrameHeader, body: Buffer) -> LinkedCopies:
    """Body of a ROUTER frame. Raises `BadCopies` for bytes that are none."""
    try:
        ext = msgspec.convert(cbor2.loads(bytes(body[: header.ext_len])), _Ext)
    except (cbor2.CBORError, msgspec.ValidationError) as error:
        raise BadCopies(f"the map of a ROUTER frame: {error}") from error
    held = body[header.ext_len :] if header.record_count else b""
    if len(held) % ROW.size:
        raise BadCopies(f"{len(held)} bytes are no rows of {ROW.size}")
    rows = [
        (shard, Run(lsn, stamp_seq, start, stop, stamp, drops))
        for lsn, stamp_seq, shard, stamp, drops, start, stop in ROW.iter_unpack(held)
    ]
    if sum(run.stop - run.start for _, run in rows) != header.record_count:
        raise BadCopies("the rows of a ROUTER frame contradict its header")
    return LinkedCopies(ext.r, ext.c, ext.t, ext.h, ext.s, ext.l, ext.m, rows)
