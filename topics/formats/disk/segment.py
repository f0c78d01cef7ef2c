"""Segment file: the records of one sealed log file, sorted by topic. Integers little-endian.

    part        starts at                  size          meaning
    header      0                          4096
    extents     each at a multiple of 8
    flags       a multiple of 4096         record_count  delete flags: a byte for each record, in
                                                         the order of the extents; 1: deleted
    directory   a multiple of 4096         80 per extent
    trailer     file_length - 64           64

The bytes between two parts are zero. Only the delete flags of a file ever change. They are changed
in place, one byte at a time, and no checksum covers them.

Header:

    offset  size  field         meaning
    0       8     magic         "TPSEG001"
    8       4     version       2
    12      4     shard         the shard that writes it
    16      8     number        number of the segment, as in the file's name
    24      8     base          LSN at which the sealed part of the log starts
    32      8     end           LSN at which it ends
    40      4     crc32c        of bytes 0..40
    44      4052  zero

Trailer:

    offset  size  field         meaning
    0       8     magic         "TPSEGEND"
    8       8     directory_at  offset of the directory
    16      8     flags_at      offset of the delete flags
    24      8     record_count  number of records in all extents
    32      8     file_length
    40      4     entry_count   number of entries in the directory
    44      4     directory_crc crc32c of the directory
    48      12    zero
    60      4     crc32c        of bytes 0..60

Entry of the directory, one for each extent:

    offset  size  field         meaning
    0       8     topic_id
    8       8     first_seq     the seqs of an extent are contiguous
    16      8     offset        of the extent in the file
    24      8     length        of blob, padding and tables
    32      8     flags_at      offset in the file of the extent's first delete flag
    40      8     first_ts      $ts of the first record, signed
    48      8     last_ts       $ts of the last record, signed
    56      4     record_count
    60      4     blob_bytes
    64      4     tables_len
    68      4     tables_crc    crc32c of the tables
    72      4     flags         RecordFlags: NODES, TAGS, METAS, ONE_NODE as in records.py
    76      4     keys_len      as in the head of the tables

Extent: the blob (rendered records as in ``records.py``, each followed by a comma), zeros up to a
multiple of 8, the tables. The tables begin with a head:

    offset  size  field         meaning
    0       4     node_count    distinct nodes
    4       4     node_bytes
    8       4     tag_count     distinct tags
    12      4     tag_bytes
    16      4     posting_count records with a tag
    20      4     chunk_count   one for each 64 KiB of the blob
    24      4     keys_len
    28      4     zero

The tables that follow the head:

    part          size                present     meaning
    ends          u32[record_count]   always      end of each record in the blob, with its comma
    node_refs     u32[record_count]   flag NODES  0: no node; n: the n-th node
    tag_refs      u32[record_count]   flag TAGS   0: no tag; n: the n-th tag
    meta_lens     u32[record_count]   flag METAS  length of the record's `,"meta":META`, 0: none
    chunk_crcs    u32[chunk_count]    always      crc32c of each 64 KiB of the blob
    node_ends     u32[node_count]     always      end of each node in the node bytes
    tag_ends      u32[tag_count]      always      end of each tag in the tag bytes
    posting_ends  u32[tag_count]      always      end of each tag's records in the postings
    postings      u32[posting_count]  always      indexes of the tag's records, ascending
    node bytes    node_bytes          always      nodes as JSON strings, in the order of their bytes
    tag bytes     tag_bytes           always      tags as JSON strings, in the order of their bytes
    keys          keys_len            always      CBOR array of [idempotency key, first_seq, count,
                                                  $ts], one for each write with a key

A text starts with a prefix if and only if its JSON string starts with the JSON string of the
prefix, excluding the closing quote. So the tags with a common prefix are adjacent, and so are their
postings.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

import crc32c

from topics.formats.buffers import Buffer
from topics.formats.disk.versions import SEGMENT, VERSION_AT, VERSIONS, other_version

END_MAGIC = b"TPSEGEND"
PAGE_BYTES = 4096  # page size of the file system, which can release only complete pages
EXTENT_ALIGNMENT = 8
HEADER_BYTES = 4096
TRAILER_BYTES = 64
ENTRY_BYTES = 80
TABLES_HEAD_BYTES = 32
CHUNK_BYTES = 64 << 10
_HEADER = struct.Struct("<8sIIQQQ")
_TRAILER = struct.Struct("<8sQQQQII12x")
_ENTRY = struct.Struct("<QQQQQqqIIIIII")
_TABLES_HEAD = struct.Struct("<IIIIIII4x")
_CRC = struct.Struct("<I")
assert _HEADER.size == 40
HEADER_USED_BYTES = _HEADER.size + _CRC.size  # The remaining bytes of the header are zero.
assert _TRAILER.size + _CRC.size == TRAILER_BYTES
assert _ENTRY.size == ENTRY_BYTES
assert _TABLES_HEAD.size == TABLES_HEAD_BYTES


class BadSegment(Exception):
    """The bytes are damaged or are not a segment of this version.

    ``offset`` is the position in the file where this was detected.
    """

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"offset {offset}: {reason}")
        self.offset, self.reason = offset, reason


class SegmentHeader(NamedTuple):
    """The header of a segment file, see the table in the module docstring."""

    shard: int
    number: int
    base: int
    end: int


class Trailer(NamedTuple):
    """The trailer of a segment file, see the table in the module docstring."""

    directory_at: int
    flags_at: int
    record_count: int
    file_length: int
    entry_count: int
    directory_crc: int


class ExtentEntry(NamedTuple):
    """The entry of an extent in the directory, see the table in the module docstring."""

    topic_id: int
    first_seq: int
    offset: int
    length: int
    flags_at: int
    first_ts: int
    last_ts: int
    record_count: int
    blob_bytes: int
    tables_len: int
    tables_crc: int
    flags: int
    keys_len: int

    @property
    def tables_at(self) -> int:
        """The offset of the extent's tables in the file."""
        return self.offset + self.length - self.tables_len

    @property
    def pages(self) -> range:
        """The offsets of the pages that contain only bytes of this extent."""
        end = self.offset + self.length + padding(self.length, EXTENT_ALIGNMENT)
        return range(self.offset + padding(self.offset), end - end % PAGE_BYTES)


class TablesHead(NamedTuple):
    """The head of an extent's tables, see the table in the module docstring."""

    node_count: int
    node_bytes: int
    tag_count: int
    tag_bytes: int
    posting_count: int
    chunk_count: int
    keys_len: int


class ExtentKey(NamedTuple):
    """The idempotency key of a write, with the seqs and the time of its records."""

    key: str
    first_seq: int
    record_count: int
    ts_ms: int


def padding(length: int, alignment: int = PAGE_BYTES) -> int:
    """Return the number of zeros that must follow ``length`` bytes to reach the alignment."""
    return -length % alignment


def encode_header(header: SegmentHeader) -> bytes:
    """Encode the header, which is the first 4096 bytes of a file."""
    head = _HEADER.pack(SEGMENT, VERSIONS[SEGMENT], *header)
    return (head + _CRC.pack(crc32c.crc32c(head))).ljust(HEADER_BYTES, b"\0")


def decode_header(data: Buffer) -> SegmentHeader:
    """Decode the header of a file. Raises `BadSegment`."""
    if len(data) < HEADER_BYTES:
        raise BadSegment(0, "shorter than its header")
    magic, _, *fields = _HEADER.unpack_from(data)
    if magic != SEGMENT:
        raise BadSegment(0, "is not a segment file")
    if reason := other_version(data):
        raise BadSegment(VERSION_AT, reason)
    if _CRC.unpack_from(data, _HEADER.size)[0] != crc32c.crc32c(bytes(data[: _HEADER.size])):
        raise BadSegment(_HEADER.size, "has a damaged header")
    return SegmentHeader(*fields)


def encode_trailer(trailer: Trailer) -> bytes:
    """Encode the trailer, which is the last 64 bytes of a file."""
    head = _TRAILER.pack(END_MAGIC, *trailer)
    return head + _CRC.pack(crc32c.crc32c(head))


def decode_trailer(data: Buffer, file_length: int) -> Trailer:
    """Decode the last 64 bytes of a file of ``file_length`` bytes. Raises `BadSegment`."""
    at = file_length - TRAILER_BYTES
    if at < HEADER_BYTES or len(data) != TRAILER_BYTES:
        raise BadSegment(file_length, "ends before its trailer")
    magic, *fields = _TRAILER.unpack_from(data)
    crc = crc32c.crc32c(bytes(data[: _TRAILER.size]))
    if magic != END_MAGIC or _CRC.unpack_from(data, _TRAILER.size)[0] != crc:
        raise BadSegment(at, "has a damaged trailer or is truncated")
    trailer = Trailer._make(fields)
    directory_end = trailer.directory_at + ENTRY_BYTES * trailer.entry_count
    if trailer.file_length != file_length or directory_end != at:
        raise BadSegment(at, f"has {file_length} bytes instead of {trailer.file_length}")
    flags_end = trailer.flags_at + trailer.record_count
    if not HEADER_BYTES <= trailer.flags_at <= flags_end <= trailer.directory_at:
        raise BadSegment(at, "has an inconsistent trailer")
    return trailer


def check_directory(data: Buffer, trailer: Trailer) -> None:
    """Raise `BadSegment` if the directory does not match the checksum in the trailer."""
    length = ENTRY_BYTES * trailer.entry_count
    if len(data) != length or crc32c.crc32c(data) != trailer.directory_crc:
        raise BadSegment(trailer.directory_at, "has a damaged directory")


def decode_ends(
    read: Callable[[int, int], Buffer], size: int
) -> tuple[SegmentHeader, Trailer, Buffer]:
    """Return the header, the trailer and the directory of a file of ``size`` bytes.

    ``read`` takes an offset and a length and returns these bytes. Raises `BadSegment`.
    """
    header = decode_header(read(0, HEADER_BYTES))
    trailer = decode_trailer(read(max(size - TRAILER_BYTES, 0), TRAILER_BYTES), size)
    directory = read(trailer.directory_at, ENTRY_BYTES * trailer.entry_count)
    check_directory(directory, trailer)
    return header, trailer, directory


def encode_entry(entry: ExtentEntry) -> bytes:
    """Encode an entry of the directory as 80 bytes."""
    return _ENTRY.pack(*entry)


def decode_entry(data: Buffer, offset: int = 0) -> ExtentEntry:
    """Decode the entry at ``offset`` of ``data``."""
    return ExtentEntry._make(_ENTRY.unpack_from(data, offset))


def decode_directory(data: Buffer) -> Iterator[ExtentEntry]:
    """Decode all entries of a directory."""
    return map(ExtentEntry._make, _ENTRY.iter_unpack(data))


def encode_tables_head(head: TablesHead) -> bytes:
    """Encode the head of an extent's tables as 32 bytes."""
    return _TABLES_HEAD.pack(*head)


def decode_tables_head(data: Buffer, offset: int) -> TablesHead:
    """Decode the head of an extent's tables at ``offset``."""
    return TablesHead._make(_TABLES_HEAD.unpack_from(data, offset))
