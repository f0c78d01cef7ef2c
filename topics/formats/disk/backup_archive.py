"""Backup archive: a tar file (GNU format) with the files of a data directory and a manifest.

    flags/SHARD/NUMBER.seg   delete flags of a segment, as they were before the cut of any log
    meta, checkpoint/..., segment/..., wal/..., blob/...
                             as in a data directory; the last log file ends at the cut
    manifest.json            {"manifest": `Manifest`, "sha256": of its bytes}; the last member

The delete flags inside the archived segments may be later than the cut. So a restore replaces them
with those of the member ``flags/...``, or clears them if there is no such member. A restored log
file has its original ``size``, with zeros after the archived bytes.
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
    """A part of a file to be archived: ``length`` bytes of ``path``, starting at ``offset``.

    ``name`` is the name of the member. ``size`` is the size of the restored file, whose remaining
    bytes are zeros.
    """

    name: str
    path: str
    offset: int
    length: int
    size: int


class Member(msgspec.Struct, frozen=True):
    """A member in the manifest. ``bytes`` is its size, ``size`` that of the restored file."""

    path: str
    bytes: int
    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    """The content of ``manifest.json``.

    ``created_ms`` is the time at which the logs were cut. ``cuts`` is the LSN of each shard's cut.
    ``members`` lists all members before the manifest, in their order.
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
    """The manifest is damaged, or it has another version."""


def sealed(manifest: Manifest) -> bytes:
    """Encode the manifest with its checksum, as the content of the last member."""
    data = msgspec.json.encode(manifest)
    held = _Sealed(msgspec.Raw(data), hashlib.sha256(data).hexdigest())
    return msgspec.json.encode(held) + b"\n"


def unsealed(data: bytes) -> Manifest:
    """Decode a manifest and verify its checksum and version. Raises `BadManifest`."""
    try:
        held = msgspec.json.decode(data, type=_Sealed)
        if hashlib.sha256(held.manifest).hexdigest() != held.sha256:
            raise BadManifest("the manifest was changed")
        version = msgspec.json.decode(held.manifest, type=_Version).format
        if version != FORMAT:
            raise BadManifest(f"the manifest {unknown(version, FORMAT)}")
        found = msgspec.json.decode(held.manifest, type=Manifest)
    except msgspec.MsgspecError as error:
        raise BadManifest(f"the manifest is invalid: {error}") from error
    return found


def header(path: str, length: int, mtime_s: int) -> bytes:
    """Return the tar header of a member."""
    import tarfile  # Imported here, because most processes of a server do not need it.

    info = tarfile.TarInfo(path)
    info.size, info.mode, info.mtime = length, MODE, mtime_s
    return info.tobuf(tarfile.GNU_FORMAT)


def padding(length: int) -> bytes:
    """Return the zeros after a member of ``length`` bytes, up to a multiple of BLOCK_BYTES."""
    return bytes(-length % BLOCK_BYTES)
