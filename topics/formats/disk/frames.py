"""WAL frames: the entries of the write-ahead log. Integers little-endian.

A frame is a header of 64 bytes, a body, and zeros up to a multiple of 8. ``frame_bodies.py`` says
what each kind of frame holds; ``wal.py`` is the file around the frames. Header:

    offset  size  field         meaning
    0       4     magic         "WF01"
    4       4     crc32c        of bytes 8..64 and the body, seeded with the file's salt
    8       8     lsn           of this frame; must be where the frame before it ends
    16      8     durable_lsn   the log was known to be synced up to here when the frame was made
    24      8     topic_id      0 when the frame is about no topic
    32      8     first_seq     a seq; of which, the kind says
    40      8     ts_ms         milliseconds since 1970, signed
    48      4     body_len      without the padding
    52      4     record_count  records of an APPEND frame, copies of each dest of a FORWARD frame,
                                runs of a DELETE frame, jobs of a LEASE frame
    56      4     ext_len       length of the CBOR item at the start of the body
    60      1     kind          `FrameKind`
    61      1     flags         `RecordFlags` of an APPEND or FORWARD frame, `DeleteFlags` of a
                                DELETE frame, `LeaseOp` of a LEASE frame
    62      2     zero

The checksum decides what a frame is. No other field is believed before it has been checked.
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
# What a read needs of a frame with records: magic, lsn, topic_id, first_seq, body_len,
# record_count, ext_len, kind, flags.
APPEND_FIELDS = struct.Struct("<4s4xQ8xQQ8xIIIBB2x")
assert APPEND_FIELDS.size == FRAME_HEADER_BYTES
ALIGNMENT = 8
_PADS = [bytes(-length % ALIGNMENT) for length in range(ALIGNMENT)]


class FrameKind(IntEnum):
    """What a frame says. Written to disk: never renumber, only add; 5 and 11 are not used."""

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
    """Header of a frame, in the order of the bytes."""

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
        """LSN of the next frame."""
        return self.lsn + padded(FRAME_HEADER_BYTES + self.body_len)


_CRC, _LSN, _BODY_LEN = map(FrameHeader._fields.index, ("crc", "lsn", "body_len"))


def padded(length: int) -> int:
    """``length`` rounded up to a multiple of 8."""
    return length + -length % ALIGNMENT


class Frame(NamedTuple):
    """What a frame is to say, before it has an LSN."""

    kind: FrameKind
    topic_id: int = 0
    first_seq: int = 0
    ts_ms: int = 0
    record_count: int = 0
    flags: int = 0
    ext_len: int = 0
    parts: Sequence[Buffer] = ()
    named_bytes: int = 0  # bytes elsewhere that are sealed with the frame; not encoded

    @property
    def length(self) -> int:
        """Bytes in the log, padding included."""
        return padded(FRAME_HEADER_BYTES + sum(map(len, self.parts)))


def encode_frame(frame: Frame, lsn: int, durable_lsn: int, seed: int) -> list[Buffer]:
    """The frame's bytes as a list of pieces, to be written one after the other."""
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
    """The header at ``offset``, unchecked."""
    # As `FrameHeader._make`, in a third of its time.
    return tuple.__new__(FrameHeader, FRAME.unpack_from(data, offset))


class Stop(Enum):
    """Why there is no frame."""

    END = "only zeros follow"
    BAD = "the bytes that follow are not a frame"


def check_frame(data: memoryview, offset: int, lsn: int, seed: int) -> FrameHeader | Stop:
    """The whole and undamaged frame at ``offset``, or why there is none.

    Never raises on bad bytes.
    """
    if offset + FRAME_HEADER_BYTES > len(data):
        return Stop.END if not any(data[offset:]) else Stop.BAD
    header = header_at(data, offset)
    if header.magic != FRAME_MAGIC:
        return Stop.END if not any(data[offset : offset + FRAME_HEADER_BYTES]) else Stop.BAD
    end = offset + FRAME_HEADER_BYTES + header.body_len
    if (
        header.lsn != lsn
        or end > len(data)
        or crc32c.crc32c(data[offset + 8 : end], seed) != header.crc
    ):
        return Stop.BAD
    return header


def magics_from(data: memoryview, offset: int) -> Iterator[int]:
    """Where a frame may begin behind ``offset``, damaged ones among them: counted from there."""
    rest = bytes(data[offset:])
    at = rest.find(FRAME_MAGIC)
    while at >= 0:
        yield at
        at = rest.find(FRAME_MAGIC, at + 1)


def scan_frames(data: memoryview, offset: int, lsn: int, seed: int) -> Iterator[FrameHeader]:
    """Headers of all whole frames from ``offset`` on, up to the first that `check_frame` refuses.

    A start reads millions of frames, so the checks of `check_frame` are repeated here without a
    call, and on the plain tuple, whose indexing is faster than that of a subclass.
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
