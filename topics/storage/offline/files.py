"""The files of one shard, opened for reading alone."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from topics.storage.copy_reader import CopyReader
from topics.storage.disk import Damaged
from topics.storage.linked import LinkedPayloads
from topics.storage.recovery.steps import Folders
from topics.storage.segments.file import Segment, segment_path
from topics.storage.wal.blobs import BlobStore
from topics.storage.wal.file import WalFile, log_paths


class Findings:
    """Damage: the first is raised, or with ``ignore`` all of it is noted."""

    def __init__(self, *, ignore: bool = False) -> None:
        self.ignore = ignore
        self.damage: list[Damaged] = []

    def add(self, damage: Damaged) -> None:
        """Raises ``damage`` unless it is to be ignored."""
        if not self.ignore:
            raise damage
        self.damage.append(damage)


def shard_folders(data_dir: Path, shard: int) -> Folders:
    """The folders of a shard. Raises `Damaged` when one is missing: a start makes all of them."""
    folders = Folders(*(data_dir / part / f"{shard:02d}" for part in Folders._fields))
    for folder in folders:
        if not folder.is_dir():
            raise Damaged(folder, 0, "folder is missing: the directory is no whole copy")
    return folders


def open_log(folder: Path, shard: int, findings: Findings) -> list[WalFile]:
    """The files of the log, oldest first. Raises `Damaged`."""
    files = []
    for path in log_paths(folder, shard):
        try:
            files.append(WalFile.open(path, shard, writable=False))
        except Damaged as damage:
            findings.add(damage)
    return files


def open_segments(
    folder: Path, shard: int, numbers: Iterable[int], findings: Findings
) -> list[Segment]:
    """The segments with these numbers. Raises `Damaged`."""
    segments = []
    for number in sorted(numbers):
        try:
            segments.append(Segment(segment_path(folder, number), shard, number))
        except Damaged as damage:
            findings.add(damage)
    return segments


class OfflineLog:
    """A shard's log, with the blobs that its frames name."""

    def __init__(self, data_dir: Path, shard: int, findings: Findings) -> None:
        folders = shard_folders(data_dir, shard)
        self.files = open_log(folders.wal, shard, findings)
        self.blobs = BlobStore(folders.blob)
        self.linked = LinkedPayloads(data_dir, shard)
        self.copies = CopyReader(self.blobs, self.linked)

    def close(self) -> None:
        """Close the files of the log. What a reader still holds keeps its map."""
        for file in self.files:
            file.close()
