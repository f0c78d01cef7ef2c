"""Disk usage: the space that a shard's files use, and the free space in their file system.

The sizes count allocated blocks. So they exclude punched extents and include preallocated files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from topics.storage.file_names import CHECKPOINT

BLOCK_BYTES: Final = 512  # the unit of st_blocks on every file system
NS_PER_MS: Final = 1_000_000


class ShardFolders(NamedTuple):
    """The folders that contain the files of a shard."""

    log: Path
    blobs: Path
    segments: Path
    checkpoints: Path


class DiskUsage(NamedTuple):
    """Sizes in bytes. ``checkpoint_ts`` is the time of the newest checkpoint (wall ms), or 0."""

    free: int  # space that is available to unprivileged processes
    log: int
    blobs: int
    segments: int
    checkpoints: int
    checkpoint_ts: int


def disk_usage(folders: ShardFolders) -> DiskUsage:
    """Return the current disk usage of a shard.

    It makes a system call for each file, so it must run in a thread. Raise OSError, except for a
    file that is removed during the call.
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
    """Yield the name and status of each file in a folder, or nothing if the folder is missing."""
    with suppress(FileNotFoundError), os.scandir(folder) as files:
        for file in files:
            with suppress(FileNotFoundError):
                yield file.name, file.stat(follow_symlinks=False)
