"""Folders of one shard: where its files are.

A server reaches them through descriptors that it opened at its start (`DataDirectory`), by paths of
the form ``/proc/self/fd/N``. So every open, rename, link and unlink acts in the folder that was
opened, whatever is at its former path by now. A command without a server uses ordinary paths.
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeAlias

PARTS: Final = ("wal", "checkpoint", "blob", "segment")
LINKED: Final = "linked"  # of version 0.1
HELD: Final = "/proc/self/fd"
_HELD_PATH: Final = re.compile(rf"{HELD}/\d+")
_DELETED: Final = " (deleted)"  # what the kernel adds to the path of a folder without a name

Identity: TypeAlias = tuple[int, int]  # device and inode
NOWHERE: Final[Identity] = (-1, -1)


class Check(Protocol):
    """Whether the server may still write."""

    def __call__(self, *, quick: bool = False) -> None:
        """Raise `DirectoryLost` if not. ``quick``: with one call, for use before each sync."""


class DirectoryLost(OSError):
    """A server may no longer write: its data directory is not at its path, or another server may
    have taken it.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(errno.ENOENT, reason)


def unchecked(*, quick: bool = False) -> None:
    """The check of an ordinary path: there is none."""


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders of one shard, and ``root``, the data directory. See
    `Check`.
    """

    shard: int
    root: Path
    wal: Path
    checkpoint: Path
    blob: Path
    segment: Path
    linked: Path
    check: Check = unchecked

    @classmethod
    def under(cls, data_dir: Path, shard: int) -> Folders:
        """Ordinary paths."""
        name = f"{shard:02d}"
        wal, checkpoint, blob, segment, linked = (
            data_dir / part / name for part in (*PARTS, LINKED)
        )
        return cls(shard, data_dir, wal, checkpoint, blob, segment, linked)

    @property
    def own(self) -> tuple[Path, ...]:
        """Those that each shard has."""
        return self.wal, self.checkpoint, self.blob, self.segment

    @property
    def above(self) -> tuple[Path, ...]:
        """Those that have the names of the shard's own."""
        return self.root, *(self.root / part for part in PARTS)

    def name_of(self, path: Path) -> str:
        """The path of a file below the data directory."""
        for part, folder in zip(PARTS, self.own, strict=True):
            if path.parent == folder:
                return f"{part}/{self.shard:02d}/{path.name}"
        return str(path.relative_to(self.root))


def held_path(fd: int) -> Path:
    """The folder behind a descriptor of this process, and of those that it forks."""
    return Path(f"{HELD}/{fd}")


def shown(text: str) -> str:
    """``text`` for people: with the paths where held folders are now, or were last."""
    return _HELD_PATH.sub(_real, text) if HELD in text else text


def _real(found: re.Match[str]) -> str:
    try:
        return str(Path(found[0]).readlink()).removesuffix(_DELETED)
    except OSError:
        return found[0]


def identity(found: os.stat_result) -> Identity:
    """Which file or folder it is, whatever its name."""
    return found.st_dev, found.st_ino


def identity_at(path: Path | str) -> Identity | None:
    """What is at ``path``; `NOWHERE` if there is nothing, None if the disk cannot say."""
    try:
        return identity(os.stat(path))  # noqa: PTH116 - before each sync; a Path takes longer
    except (FileNotFoundError, NotADirectoryError):
        return NOWHERE
    except OSError:
        return None
