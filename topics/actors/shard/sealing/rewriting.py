"""Rewriting: moves records from a log file, or from segments, into one new segment.

    find       topics with records in the sources                            (``sources.py``)
    build      write the records by topic to a temporary file, sync it, read it back
    install    add the new extents to the index, topic by topic, part by part
    end        free data that is no longer in the index                      (``reclaim.py``)

Each phase runs in the shard's loop in steps of about a millisecond. Only file calls run in a
thread. Errors can occur only before the install; in that case the new file is removed. When the
install begins, the new segment and its sources are already mapped, so the install opens no file. No
checkpoint is written at the same time.

After a crash before the next checkpoint, startup uses the log file or the old segments, to which
all checkpoints on disk refer, and replays the later deletes from the log. If records are deleted
before the install, the install flags them in the new segment. Records that are deleted later are
flagged as in any segment.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from itertools import chain, starmap
from typing import Final

import structlog
import trio

from topics.actors.shard.group_commit import GroupCommit
from topics.actors.shard.sealing.reclaim import Reclaim
from topics.actors.shard.sealing.sources import (
    STEP_ENTRIES,
    LogFile,
    Segments,
    Span,
    current_flags,
)
from topics.engine.locators import in_extent
from topics.engine.record_index import IndexEntry
from topics.engine.replacing import parts, replace_entries
from topics.engine.topic import Topic
from topics.formats.buffers import Buffer
from topics.formats.disk.segment_build import build
from topics.formats.ranges import IndexRun
from topics.storage.recovery.shard_recovery import RecoveredShard
from topics.storage.segments.maps import MappedSegment
from topics.storage.segments.segment_file import Segment

WRITE_BYTES: Final = 1 << 20  # minimum number of bytes per write call, except for the last one
_LATE: Final = re.compile(rb"\x01+")
log = structlog.get_logger()

Flags = dict[tuple[int, int], bytearray]
"""Delete flags of the extents that contain deleted records, by topic id and first seq."""

Pause = Callable[[float], Awaitable[None]]
"""Lets other tasks run. The argument is the time at which the last step began."""


class Rewriting:
    """Writes segments, one at a time."""

    def __init__(
        self, shard: RecoveredShard, commits: GroupCommit, reclaim: Reclaim, pause: Pause
    ) -> None:
        self._engine, self._segments = shard.engine, shard.segments
        self._commits, self._store = commits, commits.store
        self._reclaim, self._pause = reclaim, pause
        # The running install, or None. `finish_now` completes it when the shard stops, because the
        # last checkpoint needs a consistent index.
        self._installing: Iterator[None] | None = None
        # Numbers are never reused. This includes the numbers of segments to which only an older
        # checkpoint refers.
        self._next_number = 1 + max(
            (number for kept in shard.kept for number in kept.segments), default=0
        )
        # Since the process started: number of merged segments, and bytes of the segments that the
        # merges have written.
        self.merged = self.merged_bytes = 0

    async def find(self, sources: LogFile | Segments) -> None:
        """Find the topics with records in the sources.

        This includes topics whose deletion is pending, because it may be undone.
        """
        await self.in_steps(
            sources.find([*self._engine.by_id.values(), *self._commits.deleting_topics()])
        )

    async def in_steps(self, steps: Iterator[int]) -> None:
        """Run the steps, with pauses. Each step yields the number of entries it has read."""
        scanned, step_began = 0, time.monotonic()
        for count in steps:
            scanned += count
            if scanned >= STEP_ENTRIES:
                await self._pause(step_began)
                scanned, step_began = 0, time.monotonic()

    async def move(self, sources: LogFile | Segments) -> None:
        """Write a segment, and replace the source entries in the index by its extents.

        If this raises OSError or `Damaged`, the state is unchanged.
        """
        # ``written`` keeps the delete flags as of the build. `_flag_late_deletes` compares them
        # later.
        began, written = time.monotonic(), Flags()
        segment = await self._build(sources, written)
        try:
            # Map the new segment and read its table before the index changes. Both may fail.
            mapped = await trio.to_thread.run_sync(MappedSegment, segment)
            extents = defaultdict[int, list[IndexEntry]](list)
            await self.in_steps(_by_topic(segment, extents))
        except BaseException:
            segment.path.unlink(missing_ok=True)
            raise
        # From here on no file is opened, so the install cannot fail.
        # The maps are pinned, so that a limit on open maps cannot close them during the install.
        self._segments.maps.pin({**sources.maps, segment.number: mapped})
        self._installing = self._install(sources, segment, extents, written)
        for _ in self._installing:
            await trio.lowlevel.checkpoint()
        log.info(
            "segment sealed" if isinstance(sources, LogFile) else "segments merged",
            segment=segment.number,
            extents=segment.trailer.entry_count,
            records=segment.trailer.record_count,
            size_bytes=segment.size,
            duration_s=round(time.monotonic() - began, 3),
        )

    async def _build(self, sources: LogFile | Segments, written: Flags) -> Segment:
        """Write the complete segment and sync it. An error leaves no file.

        ``written`` collects its delete flags.
        """
        # A number is used up even if the build fails, so that no leftover file can be mistaken for
        # a later segment.
        number, self._next_number = self._next_number, self._next_number + 1
        writer = await trio.to_thread.run_sync(
            self._segments.begin, number, sources.base, sources.end
        )

        # Called by `build` for each extent. It returns the current flags. The install adds later
        # deletes.
        def delete_flags(topic_id: int, first_seq: int, count: int) -> bytearray:
            topic = sources.spans[topic_id].topic
            flags = current_flags(self._store, topic, first_seq, count)
            if 1 in flags:
                written[topic_id, first_seq] = flags
            return flags

        try:
            chunks: list[Buffer] = []
            size, step_began = 0, time.monotonic()
            # Collect chunks until there are enough bytes for one call in a thread.
            for chunk in build(writer.header, sources.sources(), delete_flags):
                chunks.append(chunk)
                size += len(chunk)
                if size >= WRITE_BYTES:
                    await trio.to_thread.run_sync(writer.write, chunks)
                    chunks, size = [], 0
                else:
                    # Between two writes, let other tasks run after each chunk.
                    await self._pause(step_began)
                step_began = time.monotonic()
            await trio.to_thread.run_sync(writer.write, chunks)
            return await trio.to_thread.run_sync(writer.finish)
        except BaseException:
            writer.abandon()
            raise

    # Installing

    @property
    def is_installing(self) -> bool:
        """Whether some topics may use the new extents while others still use the replaced ones."""
        return self._installing is not None

    def finish_now(self) -> None:
        """Complete a running install in one step, because the process stops."""
        for _ in self._installing or ():
            pass

    def _install(
        self,
        sources: LogFile | Segments,
        segment: Segment,
        extents: dict[int, list[IndexEntry]],
        written: Flags,
    ) -> Iterator[None]:
        # Register the segment. It is deleted when the index contains none of its extents.
        self._reclaim.add_segment(segment.number)
        self._segments.add(segment)
        for span in sources.spans.values():
            # Install one topic after another. Readers may run in between and find some topics at
            # the old location and some at the new location. Both contain the same records.
            yield from self._install_topic(span, segment, extents.get(span.topic.id, []), written)
        if isinstance(sources, LogFile):
            self._reclaim.seal_up_to(sources.end)
        else:
            # If the index still referred to an old extent, deleting its segment would lose records.
            assert self._reclaim.are_unused(sources.numbers), "the index refers to no old extent"
            self.merged += len(sources.numbers)
            self.merged_bytes += segment.size
        self._segments.maps.pin({})
        self._installing = None

    def _install_topic(
        self, span: Span, segment: Segment, extents: list[IndexEntry], written: Flags
    ) -> Iterator[None]:
        topic, base = span.topic, segment.header.base
        # Replace some entries of the topic in each step. The index is consistent after each step.
        for part, first_seq, end_seq in parts(topic, extents, span.first_seq, span.last_seq):
            # Records may have been removed since the segment was written. If this changes the size
            # of the topic, update the quota.
            before = topic.bytes
            for extent in part:
                self._flag_late_deletes(topic, extent, written.get((topic.id, extent.first_seq)))
            unused = replace_entries(topic, part, first_seq, end_seq, self._store)
            if topic.bytes != before:
                self._engine.recharge(topic)
            topic.begin_tags(base, end_seq)  # below ``end_seq``, tags are read from the extents
            # Count the used extents, so that the segment is deleted when the last one is
            # released.
            self._reclaim.add_extents(segment.number, len(part) - len(unused), unused)
            yield
        # The segment has the tags now.
        tags = topic.drop_tags(base)
        while tags is not None and tags.free_step():
            yield  # freeing a million small objects in one step would delay appends

    def _flag_late_deletes(
        self, topic: Topic, extent: IndexEntry, written: bytearray | None
    ) -> None:
        """Set the delete flags of records that were deleted after the segment was written."""
        now = current_flags(self._store, topic, extent.first_seq, extent.record_count)
        # Flags are never cleared, so equal counts mean equal flags.
        if now.count(1) != (0 if written is None else written.count(1)):
            late = chain.from_iterable(starmap(range, _late_runs(now, written or b"")))
            self._segments.flag_deleted(extent.locator, late, self._store.committed_to)


def _by_topic(segment: Segment, found: defaultdict[int, list[IndexEntry]]) -> Iterator[int]:
    """Collect the extents of the segment by topic. Raises OSError or `Damaged`."""
    for number, extent in enumerate(segment.entries()):
        locator, size = in_extent(segment.number, number), extent.blob_bytes
        found[extent.topic_id].append(
            IndexEntry(extent.first_seq, extent.record_count, locator, size, extent.first_ts)
        )
        yield 1


def _late_runs(now: bytearray, before: Buffer) -> Iterator[IndexRun]:
    """Yield the runs of records that are flagged in ``now`` but not in ``before``."""
    changed = int.from_bytes(now) ^ int.from_bytes(before)
    for run in _LATE.finditer(changed.to_bytes(len(now))):
        yield run.span()
