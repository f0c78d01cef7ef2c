"""Checkpoints: a shard's heads at one position of its log. Integers little-endian.

    offset  size      field     meaning
    0       8         magic     "TPCKPT01"
    8       4         version   1
    12      4         crc32c    of bytes 16 to the end
    16      8         position  of the log: everything before it is in the checkpoint
    24      1         clean     1: the shard was stopped in order and nothing followed
    25      7         zero
    32      8         body_len
    40      body_len  body      CBOR map, `ShardEngine.snapshot`

Written aside, synced and renamed; the newest two are kept, and the newest that is whole is used.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, NamedTuple

import cbor2
import crc32c

from topics.storage.disk import make_directory, write_aside

MAGIC = b"TPCKPT01"
VERSION = 1
KEEP = 2
_HEAD = struct.Struct("<8sII")
_BODY_HEAD = struct.Struct("<QB7xQ")
assert _HEAD.size == 16
assert _BODY_HEAD.size == 24


class Checkpoint(NamedTuple):
    """What one file says."""

    position: int
    clean: bool
    snapshot: dict[str, Any]


class UnknownVersion(Exception):
    """A checkpoint of a version that this program does not read."""


def encode(checkpoint: Checkpoint) -> bytes:
    """The file's bytes."""
    body = cbor2.dumps(checkpoint.snapshot)
    rest = _BODY_HEAD.pack(checkpoint.position, checkpoint.clean, len(body)) + body
    return _HEAD.pack(MAGIC, VERSION, crc32c.crc32c(rest)) + rest


def decode(data: bytes) -> Checkpoint | None:
    """None when the bytes are not a whole checkpoint. Raises `UnknownVersion`."""
    if len(data) < _HEAD.size + _BODY_HEAD.size:
        return None
    magic, version, crc = _HEAD.unpack_from(data)
    if magic != MAGIC:
        return None
    if version != VERSION:
        raise UnknownVersion(f"has format version {version}; this program reads version {VERSION}")
    if crc32c.crc32c(data[_HEAD.size :]) != crc:
        return None
    position, clean, body_len = _BODY_HEAD.unpack_from(data, _HEAD.size)
    body = data[_HEAD.size + _BODY_HEAD.size :]
    return Checkpoint(position, bool(clean), cbor2.loads(body)) if len(body) == body_len else None


def write(folder: Path, checkpoint: Checkpoint) -> None:
    """Make a checkpoint durable, then let go of the oldest."""
    make_directory(folder)
    write_aside(folder / f"{checkpoint.position:016x}.ckpt", [encode(checkpoint)])
    for path in _paths(folder)[KEEP:]:
        path.unlink()


def newest(folder: Path) -> Checkpoint | None:
    """The newest whole checkpoint, None when there is none."""
    for path in _paths(folder):
        try:
            found = decode(path.read_bytes())
        except UnknownVersion as error:
            raise UnknownVersion(f"{path} {error}") from error
        if found:
            return found
    return None


def _paths(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.ckpt"), reverse=True) if folder.is_dir() else []
