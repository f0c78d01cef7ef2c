"""Sealing: turns full log files into segments, one file after the other (decision 0009).

    full log file, committed and synced
        -> check      damaged writes leave the index, and the file is kept (``checking.py``)
        -> build      its records by topic, written aside and synced (``contents.py``)
        -> install    the index names the extents instead of the writes
        -> checkpoint (``checkpointing.py``)
        -> reclaim    what neither checkpoint on disk needs (``reclaim.py``)
        -> merge      segments of which little lives (``merging.py``)

All of it runs in the shard's loop in steps of about a millisecond, with pauses between them
(``pacing.py``); only file calls run in a thread. A run that fails leaves everything as it was and
starts anew later; the log grows meanwhile. A broken log ends sealing: its files are found by name,
and the names may belong to other files.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from itertools import groupby, islice, starmap

import structlog
import trio

from topics.actors.shard.group_commit import GroupCommit
from topics.actors.shard.sealing import pacing
from topics.actors.shard.sealing.building import write_segment
from topics.actors.shard.sealing.checking import SealingCheck
from topics.actors.shard.sealing.checkpointing import Checkpointing
from topics.actors.shard.sealing.contents import Contents, current_flags, unsealed_writes
from topics.actors.shard.sealing.merging import Merging
from topics.actors.shard.sealing.reclaim import Reclaim
from topics.actors.shard.service import Service
from topics.engine.changes.floor import FloorMoved
from topics.engine.locators import Locator
from topics.engine.losses import lose_damaged
from topics.engine.record_index import IndexEntry
from topics.engine.sealed import parts, seal
from topics.engine.tags import TagIndex
from topics.engine.topic import Topic
from topics.formats.disk.segment import ExtentEntry, SegmentHeader
from topics.storage.disk import Damaged, keep_aside
from topics.storage.recovery.steps import Shard
from topics.storage.segments.file import Segment

TOPICS_PER_STEP = 64
FILES_PER_CHECKPOINT = 2
log = structlog.get_logger()


class Sealing(Service):
    """The one task of a shard that moves records from its log into segments."""

    def __init__(self, shard: Shard, commits: GroupCommit) -> None:
        self.engine, self.wal, self.segments = shard.engine, shard.wal, shard.segments
        self.commits, self.store, self._linked = commits, commits.store, shard.linked
        self.reclaim = Reclaim(shard)
        self.checkpoints = Checkpointing(shard, commits, self.reclaim)
        self.merging = Merging(shard, commits, self.reclaim, self._pause)
        self.sealed = 0  # log files since the start of the process
        self._burst = pacing.BurstDetector(self.wal.next_lsn)
        self._next_number = 1 + max(
            (number for kept in shard.kept for number in kept.segments), default=0
        )
        # A segment that is written, and the topics that do not name it yet.
        self._built: tuple[Segment, dict[int, Topic]] | None = None
        self.store.on_release = self.reclaim.release_extent

    # The task

    async def run(self) -> None:
        """Seal until cancelled, or until the log is broken."""
        while self.wal.failed is None:
            interval_s = pacing.ROUND_INTERVAL_S
            try:
                await self._round()
            except (OSError, Damaged) as error:
                interval_s = pacing.RETRY_INTERVAL_S
                log.warning("sealing failed", error=str(error), again_s=interval_s)
            await trio.sleep(interval_s)

    async def _round(self) -> None:
        """Write delete flags that are due, seal full log files, write a checkpoint if it helps,
        merge segments.
        """
        await self._release()
        self._burst.observe(self.wal.next_lsn)
        waits = self._burst.is_burst(self.backlog_files)
        if self.segments.has_due_flags(self.wal.synced_lsn):
            with contextlib.suppress(OSError):  # the next checkpoint reports it
                await trio.to_thread.run_sync(self.segments.write_due_flags, self.wal.synced_lsn)
        sealed, failure = 0, None
        try:
            for base, end in () if waits else self._ready_files():
                await self._seal(base, end)
                sealed += 1
                if sealed == FILES_PER_CHECKPOINT:
                    await self.checkpoint()
                    sealed = 0
        except OSError as error:
            failure = error  # on a full disk, a checkpoint may free the room that a segment needs
        if sealed or self._reclaim_is_due:
            await self.checkpoint()
        if failure is not None:
            raise failure
        self.merging.look_for_deletes()
        if self.merging.is_due and self._built is None and not waits:
            try:
                await self.merging.merge(self._take_number)
            except (OSError, Damaged) as error:  # sealing does not wait for it
                log.warning("merging failed", error=str(error))

    async def _release(self) -> None:
        """Free what went from memory and from the log, many records at once, step by step."""
        step_began = time.monotonic()
        while self.store.release_some():
            await self._pause(step_began)
            step_began = time.monotonic()

    async def checkpoint(self) -> None:
        """Write a checkpoint, then free what is not needed any more. Raises OSError."""
        assert not self.merging.is_installing, "all topics name the segments that it will name"
        await self.checkpoints.write()
        self.merging.is_due = True
        await self.reclaim.free()

    def write_last(self) -> None:
        """Write the checkpoint of an orderly stop, after the log is closed. Raises OSError."""
        self.merging.finish_now()
        self.checkpoints.write_last()

    def _take_number(self) -> int:
        """The number of a new segment."""
        self._next_number += 1
        return self._next_number - 1

    def _ready_files(self) -> Iterator[tuple[int, int]]:
        """``(base, end)`` of the log files that can be sealed, in order."""
        for base, end in self.wal.full_files():
            if base < self.reclaim.replay_from:
                continue
            if self.commits.reached < end or self.wal.synced_lsn < end:
                return
            yield base, end

    @property
    def backlog_files(self) -> int:
        """Full log files that are not sealed."""
        return self.wal.count_full_files(self.reclaim.replay_from)

    @property
    def _reclaim_is_due(self) -> bool:
        since_s = time.monotonic() - self.checkpoints.written_at
        return self.reclaim.has_garbage and since_s > pacing.RETRY_INTERVAL_S

    async def _pause(self, step_began: float) -> None:
        await pacing.pause(time.monotonic() - step_began, self.backlog_files)

    # One log file

    async def _seal(self, base: int, end: int) -> None:
        began = time.monotonic()
        if self._built is None:
            topics = await self._topics_with_writes(base, end)
            if not topics:
                # Nothing in the file lives: a full disk has no room for an empty segment.
                self._finish(end)
                return
            contents = Contents(self.store, topics, base, end)
            await self._check(contents)
            self._built = await self._build(contents), topics
            self._next_number += 1
        segment, topics = self._built
        await self._install(segment, topics)
        for topic in topics.values():
            await _free_tags(topic.drop_tags(base))  # of records that went before they were sealed
        self._built = None
        self.reclaim.end_install()
        self._finish(end)
        log.info(
            "segment sealed",
            segment=segment.number,
            extents=segment.trailer.entry_count,
            records=segment.trailer.record_count,
            seconds=round(time.monotonic() - began, 3),
        )

    def _finish(self, end: int) -> None:
        self.reclaim.seal_up_to(end)
        self.sealed += 1

    async def _topics_with_writes(self, base: int, end: int) -> dict[int, Topic]:
        """Topics with unsealed records in this part of the log, by id. A topic whose delete is not
        committed is one of them: its delete may be undone.
        """
        found: dict[int, Topic] = {}
        topics = iter([*self.engine.by_id.values(), *self.commits.leaving()])
        while some := list(islice(topics, TOPICS_PER_STEP)):
            found |= {
                topic.id: topic
                for topic in some
                if next(unsealed_writes(topic, base, end), None) is not None
            }
            await trio.lowlevel.checkpoint()
        return found

    async def _check(self, contents: Contents) -> None:
        """Take damaged writes out of the index, and keep their files for people.

        So damaged bytes never get a new checksum.
        """
        file = self.wal.file(contents.base)
        check = SealingCheck(
            *(file, contents.end, self.wal.blobs, self._linked),
            *(contents.topics, contents.writes),
        )
        step_began = time.monotonic()
        for _ in check.steps():
            await self._pause(step_began)
            step_began = time.monotonic()
        for damage in check.damage:
            self.store.report(damage)
            if damage.path.exists():
                await trio.to_thread.run_sync(keep_aside, damage.path)
        for topic, entry in check.writes:
            self._lose(topic, entry)

    def _lose(self, topic: Topic, entry: IndexEntry) -> None:
        """Report a damaged write as lost to its readers, if the index still names it."""
        index = topic.index.find(entry.first_seq)
        if index < len(topic.index) and topic.index.entry(index)[2] == entry.locator:
            lose_damaged(topic, index, self.store)
            self.commits.engine.recharge(topic)
            # A page that was read ahead may show it.
            self.commits.on_commit(FloorMoved(topic, [], sync=False))

    async def _build(self, contents: Contents) -> Segment:
        """Write the segment; an error leaves nothing of it."""
        number, base, end = self._next_number, contents.base, contents.end
        header = SegmentHeader(self.segments.shard, number, base, end)
        return await write_segment(
            self.segments, header, contents.sources(), contents.delete_flags, self._pause
        )

    # The index

    async def _install(self, segment: Segment, topics: dict[int, Topic]) -> None:
        """Let the index name the extents instead of the writes: topic after topic, part after part.

        Each topic that is done leaves ``topics``, so a later call continues after an error.
        """
        self.reclaim.begin_install(segment.number)
        self.segments.add(segment)
        entries, base = self.segments.entries(segment.number), segment.header.base
        for topic_id, group in groupby(entries, key=lambda found: found[1].topic_id):
            topic = topics.get(topic_id)
            if topic is not None:
                for extents in parts(topic, starmap(_index_entry, group)):
                    self._install_extents(topic, extents, segment)
                    await trio.lowlevel.checkpoint()
                del topics[topic_id]
                await _free_tags(topic.drop_tags(base))

    def _install_extents(self, topic: Topic, extents: list[IndexEntry], segment: Segment) -> None:
        for entry in extents:
            self._flag_late_deletes(topic, entry)
        unused = set(seal(topic, extents, self.store))
        # From here on the extents are searched for tags.
        topic.begin_tags(segment.header.base, extents[-1].last_seq + 1)
        self.reclaim.add_extents(segment.number, len(extents) - len(unused), unused)

    def _flag_late_deletes(self, topic: Topic, entry: IndexEntry) -> None:
        """Set the delete flags of what went after the segment was written."""
        now = current_flags(self.store, topic, entry.first_seq, entry.record_count)
        written = self.segments.delete_flags(entry.locator)
        if now.count(1) != (0 if written is None else bytes(written).count(1)):
            late = [
                index for index, flag in enumerate(now) if flag and not (written and written[index])
            ]
            self.segments.flag_deleted(entry.locator, late, self.store.committed_to)


async def _free_tags(tags: TagIndex | None) -> None:
    """Free the tags in steps: a million small objects at once would hold up appends."""
    while tags is not None and tags.free_some():
        await trio.lowlevel.checkpoint()


def _index_entry(locator: Locator, extent: ExtentEntry) -> IndexEntry:
    return IndexEntry(
        extent.first_seq, extent.record_count, locator, extent.blob_bytes, extent.first_ts
    )
