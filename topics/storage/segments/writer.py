"""Segment writer: puts a new segment on the disk.

    write aside (NAME.tmp), pushed to the disk by the way -> fdatasync -> rename -> sync folder

A segment has its name only once it is whole on the disk.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from topics.formats.buffers import Buffer
from topics.formats.disk.segment import SegmentHeader
from topics.storage.disk import check_room, sync_directory, write_all, write_back
from topics.storage.segments.file import Segment, segment_path


class SegmentWriter:
    """A new segment: `write` what ``segment_build.build`` yields, then `finish`. For a thread."""

    def __init__(self, folder: Path, header: SegmentHeader) -> None:
        """Raises OSError."""
        self.header, self.path = header, segment_path(folder, header.number)
        self._aside = self.path.with_suffix(".tmp")
        self._offset = 0
        self._fd = os.open(self._aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)

    def write(self, pieces: Sequence[Buffer]) -> None:
        """Append to the file. Raises OSError."""
        begin = self._offset
        self._offset += sum(map(len, pieces))
        check_room(self.path.parent, self._offset - begin)
        write_all(self._fd, pieces, begin)
        write_back(self._fd, begin, self._offset - begin)

    def finish(self) -> Segment:
        """Make the file durable under its name, and open it. Raises OSError."""
        os.fdatasync(self._fd)
        self._close()
        self._aside.replace(self.path)
        sync_directory(self.path.parent)
        segment = Segment(self.path, self.header.shard, self.header.number)
        segment.check_tables()
        return segment

    def abandon(self) -> None:
        """Remove the file."""
        self._close()
        self._aside.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
