"""Disk usage: what the files of a shard take, and what is free where they are.

Bytes are those of allocated blocks, so punched extents do not count and files that are laid out
ahead do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from topics.storage.names import CHECKPOINT

BLOCK_BYTES: Final = 512  # of st_blocks, whatever the file system
NS_PER_MS: Final = 1_000_000


class ShardFolders(NamedTuple):
    """Where the files of a shard are."""

    log: Path
    blobs: Path
    segments: Path
    checkpoints: Path


class DiskUsage(NamedTuple):
    """In bytes, and when the newest checkpoint was written (wall ms); 0: there is none."""

    free: int  # for a process that is not root
    log: int
    blobs: int
    segments: int
    checkpoints: int
    checkpoint_ts: int


def disk_usage(folders: ShardFolders) -> DiskUsage:
    """Of now. For a thread: it asks for each file. Raises OSError, but not for a file that goes
    meanwhile.
    """
    found = os.statvfs(folders.log)
    free = found.f_bavail * found.f_frsize
    sizes = [sum(each.st_blocks for _, each in _files(folder)) for folder in folders]
    written = (
        each.st_mtime_ns for name, each in _files(folders.checkpoints) if CHECKPOINT.fullmatch(name)
    )
    newest = max(written, default=0)
    return DiskUsage._make([free, *(size * BLOCK_BYTES for size in sizes), newest // NS_PER_MS])


def _files(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """The files of a folder; none when it is not there."""
    with suppress(FileNotFoundError), os.scandir(folder) as files:
        for file in files:
            with suppress(FileNotFoundError):
                yield file.name, file.stat(follow_symlinks=False)
