"""Delete flags of sealed records: a byte for each record in its segment file, 1 when it is deleted.

    add      in memory, where readers find them at once
    write    into the file, once the log is synced behind the delete
    sync     onto the disk, before a checkpoint no longer needs the DELETE frame

A flag never reaches the file before the log has its delete durably: a power loss could keep the
flag and lose the delete, and records would be missing that nothing has taken. A crash leaves each
byte old or new, as no other byte is changed.
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
from topics.storage.disk import write_again, write_all
from topics.storage.segments.file import Segment
from topics.storage.segments.maps import SegmentMaps

BLOCK_BYTES = 4096  # flags are written by blocks of so many


class _Delete(NamedTuple):
    """Records of an extent. Their flags are due in the file once the log is synced to ``lsn``."""

    lsn: int
    locator: Locator
    indexes: Sequence[int]


class _Flags:
    """An extent's flags as readers see them, while ``queued`` deletes of it are not in the file."""

    __slots__ = ("data", "queued")

    def __init__(self, data: bytearray) -> None:
        self.data, self.queued = data, 0


class PendingFlags:
    """Flags on their way into the files of ``segments``.

    One thread at a time may write and sync; `add` may be called meanwhile.
    """

    def __init__(self, segments: Mapping[int, Segment], maps: SegmentMaps) -> None:
        self._segments, self._maps = segments, maps
        self._queue: deque[_Delete] = deque()  # by LSN
        self._flags: dict[int, _Flags] = {}  # of the extents in the queue, by locator
        self._lock = threading.Lock()  # of these two
        self._unsynced: set[int] = set()  # segments

    def get(self, locator: int) -> memoryview | None:
        """The extent's flags, None when its file has them all."""
        flags = self._flags.get(locator)
        return None if flags is None else memoryview(flags.data)

    def is_due(self, synced: int) -> bool:
        """Whether `write` has something to do."""
        return bool(self._queue) and self._queue[0].lsn <= synced

    def add(self, locator: Locator, indexes: Iterable[int], lsn: int) -> None:
        """Flag these records, in rising order. Their delete is durable when the log is synced to
        ``lsn``, which never falls.
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
        """Write the flags that are due when the log is synced to ``synced``. For a thread.

        Raises OSError: the rest is written the next time.
        """
        while self.is_due(synced):
            _, locator, indexes = self._queue[0]
            number, extent = split_locator(locator)
            if number in self._segments:
                _write_flags(self._segments[number], extent, indexes)
                self._unsynced.add(number)
            with self._lock:
                self._queue.popleft()
                self._note_written(locator)

    def _note_written(self, locator: int) -> None:
        flags = self._flags.get(locator)
        if flags is not None:  # or the extent has been punched
            flags.queued -= 1
            if not flags.queued:
                del self._flags[locator]

    def sync(self, synced: int) -> None:
        """Write the flags that are due, and make all that are written durable. For a thread. Raises
        OSError.
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
            # The next sync would succeed, though what this one has not written is lost: queue all
            # flags of the segment again.
            with self._lock, segment.path.open("rb") as file:
                for extent in _extents_with_flags(segment):
                    self._queue_again(file.fileno(), segment, extent)
            raise

    def _queue_again(self, fd: int, segment: Segment, extent: int) -> None:
        entry, locator = segment.entry(fd, extent), in_extent(segment.number, extent)
        data = os.pread(fd, entry.record_count, entry.flags_at)
        self._flags.setdefault(locator, _Flags(bytearray(data))).queued += 1
        indexes = array("I", (index for index, flag in enumerate(data) if flag == 1))
        self._queue.appendleft(_Delete(0, locator, indexes))

    # Around a start

    def add_unsynced(self, number: int) -> None:
        """A process that was killed may have written flags of this segment without a sync."""
        self._unsynced.add(number)

    def write_again(self) -> None:
        """Write the flags of all unsynced segments again, after an unclean end: a sync may have
        failed, and the kernel takes pages for written that no disk has. Raises OSError.
        """
        for number in self._unsynced:
            segment = self._segments[number]
            with segment.opened() as fd:
                for extent in _extents_with_flags(segment):
                    entry = segment.entry(fd, extent)
                    write_again(fd, entry.flags_at, entry.record_count)

    # What goes

    def forget(self, number: int, extents: Iterable[int]) -> None:
        """All records of these extents are deleted, and nobody reads their flags any more."""
        with self._lock:
            for extent in extents:
                self._flags.pop(in_extent(number, extent), None)

    def forget_segment(self, number: int) -> None:
        """The segment's file is gone."""
        self._unsynced.discard(number)


def sync_segment(segment: Segment) -> None:
    """Make the file's bytes durable. Raises OSError."""
    try:
        fd = os.open(segment.path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:  # unlinked meanwhile
        return
    try:
        os.fdatasync(fd)
    finally:
        os.close(fd)


def _extents_with_flags(segment: Segment) -> list[int]:
    return [extent for extent, flagged in enumerate(segment.has_deleted) if flagged]


def _write_flags(segment: Segment, extent: int, indexes: Sequence[int]) -> None:
    """``indexes`` are in rising order."""
    with segment.opened() as fd:
        entry, at = segment.entry(fd, extent), 0
        assert indexes[-1] < entry.record_count, "a delete flag belongs to one of the records"
        while at < len(indexes):
            start = indexes[at] // BLOCK_BYTES * BLOCK_BYTES
            stop = bisect_left(indexes, start + BLOCK_BYTES, at)
            _write_block(fd, entry, start, indexes[at:stop])
            at = stop


def _write_block(fd: int, entry: ExtentEntry, start: int, indexes: Sequence[int]) -> None:
    length = min(BLOCK_BYTES, entry.record_count - start)
    flags = bytearray(os.pread(fd, length, entry.flags_at + start))
    for index in indexes:
        flags[index - start] = 1
    low, high = indexes[0] - start, indexes[-1] - start + 1
    write_all(fd, [flags[low:high]], entry.flags_at + start + low)
