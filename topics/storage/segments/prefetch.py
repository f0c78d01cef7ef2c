"""Prefetch: advises the kernel to read the parts of segments that readers will need next.

The shard loop reads segments in mapped memory. If a page is not in memory, all requests wait until
the disk has read it. Therefore, when a reader continues, the kernel is advised to read the
following bytes, which it does concurrently with the loop. This was measured with 20 GB of data and
a third of that size as memory. While a reader is active, a small append takes 7 to 15 ms at the
99th percentile instead of 24 to 34 ms. Two alternatives are worse: the kernel's own read-ahead
restarts at each extent, and a thread that accesses the pages would hold the interpreter lock during
each wait.

    extent that is read                      next extent of the topic, maybe in another segment
    ---- reader ====== advised =====> ....   its directory entry at a distance of 2 * AHEAD_BYTES,
         |-- AHEAD_BYTES ----------|         its tables and records at a distance of AHEAD_BYTES

A prefetch never waits for records and never reports an error. The reader finds unreadable bytes
itself.
"""

from __future__ import annotations

import contextlib

from topics.engine.locators import split_locator
from topics.formats.disk.segment import ENTRY_BYTES, ExtentEntry
from topics.storage.disk import Damaged, will_need
from topics.storage.segments.segment_file import Segment
from topics.storage.segments.segment_store import SegmentStore

AHEAD_BYTES = 4 << 20  # a disk that reads 400 MB/s takes 10 ms for it
EXTENTS_MAX = 16  # number of tracked extents; pages of earlier ones may have been evicted


class Prefetch:
    """Prefetches records for readers, and tracks how far it has prefetched some extents."""

    def __init__(self, store: SegmentStore) -> None:
        self._store = store
        # End offset of the prefetched records by locator, oldest first.
        self._requested: dict[int, int] = {}

    def read_on(self, locator: int, index: int, following: int | None) -> None:
        """Prefetch the records that a reader will need when it continues at record ``index`` of
        this extent.

        Unless ``following`` is None, the reader then continues in the extent ``following``.
        """
        with contextlib.suppress(OSError, Damaged):
            number, _ = split_locator(locator)
            view = self._store.records(locator)
            at = view.ends[index - 1] if index else 0
            self._request(self._store.segments[number], locator, view.entry, at)
            if following is not None:
                self._request_following(following, view.entry.blob_bytes - at)

    def _request(self, segment: Segment, locator: int, entry: ExtentEntry, at: int) -> None:
        """Prefetch records from ``at`` on, unless they have already been prefetched."""
        end = min(at + AHEAD_BYTES, entry.blob_bytes)
        requested = self._requested.get(locator, at)
        if not at <= requested <= end:  # prefetched for another reader
            requested = at
        # Do nothing if the entire range, or more than half of AHEAD_BYTES, has been prefetched. So
        # each call covers a large range.
        if requested == end or (end < entry.blob_bytes and 2 * (requested - at) > AHEAD_BYTES):
            return
        self._note(locator, end)
        will_need(segment.path, entry.offset + requested, end - requested)

    def _request_following(self, locator: int, distance: int) -> None:
        """Prefetch the start of an extent that the reader reaches after ``distance`` bytes."""
        if distance > 2 * AHEAD_BYTES or locator in self._requested:
            return
        number, extent = split_locator(locator)
        segment = self._store.segments[number]
        entry_at = segment.entry_offset(extent)
        # Far from the extent, prefetch its directory entry. Near it, the entry is in memory and
        # locates the tables and records.
        if distance > AHEAD_BYTES:
            will_need(segment.path, entry_at, ENTRY_BYTES)
            return
        with segment.path.open("rb", buffering=0) as file:
            entry = segment.entry(file.fileno(), extent)
        will_need(segment.path, entry.tables_at, entry.tables_len)
        self._request(segment, locator, entry, 0)

    def _note(self, locator: int, end: int) -> None:
        """Record how far an extent is prefetched, and drop the oldest entry above the limit."""
        self._requested.pop(locator, None)
        if len(self._requested) >= EXTENTS_MAX:
            del self._requested[next(iter(self._requested))]
        self._requested[locator] = end
