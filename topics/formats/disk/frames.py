"""WAL frames: the entries of the write-ahead log. Integers are little-endian.

A frame is a header of 64 bytes, a body, and zeros up to a multiple of 8. ``frame_bodies.py``
describes the content of each kind of frame. ``wal.py`` describes the file that contains the frames.
Header:

    offset  size  field         meaning
    0       4     magic         "WF01"
    4       4     crc32c        of bytes 8..64 and the body, seeded with the file's salt
    8       8     lsn           LSN of this frame; must be the end of the previous frame
    16      8     durable_lsn   the log was known to be synced up to here when the frame was built
    24      8     topic_id      0 if the frame does not belong to a topic
    32      8     first_seq     a seq, whose meaning depends on the kind
    40      8     ts_ms         milliseconds since 1970, signed
    48      4     body_len      without the padding
    52      4     record_count  number of records (APPEND), copies for each dest (FORWARD), runs
                                (DELETE) or jobs (LEASE)
    56      4     ext_len       length of the CBOR item at the start of the body; in a LOST frame,
                                length of the rows
    60      1     kind          `FrameKind`
    61      1     flags         `RecordFlags` of an APPEND or FORWARD frame, `DeleteFrameFlags` of a
                                DELETE frame, `LeaseOp` of a LEASE frame
    62      2     zero

A header is valid only if the checksum matches. No other field may be trusted before the checksum
has been verified.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from enum import Enum, IntEnum
from typing import NamedTuple

import crc32c

from topics.formats.buffers import Buffer

FRAME_MAGIC = b"WF01"
FRAME = struct.Struct("<4sIQQQQqIIIBBH")
FRAME_HEADER_BYTES = 64
assert FRAME.size == FRAME_HEADER_BYTES
_HEAD = struct.Struct("<4sI")
_TAIL = struct.Struct("<QQQQqIIIBBH")  # the part of the header that the checksum covers
assert _HEAD.size + _TAIL.size == FRAME_HEADER_BYTES
# The header fields that are needed to read records: magic, lsn, topic_id, first_seq, body_len,
# record_count, ext_len, kind, flags.
APPEND_FIELDS = struct.Struct("<4s4xQ8xQQ8xIIIBB2x")
assert APPEND_FIELDS.size == FRAME_HEADER_BYTES
ALIGNMENT = 8
_PADS = [bytes(-length % ALIGNMENT) for length in range(ALIGNMENT)]


class FrameKind(IntEnum):
    """The kind of a frame. Written to disk: never renumber, only add; 5 and 11 are not used."""

    APPEND = 1
    DELETE = 2
    TOPIC = 3
    LEASE = 4
    START = 6
    TOPIC_DELETED = 7
    SEQS_RESERVED = 8
    FLOOR = 9
    TS_RESERVED = 10
    ROUTER_SET = 12
    ROUTERS_GONE = 13
    LOST = 14
    FORWARD = 15


class FrameHeader(NamedTuple):
    """The header of a frame. The fields are in the order of the bytes."""

    magic: bytes
    crc: int
    lsn: int
    durable_lsn: int
    topic_id: int
    first_seq: int
    ts_ms: int
    body_len: int
    record_count: int
    ext_len: int
    kind: int
    flags: int
    zero: int

    @property
    def end(self) -> int:
        """The LSN of the next frame."""
        return self.lsn + padded(FRAME_HEADER_BYTES + self.body_len)


_CRC, _LSN, _BODY_LEN = map(FrameHeader._fields.index, ("crc", "lsn", "body_len"))


def padded(length: int) -> int:
    """Return ``length`` rounded up to a multiple of 8."""
    return length + -length % ALIGNMENT


class Frame(NamedTuple):
    """The content of a frame that is not yet written and has no LSN."""

    kind: FrameKind
    topic_id: int = 0
    first_seq: int = 0
    ts_ms: int = 0
    record_count: int = 0
    flags: int = 0
    ext_len: int = 0
    parts: Sequence[Buffer] = ()
    # The size of the records outside the frame that are added to a segment when the frame is
    # sealed. It is not encoded.
    named_bytes: int = 0

    @property
    def length(self) -> int:
        """The size of the frame in the log in bytes, including padding."""
        return padded(FRAME_HEADER_BYTES + sum(map(len, self.parts)))


def encode_frame(frame: Frame, lsn: int, durable_lsn: int, seed: int) -> list[Buffer]:
    """Encode a frame as a list of buffers, which must be written in this order."""
    kind, topic_id, first_seq, ts_ms, count, flags, ext_len, parts, _ = frame
    body_len = sum(map(len, parts))
    tail = _TAIL.pack(
        lsn, durable_lsn, topic_id, first_seq, ts_ms, body_len, count, ext_len, kind, flags, 0
    )
    crc = crc32c.crc32c(tail, seed)
    for part in parts:
        crc = crc32c.crc32c(part, crc)
    return [_HEAD.pack(FRAME_MAGIC, crc) + tail, *parts, _PADS[body_len % ALIGNMENT]]


def header_at(data: Buffer, offset: int) -> FrameHeader:
    """Return the header at ``offset`` without checking it."""
    # Like `FrameHeader._make`, but three times as fast.
    return tuple.__new__(FrameHeader, FRAME.unpack_from(data, offset))


class ScanStop(Enum):
    """Why there is no valid frame at an offset."""

    END = "only zeros follow"
    BAD = "the bytes that follow are not a frame"


def check_frame(data: memoryview, offset: int, lsn: int, seed: int) -> FrameHeader | ScanStop:
    """Check the frame at ``offset``. Returns its header, or the reason why there is no valid frame.

    Never raises on corrupt bytes.
    """
    if offset + FRAME_HEADER_BYTES > len(data):
        return ScanStop.END if not any(data[offset:]) else ScanStop.BAD
    header = header_at(data, offset)
    if header.magic != FRAME_MAGIC:
        return ScanStop.END if not any(data[offset : offset + FRAME_HEADER_BYTES]) else ScanStop.BAD
    end = offset + FRAME_HEADER_BYTES + header.body_len
    if (
        header.lsn != lsn
        or end > len(data)
        or crc32c.crc32c(data[offset + 8 : end], seed) != header.crc
    ):
        return ScanStop.BAD
    return header


def magics_from(data: memoryview, offset: int) -> Iterator[int]:
    """Yield the offsets, relative to ``offset``, at which a frame may begin, including damaged
    frames.
    """
    rest = bytes(data[offset:])
    at = rest.find(FRAME_MAGIC)
    while at >= 0:
        yield at
        at = rest.find(FRAME_MAGIC, at + 1)


def scan_frames(data: memoryview, offset: int, lsn: int, seed: int) -> Iterator[FrameHeader]:
    """Yield the headers of all valid frames from ``offset`` to the first invalid one.

    Startup reads millions of frames. For speed, this function repeats the checks of `check_frame`
    without a function call, and it works on a plain tuple, because indexing a tuple is faster than
    indexing an instance of a subclass.
    """
    size, shift = len(data), offset - lsn
    unpack, new, checksum = FRAME.unpack_from, tuple.__new__, crc32c.crc32c
    while (offset := lsn + shift) + FRAME_HEADER_BYTES <= size:
        fields = unpack(data, offset)
        length = FRAME_HEADER_BYTES + fields[_BODY_LEN]
        end = offset + length
        if (
            fields[0] != FRAME_MAGIC
            or fields[_LSN] != lsn
            or end > size
            or checksum(data[offset + 8 : end], seed) != fields[_CRC]
        ):
            return
        lsn += (length + 7) & -ALIGNMENT
        yield new(FrameHeader, fields)
