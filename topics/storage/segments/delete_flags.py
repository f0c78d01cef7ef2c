"""Delete flags of sealed records. A segment file has a byte for each record, 1 if it is deleted.

    add      set the flag in memory, where readers see it immediately
    write    write it to the file, after the log is synced up to the delete
    sync     make it durable, before a checkpoint no longer needs the DELETE frame

A flag must not reach the file before its DELETE frame is durable. Otherwise a power loss could keep
the flag and lose the frame, and records would be missing without a delete. A crash leaves each byte
in its old or new state, because no other byte is changed.
"""

from __future__ import annotations

import os
import threading
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from topics.engine.locators import Locator, in_extent, split_locator
from topics.formats.disk.segment import ExtentEntry
from topics.storage.disk import rewrite, write_all
from topics.storage.segments.maps import SegmentMaps
from topics.storage.segments.segment_file import Segment

BLOCK_BYTES = 4096  # flags are written in blocks of this size


class _Delete(NamedTuple):
    """Deleted records of an extent. Their flags are due when the log is synced up to ``lsn``."""

    lsn: int
    locator: Locator
    indexes: Sequence[int]


class _Flags:
    """The flags of an extent in the state that readers see.

    ``queued`` is the number of deletes whose flags are not yet in the file. At 0, the object is
    dropped.
    """

    __slots__ = ("data", "queued")

    def __init__(self, data: bytearray) -> None:
        self.data, self.queued = data, 0


class PendingFlags:
    """Flags that are not yet in the files of ``segments``.

    Only one thread at a time may write and sync. The loop may call `add` concurrently.
    """

    def __init__(self, segments: Mapping[int, Segment], maps: SegmentMaps) -> None:
        self._segments, self._maps = segments, maps
        self._queue: deque[_Delete] = deque()  # ordered by LSN
        self._flags: dict[int, _Flags] = {}  # by locator, for the extents in the queue
        self._lock = threading.Lock()  # guards the queue and the flags
        self._unsynced: set[int] = set()  # numbers of segments with unsynced flags

    def get(self, locator: int) -> memoryview | None:
        """Return the extent's flags, or None if the file contains all of them."""
        flags = self._flags.get(locator)
        return None if flags is None else memoryview(flags.data)

    def is_due(self, synced: int) -> bool:
        """Return whether `write` has flags to write when the log is synced up to ``synced``."""
        return bool(self._queue) and self._queue[0].lsn <= synced

    def add(self, locator: Locator, indexes: Iterable[int], lsn: int) -> None:
        """Flag these records, whose indexes are in ascending order.

        Their delete is durable when the log is synced up to ``lsn``, which must never decrease.
        """
        added = array("I", indexes)
        if not added:
            return
        number, extent = split_locator(locator)
        with self._lock:
            flags = self._flags.get(locator)
            if flags is None:
                flags = self._flags[locator] = _Flags(
                    bytearray(self._maps.of(number).flags(extent))
                )
            for index in added:
                flags.data[index] = 1
            flags.queued += 1
            self._queue.append(_Delete(lsn, locator, added))
            self._segments[number].has_deleted[extent] = 1

    def write(self, synced: int) -> None:
        """Write the flags that are due when the log is synced up to ``synced``.

        This call may block on the disk, so it must run in a thread. After an OSError, the next call
        writes the remaining flags.
        """
        while self.is_due(synced):
            _, locator, indexes = self._queue[0]
            number, extent = split_locator(locator)
            # The segment may have been removed since the delete.
            if number in self._segments:
                _write_flags(self._segments[number], extent, indexes)
                self._unsynced.add(number)
            # The delete is removed from the queue only after its flags are in the file.
            with self._lock:
                self._queue.popleft()
                self._note_written(locator)

    def _note_written(self, locator: int) -> None:
        """Record that a delete is in the file.

        Drop the extent's flags in memory after its last queued delete.
        """
        flags = self._flags.get(locator)
        if flags is not None:  # None if the extent was punched
            flags.queued -= 1
            if not flags.queued:
                del self._flags[locator]

    def sync(self, synced: int) -> None:
        """Write the flags that are due, and make all written flags durable.

        This call may block on the disk, so it must run in a thread. Raise OSError.
        """
        self.write(synced)
        while self._unsynced:
            number = next(iter(self._unsynced))
            if number in self._segments:
                self._sync(self._segments[number])
            self._unsynced.discard(number)

    def _sync(self, segment: Segment) -> None:
        try:
            sync_segment(segment)
        except OSError:
            # The next sync would succeed although the kernel has dropped the unwritten pages. So
            # queue all flags of the segment again.
            with self._lock, segment.path.open("rb") as file:
                for extent in _extents_with_flags(segment):
                    self._requeue(file.fileno(), segment, extent)
            raise

    def _requeue(self, fd: int, segment: Segment, extent: int) -> None:
        """Queue all of an extent's flags in the file as deletes that are due immediately."""
        entry, locator = segment.entry(fd, extent), in_extent(segment.number, extent)
        data = os.pread(fd, entry.record_count, entry.flags_at)
        self._flags.setdefault(locator, _Flags(bytearray(data))).queued += 1
        indexes = array("I", (index for index, flag in enumerate(data) if flag == 1))
        self._queue.appendleft(_Delete(0, locator, indexes))

    # On startup

    def add_unsynced(self, number: int) -> None:
        """Record that a killed process may have written flags of this segment without a sync."""
        self._unsynced.add(number)

    def rewrite(self) -> None:
        """Write the flags of all unsynced segments again, after an unclean shutdown.

        An earlier sync may have failed, and the kernel then marks pages as clean although they are
        not on the disk. Raise OSError.
        """
        for number in self._unsynced:
            segment = self._segments[number]
            with segment.opened() as fd:
                for extent in _extents_with_flags(segment):
                    entry = segment.entry(fd, extent)
                    rewrite(fd, entry.flags_at, entry.record_count)

    # Removal

    def drop(self, number: int, extents: Iterable[int]) -> None:
        """Drop the flags of these extents. All their records are deleted and no longer read."""
        with self._lock:
            for extent in extents:
                self._flags.pop(in_extent(number, extent), None)

    def drop_segment(self, number: int) -> None:
        """Drop a segment whose file was removed."""
        self._unsynced.discard(number)


def sync_segment(segment: Segment) -> None:
    """Sync the segment file. Raise OSError."""
    try:
        fd = os.open(segment.path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:  # removed concurrently
        return
    try:
        os.fdatasync(fd)
    finally:
        os.close(fd)


def _extents_with_flags(segment: Segment) -> list[int]:
    """Return the extents that have a deleted record."""
    return [extent for extent, flagged in enumerate(segment.has_deleted) if flagged]


def _write_flags(segment: Segment, extent: int, indexes: Sequence[int]) -> None:
    """Set the flags of records whose ``indexes`` are in ascending order."""
    with segment.opened() as fd:
        entry, at = segment.entry(fd, extent), 0
        assert indexes[-1] < entry.record_count, "a delete flag belongs to one of the records"
        while at < len(indexes):
            start = indexes[at] // BLOCK_BYTES * BLOCK_BYTES
            stop = bisect_left(indexes, start + BLOCK_BYTES, at)
            _write_block(fd, entry, start, indexes[at:stop])
            at = stop


def _write_block(fd: int, entry: ExtentEntry, start: int, indexes: Sequence[int]) -> None:
    """Set flags within one block. Read the block once, and write the bytes from the first to the
    last of these flags once.
    """
    length = min(BLOCK_BYTES, entry.record_count - start)
    flags = bytearray(os.pread(fd, length, entry.flags_at + start))
    for index in indexes:
        flags[index - start] = 1
    low, high = indexes[0] - start, indexes[-1] - start + 1
    write_all(fd, [flags[low:high]], entry.flags_at + start + low)
