"""Checkpoints: what a shard knows at one moment, so that its log need not be kept for ever.

One file each. Integers little-endian:

    offset  size  field        meaning
    0       8     magic        "TPCKPT01"
    8       4     version      2
    12      4     crc32c       of bytes 16 to the end
    16      8     lsn          the log was synced up to here
    24      8     replay_from  everything before it is in segments: replay begins here
    32      1     clean        1: the shard was stopped in order and nothing followed
    33      7     zero
    40      8     body_len
    48      ...   body         CBOR maps, one after the other

The first map is the shard's: last_id, last_epoch, reserved_ts, segments (numbers), boot, and where
there ever were routers last_router_id and routers (byte strings, each as the body of a ROUTER_SET
frame). Then comes one for each topic, as `snapshot_topic` makes it; its ``position`` is the LSN as
of which it holds the topic. A queue has the key ``queue`` (``engine/queue/ledger.py``), which may
know of leases beyond that LSN. Maps with ``id`` and ``keys`` hold idempotency keys that outlive
their records: key, first seq, count, `$ts`.

A checkpoint is written aside, synced and renamed to NUMBER.ckpt. The newest two are kept, and the
newest that is whole is used. The file ``next.reserve`` has no content: it holds room for the next
checkpoint, which is written into those blocks on a full disk (``decisions/0015``).
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import cbor2
import crc32c

from topics.formats.buffers import Buffer
from topics.formats.disk.segment import ExtentKey
from topics.storage.disk import FULL, check_room, make_directory, write_aside
from topics.storage.pulse import Pulse

MAGIC = b"TPCKPT01"
VERSION = 2
KEEP = 2
SUFFIX = ".ckpt"
RESERVE_NAME = "next.reserve"
RESERVE_MIN_BYTES = 1 << 20
_HEAD = struct.Struct("<8sII")
_BODY_HEAD = struct.Struct("<QQB7xQ")
HEADER_BYTES = _HEAD.size + _BODY_HEAD.size
assert HEADER_BYTES == 48


class Checkpoint(NamedTuple):
    """What one file says.

    ``lsn``: the log was synced up to here. ``replay_from``: LSN of the first frame to replay.
    ``keys``: by topic, idempotency keys that outlive their records.
    """

    lsn: int
    replay_from: int
    clean: bool
    shard: dict[str, Any]
    topics: list[dict[str, Any]]
    keys: dict[int, list[ExtentKey]]

    @property
    def segments(self) -> list[int]:
        """Numbers of the segments that count."""
        return self.shard["segments"]  # type: ignore[no-any-return]

    @property
    def boot(self) -> str:
        """The run of the machine in which it was written."""
        return self.shard["boot"]  # type: ignore[no-any-return]

    def topic_lsns(self) -> dict[int, int]:
        """By topic, the LSN as of which the checkpoint holds it: later frames are news."""
        return {topic["id"]: topic["position"] for topic in self.topics}


class Kept(NamedTuple):
    """What a checkpoint on the disk needs: the log from ``replay_from`` on, and its segments."""

    replay_from: int
    segments: frozenset[int]


class UnknownVersion(Exception):
    """A checkpoint of a version that this program does not read. ``path``: its file, if known."""

    path: Path | None = None


def encode_item(value: dict[str, Any]) -> bytes:
    """One item of the body."""
    return cbor2.dumps(value)


def encode(lsn: int, replay_from: int, items: Sequence[Buffer], *, clean: bool) -> list[Buffer]:
    """The file's bytes, in pieces; ``items`` are encoded already."""
    head = _BODY_HEAD.pack(lsn, replay_from, clean, sum(map(len, items)))
    crc = crc32c.crc32c(head)
    for item in items:
        crc = crc32c.crc32c(item, crc)
    return [_HEAD.pack(MAGIC, VERSION, crc) + head, *items]


def is_whole(data: bytes) -> bool:
    """Whether the bytes are a checkpoint as it was written. Raises `UnknownVersion`."""
    if len(data) < HEADER_BYTES:
        return False
    magic, version, crc = _HEAD.unpack_from(data)
    if magic != MAGIC:
        return False
    if version != VERSION:
        raise UnknownVersion(f"has format version {version}; this program reads version {VERSION}")
    *_, body_len = _BODY_HEAD.unpack_from(data, _HEAD.size)
    return len(data) == HEADER_BYTES + body_len and bool(
        crc32c.crc32c(memoryview(data)[_HEAD.size :]) == crc
    )


def decode(data: bytes, pulse: Pulse | None = None) -> Checkpoint | None:
    """None when the bytes are not a whole checkpoint. Raises `UnknownVersion`."""
    if not is_whole(data):
        return None
    lsn, replay_from, clean, _ = _BODY_HEAD.unpack_from(data, _HEAD.size)
    stream = BytesIO(data)
    stream.seek(HEADER_BYTES)
    shard = cbor2.load(stream)
    topics: list[dict[str, Any]] = []
    keys: dict[int, list[ExtentKey]] = {}
    pulse = pulse or Pulse(lambda _: None)
    for item in pulse.over(_items(stream, len(data))):
        if "keys" in item:
            keys.setdefault(item["id"], []).extend(map(ExtentKey._make, item["keys"]))
        else:
            topics.append(item)
    return Checkpoint(lsn, replay_from, bool(clean), shard, topics, keys)


def _items(stream: BytesIO, end: int) -> Iterator[dict[str, Any]]:
    while stream.tell() < end:
        yield cbor2.load(stream)


def write(
    folder: Path, lsn: int, replay_from: int, items: Sequence[Buffer], *, clean: bool = False
) -> None:
    """Make a checkpoint durable, then remove all before it but the newest that is whole.

    ``items``: as `encode_item` gave them, the shard's first. Raises OSError: then there is no new
    checkpoint.
    """
    make_directory(folder)
    earlier = _paths(folder)
    path = folder / f"{int(earlier[0].stem, 16) + 1 if earlier else 1:016x}{SUFFIX}"
    pieces = encode(lsn, replay_from, items, clean=clean)
    try:
        _write(path, pieces)
    except OSError:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)  # its name may be there and not be durable
        raise
    with contextlib.suppress(OSError):  # the next one tries again
        # A damaged one does not count: a start would fall back on the one before it.
        kept = next((old for old in earlier if is_whole(old.read_bytes())), None)
        for old in earlier:
            if old != kept:
                old.unlink()
    with contextlib.suppress(OSError):
        keep_room(folder, sum(map(len, pieces)))


def _write(path: Path, pieces: Sequence[Buffer]) -> None:
    room = path.with_name(RESERVE_NAME)
    try:
        write_aside(path, pieces)
    except OSError as error:
        if error.errno not in FULL or not room.exists():
            raise
        write_aside(path, pieces, room)


def keep_room(folder: Path, size: int = 0) -> None:
    """Hold room for the next checkpoint; ``size``: bytes of the last one.

    Raises OSError where there is no room.
    """
    wanted = max(RESERVE_MIN_BYTES, 2 * size)
    fd = os.open(folder / RESERVE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        held = os.fstat(fd).st_size
        if held < wanted:
            check_room(folder, wanted - held)
            os.posix_fallocate(fd, 0, wanted)
    finally:
        os.close(fd)


def whole(folder: Path, pulse: Pulse | None = None) -> list[Checkpoint]:
    """All whole checkpoints, the newest first. Raises `UnknownVersion`."""
    found = []
    for path in _paths(folder):
        try:
            checkpoint = decode(path.read_bytes(), pulse)
        except UnknownVersion as error:
            error.path = path
            raise
        if checkpoint is not None:
            found.append(checkpoint)
    return found


def _paths(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{SUFFIX}"), reverse=True) if folder.is_dir() else []
