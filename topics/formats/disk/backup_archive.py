"""Backup: a tar (POSIX, GNU sizes) of what a start needs, and its manifest as the last member.

    flags/SHARD/NUMBER.seg   delete flags of a segment, as they were before the cut of any log
    meta, checkpoint/..., segment/..., wal/..., blob/...
                             as in a data directory; of the last log file only what is in the cut
    manifest.json            {"manifest": `Manifest`, "sha256": of its bytes}

A segment's own flags may be those of a later moment: in a restore it has those of its member
``flags/...``, or none. A log file gets its ``size`` again, with zeros behind its bytes.
"""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

import msgspec

from topics.formats.disk.versions import unknown

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
FLAGS: Final = "flags"
BLOCK_BYTES: Final = 512
END: Final = bytes(2 * BLOCK_BYTES)
MODE: Final = 0o600


class File(NamedTuple):
    """Bytes of the file ``path`` that a backup has under ``name``: ``length`` from ``offset`` on.
    ``size``: of the file that a restore makes of them, the rest zeros.
    """

    name: str
    path: str
    offset: int
    length: int
    size: int


class Member(msgspec.Struct, frozen=True):
    """``bytes``: of the member; ``size``: of the file that a restore makes of it."""

    path: str
    bytes: int
    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    """``created_ms``: when the logs were cut; ``cuts``: the LSN of each shard's; ``members``: all
    before the manifest, in their order.
    """

    format: int
    version: str
    shards: int
    created_ms: int
    cuts: list[int]
    members: list[Member]


class _Sealed(msgspec.Struct):
    manifest: msgspec.Raw
    sha256: str


class _Version(msgspec.Struct):
    format: int


class BadManifest(Exception):
    """It is not as it was written, or of another version."""


def sealed(manifest: Manifest) -> bytes:
    """The last member."""
    data = msgspec.json.encode(manifest)
    held = _Sealed(msgspec.Raw(data), hashlib.sha256(data).hexdigest())
    return msgspec.json.encode(held) + b"\n"


def unsealed(data: bytes) -> Manifest:
    """The manifest. Raises `BadManifest`."""
    try:
        held = msgspec.json.decode(data, type=_Sealed)
        if hashlib.sha256(held.manifest).hexdigest() != held.sha256:
            raise BadManifest("the manifest was altered")
        version = msgspec.json.decode(held.manifest, type=_Version).format
        if version != FORMAT:
            raise BadManifest(f"the manifest {unknown(version, FORMAT)}")
        found = msgspec.json.decode(held.manifest, type=Manifest)
    except msgspec.MsgspecError as error:
        raise BadManifest(f"the manifest is none of this program: {error}") from error
    return found


def header(path: str, length: int, mtime_s: int) -> bytes:
    """What stands before the bytes of a member."""
    import tarfile  # not in each process of a server

    info = tarfile.TarInfo(path)
    info.size, info.mode, info.mtime = length, MODE, mtime_s
    return info.tobuf(tarfile.GNU_FORMAT)


def padding(length: int) -> bytes:
    """What stands behind them."""
    return bytes(-length % BLOCK_BYTES)
