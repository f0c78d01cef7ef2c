"""How long the logs of a data directory are, also while a server writes them."""

from __future__ import annotations

from pathlib import Path

from topics.formats.disk import wal
from topics.formats.disk.frames import FrameKind
from topics.formats.disk.wal import FILE_HEADER_BYTES
from topics.storage.mapped_file import MappedFile
from topics.storage.verify import frames


def log_ends(data_dir: Path) -> dict[int, int]:
    """For each shard the LSN behind its last frame: bytes of all frames that it ever wrote, files
    that were given back included. What a file has room for is not counted.
    """
    ends: dict[int, int] = {}
    for path in sorted((data_dir / "wal").rglob("*.wal")):
        data = MappedFile.of(path).data
        header = wal.decode_file_header(data[:FILE_HEADER_BYTES])
        for frame in frames(data, header):
            ends[header.shard] = max(ends.get(header.shard, 0), frame.end)
    return ends


def log_length(data_dir: Path) -> int:
    """The same of all shards together."""
    return sum(log_ends(data_dir).values())


def frames_of(data_dir: Path, kind: FrameKind) -> int:
    """Frames of a kind in the log files that stand."""
    found = 0
    for path in (data_dir / "wal").rglob("*.wal"):
        data = MappedFile.of(path).data
        header = wal.decode_file_header(data[:FILE_HEADER_BYTES])
        found += sum(frame.kind == kind for frame in frames(data, header))
    return found
