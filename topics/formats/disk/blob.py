"""Blob file: the records of one long write, beside the log. Integers little-endian.

Small writes need not wait behind its bytes.

    offset  size      field      meaning
    0       8         magic      "TPBLOB01"
    8       4         version    1
    12      4         crc32c     of bytes 16 to the end
    16      8         topic_id   the write's topic
    24      8         first_seq  the write's first seq
    32      8         body_len
    40      24        zero
    64      body_len  body       as in an APPEND frame (records.py)

The log holds an APPEND frame with flag EXTERNAL, whose body is the ext map alone. That frame is
written after the whole blob is on the disk.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import crc32c

from topics.formats.disk.versions import BLOB, VERSION_AT, VERSIONS, other_version

HEADER_BYTES = 64
_HEAD = struct.Struct("<8sII")
_REST = struct.Struct("<QQQ24x")
assert _HEAD.size + _REST.size == HEADER_BYTES


class BadBlob(Exception):
    """The bytes are not the blob that the log names. ``offset``: of what shows it."""

    def __init__(self, reason: str, offset: int = 0) -> None:
        super().__init__(reason)
        self.offset = offset


def body_crc(topic_id: int, first_seq: int, body_len: int) -> int:
    """The checksum before the bytes of the body are added."""
    return crc32c.crc32c(_REST.pack(topic_id, first_seq, body_len))


def encode_header(topic_id: int, first_seq: int, body_len: int, crc: int) -> bytes:
    """The 64 bytes at the start; ``crc`` as of `body_crc`, with the body added."""
    return _HEAD.pack(BLOB, VERSIONS[BLOB], crc) + _REST.pack(topic_id, first_seq, body_len)


def check_header(header: bytes, file_length: int, topic_id: int, first_seq: int) -> tuple[int, int]:
    """The checksum before the bytes of the body are added, and what it must come to.

    Raises `BadBlob` with the reason.
    """
    if len(header) < HEADER_BYTES:
        raise BadBlob("shorter than its header")
    magic, _, crc = _HEAD.unpack_from(header)
    if magic != BLOB:
        raise BadBlob("is not a blob file")
    if reason := other_version(header):
        raise BadBlob(reason, VERSION_AT)
    held_topic, held_seq, body_len = _REST.unpack_from(header, _HEAD.size)
    if (held_topic, held_seq) != (topic_id, first_seq) or file_length != HEADER_BYTES + body_len:
        raise BadBlob("belongs to another write, or is cut", _HEAD.size)
    return crc32c.crc32c(header[_HEAD.size : HEADER_BYTES]), crc


def check(
    data: memoryview,
    topic_id: int,
    first_seq: int,
    can_read: Callable[[int, int], bool] = lambda *_: True,
) -> memoryview:
    """The body, every byte of which is as it was written. Raises `BadBlob` with the reason."""
    for _ in checking(data, topic_id, first_seq, max(len(data), 1), can_read):
        pass
    return data[HEADER_BYTES:]


def checking(
    data: memoryview,
    topic_id: int,
    first_seq: int,
    step_bytes: int,
    can_read: Callable[[int, int], bool] = lambda *_: True,
) -> Iterator[None]:
    """As `check`, ``step_bytes`` at a time. ``can_read`` says whether bytes from one offset to
    another may be touched.
    """
    if not can_read(0, min(HEADER_BYTES, len(data))):
        raise BadBlob("cannot be read")
    crc, wanted = check_header(bytes(data[:HEADER_BYTES]), len(data), topic_id, first_seq)
    for start in range(HEADER_BYTES, len(data), step_bytes):
        stop = min(start + step_bytes, len(data))
        if not can_read(start, stop):
            raise BadBlob("cannot be read", start)
        crc = crc32c.crc32c(data[start:stop], crc)
        yield
    if crc != wanted:
        raise BadBlob("is damaged", HEADER_BYTES)


def body_of(data: memoryview) -> memoryview:
    """The body of a blob that was checked before."""
    return data[HEADER_BYTES:]
