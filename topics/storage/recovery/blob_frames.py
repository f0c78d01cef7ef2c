"""Blob frames: rebuilds the frame of a long append from its blob (``formats/disk/blob.py``).

The frame of a long append is short and refers to a blob that contains all of its records. If the
frame is damaged and the blob is intact, every field of the frame can be derived from the blob: the
body starts with the ext map, its table of ends gives the number of records, and the first record
contains the time. No field is guessed, because an interpretation of the body is accepted only if
each record matches the tables.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, Final

import cbor2

from topics.formats.disk import blob
from topics.formats.disk.blob import BadBlob
from topics.formats.disk.frame_bodies import external_append_frame
from topics.formats.disk.frames import Frame
from topics.formats.disk.records import RecordFlags, RecordsView
from topics.storage.mapped_file import MappedFile
from topics.storage.wal.blobs import blob_of

TABLES_MAX: Final = 3  # nodes, tags, metas
_META: Final = b',"meta":'


def frame_from(path: Path) -> Frame | None:
    """Return the frame that refers to this blob.

    Return None if the blob is not intact or its body has no valid interpretation.
    """
    named = blob_of(path.name)
    if named is None:
        return None
    mapped = MappedFile.of(path)
    try:
        body = blob.check(mapped.data, *named, mapped.can_read)
    except BadBlob:
        return None
    topic_id, first_seq = named
    # Try each interpretation of the body. Only the right one matches all records.
    for ext_len, ext in _ext_maps(body):
        for count, tables in _shapes(body, ext_len):
            for flags in _flags(ext, tables):
                view = RecordsView(flags, count, ext_len, body)
                ts_ms = _time(view, first_seq)
                if ts_ms is not None:
                    text = bytes(body[:ext_len])
                    return external_append_frame(topic_id, first_seq, ts_ms, count, flags, text)
    return None


def _ext_maps(body: memoryview) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield ``(length, map)`` for each possible interpretation of the body: no ext map (length 0),
    or the CBOR item at its start as the ext map.
    """
    yield 0, {}
    source = io.BytesIO(body)
    try:
        found = cbor2.load(source)
    except (cbor2.CBORError, ValueError, TypeError, MemoryError, OverflowError, RecursionError):
        return
    if isinstance(found, dict):
        # The decoder may have read beyond the end of the item, so the position of ``source`` does
        # not give its length.
        yield len(cbor2.dumps(found)), found


def _shapes(body: memoryview, ext_len: int) -> Iterator[tuple[int, int]]:
    """Yield each ``(records, tables)`` for which the last record ends at the end of the body."""
    # The ends of the records increase. The first value that is not greater than the value before
    # it does not belong to the table of ends.
    rest = body[ext_len:]
    before = 0
    for index, (end,) in enumerate(struct.iter_unpack("<I", rest[: len(rest) // 4 * 4]), 1):
        if not before < end <= len(rest):
            return
        # The bytes that are not records are the table of ends, with 4 bytes for each record, and up
        # to 3 other tables of the same size.
        tables, odd = divmod(len(rest) - end, 4 * index)
        if not odd and 1 <= tables <= 1 + TABLES_MAX:
            yield index, tables - 1
        before = end


def _flags(ext: dict[str, Any], tables: int) -> Iterator[int]:
    """Yield the possible flags of a write with this ext map and this number of tables."""
    # The ext map shows which of these features the write uses.
    fixed = (RecordFlags.TAGS if "t" in ext else 0) | (RecordFlags.DELAYS if "d" in ext else 0)
    nodes = (RecordFlags.NODES, RecordFlags.ONE_NODE) if "n" in ext else (0,)
    for node, meta in product(nodes, (0, RecordFlags.METAS)):
        flags = int(fixed | node | meta)
        # Each of the three features has one table.
        if (flags & 7).bit_count() == tables:
            yield flags


def _time(view: RecordsView, first_seq: int) -> int | None:
    """Return ``$ts`` of the records, or None if a record does not match the tables."""
    count, flags = view.count, view.flags
    try:
        ts_ms = view.ts(0)
        nothing = bytes(count)
        ext = view.ext()
        # Index 0 stands for a record without a node or a tag.
        nodes, tags = [b"", *ext.get("n", ())], [b"", *ext.get("t", ())]
        columns = [
            view.column(flag, 0, count) if flags & flag else nothing
            for flag in (RecordFlags.NODES, RecordFlags.TAGS, RecordFlags.METAS)
        ]
        if flags & RecordFlags.ONE_NODE:
            columns[0] = b"\1" * count
        records, begin = bytes(view.blob), 0
        for seq, end, node, tag, meta in zip(
            range(first_seq, first_seq + count), view.ends, *columns, strict=True
        ):
            # Compare the record with the text that the tables require.
            head = b'{"$seq":%d,"$ts":%d' % (seq, ts_ms)
            head += b',"$node":' + nodes[node] if node else b""
            head += b',"$tag":' + tags[tag] if tag else b""
            if not records.startswith(head + b',"data":', begin, end):
                return None
            if not records.endswith(b"},", begin, end):
                return None
            if meta and not records.startswith(_META, end - 2 - meta, end):
                return None
            begin = end
    except (IndexError, KeyError, TypeError, ValueError):
        return None
    return ts_ms if begin == len(records) else None
