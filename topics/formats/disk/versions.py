"""Format versions: the version of each kind of file that this program reads and writes.

Every file of a data directory begins with the same fields. Integers are little-endian.

    offset  size  field
    0       8     magic    the kind of the file
    8       4     version

A program reads one version of each kind. A file of any other version is refused. It is never
converted, and it does not count as damage that a repair may remove.
"""

from __future__ import annotations

import struct
from typing import Final

from topics.formats.buffers import Buffer

HEAD: Final = struct.Struct("<8sI")
assert HEAD.size == 12
VERSION_AT: Final = 8

LOG: Final = b"TPWAL001"
SEGMENT: Final = b"TPSEG001"
CHECKPOINT: Final = b"TPCKPT01"
BLOB: Final = b"TPBLOB01"
META: Final = b"topicsdd"
VERSIONS: Final = {LOG: 2, SEGMENT: 2, CHECKPOINT: 4, BLOB: 1, META: 1}


def other_version(head: Buffer) -> str:
    """Return the reason why a file that begins with ``head`` is refused.

    Return an empty text if the file has the version that this program reads, or if the bytes are of
    no known kind.
    """
    if len(head) < HEAD.size:
        return ""
    magic, found = HEAD.unpack_from(head)
    known = VERSIONS.get(magic, found)
    return "" if found == known else unknown(found, known)


def unknown(found: int, known: int) -> str:
    """Return the message for a file that has a different version."""
    return f"has format version {found}; this program reads version {known}"
