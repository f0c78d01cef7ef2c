"""Backup archive: a tar file (GNU format) with the files of a data directory and a manifest.

    flags/SHARD/NUMBER.seg   delete flags of a segment, as they were before the cut of any log
    meta, checkpoint/..., segment/..., wal/..., blob/...
                             as in a data directory; the last log file ends at the cut
    manifest.json            {"manifest": `Manifest`, "sha256": of its bytes}; the last member

The delete flags inside the archived segments may be newer than the cut. So a restore replaces them
with the flags in the member ``flags/...``, or clears them if there is no such member. A restored
log file has its original ``size``, with zeros after the archived bytes.

An incremental backup does not contain the bytes that the receiver already has. The receiver reports
each of its files with its length and *identity* (`identity_ranges`), which for a log file depends
on the process of the shard (`run_of`). A file with the same identity is not sent. A log file is
sent starting at the reported length, as the member ``NAME@LENGTH``. In the manifest, ``kept`` is
the number of bytes of a file that were not sent; the hash covers the other bytes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeVar

import msgspec

from topics.formats.disk.segment import TRAILER_BYTES
from topics.formats.disk.versions import unknown

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
FLAGS: Final = "flags"
LOG: Final = "wal/"
BLOCK_BYTES: Final = 512
IDENTITY_BYTES: Final = 4096
END: Final = bytes(2 * BLOCK_BYTES)
MODE: Final = 0o600
# The names of all members except the manifest. None of them refers to a path outside the directory.
NAME: Final = re.compile(
    r"meta|checkpoint/[0-9]{2,}/[0-9a-f]{16}\.ckpt|(?:flags|segment)/[0-9]{2,}/[0-9a-f]{10}\.seg"
    r"|wal/[0-9]{2,}/[0-9a-f]{16}\.wal|blob/[0-9]{2,}/[0-9a-f]+-[0-9a-f]+\.blob"
)


class ArchiveFile(NamedTuple):
    """Part of a file to be archived: ``length`` bytes of ``path``, starting at ``offset``.

    ``name`` is the name of the member. ``size`` is the size of the restored file, whose remaining
    bytes are zeros.
    """

    name: str
    path: str
    offset: int
    length: int
    size: int


class Member(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file in the manifest. ``bytes`` is its archived size, and ``size`` is the size of the
    restored file.

    ``kept`` is the number of its first bytes that were not sent, because the receiver has them.
    """

    path: str
    bytes: int
    size: int
    sha256: str
    kept: int = 0


class Manifest(msgspec.Struct, frozen=True):
    """The content of ``manifest.json``.

    ``created_ms`` is the time at which the logs were cut. ``cuts`` is the LSN of each shard's cut.
    ``members`` lists all members before the manifest, in their order. ``runs`` contains a random
    number for each shard, which identifies its process.
    """

    format: int
    version: str
    shards: int
    created_ms: int
    cuts: list[int]
    members: Sequence[Member]
    runs: list[int] = []


AnyManifest = TypeVar("AnyManifest", bound=Manifest)


class _Sealed(msgspec.Struct):
    manifest: msgspec.Raw
    sha256: str


class _Version(msgspec.Struct):
    format: int


class BadManifest(Exception):
    """The manifest is damaged or has a different version."""


def sealed(manifest: Manifest) -> bytes:
    """Encode the manifest with its checksum, as the content of the last member."""
    data = msgspec.json.encode(manifest)
    held = _Sealed(msgspec.Raw(data), hashlib.sha256(data).hexdigest())
    return msgspec.json.encode(held) + b"\n"


def unsealed(data: bytes, kind: type[AnyManifest]) -> AnyManifest:
    """Decode a manifest and verify its checksum and version. Raises `BadManifest`."""
    try:
        held = msgspec.json.decode(data, type=_Sealed)
        if hashlib.sha256(held.manifest).hexdigest() != held.sha256:
            raise BadManifest("the manifest was changed")
        version = msgspec.json.decode(held.manifest, type=_Version).format
        if version != FORMAT:
            raise BadManifest(f"the manifest {unknown(version, FORMAT)}")
        return msgspec.json.decode(held.manifest, type=kind)
    except msgspec.MsgspecError as error:
        raise BadManifest(f"the manifest is invalid: {error}") from error


def run_of(path: str, runs: Sequence[int]) -> bytes:
    """Return the bytes that precede the content of a file in its identity.

    For a log file this is the number of the shard's process, otherwise nothing. If a data directory
    is replaced with an older copy, the shard may write different frames that end with the same
    bytes. However, this requires a restart of the shard, which changes the number.
    """
    if not path.startswith(LOG):
        return b""
    shard = int(path.split("/")[1])
    return b"%d" % runs[shard] if shard < len(runs) else b""


def identity_ranges(path: str, length: int) -> list[tuple[int, int]]:
    """Return the (offset, length) of the ranges of a file that its identity covers.

    The identity is the SHA-256 of `run_of` and these ranges. Delete flags are hashed completely.
    For all other files, the start and the end are sufficient: their bytes never change while a
    shard runs, apart from the delete flags within a segment. The header of a log file contains a
    random number. A blob and a checkpoint begin with a checksum of the complete file. A segment
    ends with the checksum of its directory, which contains the checksums of its extents.
    """
    if path.startswith(FLAGS):
        return [(0, length)]
    start = min(length, IDENTITY_BYTES)
    end = min(length, TRAILER_BYTES if path.startswith("segment") else IDENTITY_BYTES)
    return [(0, start), (length - end, end)]


def header(path: str, length: int, mtime_s: int) -> bytes:
    """Return the tar header of a member."""
    import tarfile  # Imported here, because most processes of a server do not need it.

    info = tarfile.TarInfo(path)
    info.size, info.mode, info.mtime = length, MODE, mtime_s
    return info.tobuf(tarfile.GNU_FORMAT)


def padding(length: int) -> bytes:
    """Return the zeros after a member of ``length`` bytes, up to a multiple of BLOCK_BYTES."""
    return bytes(-length % BLOCK_BYTES)
