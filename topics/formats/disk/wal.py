"""Bytes of the write-ahead log. Integers little-endian.

A log is an endless row of frames; a frame's *position* is the number of frame bytes before it. It
lives in files, each of which begins at the position where the one before it ended, so a missing
file is noticed. File header, 4096 bytes:

    offset  size  field      meaning
    0       8     magic      "TPWAL001"
    8       4     version    2
    12      4     shard      the shard that writes it
    16      8     base       position of the first frame
    24      8     salt       random for every file: seeds the frames' checksums, so that bytes of an earlier life are no frames
    32      8     size       of the file, which is made whole at once: a shorter one has been cut
    40      4     crc32c     of bytes 0..40
    44      4052  zero

Version 1 has no size, and its checksum is at 32, of bytes 0..32.

Frame: header of 64 bytes, body, zeros up to a multiple of 8.

    offset  size  field         meaning
    0       4     magic         "WF01"
    4       4     crc32c        of bytes 8..64 and the body, seeded with the file's salt
    8       8     position      of this frame; must be where the last one ended
    16      8     durable       position up to which the log was known to be synced when this frame was made
    24      8     topic_id      0 when the frame is about no topic
    32      8     first_seq     first seq that the frame assigns; of other kinds see below
    40      8     ts_ms         commit time, milliseconds since 1970, signed
    48      4     body_len      without the padding
    52      4     record_count  of an APPEND frame; number of runs of a DELETE frame
    56      4     ext_len       length of the CBOR map at the start of the body
    60      1     kind          FrameKind
    61      1     flags         RecordFlags of an APPEND frame
    62      2     zero

By kind, what ``first_seq`` means besides, and the body:

    APPEND         the first record's seq          as in ``records.py``
    DELETE         no runs: all seqs below it go   (u64 first seq, u64 length) for each run of seqs that goes, in rising order
    TOPIC          ceiling of reserved seqs        CBOR map: name, epoch, config, head, last_ts, start, floors, losses,
                                                   damaged, keys_from
    MARK                                           CBOR map: boot. As TS_RESERVED, and reservations before it are over
    TOPIC_DELETED                                  none
    SEQS_RESERVED  ceiling of reserved seqs        none
    FLOOR          the first live seq              CBOR array: floors of cap, TTL, loss and damage
    TS_RESERVED                                    none; no `$ts` above ``ts_ms + TS_AHEAD_MS`` was given to a record in memory
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from enum import Enum, IntEnum
from typing import NamedTuple

import crc32c

from topics.formats.buffers import Buffer

FILE_MAGIC = b"TPWAL001"
FILE_VERSION = 2
FILE_HEADER_BYTES = 4096
_FILE = struct.Struct("<8sIIQQQ")
_FILES = {1: struct.Struct("<8sIIQQ"), 2: _FILE}
_CRC = struct.Struct("<I")

FRAME_MAGIC = b"WF01"
FRAME = struct.Struct("<4sIQQQQqIIIBBH")
FRAME_HEADER_BYTES = 64
assert FRAME.size == FRAME_HEADER_BYTES
_TAIL = struct.Struct("<QQQQqIIIBBH")  # what the checksum covers of the header
_HEAD = struct.Struct("<4sI")
assert _HEAD.size + _TAIL.size == FRAME_HEADER_BYTES
_SEED_BYTES = struct.Struct("<Q")
ALIGNMENT = 8
TS_AHEAD_MS = 2000
_PADS = [bytes(-length % ALIGNMENT) for length in range(ALIGNMENT)]


class FrameKind(IntEnum):
    """What a frame says. Written to disk: never renumber, only add."""

    APPEND = 1
    DELETE = 2
    TOPIC = 3
    LEASE = 4
    ROUTER = 5
    MARK = 6
    TOPIC_DELETED = 7
    SEQS_RESERVED = 8
    FLOOR = 9
    TS_RESERVED = 10


class FileHeader(NamedTuple):
    """Header of a log file. ``size`` 0: it does not say."""

    shard: int
    base: int
    salt: int
    size: int = 0

    @property
    def seed(self) -> int:
        """Start value of the frames' checksums."""
        return crc32c.crc32c(_SEED_BYTES.pack(self.salt))


class BadHeader(Exception):
    """The first 4096 bytes are no header of a log file that this version reads."""


def encode_file_header(header: FileHeader) -> bytes:
    """The 4096 bytes at the start of a log file."""
    head = _FILE.pack(FILE_MAGIC, FILE_VERSION, *header)
    return (head + _CRC.pack(crc32c.crc32c(head))).ljust(FILE_HEADER_BYTES, b"\0")


def decode_file_header(data: Buffer) -> FileHeader:
    """Raises `BadHeader` with the reason."""
    if len(data) < FILE_HEADER_BYTES:
        raise BadHeader("shorter than its header")
    magic, version = _FILE.unpack_from(data)[:2]
    if magic != FILE_MAGIC:
        raise BadHeader("is no log file")
    if version not in _FILES:
        raise BadHeader(
            f"has format version {version}; this program reads versions up to {FILE_VERSION}"
        )
    layout = _FILES[version]
    (crc,) = _CRC.unpack_from(data, layout.size)
    if crc != crc32c.crc32c(bytes(data[: layout.size])):
        raise BadHeader("has a damaged header")
    return FileHeader(*layout.unpack_from(data)[2:])


class FrameHeader(NamedTuple):
    """Header of a frame, in the order of the bytes."""

    magic: bytes
    crc: int
    position: int
    durable: int
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
        """Position of the next frame."""
        return self.position + padded(FRAME_HEADER_BYTES + self.body_len)


def padded(length: int) -> int:
    """``length`` rounded up to a multiple of 8."""
    return length + -length % ALIGNMENT


class Frame(NamedTuple):
    """What a frame is to say, before it has a place in the log."""

    kind: FrameKind
    topic_id: int = 0
    first_seq: int = 0
    ts_ms: int = 0
    record_count: int = 0
    flags: int = 0
    ext_len: int = 0
    parts: Sequence[Buffer] = ()

    @property
    def length(self) -> int:
        """Bytes in the log, padding included."""
        return padded(FRAME_HEADER_BYTES + sum(map(len, self.parts)))


def encode_frame(frame: Frame, position: int, durable: int, seed: int) -> list[Buffer]:
    """The frame's bytes as a list of pieces, to be written one after the other."""
    kind, topic_id, first_seq, ts_ms, count, flags, ext_len, parts = frame
    body_len = sum(map(len, parts))
    tail = _TAIL.pack(
        position, durable, topic_id, first_seq, ts_ms, body_len, count, ext_len, kind, flags, 0
    )
    crc = crc32c.crc32c(tail, seed)
    for part in parts:
        crc = crc32c.crc32c(part, crc)
    return [_HEAD.pack(FRAME_MAGIC, crc) + tail, *parts, _PADS[body_len % ALIGNMENT]]


def header_at(data: Buffer, offset: int) -> FrameHeader:
    """The header at ``offset``, unchecked."""
    return tuple.__new__(
        FrameHeader, FRAME.unpack_from(data, offset)
    )  # what `_make` does, in a third of its time


class Stop(Enum):
    """Why a scan ended."""

    END = "only zeros follow"
    BAD = "the bytes that follow are no frame"


def check_frame(data: memoryview, offset: int, position: int, seed: int) -> FrameHeader | Stop:
    """The whole and undamaged frame at ``offset``, or why there is none. Never raises on bad bytes."""
    if offset + FRAME_HEADER_BYTES > len(data):
        return Stop.END if not any(data[offset:]) else Stop.BAD
    header = header_at(data, offset)
    if header.magic != FRAME_MAGIC:
        return Stop.END if not any(data[offset : offset + FRAME_HEADER_BYTES]) else Stop.BAD
    end = offset + FRAME_HEADER_BYTES + header.body_len
    if (
        header.position != position
        or end > len(data)
        or crc32c.crc32c(data[offset + 8 : end], seed) != header.crc
    ):
        return Stop.BAD
    return header


def scan_frames(data: memoryview, offset: int, position: int, seed: int) -> Iterator[FrameHeader]:
    """Headers of all whole frames from ``offset`` on, up to the first that `check_frame` would not
    take.

    A start looks at millions of them, so this does its checks in one place and calls nothing that
    it can spare.
    """
    size, shift = len(data), offset - position
    unpack, new, checksum = FRAME.unpack_from, tuple.__new__, crc32c.crc32c
    while (offset := position + shift) + FRAME_HEADER_BYTES <= size:
        header: FrameHeader = new(FrameHeader, unpack(data, offset))
        magic, crc, at, _, _, _, _, body_len, _, _, _, _, _ = header
        end = offset + FRAME_HEADER_BYTES + body_len
        if (
            magic != FRAME_MAGIC
            or at != position
            or end > size
            or checksum(data[offset + 8 : end], seed) != crc
        ):
            return
        position += (FRAME_HEADER_BYTES + body_len + 7) & -ALIGNMENT
        yield header
