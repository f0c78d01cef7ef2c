"""Merging: the live records of neighbouring segments move into one (decision 0044).

A candidate run is segments that are neighbours in the log and whose live records fit one segment:
RUN_MIN_SEGMENTS or more, or fewer when their dead records would fill a segment. So at most
RUN_MIN_SEGMENTS segments, and as many again for each segment's worth of live records, stand for
long, however long the history is; and where little lives, a segment's worth of dead records.

A run is merged if that pays, one way or the other:

    twice the live bytes <= length of the files   for each byte that is written, a dead one goes
    twice the largest <= live bytes               each record moves to a segment twice as large, a
                                                  few times in its life; not in a short run

Records are copied only where their checksums hold. A segment with damage stays as it is, for its
readers are told of it, and divides what is merged.
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
from topics.storage.disk import Damaged, check_room
from topics.storage.recovery.steps import Shard
from topics.storage.segments.merge_reader import MergeReader, Wanted

RUN_MIN_SEGMENTS: Final = 8
RUN_MAX_SEGMENTS: Final = 64  # open at once
EXTENT_COST_BYTES: Final = 256  # of an extent beyond its records: directory, tables, padding
READ_AHEAD_EXTENTS: Final = 256  # read by one call of a thread
DEAD_SHARE: Final = 4  # of a log file's bytes that died in segments, until merges are looked for
RETRY_S: Final = 60.0  # after an error: a merge that fails at its end has written a file's worth


class Merging:
    """Merges segments of a shard, a run of them at a time. Runs in the task that seals."""

    def __init__(
        self, shard: Shard, commits: GroupCommit, reclaim: Reclaim, rewriting: Rewriting
    ) -> None:
        self._engine, self._segments, self._wal = shard.engine, shard.segments, shard.wal
        self._commits, self._reclaim, self._rewriting = commits, reclaim, rewriting
        self._damaged: set[int] = set()  # segments that stay as they are
        self.is_due = True  # a checkpoint was written since the last look, or a merge done
        self._flagged_bytes = self._seen_flagged_bytes = 0  # by the last look, and of late
        self.again_at = 0.0  # after an error, by the monotonic clock

    def look_for_deletes(self) -> None:
        """Records of segments may have been deleted: look again once enough of them are dead, when
        no more have gone since the last call. So one delete is followed by one merge.
        """
        flagged = self._commits.store.flagged_bytes
        dead = flagged - self._flagged_bytes
        if flagged == self._seen_flagged_bytes and dead * DEAD_SHARE >= self._wal.file_bytes:
            self.is_due = True
        self._seen_flagged_bytes = flagged

    async def merge(self) -> None:
        """Merge the segments of one run, if there is one. Raises OSError or `Damaged`: then all is
        as it was, and the next merge comes later.
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
            self._segments.pin({})
            if not self._leave_out(run, error):
                self.again_at = time.monotonic() + RETRY_S
                raise
        self.is_due = True

    async def _merge(self, run: list[int]) -> None:
        reader = MergeReader(self._segments, run)
        sources = Segments(self._commits.store, reader)
        await self._rewriting.find(sources)
        await trio.to_thread.run_sync(reader.open)
        self._segments.pin(reader.maps)
        some: list[Wanted] = []
        for wanted in sources.wanted():  # the loop must not wait for the disk
            some.append(wanted)
            if len(some) == READ_AHEAD_EXTENTS:
                await trio.to_thread.run_sync(reader.read_ahead, some)
                some = []
        await trio.to_thread.run_sync(reader.read_ahead, some)
        await self._rewriting.move(sources)

    def _leave_out(self, run: list[int], error: Exception) -> bool:
        """Whether the error is damage of some segments, which stay as they are from now on."""
        segments, path = self._segments.segments, getattr(error, "path", None)
        found = {number for number in run if segments[number].path == path}
        self._damaged |= found
        return bool(found)

    async def _choose(self) -> list[int]:
        """Numbers of the segments to be merged."""
        named, room = self._reclaim.named_segments, LiveRoom()
        topics = [*self._engine.by_id.values(), *self._commits.leaving()]
        await self._rewriting.in_steps(chain.from_iterable(map(room.count, topics)))
        run = choose_run([self._candidate(number, room) for number in named], self._wal.file_bytes)
        if run:
            live = sum(room.bytes.get(number, 0) for number in run)
            try:  # the log needs room for its next file meanwhile
                check_room(self._segments.folder, live + self._wal.file_bytes)
            except OSError:
                return []
        return run

    def _candidate(self, number: int, room: LiveRoom) -> Candidate:
        segment = self._segments.segments[number]
        stays = number in self._damaged or segment.findings
        live = None if stays else room.bytes.get(number, 0)
        return Candidate(number, live, segment.size, room.dead.get(number, 0))


class Candidate(NamedTuple):
    """A segment. ``live_bytes``: room that its live records take in another one, at most; None: it
    must stay as it is. ``dead_bytes``: about what its dead records take beside live ones.
    """

    number: int
    live_bytes: int | None
    file_bytes: int
    dead_bytes: int


def choose_run(candidates: Sequence[Candidate], bytes_max: int) -> list[int]:
    """Numbers of the segments to be merged, none when no merge pays. ``candidates``: in the order
    of the log.
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
    """The longest run that begins with the first candidate and pays."""
    live = largest = files = dead = best = 0
    for count, (_, live_bytes, file_bytes, dead_bytes) in enumerate(candidates, 1):
        if live_bytes is None or live + live_bytes > bytes_max:
            break
        live, largest, files = live + live_bytes, max(largest, live_bytes), files + file_bytes
        dead += dead_bytes
        is_long = count >= RUN_MIN_SEGMENTS
        if (2 * live <= files and (is_long or dead >= bytes_max)) or (
            is_long and 2 * largest <= live
        ):
            best = count
    return candidates[:best]


class LiveRoom:
    """Counts, for each segment, the room that its live records take in another one at most, and
    about the bytes of the dead ones in their extents.
    """

    def __init__(self) -> None:
        self.bytes: dict[int, int] = {}  # by segment
        self.dead: dict[int, int] = {}

    def count(self, topic: Topic) -> Iterator[int]:
        """Add a topic. Yields about how many entries each step has looked at; the topic may change
        between two steps.
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
        # Dead records between live ones end an extent, or are carried along (`sources.py`).
        gone = topic.index.gone.get(first_seq, 0)
        inner = max(gone - max(topic.start_seq - first_seq, 0), 0)
        number, _ = split_locator(locator)
        room = size + EXTENT_COST_BYTES * (1 + min(inner, count - gone))
        self.bytes[number] = self.bytes.get(number, 0) + room
        if gone:
            self.dead[number] = self.dead.get(number, 0) + size * gone // (count - gone)
