"""Merging: copies the live records of many segments into one (decision 0044).

    choose      neighbours in the log whose live records are few (``choice.py``)
    build       their live records by topic, written aside, synced and opened
                (``merge_contents.py``)
    install     the index names the new extents, topic after topic; no checkpoint meanwhile
    checkpoint  names the new segment and not the old ones (``checkpointing.py``)
    reclaim     old files go when neither checkpoint on disk names them (``reclaim.py``)

A crash before that checkpoint leaves the old segments, which all checkpoints on disk name, and the
log with the deletes since. A record that goes before the install is not named by the index, or is
flagged in the new segment at the install; one that goes later is flagged there as in any other.

Records are copied only where their checksums hold. A segment with damage stays as it is, for its
readers are told of it, and divides what is merged.

An error of the disk can only end a build, which leaves nothing: the install asks it for nothing.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from itertools import chain, starmap
from typing import Final, NamedTuple, TypeVar

import structlog
import trio

from topics.actors.shard.group_commit import GroupCommit
from topics.actors.shard.sealing.building import Pause, write_segment
from topics.actors.shard.sealing.choice import STEP_ENTRIES, Candidate, LiveRoom, choose_run
from topics.actors.shard.sealing.contents import current_flags
from topics.actors.shard.sealing.merge_contents import STEP_RECORDS, MergeContents, MergedTopic
from topics.actors.shard.sealing.reclaim import Reclaim
from topics.config import TUNING
from topics.engine.locators import Locator, in_extent
from topics.engine.merged import MergedExtent, replace_merged
from topics.engine.record_index import IndexEntry
from topics.engine.topic import Topic
from topics.formats.disk.extent_view import ExtentView
from topics.formats.disk.records import live_runs
from topics.formats.disk.segment import SegmentHeader
from topics.formats.ranges import IndexRun
from topics.storage.disk import Damaged, check_room
from topics.storage.recovery.steps import Shard
from topics.storage.segments.file import Segment
from topics.storage.segments.maps import MappedSegment
from topics.storage.segments.merge_reader import MergeReader, Wanted

STEP_EXTENTS: Final = 256  # installed in one step
READ_AHEAD_EXTENTS: Final = 256  # read by one call of a thread
DEAD_SHARE: Final = 4  # of a log file's bytes that died in segments, until merges are looked for
RETRY_S: Final = 60.0  # after an error: a merge that fails at its end has written a file's worth
_LATE: Final = re.compile(rb"\x01+")
log = structlog.get_logger()


Result = TypeVar("Result")


class _Copy(NamedTuple):
    """An extent of the new segment, as it was written. ``entry.size``: bytes of what lived then;
    ``deleted``: the flags in the file.
    """

    entry: IndexEntry
    extent: int
    deleted: bytes


class _Built(NamedTuple):
    """A segment that is written, and the topics that do not name it yet."""

    segment: Segment
    merged: list[int]
    reader: MergeReader
    contents: MergeContents
    topics: dict[int, MergedTopic]
    mapped: MappedSegment
    copies: dict[int, list[_Copy]]  # by topic
    began: float


class Merging:
    """Merges segments of a shard, a run of them at a time. Runs in the task that seals."""

    def __init__(self, shard: Shard, commits: GroupCommit, reclaim: Reclaim, pause: Pause) -> None:
        self._engine, self._segments, self._wal = shard.engine, shard.segments, shard.wal
        self._commits, self._reclaim, self._pause = commits, reclaim, pause
        self._damaged: set[int] = set()  # segments that stay as they are
        self._built: _Built | None = None
        self.is_due = True  # a checkpoint was written since the last look, or a merge done
        self._flagged_bytes = self._seen_flagged_bytes = 0  # by the last look, and of late
        self.again_at = 0.0  # after an error, by the monotonic clock
        self.merged = 0  # segments that became part of others, since the start of the process
        self.written_bytes = 0  # of merged segments, likewise

    def look_for_deletes(self) -> None:
        """Records of segments may have been deleted: look again once enough of them are dead, when
        no more have gone since the last call. So one delete is followed by one merge.
        """
        flagged = self._commits.store.flagged_bytes
        dead = flagged - self._flagged_bytes
        if flagged == self._seen_flagged_bytes and dead * DEAD_SHARE >= self._wal.file_bytes:
            self.is_due = True
        self._seen_flagged_bytes = flagged

    async def merge(self, next_number: Callable[[], int]) -> None:
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
            self._built = await self._build(run, next_number())
        except (OSError, Damaged) as error:
            if not self._leave_out(run, error):
                self.again_at = time.monotonic() + RETRY_S
                raise
        else:
            await self._finish()
        self.is_due = True

    def _leave_out(self, run: list[int], error: Exception) -> bool:
        """Whether the error is damage of some segments, which stay as they are from now on."""
        segments, path = self._segments.segments, getattr(error, "path", None)
        found = {number for number in run if segments[number].path == path}
        self._damaged |= found
        return bool(found)

    # Which segments

    async def _choose(self) -> list[int]:
        named = self._reclaim.named_segments
        if not TUNING.merging:
            return []
        room = LiveRoom()
        await self._in_steps(_count_all(room, self._topics()))
        candidates = [self._candidate(number, room) for number in named]
        run = choose_run(candidates, self._wal.file_bytes)
        if run:
            live = sum(room.bytes.get(number, 0) for number in run)
            try:  # the log needs room for its next file meanwhile
                check_room(self._segments.folder, live + self._wal.file_bytes)
            except OSError:
                return []
        return run

    def _topics(self) -> list[Topic]:
        """All topics with records. The delete of one that is leaving may be undone."""
        return [*self._engine.by_id.values(), *self._commits.leaving()]

    def _candidate(self, number: int, room: LiveRoom) -> Candidate:
        segment = self._segments.segments[number]
        stays = number in self._damaged or segment.findings
        live = None if stays else room.bytes.get(number, 0)
        return Candidate(number, live, segment.size, room.dead.get(number, 0))

    # The copy

    async def _build(self, run: list[int], number: int) -> _Built:
        began, segments = time.monotonic(), self._segments.segments
        topics: dict[int, MergedTopic] = {}
        reader = MergeReader(self._segments, run)
        contents = MergeContents(reader, topics, run)
        await self._in_steps(_find_all(topics, self._topics(), contents.is_merged))
        await trio.to_thread.run_sync(reader.open)
        await self._read_ahead(reader, contents)
        base, end = segments[run[0]].header.base, segments[run[-1]].header.end
        segment = await write_segment(
            self._segments,
            SegmentHeader(self._segments.shard, number, base, end),
            contents.sources(),
            contents.delete_flags,
            self._pause,
        )
        try:
            mapped = await trio.to_thread.run_sync(MappedSegment, segment)
            copies = await self._in_steps(_copies(segment, mapped))
        except BaseException:
            segment.path.unlink(missing_ok=True)
            raise
        return _Built(segment, run, reader, contents, topics, mapped, copies, began)

    async def _read_ahead(self, reader: MergeReader, contents: MergeContents) -> None:
        """Read the records in a thread: the loop must not wait for the disk."""
        some: list[Wanted] = []
        for wanted in contents.wanted():
            some.append(wanted)
            if len(some) == READ_AHEAD_EXTENTS:
                await trio.to_thread.run_sync(reader.read_ahead, some)
                some = []
        await trio.to_thread.run_sync(reader.read_ahead, some)

    async def _in_steps(self, steps: Generator[int, None, Result]) -> Result:
        """Run the steps, with a pause after some, and return their result. A step yields how many
        entries it has looked at.
        """
        looked, step_began = 0, time.monotonic()
        while True:
            try:
                looked += next(steps)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            if looked >= STEP_ENTRIES:
                await self._pause(step_began)
                looked, step_began = 0, time.monotonic()

    # The index

    @property
    def is_installing(self) -> bool:
        """Whether some topics may name the new extents, and others the old ones."""
        return self._built is not None

    async def _finish(self) -> None:
        """Install the segment that is built. No checkpoint may be written meanwhile."""
        for _ in self._install():
            await trio.lowlevel.checkpoint()

    def finish_now(self) -> None:
        """Install what is left of a segment, in one step, if a stop has come in between."""
        for _ in self._install():
            pass

    def _install(self) -> Iterator[None]:
        """Let the index name the new extents instead of the old ones, topic after topic, some
        extents at a time. ``topics`` has what is left of each, so another call goes on.
        """
        if self._built is None:
            return
        built = self._built
        segment, topics = built.segment, built.topics
        self._reclaim.begin_install(segment.number)
        self._segments.add(segment)
        for topic_id in [*topics]:
            while (merged := topics[topic_id]).first_seq <= merged.last_seq:
                end = self._install_part(built, merged)
                topics[topic_id] = merged._replace(first_seq=end)
                yield
            del topics[topic_id]
        assert self._reclaim.are_unused(built.merged), "the index names none of the old extents"
        self._built = None
        self._reclaim.end_install()
        self.merged += len(built.merged)
        self.written_bytes += segment.size
        log.info(
            "segments merged",
            segment=segment.number,
            segments=len(built.merged),
            extents=segment.trailer.entry_count,
            records=segment.trailer.record_count,
            bytes=segment.size,
            seconds=round(time.monotonic() - built.began, 3),
        )

    def _install_part(self, built: _Built, merged: MergedTopic) -> int:
        """Install some extents of a topic. The seq from which on the others begin."""
        topic, first_seq, _ = merged
        copies, end = _part(built.copies.get(topic.id, []), merged)
        used: list[MergedExtent] = []
        unused: list[Locator] = []
        for copy in copies:
            extent = self._flag_late_deletes(built, topic, copy)
            if extent.gone < copy.entry.record_count:
                used.append(extent)
            else:
                unused.append(copy.entry.locator)
        before = topic.bytes
        contents, store = built.contents, self._commits.store
        replace_merged(topic, used, first_seq, end - 1, contents.is_merged, store)
        if topic.bytes != before:
            self._engine.recharge(topic)
        self._reclaim.add_extents(built.segment.number, len(used), unused)
        return end

    def _flag_late_deletes(self, built: _Built, topic: Topic, copy: _Copy) -> MergedExtent:
        """Set the delete flags of what went after the copy was made; the extent as it is now."""
        entry, number, deleted = copy
        now = current_flags(built.reader, topic, entry.first_seq, entry.record_count)
        gone = now.count(1)
        if gone == deleted.count(1):
            return MergedExtent(entry, gone)
        late, view = [*_late_runs(now, deleted)], built.mapped.view(number)
        indexes = chain.from_iterable(starmap(range, late))
        committed_to = self._commits.store.committed_to
        self._segments.flag_deleted(entry.locator, indexes, committed_to, built.mapped)
        size = entry.size - sum(view.size(start, stop) for start, stop in late)
        return MergedExtent(entry._replace(size=size), gone)


def _part(copies: list[_Copy], merged: MergedTopic) -> tuple[list[_Copy], int]:
    """The next copies to be installed, and the seq at which the entry begins that the others
    replace: no entry has records of both.
    """
    index, first_seq, last_seq = merged.topic.index, merged.first_seq, merged.last_seq
    start = bisect_left(copies, first_seq, key=lambda copy: copy.entry.first_seq)
    for stop in range(start + STEP_EXTENTS, len(copies)):
        seq = copies[stop].entry.first_seq
        at = index.find(seq)
        begin = min(seq, index.entry(at)[0]) if at < len(index) else seq
        if begin > copies[stop - 1].entry.last_seq:
            return copies[start:stop], begin
    return copies[start:], last_seq + 1


def _count_all(room: LiveRoom, topics: list[Topic]) -> Generator[int, None, None]:
    for topic in topics:
        yield from room.count(topic)


def _find_all(
    found: dict[int, MergedTopic], topics: list[Topic], is_merged: Callable[[Locator], bool]
) -> Generator[int, None, None]:
    """Find the topics of which entries are merged."""
    for topic in topics:
        merged = yield from _merged_topic(topic, is_merged)
        if merged is not None:
            found[topic.id] = merged


def _merged_topic(
    topic: Topic, is_merged: Callable[[Locator], bool]
) -> Generator[int, None, MergedTopic | None]:
    """The topic, if one of its entries is merged. It may change between two steps."""
    first_seq = last_seq = seq = 0
    index = topic.index
    while True:
        at = index.find(seq)
        stop = min(at + STEP_ENTRIES, index.find(topic.sealed_seq + 1))
        if at >= stop:
            break
        for number, locator in enumerate(index.locators(at, stop), at):
            if is_merged(locator):
                first, count, _, _ = index.entry(number)
                first_seq, last_seq = first_seq or first, first + count - 1
        first, count, _, _ = index.entry(stop - 1)
        seq = first + count
        yield stop - at
    yield 1
    return MergedTopic(topic, first_seq, last_seq) if last_seq else None


def _copies(
    segment: Segment, mapped: MappedSegment
) -> Generator[int, None, dict[int, list[_Copy]]]:
    """What was written, by topic. All that an install reads is looked at here. Raises OSError or
    `Damaged`.
    """
    found: defaultdict[int, list[_Copy]] = defaultdict(list)
    for extent, entry in enumerate(segment.entries()):
        deleted, view, size = bytes(mapped.flags(extent)), mapped.view(extent), entry.blob_bytes
        if 1 in deleted:
            size = yield from _live_bytes(view, deleted)
        locator = in_extent(segment.number, extent)
        at = IndexEntry(entry.first_seq, entry.record_count, locator, size, entry.first_ts)
        found[entry.topic_id].append(_Copy(at, extent, deleted))
        yield 1
    return found


def _live_bytes(view: ExtentView, deleted: bytes) -> Generator[int, None, int]:
    """Bytes of the records that are not deleted."""
    size = 0
    for start in range(0, view.count, STEP_RECORDS):
        runs = live_runs(deleted, start, min(start + STEP_RECORDS, view.count))
        size += sum(view.size(*run) for run in runs)
        yield STEP_ENTRIES
    return size


def _late_runs(now: bytearray, before: bytes) -> Iterator[IndexRun]:
    """Runs of records that are flagged now and were not before."""
    changed = int.from_bytes(now) ^ int.from_bytes(before)
    for run in _LATE.finditer(changed.to_bytes(len(now))):
        yield run.span()
