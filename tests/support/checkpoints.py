"""Checkpoints as they were before they had pieces (format version 2)."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

import cbor2
import crc32c

from topics.formats.disk.checkpoint import MAGIC, Item
from topics.storage import checkpoints


def encode_whole(lsn: int, replay_from: int, items: Iterable[Item], *, clean: bool) -> bytes:
    """The bytes of a file of version 2."""
    body = b"".join(map(cbor2.dumps, items))
    rest = struct.pack("<QQB7xQ", lsn, replay_from, clean, len(body)) + body
    return struct.pack("<8sII", MAGIC, 2, crc32c.crc32c(rest)) + rest


def make_whole(path: Path) -> None:
    """Turn a checkpoint into one of version 2: parts of jobs are in their topics."""
    found = checkpoints.read(path)
    assert found is not None
    items: list[Item] = [found.shard]
    for item in found.items():
        if "jobs" in item:
            (topic,) = (each for each in items if each.get("name") and each["id"] == item["id"])
            topic["queue"]["parts"].append(item["jobs"])
        else:
            items.append(item)
    path.write_bytes(encode_whole(found.lsn, found.replay_from, items, clean=found.clean))
