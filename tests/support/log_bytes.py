"""The lengths of the logs of a data directory, also while a server writes them."""

from __future__ import annotations

from pathlib import Path

from topics.formats.disk import wal
from topics.formats.disk.frames import FrameKind
from topics.formats.disk.wal import FILE_HEADER_BYTES
from topics.storage.mapped_file import MappedFile
from topics.storage.verify import frames


def log_ends(data_dir: Path) -> dict[int, int]:
    """Return for each shard the LSN after its last frame.

    This is the number of bytes of all frames that the shard ever wrote, including those in removed
    files. Unused space of files is not counted.
    """
    ends: dict[int, int] = {}
    for path in sorted((data_dir / "wal").rglob("*.wal")):
        data = MappedFile.of(path).data
        header = wal.decode_file_header(data[:FILE_HEADER_BYTES])
        for frame in frames(data, header):
            ends[header.shard] = max(ends.get(header.shard, 0), frame.end)
    return ends


def log_length(data_dir: Path) -> int:
    """Return the sum of `log_ends` of all shards."""
    return sum(log_ends(data_dir).values())


def frames_of(data_dir: Path, kind: FrameKind) -> int:
    """Return the number of frames of a kind in the existing log files."""
    found = 0
    for path in (data_dir / "wal").rglob("*.wal"):
        data = MappedFile.of(path).data
        header = wal.decode_file_header(data[:FILE_HEADER_BYTES])
        found += sum(frame.kind == kind for frame in frames(data, header))
    return found
