"""Record store: finds records by the locators in the indexes of the topics.

    locator   records                          delete flags
    LOG       a frame of the log               the engine's, in memory
    EXTENT    an extent of a segment           the segment's
    MEMORY    stored here, until released      the engine's, in memory

The record store implements the engine's `Store`. Damaged data found by a reader is logged once for
each disk location, for up to `REPORTED_MAX` locations.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, starmap
from pathlib import Path
from typing import Final

import structlog

from topics.engine.locators import (
    FIRST_EXTENT,
    FIRST_MEMORY,
    Locator,
    in_memory,
    is_extent,
    is_in_memory,
)
from topics.engine.record_index import RecordIndex
from topics.engine.shard import ShardEngine
from topics.engine.topic import Topic
from topics.formats.buffers import Buffer
from topics.formats.disk.records import AbstractView, RecordsView
from topics.formats.ranges import IndexRun
from topics.storage.disk import Damaged
from topics.storage.segments.prefetch import Prefetch
from topics.storage.segments.segment_store import SegmentStore
from topics.storage.wal.log import Wal

RELEASE_STEP: Final = 4096  # number of locators that a step frees in less than a millisecond
REPORTED_MAX: Final = 1000  # maximum number of damaged disk locations logged until a restart
log = structlog.get_logger()


def unlink_all(paths: Iterable[Path]) -> None:
    """Remove the files that exist."""
    for path in paths:
        path.unlink(missing_ok=True)


class RecordStore:
    """The records of one shard: in its log, in its segments and in memory."""

    def __init__(self, engine: ShardEngine, wal: Wal, segments: SegmentStore) -> None:
        self._flags, self._wal, self._segments = engine.delete_flags, wal, segments
        engine.store = self
        self.committed_to = wal.next_lsn  # no frame of a committed change ends after this LSN
        # Bytes of the records that have been deleted in segments since the process started.
        self.flagged_bytes = 0
        self.on_release: Callable[[int], None] = lambda _: None  # called with each released extent
        # Called with the blobs of a deleted topic.
        self.on_blobs_removed: Callable[[list[Path]], None] = unlink_all
        self._prefetch = Prefetch(segments)
        self._in_memory: dict[int, RecordsView] = {}
        self._numbered = 0
        # Locators of records in the log and in memory, to be freed later.
        self._released: list[array[int]] = []
        self._reported: set[tuple[Path, int]] = set()
        segments.on_damage = wal.blobs.on_damage = self.report
        for damage in segments.damage:
            self.report(damage)

    def records(self, locator: int) -> AbstractView:
        """Return the records at a locator, valid until the next change. Raises `Damaged`."""
        if locator >= FIRST_MEMORY:
            return self._in_memory[locator]
        if locator >= FIRST_EXTENT:
            return self._segments.records(locator)
        try:
            return self._wal.records(locator)
        except Damaged as damage:
            self.report(damage)
            raise

    def delete_flags(self, locator: int) -> Buffer | None:
        """Return a byte for each record, 1 if it is deleted; None if no record is deleted."""
        if FIRST_EXTENT <= locator < FIRST_MEMORY:
            return self._segments.delete_flags(locator)
        return self._flags.get(locator)

    def flag_deleted(self, locator: int, count: int, runs: Sequence[IndexRun], size: int) -> None:
        """Flag records, ``size`` bytes in total, as deleted.

        A segment writes the flags once the log is synced up to `committed_to`.
        """
        if is_extent(locator):
            self.flagged_bytes += size
            indexes = chain.from_iterable(starmap(range, runs))
            self._segments.flag_deleted(locator, indexes, self.committed_to)
        else:
            self._flags.flag(locator, count, runs)

    def release(self, locators: Sequence[int]) -> None:
        """Free the records at these locators, which are no longer in any index."""
        self._flags.drop(locators)
        if max(locators, default=0) < FIRST_EXTENT:
            return  # records in the log need no other work, so releasing any number is cheap
        for locator in locators:
            if is_in_memory(locator):
                self._in_memory.pop(locator, None)
            elif is_extent(locator):
                self.on_release(locator)

    def release_later(self, locators: Sequence[int]) -> None:
        """Free records that are not in segments.

        If there are more than `RELEASE_STEP`, `release_next` frees them later.
        """
        if len(locators) <= RELEASE_STEP:
            self.release(locators)
        else:
            self._released.append(array("Q", locators))

    def release_next(self) -> bool:
        """Free some of the records that `release_later` queued. Return whether more are queued."""
        if self._released:
            locators = self._released[-1]
            self.release(locators[-RELEASE_STEP:])
            del locators[-RELEASE_STEP:]
            if not locators:
                self._released.pop()
        return bool(self._released)

    def put(self, view: RecordsView) -> Locator:
        """Store records in memory and return their locator."""
        self._numbered += 1
        locator = in_memory(self._numbered)
        self._in_memory[locator] = view
        return locator

    def drop(self, locator: int) -> None:
        """Drop records that were stored but not committed.

        Do nothing for locators of records that are not in memory.
        """
        self._in_memory.pop(locator, None)

    def drop_topic(self, topic: Topic) -> None:
        """Free the memory and the blobs of a deleted topic. Its index is empty afterwards."""
        index = topic.index
        sealed = index.find(topic.sealed_seq + 1)
        self.release(index.locators(0, sealed))
        self.release_later(index.locators(sealed))
        index.drop(len(index))
        self.on_blobs_removed(self._wal.blobs.drop(topic.id))

    def prefetch(self, topic: Topic, seq: int) -> None:
        """Start to read the records from ``seq`` on into the page cache.

        Only records in segments are read.
        """
        index = topic.index.find(seq)
        locator = _live_extent(topic.index, index)
        if locator is not None:
            skip = max(seq - topic.index.entry(index)[0], 0)
            self._prefetch.read_on(locator, skip, _live_extent(topic.index, index + 1))

    def discard_prefetched(self) -> None:
        """Mark mapped pages as unchecked, because the kernel may have evicted them."""
        self._wal.reset_checked()
        self._segments.maps.reset_checked()

    def report(self, damage: Damaged) -> None:
        """Log damage, but only once for each disk location, because many readers may find it.

        After `REPORTED_MAX` locations no more damage is logged, because a failing disk may have
        millions of damaged locations.
        """
        location = damage.path, damage.offset
        if location in self._reported or len(self._reported) == REPORTED_MAX:
            return
        self._reported.add(location)
        log.error("data damaged", path=str(damage.path), offset=damage.offset, reason=damage.reason)
        if len(self._reported) == REPORTED_MAX:
            log.error("more damage not logged", logged=REPORTED_MAX)


def _live_extent(index: RecordIndex, at: int) -> Locator | None:
    """Return the locator of this entry if it is an extent with live records."""
    if at >= len(index):
        return None
    _, _, locator, size = index.entry(at)
    return locator if size and is_extent(locator) else None
