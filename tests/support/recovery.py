"""Shards that were stopped, killed or damaged, and the state after a start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.log import (
    Client,
    state,
)
from topics.formats.disk.frames import FrameHeader, check_frame
from topics.storage.wal.log_file import WalFile

CLASSES = ("ephemeral", "memory", "disk", "fsync")


def frames_of(path: Path) -> list[tuple[int, FrameHeader]]:
    """Return ``(offset, header)`` of every frame of one file."""
    file = WalFile.open(path, 0)
    found = []
    position = file.base
    while isinstance(
        header := check_frame(file.view(), file.offset(position), position, file.seed), FrameHeader
    ):
        found.append((file.offset(position), header))
        position = header.end
    file.close()
    return found


def reopened(path: Path, **options: Any) -> Client:
    return Client(path, **options)


def recovered_state(path: Path, **options: Any) -> dict[str, Any]:
    client = Client(path, **options)
    found = state(client)
    client.kill()
    return found


def busy_client(path: Path, **options: Any) -> Client:
    """Return a shard with data of many kinds."""
    client = Client(path, **options)
    client.put("a", durability="fsync")
    client.append("a", 1, 2, 3, key="k1", node="n")
    client.append("b", {"x": [1, 2]}, tag="t", key="k2")
    client.put("m", durability="memory", cap_records=7)
    for number in range(20):
        client.append("b", number)
        client.append("m", f"m{number}", "more")
    client.put("gone")
    client.append("gone", "lost", key="k3")
    client.delete("gone")
    client.append("gone", "again")
    client.put("a", ttl_ms=9)
    return client
