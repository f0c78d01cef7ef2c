"""Checkpoint file: the state of a shard at one LSN. Integers little-endian.

    offset  size  field        meaning
    0       8     magic        "TPCKPT01"
    8       4     version      4
    12      4     crc32c       of bytes 16 to 48, seeded with the checksum of the last chunk
    16      8     lsn          the log was synced up to here
    24      8     replay_from  replay starts here; all earlier frames are in segments
    32      1     clean        1: the shard was shut down cleanly and wrote nothing afterwards
    33      7     zero
    40      8     body_len     bytes of all chunks
    48      ...   chunks       concatenated

A chunk is a part of the body that has its own checksum. A checkpoint is written and read chunk by
chunk, so it is never completely in memory. Layout of a chunk:

    offset  size  field        meaning
    0       4     body_len
    4       4     crc32c       of body_len and body, seeded with the checksum of the previous
                               chunk; 0 for the first chunk
    8       ...   body         MessagePack: an array of configs, then an array of items

Each checksum also covers all earlier chunks. The header is written last, and its checksum covers
the complete file.

Items are maps. The first item belongs to the shard. It has the keys last_id, last_epoch,
reserved_ts, segments (numbers, in the order of the log) and boot. If the shard has ever had
routers, it also has last_router_id and routers (byte strings, each the body of a ROUTER_SET frame).
The other items belong to topics:

    item       keys
    topic      the keys of ``snapshot_topic``; ``position``: the LSN at which this state was current
    jobs       ``id`` of its topic, ``jobs``: a part of the jobs of a queue
               (``engine/queue/ledger.py``), which may include leases after that LSN
    keys       ``id`` of its topic, ``digests``: idempotency keys that outlive their records, as
               rows of `KEY_ROW`: digest (``engine/dedupe.py``), first seq, count, time (wall ms)
    moved      ``id`` of its topic, ``moved``: keys of copies (``engine/moved_keys.py``)

The ``config`` of a topic is an index into the configs of its chunk, because most topics have the
same config. A key is omitted if its value is the one in `USUAL`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import crc32c
import msgspec

from topics.formats.buffers import Buffer
from topics.formats.disk.versions import CHECKPOINT, VERSIONS, other_version

CHUNK_BYTES = 128 << 10  # A chunk ends with the item that makes it reach this size.
_HEAD = struct.Struct("<8sII")
_BODY_HEAD = struct.Struct("<QQB7xQ")
HEADER_BYTES = _HEAD.size + _BODY_HEAD.size
assert HEADER_BYTES == 48
_CHUNK, _LENGTH = struct.Struct("<II"), struct.Struct("<I")
CHUNK_HEADER_BYTES = _CHUNK.size
KEY_ROW = struct.Struct("<16sQIq")
assert KEY_ROW.size == 36

# The values that are omitted from topics. Never change them, because existing files rely on them.
USUAL: dict[str, Any] = {
    "head": 0,
    "start": 1,
    "floors": (1, 1, 1, 1, 1),
    "losses": (),
    "damaged": (),
    "trimmed": (),
    "last_ts": 0,
    "last_write_ts": None,
    "reserved": 4096,
    "logged": 0,
    "keys_from": 0,
}
_USUAL = tuple(USUAL.items())
_MISSING = object()

Item = dict[str, Any]


class UnknownVersion(Exception):
    """The checkpoint has a version that this program cannot read."""


class CheckpointHeader(NamedTuple):
    """The header of a checkpoint file. ``crc`` is the checksum of the complete file."""

    crc: int
    lsn: int
    replay_from: int
    clean: bool
    body_len: int


# Writing


class ChunkBuilder:
    """Builds chunks from items.

    ``crc`` and ``body_bytes`` are the checksum and the size of all chunks that are complete.
    """

    def __init__(self) -> None:
        self.crc = self.body_bytes = 0
        self._encode = msgspec.msgpack.Encoder().encode
        self._begin()

    def _begin(self) -> None:
        self._configs: dict[tuple[Any, ...], int] = {}
        self._items: list[msgspec.Raw] = []
        self._size = 0

    def add(self, item: Item) -> bytes | None:
        """Encode an item in its current state. Returns a chunk if this item completes one."""
        packed = self._encode(self._shortened(item) if "config" in item else item)
        self._items.append(msgspec.Raw(packed))
        self._size += len(packed)
        return self.take() if self._size >= CHUNK_BYTES else None

    def take(self) -> bytes | None:
        """Return a chunk with the items that are not yet in a chunk, or None if there are none."""
        if not self._items:
            return None
        configs = [dict(fields) for fields in self._configs]
        body = self._encode((configs, self._items))
        self.crc = _chunk_crc(body, self.crc)
        self._begin()
        chunk = _CHUNK.pack(len(body), self.crc) + body
        self.body_bytes += len(chunk)
        return chunk

    def _shortened(self, topic: Item) -> Item:
        short = topic.copy()
        for key, value in _USUAL:
            if short.get(key, _MISSING) == value:
                del short[key]
        config = tuple(topic["config"].items())
        short["config"] = self._configs.setdefault(config, len(self._configs))
        return short

    def header(self, lsn: int, replay_from: int, *, clean: bool) -> bytes:
        """Return the header of the file. All chunks must be complete."""
        rest = _BODY_HEAD.pack(lsn, replay_from, clean, self.body_bytes)
        return _HEAD.pack(CHECKPOINT, VERSIONS[CHECKPOINT], crc32c.crc32c(rest, self.crc)) + rest


# Reading


def decode_header(data: bytes) -> CheckpointHeader | None:
    """Decode the first `HEADER_BYTES` of a file. Returns None if they are not a header.

    Raises `UnknownVersion`.
    """
    if len(data) < HEADER_BYTES:
        return None
    magic, _, crc = _HEAD.unpack_from(data)
    if magic != CHECKPOINT:
        return None
    if reason := other_version(data):
        raise UnknownVersion(reason)
    lsn, replay_from, clean, body_len = _BODY_HEAD.unpack_from(data, _HEAD.size)
    return CheckpointHeader(crc, lsn, replay_from, bool(clean), body_len)


def chunk_length(head: bytes) -> int:
    """Return the size of the body that follows the chunk header ``head``."""
    return _LENGTH.unpack_from(head)[0]  # type: ignore[no-any-return]


def check_chunk(head: bytes, body: Buffer, crc: int) -> int | None:
    """Return the checksum of a chunk, or None if the chunk is damaged.

    ``crc`` is the checksum of the previous chunk, 0 for the first one.
    """
    length, stored = _CHUNK.unpack(head)
    found = _chunk_crc(body, crc)
    return found if length == len(body) and found == stored else None


def is_sealed(header: CheckpointHeader, head: bytes, crc: int) -> bool:
    """Return whether the header belongs to the chunks of the file, whose last checksum is ``crc``.

    ``head`` contains the bytes of the header.
    """
    return header.crc == crc32c.crc32c(head[_HEAD.size :], crc)


def _chunk_crc(body: Buffer, crc: int) -> int:
    return crc32c.crc32c(body, crc32c.crc32c(_LENGTH.pack(len(body)), crc))


def items_of_chunk(body: Buffer) -> Iterator[Item]:
    """Yield the items of a checked chunk. Topics with the same config share one map."""
    configs, items = msgspec.msgpack.decode(body)
    for item in items:
        if "config" in item:
            item["config"] = configs[item["config"]]
            yield {**USUAL, **item}
        else:
            yield item
