"""Segment writer: puts a new segment on the disk.

It is written aside, and pushed to the disk on the way. A segment has its name only once it is
whole on the disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from topics.formats.buffers import Buffer
from topics.formats.disk.segment import SegmentHeader
from topics.storage.aside import FileAside
from topics.storage.disk import check_room, write_all, write_back
from topics.storage.segments.file import Segment, segment_path


class SegmentWriter:
    """A new segment: `write` what ``segment_build.build`` yields, then `finish`. For a thread."""

    def __init__(self, folder: Path, header: SegmentHeader) -> None:
        """Raises OSError."""
        self.header = header
        self._file = FileAside(segment_path(folder, header.number), ".tmp")
        self._offset = 0

    def write(self, pieces: Sequence[Buffer]) -> None:
        """Append to the file. Raises OSError."""
        begin, length = self._offset, sum(map(len, pieces))
        self._offset += length
        check_room(self._file.path.parent, length)
        write_all(self._file.fd, pieces, begin)
        write_back(self._file.fd, begin, length)

    def finish(self) -> Segment:
        """Make the file durable under its name, and open it: what it says is read again. Raises
        OSError or `Damaged`: then `abandon`.
        """
        self._file.publish()
        segment = Segment(self._file.path, self.header.shard, self.header.number)
        segment.check_tables()
        return segment

    def abandon(self) -> None:
        """Remove the file."""
        self._file.abandon()
