"""Merging: copies the live records of adjacent segments into one segment (decision 0044).

A candidate run consists of segments that are adjacent in the log and whose live records fit into
one segment. It has at least RUN_MIN_SEGMENTS segments, or fewer if their dead records would fill a
segment. So if the live records would fill n segments, the number of segments is always at most
(n + 1) * RUN_MIN_SEGMENTS. If there are few live records, the remaining dead records fill at most
about one segment.

A run is merged if one of these conditions holds:

    condition                                     reason
    twice the live bytes <= length of the files   each written byte removes at least one dead byte
    twice the largest <= live bytes               each merge at least doubles the size of a record's
                                                  segment, so few merges are needed

The second condition does not apply to a run of fewer than RUN_MIN_SEGMENTS segments.

Records are copied only if their checksums match. A damaged segment is never merged, because the
damage must be reported to its readers. Runs do not extend across a damaged segment.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

import trio

from topics.actors.shard.group_commit import GroupCommit
from topics.actors.shard.sealing.reclaim import Reclaim
from topics.actors.shard.sealing.rewriting import Rewriting
from topics.actors.shard.sealing.sources import Segments, sealed_entries
from topics.engine.locators import is_extent, split_locator
from topics.engine.topic import Topic
from topics.storage.disk import Damaged, check_space
from topics.storage.recovery.shard_recovery import RecoveredShard
from topics.storage.segments.merge_reader import ExtentRequest, MergeReader

RUN_MIN_SEGMENTS: Final = 8
RUN_MAX_SEGMENTS: Final = 64  # limited, because the files are open at the same time
EXTENT_COST_BYTES: Final = 256  # overhead of an extent: directory, tables, padding
PREFETCH_EXTENTS: Final = 256  # number of extents that one call in a thread reads
# A search is requested when the bytes that have been deleted in segments since the last search
# reach this fraction (1/n) of a log file's size.
DEAD_SHARE_MIN: Final = 4
# Pause after an error. It is long, because a merge that fails at its end has written a complete
# file.
RETRY_S: Final = 60.0


class Merging:
    """Merges segments of a shard, one run at a time, in the task that seals."""

    def __init__(
        self, shard: RecoveredShard, commits: GroupCommit, reclaim: Reclaim, rewriting: Rewriting
    ) -> None:
        self._engine, self._segments, self._wal = shard.engine, shard.segments, shard.wal
        self._commits, self._reclaim, self._rewriting = commits, reclaim, rewriting
        self._damaged: set[int] = set()  # segments that are never merged
        # Set by a checkpoint, by the end of a merge, and by `check_for_deletes`.
        self.is_due = True
        # Deleted bytes at the last search, and at the last call of `check_for_deletes`.
        self._flagged_bytes = self._seen_flagged_bytes = 0
        self.again_at = 0.0  # after an error: monotonic time of the next attempt

    def check_for_deletes(self) -> None:
        """Request a search when enough records in segments are dead and the deletes have stopped.

        Deletes have stopped if no record has been deleted since the last call. So a long delete
        causes only one merge.
        """
        flagged = self._commits.store.flagged_bytes
        dead = flagged - self._flagged_bytes
        if flagged == self._seen_flagged_bytes and dead * DEAD_SHARE_MIN >= self._wal.file_bytes:
            self.is_due = True
        self._seen_flagged_bytes = flagged

    async def merge(self) -> None:
        """Merge the segments of one run, if there is one.

        If this raises OSError or `Damaged`, the state is unchanged and the next merge is delayed.
        """
        if time.monotonic() < self.again_at:
            return
        self.is_due, self._flagged_bytes = False, self._commits.store.flagged_bytes
        run = await self._choose()
        if not run:
            return
        try:
            await self._merge(run)
        except (OSError, Damaged) as error:
            self._segments.maps.pin({})
            if not self._exclude_damaged(run, error):
                self.again_at = time.monotonic() + RETRY_S
                raise
        self.is_due = True

    async def _merge(self, run: list[int]) -> None:
        reader = MergeReader(self._segments, run)
        sources = Segments(self._commits.store, reader)
        await self._rewriting.find(sources)
        await trio.to_thread.run_sync(reader.open)
        self._segments.maps.pin(reader.maps)
        some: list[ExtentRequest] = []
        # Prefetch in a thread, so that the loop does not wait for the disk.
        for wanted in sources.wanted():
            some.append(wanted)
            if len(some) == PREFETCH_EXTENTS:
                await trio.to_thread.run_sync(reader.read_ahead, some)
                some = []
        await trio.to_thread.run_sync(reader.read_ahead, some)
        await self._rewriting.move(sources)

    def _exclude_damaged(self, run: list[int], error: Exception) -> bool:
        """Exclude the damaged segments of the run from merges. Return False if none is damaged."""
        segments, path = self._segments.segments, getattr(error, "path", None)
        found = {number for number in run if segments[number].path == path}
        self._damaged |= found
        return bool(found)

    async def _choose(self) -> list[int]:
        """Return the numbers of the segments to be merged."""
        named, space = self._reclaim.named_segments, LiveBytes()
        topics = [*self._engine.by_id.values(), *self._commits.deleting_topics()]
        await self._rewriting.in_steps(chain.from_iterable(map(space.count, topics)))
        run = choose_run([self._candidate(number, space) for number in named], self._wal.file_bytes)
        if run:
            live = sum(space.bytes.get(number, 0) for number in run)
            try:  # the log must still have space for its next file
                check_space(self._segments.folder, live + self._wal.file_bytes)
            except OSError:
                return []
        return run

    def _candidate(self, number: int, space: LiveBytes) -> Candidate:
        segment = self._segments.segments[number]
        stays = number in self._damaged or segment.findings
        live = None if stays else space.bytes.get(number, 0)
        return Candidate(number, live, segment.size, space.dead.get(number, 0))


class Candidate(NamedTuple):
    """A segment that may be merged.

    ``live_bytes``: upper bound for the space that its live records need in another segment; None if
    it must not be merged. ``dead_bytes``: approximate size of the dead records in extents that also
    contain live records.
    """

    number: int
    live_bytes: int | None
    file_bytes: int
    dead_bytes: int


def choose_run(candidates: Sequence[Candidate], bytes_max: int) -> list[int]:
    """Return the numbers of the segments to be merged, or an empty list if no run qualifies.

    ``candidates``: in the order of the log.
    """
    best: Sequence[Candidate] = ()
    for begin in range(len(candidates)):
        run = _run_at(candidates[begin : begin + RUN_MAX_SEGMENTS], bytes_max)
        if len(run) > len(best):
            best = run
            if len(best) == RUN_MAX_SEGMENTS:
                break
    return [candidate.number for candidate in best]


def _run_at(candidates: Sequence[Candidate], bytes_max: int) -> Sequence[Candidate]:
    """Return the longest run that begins with the first candidate and meets a merge condition."""
    live = largest = files = dead = best = 0
    for count, (_, live_bytes, file_bytes, dead_bytes) in enumerate(candidates, 1):
        if live_bytes is None or live + live_bytes > bytes_max:
            break
        live, largest, files = live + live_bytes, max(largest, live_bytes), files + file_bytes
        dead += dead_bytes
        # The two conditions of the module docstring. A short run needs enough dead records.
        is_long = count >= RUN_MIN_SEGMENTS
        if (2 * live <= files and (is_long or dead >= bytes_max)) or (
            is_long and 2 * largest <= live
        ):
            best = count
    return candidates[:best]


class LiveBytes:
    """Counts, for each segment, the space that its live records need in another segment.

    The count is an upper bound. The approximate size of the dead records in the same extents is
    also counted.
    """

    def __init__(self) -> None:
        self.bytes: dict[int, int] = {}  # by segment
        self.dead: dict[int, int] = {}

    def count(self, topic: Topic) -> Iterator[int]:
        """Add a topic. Yields the approximate number of entries of each step.

        The topic may change between two steps.
        """
        for start, stop in sealed_entries(topic):
            for entry in range(start, stop):
                self._count_entry(topic, entry)
            yield stop - start
        yield 1

    def _count_entry(self, topic: Topic, at: int) -> None:
        first_seq, count, locator, size = topic.index.entry(at)
        if not size or not is_extent(locator):
            return
        # Dead records between live records either end an extent, or are copied with the live
        # records (`sources.py`).
        gone = topic.index.removed.get(first_seq, 0)
        inner = max(gone - max(topic.start_seq - first_seq, 0), 0)
        number, _ = split_locator(locator)
        space = size + EXTENT_COST_BYTES * (1 + min(inner, count - gone))
        self.bytes[number] = self.bytes.get(number, 0) + space
        if gone:
            self.dead[number] = self.dead.get(number, 0) + size * gone // (count - gone)
