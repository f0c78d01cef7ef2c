"""WAL files: the header of each file of the write-ahead log. Integers little-endian.

A log is an unbounded sequence of frames (``frames.py``). The *LSN* of a frame is the number of
frame bytes before it, including padding. The log is stored in several files. Each file starts at
the LSN at which the previous file ends, so a missing file is detected. Layout of the file header
(4096 bytes):

    offset  size  field    meaning
    0       8     magic    "TPWAL001"
    8       4     version  2
    12      4     shard    the shard that writes the file
    16      8     base     LSN of the first frame
    24      8     salt     random number that seeds the checksums of the file's frames
    32      8     size     allocated size of the file; a file with fewer bytes was truncated
    40      4     crc32c   of bytes 0..40
    44      4052  zero

A recycled file may contain frames from its previous use. Because the file now has a different salt,
their checksums do not match, and they are not mistaken for frames of this log.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import crc32c

from topics.formats.buffers import Buffer
from topics.formats.disk.versions import LOG, VERSIONS, other_version

FILE_HEADER_BYTES = 4096
_LAYOUT = struct.Struct("<8sIIQQQ")
_CRC = struct.Struct("<I")
_SEED_BYTES = struct.Struct("<Q")


class FileHeader(NamedTuple):
    """The header of a log file, see the table in the module docstring."""

    shard: int
    base: int
    salt: int
    size: int

    @property
    def seed(self) -> int:
        """The initial value of the frames' checksums."""
        return crc32c.crc32c(_SEED_BYTES.pack(self.salt))


class BadHeader(Exception):
    """The first 4096 bytes are not the header of a log file that this program reads."""


def encode_file_header(header: FileHeader) -> bytes:
    """Encode the header, which is the first 4096 bytes of a log file."""
    head = _LAYOUT.pack(LOG, VERSIONS[LOG], *header)
    return (head + _CRC.pack(crc32c.crc32c(head))).ljust(FILE_HEADER_BYTES, b"\0")


def decode_file_header(data: Buffer) -> FileHeader:
    """Decode the header of a log file. Raises `BadHeader` with the reason."""
    if len(data) < FILE_HEADER_BYTES:
        raise BadHeader("shorter than its header")
    magic, _, *fields = _LAYOUT.unpack_from(data)
    if magic != LOG:
        raise BadHeader("is not a log file")
    if reason := other_version(data):
        raise BadHeader(reason)
    (crc,) = _CRC.unpack_from(data, _LAYOUT.size)
    if crc != crc32c.crc32c(bytes(data[: _LAYOUT.size])):
        raise BadHeader("has a damaged header")
    return FileHeader(*fields)
