"""Whole log files become segments, checkpoints follow, and what neither needs any more goes
(decision 0009).

    file whole and committed -> check -> build, write, sync -> install in the index
        -> checkpoint -> free what the older checkpoint can spare

All of it runs in the shard's loop, a millisecond at a time; only file calls run in a thread. A run
that fails leaves everything as it was and is begun anew; the log grows meanwhile. A log that is
broken ends it all: files are found by name, and those names may be another's.
"""

from __future__ import annotations

import contextlib
import errno
import sys
import time
from collections import deque
from collections.abc import Iterator
from functools import partial
from itertools import groupby, islice, starmap
from pathlib import Path
from typing import NamedTuple

import structlog
import trio

from topics.actors.shard.commits import Commits
from topics.actors.shard.sealing_check import SealingCheck
from topics.engine.changes.floor import FloorMoved
from topics.engine.locators import Locator, is_extent
from topics.engine.losses import lose_damaged
from topics.engine.record_index import IndexEntry
from topics.engine.sealed import seal
from topics.engine.snapshot import keys_to_keep, snapshot_shard, snapshot_topic, topics_to_keep
from topics.engine.tags import TagIndex
from topics.engine.topic import Topic
from topics.formats.buffers import Buffer
from topics.formats.disk.records import RecordsView
from topics.formats.disk.segment import ExtentEntry, SegmentHeader
from topics.formats.disk.segment_build import Piece, Source, build
from topics.storage import checkpoints
from topics.storage.checkpoints import Kept
from topics.storage.disk import Damaged, keep_aside
from topics.storage.recovery import Shard
from topics.storage.segments.store import Segment, split_locator
from topics.storage.wal.file import WalFile

LOOK_S = 0.1  # how often we look whether a file is whole
AGAIN_S = 5.0  # after an error, and between checkpoints that only free room
WRITE_BYTES = 1 << 20  # handed to the thread at once
REST, REST_MAX_S = (
    6.0,
    0.010,
)  # a step of sealing is followed by a rest so many times as long, while at most BEHIND files wait; then by
BACKLOG = 8  # less with each, and when so many wait, others only come in between
# Meanwhile the log's threads ask for the interpreter sooner. Each call of the loop that lets go of
# it for a moment begins their wait anew: with the 0.5 ms that are best otherwise, a loop that is
# always busy keeps a finished write waiting for 50 ms.
SWITCH_S = 0.0001
BUSY_BYTES = (
    512 << 10
)  # a log that has grown so much since the last look is busy: what comes in a burst is sealed after it,
BEHIND = 2  # unless so many files wait
AT_ONCE = 2  # after so many files, a checkpoint lets go of others
KEYS_AT_ONCE = 512
TOPICS_AT_ONCE = 64  # between two looks at other work
log = structlog.get_logger()


class Freed(NamedTuple):
    """What the index named no more when a checkpoint was made; it may go when no older checkpoint
    stands.
    """

    extents: list[int]
    blobs: list[Path]


class Sealing:
    """The one task of a shard that moves records from its log into segments, and the only writer of
    checkpoints.
    """

    def __init__(self, shard: Shard, commits: Commits) -> None:
        self.engine, self.wal, self.segments = shard.engine, shard.wal, shard.segments
        self.commits, self._shard = commits, shard
        self.replay_from = shard.kept[-1].replay_from if shard.kept else 0
        self._seen = self.wal.position  # at the last look
        self.sealed = self.written = 0  # segments and checkpoints since the start of the process
        self._kept = deque(shard.kept, maxlen=checkpoints.KEEP)
        self._next_number = 1 + max(
            (number for kept in shard.kept for number in kept.segments), default=0
        )
        self._written_at = time.monotonic()
        used = self._used_extents()
        # Extents that the index names, by segment; of all segments that are there, also for an
        # older checkpoint alone.
        self._live = {number: 0 for kept in shard.kept for number in kept.segments} | {
            number: len(used[number]) for number in used
        }
        # Extents that went since the last checkpoint; those of an earlier life, too, whose room was
        # not given back then.
        self._released = [
            locator
            for number in used
            if used[number]
            for locator in self.segments.spent(number, used[number])
        ]
        self._finished: tuple[Segment, dict[int, Topic]] | None = (
            None  # written, and not installed in all these topics
        )
        self._detached: list[WalFile] = []  # log files that nobody needs
        self._absorbed = list(shard.absorbed)  # blobs that a segment holds since then
        self._spare: deque[Freed] = deque()  # by checkpoint, the newest last
        commits.on_release = self._release

    def _used_extents(self) -> dict[int, set[int]]:
        used: dict[int, set[int]] = {number: set() for number in self.segments.segments}
        for topic in self.engine.by_id.values():
            for locator in topic.index.locators():
                if is_extent(locator):
                    number, extent = split_locator(locator)
                    used[number].add(extent)
        return used

    # The task

    async def run(self) -> None:
        """Until cancelled, or the log is broken."""
        while self.wal.failed is None:
            pause = LOOK_S
            try:
                await self._round()
            except (OSError, Damaged) as error:
                log.warning("sealing failed", error=str(error), again_s=AGAIN_S)
                pause = AGAIN_S
            await trio.sleep(pause)

    async def _round(self) -> None:
        sealed, failure = 0, None
        may_wait = self._log_is_busy() and self.wal.whole_since(self.replay_from) < BEHIND
        if self.segments.marks_due(self.wal.synced):
            with contextlib.suppress(OSError):  # the next checkpoint will say so
                await trio.to_thread.run_sync(self.segments.write_marks, self.wal.synced)
        try:
            for base, end in [] if may_wait else self.wal.whole_files():
                if base < self.replay_from:
                    continue
                if self.commits.reached < end or self.wal.synced < end:
                    break
                with _log_first():
                    await self._seal(base, end)
                    sealed += 1
                    if sealed == AT_ONCE:
                        await self.checkpoint()
                        sealed = 0
        except OSError as error:
            failure = error  # on a full disk, a checkpoint may free the room that a segment wants
        if sealed or (self._wasteful and time.monotonic() - self._written_at > AGAIN_S):
            with _log_first():
                await self.checkpoint()
        if failure is not None:
            raise failure

    def _log_is_busy(self) -> bool:
        before, self._seen = self._seen, self.wal.position
        return self._seen - before >= BUSY_BYTES

    @property
    def _wasteful(self) -> bool:
        """Another checkpoint would free room."""
        spare = any(freed.extents or freed.blobs for freed in self._spare)
        due = self._released or self._absorbed or spare or self._unused or self._detached
        return bool(due or self.wal.oldest < self.replay_from)

    @property
    def _coming(self) -> int | None:
        """The segment whose install was interrupted: the index names it in some topics."""
        return self._finished[0].number if self._finished else None

    @property
    def _named(self) -> list[int]:
        """Segments that a checkpoint names. Not one that is coming: its flags will tell what goes
        later, and the log has all of it.
        """
        return sorted(
            number for number, count in self._live.items() if count and number != self._coming
        )

    @property
    def _unused(self) -> list[int]:
        """Segments of which the index names nothing, and never will."""
        return [
            number for number, count in self._live.items() if not count and number != self._coming
        ]

    # Sealing

    async def _seal(self, base: int, end: int) -> None:
        began = time.monotonic()
        if self._finished is None:
            touched = await self._touched(base, end)
            if not touched:
                # A full disk has no room for a segment in which nothing lives.
                self._sealed_up_to(end)
                return
            await self._check(touched, base, end)
            self._finished = await self._build(base, end, touched), touched
            self._next_number += 1
        segment, touched = self._finished
        await self._install(segment, touched)
        for topic in touched.values():
            await _let_go(topic.drop_tags(base))  # of records that went before they could be sealed
        self._finished = None
        self._sealed_up_to(end)
        trailer = segment.trailer
        seconds = round(time.monotonic() - began, 3)
        log.info(
            "sealed",
            segment=segment.number,
            extents=trailer.entry_count,
            records=trailer.record_count,
            seconds=seconds,
        )

    def _sealed_up_to(self, end: int) -> None:
        self._absorbed += self.wal.blobs.absorb(end)
        self.replay_from = end
        self.sealed += 1

    async def _touched(self, base: int, end: int) -> dict[int, Topic]:
        """Topics with records in this part of the log, by id. One that is going is sealed, too: its
        end may be undone.
        """
        found: dict[int, Topic] = {}
        topics = iter([*self.engine.by_id.values(), *self.commits.leaving()])
        while some := list(islice(topics, TOPICS_AT_ONCE)):
            found |= {
                topic.id: topic
                for topic in some
                if next(_writes(topic, base, end), None) is not None
            }
            await trio.lowlevel.checkpoint()
        return found

    async def _check(self, touched: dict[int, Topic], base: int, end: int) -> None:
        """Take out of the index what is damaged in the file, and keep the file.

        So what gets a new checksum is what was written.
        """
        check = SealingCheck(
            self.wal.file(base),
            end,
            self.wal.blobs,
            touched,
            lambda topic: _writes(topic, base, end),
        )
        step_began = time.monotonic()
        for _ in check.steps():
            await self._rest(time.monotonic() - step_began)
            step_began = time.monotonic()
        for damage in check.damage:
            self.commits.tell(damage)
            if damage.path.exists():
                await trio.to_thread.run_sync(keep_aside, damage.path)
        for topic, entry in check.writes:
            index = topic.index.find(entry.first_seq)
            if index < len(topic.index) and topic.index.entry(index)[2] == entry.locator:
                lose_damaged(topic, index, self.commits)
                self.commits.on_commit(
                    FloorMoved(topic, [], sync=False)
                )  # a page that was read ahead may show it

    async def _build(self, base: int, end: int, touched: dict[int, Topic]) -> Segment:
        """Write the segment; when that fails, nothing is left of it."""
        number = self._next_number
        writer = await trio.to_thread.run_sync(self.segments.begin, number, base, end)
        try:
            pieces: list[Buffer] = []
            size = 0
            header = SegmentHeader(self.segments.shard, number, base, end)
            dead = partial(self._flags, touched)
            step_began = time.monotonic()
            for piece in build(header, self._sources(touched, base, end), dead):
                pieces.append(piece)
                size += len(piece)
                if size >= WRITE_BYTES:
                    await trio.to_thread.run_sync(writer.write, pieces)
                    pieces, size = [], 0
                else:
                    await self._rest(time.monotonic() - step_began)
                step_began = time.monotonic()
            await trio.to_thread.run_sync(writer.write, pieces)
            return await trio.to_thread.run_sync(writer.finish)
        except BaseException:
            writer.abandon()
            raise

    async def _rest(self, worked_s: float) -> None:
        """Let others run."""
        rest_s = rest_after(worked_s, self.wal.whole_since(self.replay_from))
        if rest_s:
            await trio.sleep(rest_s)
        else:
            await trio.lowlevel.checkpoint()

    def _sources(self, touched: dict[int, Topic], base: int, end: int) -> Iterator[Source]:
        """Stretches of contiguous seqs. Records may go, and whole topics, while the segment is
        built.
        """
        for topic in touched.values():
            seq = topic.sealed_seq + 1
            while (entry := next(_writes(topic, base, end, seq), None)) is not None:
                first = seq = max(entry.first_seq, topic.start_seq, seq)
                stretch = _Stretch(self.commits, topic, base, end, first)
                yield Source(topic.id, first, stretch)
                seq = stretch.seq

    def _flags(
        self, touched: dict[int, Topic], topic_id: int, first_seq: int, count: int
    ) -> bytearray:
        """Delete flags of these seqs as they are now; what went in another way is deleted, too."""
        flags, topic, end = bytearray(count), touched[topic_id], first_seq + count
        for seq, length, locator in topic.index.not_whole(first_seq, end):
            dead = b"\1" * length if locator is None else self.commits.delete_flags(locator)
            start, stop = max(seq, first_seq), min(seq + length, end)
            if dead is not None:
                flags[start - first_seq : stop - first_seq] = dead[start - seq : stop - seq]
        below = min(max(topic.start_seq - first_seq, 0), count)
        flags[:below] = b"\1" * below
        return flags

    async def _install(self, segment: Segment, touched: dict[int, Topic]) -> None:
        """Let the index name the extents instead of the writes, topic after topic; each leaves
        ``touched``. An error may come between.
        """
        self.segments.add(segment)
        self._live.setdefault(segment.number, 0)
        entries = [*self.segments.entries(segment.number)]
        for topic_id, group in groupby(entries, key=lambda found: found[1].topic_id):
            topic = touched.get(topic_id)
            if topic is not None:
                tags = self._install_topic(topic, [*starmap(_index_entry, group)], segment)
                del touched[topic_id]
                await trio.lowlevel.checkpoint()
                await _let_go(tags)

    def _install_topic(
        self, topic: Topic, extents: list[IndexEntry], segment: Segment
    ) -> TagIndex | None:
        """The topic's tags of this part of the log are the result: to be let go."""
        for entry in extents:
            self._mark_what_went(topic, entry)
        unused = set(seal(topic, extents, self.commits))
        tags = topic.drop_tags(segment.header.base)  # at once: the extents are searched from now on
        self._live[segment.number] += len(extents) - len(unused)
        self._released += unused
        return tags

    def _mark_what_went(self, topic: Topic, entry: IndexEntry) -> None:
        """Flags that were set since they were written to the segment."""
        now = self._flags({topic.id: topic}, topic.id, entry.first_seq, entry.record_count)
        written = self.segments.dead(entry.locator)
        if now.count(1) != (0 if written is None else bytes(written).count(1)):
            late = [
                index for index, flag in enumerate(now) if flag and not (written and written[index])
            ]
            self.segments.mark(entry.locator, late, self.commits.committed_to)

    def _release(self, locator: int) -> None:
        """The index names this extent no more."""
        self._live[split_locator(locator)[0]] -= 1
        self._released.append(locator)

    # Checkpoints

    async def checkpoint(self) -> None:
        """Write one, then free what neither it nor the one before it needs. Raises OSError."""
        replay_from, losses = self.replay_from, self.commits.losses
        numbers = self._named
        items = [self._head_item(numbers)]
        freed, self._released, self._absorbed = Freed(self._released, self._absorbed), [], []
        try:
            for count, topic in enumerate(topics_to_keep(self.engine.table), 1):
                items.append(self._item(topic))
                if count % TOPICS_AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
                for keys in self._lone_keys(topic):
                    items += keys
                    await trio.lowlevel.checkpoint()
            position = await self._synced(losses)
            await trio.to_thread.run_sync(self.segments.sync, position)
            await trio.to_thread.run_sync(
                checkpoints.write, self._shard.checkpoint_folder, position, replay_from, items
            )
        except BaseException:
            self._released, self._absorbed = (
                freed.extents + self._released,
                freed.blobs + self._absorbed,
            )
            raise
        self.written += 1
        self._written_at = time.monotonic()
        self._kept.append(Kept(replay_from, frozenset(numbers)))
        self._spare.append(freed)
        await self._free()

    def write_last(self) -> None:
        """The checkpoint of an orderly stop, when the log is closed. Raises OSError."""
        numbers = self._named
        items = [self._head_item(numbers)]
        for topic in topics_to_keep(self.engine.table):
            items.append(self._item(topic))
            for keys in self._lone_keys(topic):
                items += keys
        self.segments.sync(self.wal.synced)
        checkpoints.write(
            self._shard.checkpoint_folder, self.wal.position, self.replay_from, items, clean=True
        )

    def _head_item(self, numbers: list[int]) -> bytes:
        return checkpoints.encode_item(
            {**snapshot_shard(self.engine.table), "segments": numbers, "boot": self._shard.boot}
        )

    def _item(self, topic: Topic) -> bytes:
        return checkpoints.encode_item(snapshot_topic(topic, self.commits.position_of(topic)))

    def _lone_keys(self, topic: Topic) -> Iterator[list[bytes]]:
        """Items with the keys that outlive their records; a step looks at some."""
        found = keys_to_keep(topic, self.commits.now())
        while some := list(islice(found, KEYS_AT_ONCE)):
            keys = [key for key in some if key is not None]
            yield [checkpoints.encode_item({"id": topic.id, "keys": keys})] if keys else []

    async def _synced(self, losses: int) -> int:
        """The log's position now, once it is synced up to there and all that was under way is more
        than a wish.
        """
        position = self.wal.position
        self.wal.flush(sync=True)
        while self.wal.synced < position and not self.wal.failed and self.commits.losses == losses:  # noqa: ASYNC110 - no event tells
            await trio.sleep(0.002)
        if (
            self.wal.failed or self.commits.losses != losses
        ):  # the checkpoint may tell of topics that were never made, or lack one
            raise self.wal.failed or OSError(
                errno.ENOSPC, "changes were undone while a checkpoint was made"
            )
        return position

    async def _free(self) -> None:
        """What both checkpoints that stand can spare. An error leaves the rest for the next time."""
        if len(self._kept) < checkpoints.KEEP:
            return
        older = self._kept[0]
        named = older.segments | self._kept[-1].segments
        for number in [number for number in self._unused if number not in named]:
            await trio.to_thread.run_sync(self.segments.unlink, number)
            del self._live[number]
        while len(self._spare) >= checkpoints.KEEP:
            freed = self._spare[0]
            extents = [
                locator for locator in freed.extents if self._live.get(split_locator(locator)[0])
            ]
            if extents:
                await trio.to_thread.run_sync(self.segments.punch, extents)
            for path in freed.blobs:
                await trio.to_thread.run_sync(_unlink, path)
            self._spare.popleft()
        self._detached += self.wal.detach(older.replay_from)
        while self._detached:
            await trio.to_thread.run_sync(self.wal.retire, self._detached[:1])
            del self._detached[0]


class _Stretch:
    """Pieces of a stretch of contiguous seqs, as long as it goes on; ``seq`` is the first that was
    not given.
    """

    def __init__(self, commits: Commits, topic: Topic, base: int, end: int, seq: int) -> None:
        self.seq = seq
        self._commits, self._topic, self._base, self._end = commits, topic, base, end

    def __iter__(self) -> Iterator[Piece]:
        for entry in _writes(self._topic, self._base, self._end, self.seq):
            start = self.seq - entry.first_seq
            if start < 0:
                return
            self.seq = entry.first_seq + entry.record_count
            view = self._commits.records(entry.locator)
            assert isinstance(view, RecordsView), "writes of the log are told by their frames"
            yield view, start, entry.record_count


def rest_after(worked_s: float, waiting: int) -> float:
    """How long a step is followed by nothing, in seconds, while so many files wait."""
    share = min((BACKLOG - waiting) / (BACKLOG - BEHIND), 1.0)
    return min(max(share, 0.0) * REST * worked_s, REST_MAX_S)


def _writes(topic: Topic, base: int, end: int, seq: int = 0) -> Iterator[IndexEntry]:
    """Writes of a part of the log that hold ``seq`` or what follows, and are in no segment yet."""
    return topic.index.entries_between(base, end, max(seq, topic.sealed_seq + 1))


async def _let_go(tags: TagIndex | None) -> None:
    """Freeing a million small objects at once would take longer than an append may wait."""
    while tags is not None and tags.free_some():
        await trio.lowlevel.checkpoint()


@contextlib.contextmanager
def _log_first() -> Iterator[None]:
    """The loop is busy, and its threads must not wait for that."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(min(SWITCH_S, usual))
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


def _index_entry(locator: int, extent: ExtentEntry) -> IndexEntry:
    return IndexEntry(
        extent.first_seq, extent.record_count, Locator(locator), extent.blob_bytes, extent.first_ts
    )


def _unlink(path: Path) -> None:
    path.unlink(missing_ok=True)
