"""Verifies checkpoints: each for itself, and what they say of other files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from topics.formats.disk.checkpoint import HEADER_BYTES
from topics.storage import checkpoints
from topics.storage.checkpoints import Checkpoint
from topics.storage.mapped_file import CANNOT_READ, FILE_ERRORS
from topics.storage.segments.file import segment_path
from topics.storage.verify.finding import Finding


def verify_checkpoint(path: Path) -> Iterator[Finding]:
    """A checkpoint file, for itself."""
    try:
        checkpoint = checkpoints.read(path)
    except checkpoints.UnreadableVersion as error:
        yield Finding(path, 8, str(error))
        return
    except OSError as error:
        if error.errno not in FILE_ERRORS:
            raise
        yield Finding(path, 0, CANNOT_READ)
        return
    if checkpoint is None:
        yield Finding(path, 0, "is not a whole checkpoint")


def standing_checkpoints(folder: Path) -> dict[Path, Checkpoint]:
    """The whole ones of the checkpoints that are kept.

    A crash may leave one more: files that it needs may be gone.
    """
    found = {}
    for path in sorted(folder.glob(f"*{checkpoints.SUFFIX}"))[-checkpoints.KEEP :]:
        with contextlib.suppress(checkpoints.UnreadableVersion, OSError):
            checkpoint = checkpoints.read(path)
            if checkpoint is not None:
                found[path] = checkpoint
    return found


def unfounded(path: Path, checkpoint: Checkpoint, end: int, segments: Path) -> Iterator[Finding]:
    """What a whole checkpoint says that other files contradict. ``end``: of the log."""
    if checkpoint.lsn > end:
        yield Finding(
            path,
            16,
            f"says that the log was synced to {checkpoint.lsn:#x}, and it ends at {end:#x}",
        )
    for number in checkpoint.segments:
        if not segment_path(segments, number).exists():
            yield Finding(
                path,
                HEADER_BYTES,
                f"names segment {number:#x}, which is missing",
            )
