"""Folders of one shard: the paths of its files.

A server accesses these folders through descriptors that it opened on startup (`DataDirectory`),
by paths of the form ``/proc/self/fd/N``. So every open, rename, link and unlink acts in the folder
that was opened, even if another folder is at its former path now. A command that runs without a
server uses ordinary paths.
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeAlias

PARTS: Final = ("wal", "checkpoint", "blob", "segment")
HELD: Final = "/proc/self/fd"
_HELD_PATH: Final = re.compile(rf"{HELD}/\d+")
_DELETED: Final = " (deleted)"  # the kernel appends this to the path of a deleted folder

Identity: TypeAlias = tuple[int, int]  # device and inode
NO_IDENTITY: Final[Identity] = (-1, -1)


class Check(Protocol):
    """A check of whether the server may still write to its data directory."""

    def __call__(self, *, quick: bool = False) -> None:
        """Raise `DirectoryLost` if the server may not write any longer.

        If ``quick`` is true, make only one system call. This form is used before each sync.
        """


class DirectoryLost(OSError):
    """The server may no longer write: its data directory was moved, or its lock may be lost."""

    def __init__(self, reason: str) -> None:
        super().__init__(errno.ENOENT, reason)


def unchecked(*, quick: bool = False) -> None:
    """Do nothing. Ordinary paths use this `Check`."""


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders of one shard. ``root`` is the data directory, ``check`` is a `Check`."""

    shard: int
    root: Path
    wal: Path
    checkpoint: Path
    blob: Path
    segment: Path
    check: Check = unchecked

    @classmethod
    def under(cls, data_dir: Path, shard: int) -> Folders:
        """Return the folders of a shard as ordinary paths."""
        name = f"{shard:02d}"
        wal, checkpoint, blob, segment = (data_dir / part / name for part in PARTS)
        return cls(shard, data_dir, wal, checkpoint, blob, segment)

    @property
    def own(self) -> tuple[Path, ...]:
        """The four folders of the shard."""
        return self.wal, self.checkpoint, self.blob, self.segment

    @property
    def parents(self) -> tuple[Path, ...]:
        """The parent directories of the shard's own folders, up to the data directory."""
        return self.root, *(self.root / part for part in PARTS)

    def name_of(self, path: Path) -> str:
        """Return the path of a file relative to the data directory."""
        for part, folder in zip(PARTS, self.own, strict=True):
            if path.parent == folder:
                return f"{part}/{self.shard:02d}/{path.name}"
        return str(path.relative_to(self.root))


def held_path(fd: int) -> Path:
    """Return a path to a descriptor's folder that is valid in this process and its children."""
    return Path(f"{HELD}/{fd}")


def shown(text: str) -> str:
    """Return ``text`` with the current or last known path of each held folder, for messages."""
    return _HELD_PATH.sub(_real, text) if HELD in text else text


def _real(found: re.Match[str]) -> str:
    try:
        return str(Path(found[0]).readlink()).removesuffix(_DELETED)
    except OSError:
        return found[0]


def identity(found: os.stat_result) -> Identity:
    """Return the identity of a file or folder, which is independent of its name."""
    return found.st_dev, found.st_ino


def identity_at(path: Path | str) -> Identity | None:
    """Return the identity of the file at ``path``.

    Return `NO_IDENTITY` if there is no file, and None if the disk reports another error.
    """
    try:
        return identity(os.stat(path))  # noqa: PTH116 - faster than Path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return NO_IDENTITY
    except OSError:
        return None
