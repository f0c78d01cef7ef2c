"""Merge reader: reads the segments that a merge copies into a new segment, and checks every byte.

    open         in a thread: map the files, check directories and delete flags
    read_ahead   in a thread: load tables and live records into memory for the loop
    view         return the records of an extent in place

The reader has its own maps, so that the maps of other readers stay cached (`SegmentMaps.pin`). It
checks all checksums again, because copied bytes get a new checksum.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from topics.engine.locators import Locator, split_locator
from topics.formats.buffers import Buffer
from topics.formats.disk.extent_view import ExtentView
from topics.formats.disk.records import live_runs
from topics.formats.disk.segment import (
    CHUNK_BYTES,
    ENTRY_BYTES,
    TABLES_HEAD_BYTES,
    BadSegment,
    ExtentEntry,
    check_directory,
    decode_entry,
    padding,
)
from topics.storage.segments.maps import MappedSegment
from topics.storage.segments.segment_file import Segment
from topics.storage.segments.segment_store import SegmentStore

READ_BYTES = 1 << 20  # number of bytes read in one system call


class ExtentRequest(NamedTuple):
    """An extent to copy from record ``start`` on. ``deleted`` has its delete flags, or is None."""

    locator: Locator
    start: int
    deleted: Buffer | None


class MergeReader:
    """Reads the segments of ``store`` with the given ``numbers``."""

    def __init__(self, store: SegmentStore, numbers: Sequence[int]) -> None:
        self.segments = {number: store.segments[number] for number in numbers}
        self.maps: dict[int, MappedSegment] = {}
        self._directories: dict[int, bytes] = {}

    def open(self) -> None:
        """Map the segments, and check their directories.

        This call may block on the disk, so it must run in a thread. Raise `Damaged` or OSError.
        """
        for number, segment in self.segments.items():
            self.maps[number] = MappedSegment(segment)
            trailer, fd = segment.trailer, os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                length = ENTRY_BYTES * trailer.entry_count
                directory = _read(segment, fd, trailer.directory_at, length)
                _read(segment, fd, trailer.flags_at, trailer.record_count)
            finally:
                os.close(fd)
            try:
                check_directory(directory, trailer)
            except BadSegment as error:
                raise segment.damaged(error.offset, error.reason) from error
            self._directories[number] = directory

    def read_ahead(self, wanted: Iterable[ExtentRequest]) -> None:
        """Load the tables and the live records of these extents into memory.

        This call may block on the disk, so it must run in a thread. Raise `Damaged` or OSError.
        """
        for each in wanted:
            segment = self.segments[split_locator(each.locator)[0]]
            fd = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                self._read_extent(segment, fd, each)
            finally:
                os.close(fd)

    def _read_extent(self, segment: Segment, fd: int, wanted: ExtentRequest) -> None:
        entry = self._entry(wanted.locator)
        tables = _read(segment, fd, entry.tables_at, entry.tables_len)
        ends = memoryview(tables)[TABLES_HEAD_BYTES : TABLES_HEAD_BYTES + 4 * entry.record_count]
        if len(ends) != 4 * entry.record_count:
            return  # `view` reports the damage
        records = ends.cast("I")
        read_to = 0
        for start, stop in live_runs(wanted.deleted, wanted.start, entry.record_count):
            begin = records[start - 1] if start else 0
            # Read complete chunks, because each chunk has a checksum.
            begin, end = begin // CHUNK_BYTES * CHUNK_BYTES, records[stop - 1]
            end = min(end + padding(end, CHUNK_BYTES), entry.blob_bytes)
            for at in range(max(begin, read_to), end, READ_BYTES):
                _read(segment, fd, entry.offset + at, min(READ_BYTES, end - at))
            read_to = max(read_to, end)

    def _entry(self, locator: Locator) -> ExtentEntry:
        number, extent = split_locator(locator)
        return decode_entry(self._directories[number], ENTRY_BYTES * extent)

    def view(self, locator: Locator) -> ExtentView:
        """Return the records of an extent after checking its tables. Raise `Damaged`."""
        number, _ = split_locator(locator)
        return self.maps[number].new_view(self._entry(locator))


def _read(segment: Segment, fd: int, offset: int, length: int) -> bytes:
    """Read bytes of a segment file. Raise `Damaged` if the disk cannot read them."""
    try:
        return os.pread(fd, length, offset)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise segment.damaged(offset, "cannot be read") from error
