"""Changes between decision and answer: they wait here until the log is far enough, and are
committed in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain, starmap
from pathlib import Path

import structlog
import trio

from topics.engine.changes.append import Append
from topics.engine.changes.change import Change
from topics.engine.changes.delete_topic import DeleteTopic
from topics.engine.changes.floor import FloorMoved
from topics.engine.changes.reservation import Reservation
from topics.engine.locators import (
    FIRST_EXTENT,
    FIRST_MEMORY,
    Locator,
    in_memory,
    is_extent,
    is_in_memory,
)
from topics.engine.now import Now
from topics.engine.record_index import RecordIndex
from topics.engine.shard import ShardEngine
from topics.engine.topic import Topic
from topics.formats.buffers import Buffer
from topics.formats.disk.frames import FrameKind
from topics.formats.disk.records import RecordFlags, RecordsView, View
from topics.formats.ranges import IndexRun
from topics.storage.disk import Damaged
from topics.storage.segments.prefetch import Prefetch
from topics.storage.segments.store import SegmentStore
from topics.storage.wal.file import NoRoom
from topics.storage.wal.log import Wal
from topics.storage.wal.writer import Progress

EXTERNAL = int(RecordFlags.EXTERNAL)
AT_ONCE = Progress(0, 0, 0.0, 0.0)  # what waits for nothing has not been anywhere

log = structlog.get_logger()

Settle = Callable[[Progress | OSError], None]


class Waiting:
    """A change on its way; ``settle`` is called with the progress that made it durable, or with the
    error that lost it.
    """

    __slots__ = ("change", "end", "locator", "serial", "settle", "start")

    def __init__(
        self, change: Change, locator: int, start: int, end: int, serial: int, settle: Settle | None
    ) -> None:
        self.change, self.locator, self.start, self.end, self.serial, self.settle = (
            change,
            locator,
            start,
            end,
            serial,
            settle,
        )


class Commits:
    """The only way from a decided `Change` into the log and back to the engine; the engine's store."""

    def __init__(
        self, engine: ShardEngine, wal: Wal, segments: SegmentStore, clock: Callable[[], Now]
    ) -> None:
        self.engine, self.wal, self.segments, self.now = engine, wal, segments, clock
        engine.store = self
        self._prefetch = Prefetch(segments)
        self._until_written: deque[Waiting] = deque()
        self._until_synced: deque[Waiting] = deque()
        self._serial = 0
        self.committed_to = wal.position  # no frame of what is committed ends behind it
        self._resident: dict[int, RecordsView] = {}
        self._floor_told = (
            False  # the log was given floors that come of commits: they go off without a batch
        )
        self._sync_wanted = False
        self.losses = 0  # how often all that waited was undone
        self._told: set[tuple[Path, int]] = set()  # damage that the log of the process knows of
        self._idle: dict[int, trio.Event] = {}
        segments.on_damage = self.tell
        for damage in segments.damage:
            self.tell(damage)
        self.on_commit: Callable[[Change], None] = lambda _: None
        self.on_release: Callable[[int], None] = lambda _: (
            None
        )  # is told of extents that no topic names any more

    def __len__(self) -> int:
        return len(self._until_written) + len(self._until_synced)

    @property
    def oldest(self) -> tuple[int, ...]:
        """What waits longest for its write and its sync: while it is the same, the log stands."""
        return tuple(
            queue[0].serial for queue in (self._until_written, self._until_synced) if queue
        )

    @property
    def reached(self) -> int:
        """Every change with a frame before this position of the log is committed."""
        return min(
            (queue[0].start for queue in (self._until_written, self._until_synced) if queue),
            default=self.wal.position,
        )

    def leaving(self) -> list[Topic]:
        """Topics whose end is decided and not committed: it may yet be undone."""
        return [
            each.change.topic
            for each in chain(self._until_written, self._until_synced)
            if isinstance(each.change, DeleteTopic)
        ]

    def position_of(self, topic: Topic) -> int:
        """Every change of the topic with a frame before this position is committed, and none from
        there on.
        """
        if not topic.pending:
            return self.wal.position
        waiting = (
            each
            for each in chain(self._until_written, self._until_synced)
            if each.change.topic is topic
        )
        # Reservations and floors may overtake others and be overtaken: replaying them twice does no
        # harm.
        return min(
            (
                each.start
                for each in waiting
                if not isinstance(each.change, FloorMoved | Reservation)
            ),
            default=self.wal.position,
        )

    def records(self, locator: int) -> View:
        """Records at a place that was given to `ShardEngine.commit`."""
        if locator >= FIRST_MEMORY:
            return self._resident[locator]
        if locator >= FIRST_EXTENT:
            return self.segments.records(locator)
        try:
            return self.wal.records(locator)
        except Damaged as damage:
            self.tell(damage)
            raise

    def delete_flags(self, locator: int) -> Buffer | None:
        """As `Store.delete_flags`."""
        return (
            self.segments.dead(locator)
            if is_extent(locator)
            else self.engine.delete_flags.of(locator)
        )

    def flag_deleted(self, locator: int, runs: Sequence[IndexRun]) -> None:
        """As `Store.flag_deleted`."""
        if is_extent(locator):
            self.segments.mark(
                locator, chain.from_iterable(starmap(range, runs)), self.committed_to
            )
        else:
            count = (
                self._resident[locator].count if is_in_memory(locator) else self.wal.count(locator)
            )
            self.engine.delete_flags.flag(locator, count, runs)

    def release(self, locators: Sequence[int]) -> None:
        """As `Store.release`."""
        self.engine.delete_flags.forget(locators)
        for locator in locators:
            if is_in_memory(locator):
                self._resident.pop(locator, None)
            elif is_extent(locator):
                self.on_release(locator)

    def expect(self, topic: Topic, seq: int) -> None:
        """Somebody reads on from ``seq``: what stands there in segments comes into memory
        meanwhile.
        """
        frames = topic.index
        index = frames.find(seq)
        locator = _sealed(frames, index)
        if locator is not None:
            self._prefetch.expect(
                locator, max(seq - frames.entry(index)[0], 0), _sealed(frames, index + 1)
            )

    def submit(
        self, change: Change, settle: Settle | None, resident: RecordsView | None = None
    ) -> None:
        """Put the change's frames into the group under way. `flush` sends the group off.

        ``resident``: records of an append whose class keeps them in memory, when the change does
        not carry them itself.
        """
        if (
            len(change.frames) > 1
        ):  # one of them without the others would come back after a restart, though the change was undone
            self.wal.hold_together(sum(frame.length for frame in change.frames))
        locator, start = 0, self.wal.position
        for frame in change.frames:
            at = self.wal.append(frame)
            if frame.kind is FrameKind.APPEND:
                locator = at
                if frame.flags & EXTERNAL:
                    self.wal.blobs.add(frame.topic_id, frame.first_seq, at)
        self._serial += 1
        if isinstance(change, Append) and (resident or change.resident):
            locator = self._keep(change, resident)
        waiting = Waiting(change, locator, start, self.wal.position, self._serial, settle)
        if change.sync:
            self._sync_wanted = True
            self._until_synced.append(waiting)
        elif change.frames or change.topic.pending > 1:
            self._until_written.append(waiting)
        else:
            self._commit(waiting, AT_ONCE, self.now())

    def _keep(self, change: Append, view: RecordsView | None) -> int:
        encoded = change.resident
        if encoded is not None:
            body = memoryview(b"".join(encoded.parts))
            view = RecordsView(encoded.flags, encoded.record_count, len(encoded.ext), body)
            change.resident = None
        assert view is not None, "an ephemeral append comes with its records"
        locator = in_memory(self._serial)
        self._resident[locator] = view
        return locator

    def _drop(self, topic: Topic) -> None:
        """The topic is gone: free what it kept in memory and in files of its own. Whoever still
        holds it finds it empty.
        """
        self.release(topic.index.locators())
        topic.index.drop(len(topic.index))
        for path in self.wal.blobs.forget(topic.id):
            path.unlink(missing_ok=True)

    async def settled(
        self, change: Change, resident: RecordsView | None = None
    ) -> Progress | OSError:
        """Submit one change, send it off and wait for its end."""
        if (
            self.wal.failed is not None
        ):  # it may have broken since the change was wanted, and would never tell of it
            self.engine.undo(change)
            return self.wal.failed
        done = trio.Event()
        results: list[Progress | OSError] = []

        def settle(result: Progress | OSError) -> None:
            results.append(result)
            done.set()

        self.submit(change, settle, resident)
        self.flush()
        await done.wait()
        return results[0]

    async def idle(self, topic: Topic) -> None:
        """Wait until no change of the topic is under way."""
        while topic.pending:
            await self._idle.setdefault(topic.id, trio.Event()).wait()

    def flush(self) -> None:
        """Send the group off. Once for each batch of messages, so that they share a write and a
        sync.

        What is written at once is committed and answered at once, too.
        """
        while (progress := self._send_group()) is not None:
            self._settle_up_to(self._until_written, progress.written, progress)
            if not self._floor_told:
                return
            self._floor_told = False

    def _send_group(self) -> Progress | None:
        sync, self._sync_wanted = self._sync_wanted, False
        return self.wal.flush(sync=sync)

    def advance(self) -> OSError | None:
        """Commit and answer what the log has reached; the error that made it stop, if it did."""
        for progress in self.wal.take_progress():
            if progress.error is not None:
                self._lose(progress.error)
                if not isinstance(progress.error, NoRoom):
                    return progress.error
                self.wal.resume(progress.written)
                continue
            self._settle_up_to(self._until_written, progress.written, progress)
            self._settle_up_to(self._until_synced, progress.synced, progress)
        if self._floor_told:
            self._floor_told = False
            self.flush()
        return None

    def _settle_up_to(self, queue: deque[Waiting], position: int, progress: Progress) -> None:
        if not queue:
            return
        now = self.now()
        while queue and queue[0].end <= position:
            self._commit(queue.popleft(), progress, now)

    def _commit(self, waiting: Waiting, progress: Progress, now: Now) -> None:
        change, locator = waiting.change, waiting.locator
        if change.frames:
            self.committed_to = max(self.committed_to, waiting.end)
        generation = (
            self.wal.generation(locator)
            if isinstance(change, Append) and change.tags and not is_in_memory(locator)
            else 0
        )
        try:
            self.engine.commit(change, Locator(locator), now, generation)
            if (
                change.topic.floor_due and not change.topic.deleted
            ):  # at once: a replay could not come to it by itself
                floor = self.engine.expire(change.topic, now)
                if floor is not None:
                    self.submit(floor, None)
                    self._floor_told = True
        except Damaged as damage:
            # The change itself is done; what it should have taken away cannot be read, and goes
            # when all around it has gone.
            self.tell(damage)
        if waiting.settle is not None:
            waiting.settle(progress)
        self._tell_idle(waiting.change.topic)
        self.on_commit(waiting.change)
        if isinstance(waiting.change, DeleteTopic):
            self._drop(waiting.change.topic)

    def tell(self, damage: Damaged) -> None:
        """Once for each place: whoever comes across it will do so again."""
        if (damage.path, damage.offset) not in self._told:
            self._told.add((damage.path, damage.offset))
            log.error(
                "data damaged", path=str(damage.path), offset=damage.offset, reason=damage.reason
            )

    def _lose(self, error: OSError) -> None:
        self.losses += 1
        lost = sorted(
            (*self._until_written, *self._until_synced),
            key=lambda waiting: waiting.serial,
            reverse=True,
        )
        self._until_written.clear()
        self._until_synced.clear()
        for waiting in lost:
            self.engine.undo(waiting.change)
            if is_in_memory(waiting.locator):
                self._resident.pop(waiting.locator, None)
        for waiting in reversed(lost):
            if waiting.settle is not None:
                waiting.settle(error)
            self._tell_idle(waiting.change.topic)

    def _tell_idle(self, topic: Topic) -> None:
        if self._idle and not topic.pending:
            event = self._idle.pop(topic.id, None)
            if event is not None:
                event.set()


def _sealed(frames: RecordIndex, index: int) -> int | None:
    """Place of this entry, if it is an extent in which something lives."""
    if index >= len(frames):
        return None
    _, _, locator, size = frames.entry(index)
    return locator if size and is_extent(locator) else None
