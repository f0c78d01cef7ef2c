"""Blob file: the records of one long write, stored outside the log. Integers are little-endian.

A long write is stored in a separate file so that short writes do not wait for its bytes.

    offset  size      field      meaning
    0       8         magic      "TPBLOB01"
    8       4         version    1
    12      4         crc32c     of bytes 16 to the end
    16      8         topic_id   the write's topic
    24      8         first_seq  the write's first seq
    32      8         body_len
    40      24        zero
    64      body_len  body       as in an APPEND frame (records.py)

The log contains an APPEND frame with flag EXTERNAL, whose body is only the ext map. This frame is
written after the complete blob has been synced to disk.
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
    """The bytes are damaged or are not the blob to which the log refers.

    ``offset`` is the position in the file where this was detected.
    """

    def __init__(self, reason: str, offset: int = 0) -> None:
        super().__init__(reason)
        self.offset = offset


def body_crc(topic_id: int, first_seq: int, body_len: int) -> int:
    """Return the checksum of the header fields. The caller updates it with the body."""
    return crc32c.crc32c(_REST.pack(topic_id, first_seq, body_len))


def encode_header(topic_id: int, first_seq: int, body_len: int, crc: int) -> bytes:
    """Encode the header. ``crc`` is the result of `body_crc`, updated with the body."""
    return _HEAD.pack(BLOB, VERSIONS[BLOB], crc) + _REST.pack(topic_id, first_seq, body_len)


def check_header(header: bytes, file_length: int, topic_id: int, first_seq: int) -> tuple[int, int]:
    """Check that the header belongs to the blob of this write.

    Returns the checksum of the header fields, as `body_crc`, and the expected checksum after the
    body. Raises `BadBlob` with the reason.
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
        raise BadBlob("belongs to another write or is truncated", _HEAD.size)
    return crc32c.crc32c(header[_HEAD.size : HEADER_BYTES]), crc


def check(
    data: memoryview,
    topic_id: int,
    first_seq: int,
    can_read: Callable[[int, int], bool] = lambda *_: True,
) -> memoryview:
    """Return the body after verifying its checksum. Raises `BadBlob` with the reason."""
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
    """Do the work of `check` in steps of ``step_bytes``, and yield after each step.

    ``can_read`` returns whether the bytes between two offsets can be read.
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
    """Return the body of a blob that has already been checked."""
    return data[HEADER_BYTES:]
