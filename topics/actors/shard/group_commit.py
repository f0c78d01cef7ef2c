"""Group commit: from a decided `Change` into the log, and back to the engine when it is durable.

    submit   frames into the group under way; submit_forward: changes that share a frame
    flush    the group to the log's writer: once a turn, so that changes share a write and a sync
    advance  commit and answer what the log has reached, in the order of the decisions; when the
             log has failed, undo all that waits, newest first, and refuse it

A change with ``sync`` waits until its frames are synced; every other change until its frames are
written, or until the changes of its topic before it are committed.

A change without frames on an idle topic is committed at once. Nothing here waits or raises for an
error of the log: it reaches the ``settle`` of each change that it lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import chain

import msgspec
import trio

from topics.actors.shard.record_store import RecordStore
from topics.engine.changes.append import Append
from topics.engine.changes.change import Change
from topics.engine.changes.delete_topic import DeleteTopic
from topics.engine.changes.floor import FloorMoved
from topics.engine.changes.forward import Advance, Forward, Forwarded
from topics.engine.changes.reservation import Reservation
from topics.engine.locators import Locator, in_log, is_in_memory
from topics.engine.now import Now
from topics.engine.shard import ShardEngine
from topics.engine.topic import Topic
from topics.formats.disk.copies import row_lsn
from topics.formats.disk.frames import FrameKind
from topics.formats.disk.records import RecordFlags, RecordsView
from topics.storage.disk import Damaged
from topics.storage.wal.file import NoRoom
from topics.storage.wal.log import Wal
from topics.storage.wal.progress import Progress

EXTERNAL = int(RecordFlags.EXTERNAL)
NO_IO = Progress(0, 0, 0.0, 0.0)  # committed without touching the log
NOWHERE = in_log(0)  # locator of a change without records
USUAL_S = 0.01  # of a sync, before the first
USUAL_OVER = 32  # of so many writes and syncs, about

Settle = Callable[[Progress | OSError], None]


class PendingChange(msgspec.Struct, frozen=True, eq=False):
    """A submitted change, its frames from ``start`` to ``end``. ``settle`` is called with the
    progress that made it durable, or with the error that lost it.
    """

    change: Change
    locator: Locator
    start: int
    end: int
    serial: int
    settle: Settle | None


class GroupCommit:
    """The only way from a decision into the log. ``clock`` gives the time of a commit."""

    def __init__(
        self, engine: ShardEngine, wal: Wal, store: RecordStore, clock: Callable[[], Now]
    ) -> None:
        self.engine, self.wal, self.store, self.now = engine, wal, store, clock
        self.on_commit: Callable[[Change], None] = lambda _: None
        self.on_loss: Callable[[], None] = lambda: None
        # Called when the log has been written, synced or has failed; by who follows syncs.
        self.on_progress: Callable[[], None] | None = None
        self.is_unsent = False  # the group under way has something for the log
        self.losses = 0  # how often everything that waited was undone
        self.waiting_peak = 0  # the most changes that a group has left to the log
        self._usual_write_s, self._usual_sync_s = 0.0, USUAL_S  # of late
        self._until_written: deque[PendingChange] = deque()
        self._until_synced: deque[PendingChange] = deque()
        self._serial = 0
        self._wants_sync = False
        self._has_floors = False  # a commit has submitted floors: they go off without a turn
        self._idle: dict[int, trio.Event] = {}
        self._progress: trio.Event | None = None

    # What is under way

    def __len__(self) -> int:
        return len(self._until_written) + len(self._until_synced)

    @property
    def oldest(self) -> tuple[int, ...]:
        """Serials of what waits longest for its write and its sync. While they are the same, the
        log makes no progress.
        """
        return tuple(
            queue[0].serial for queue in (self._until_written, self._until_synced) if queue
        )

    @property
    def usual_s(self) -> float:
        """What a write and a sync of a group have taken of late."""
        return self._usual_write_s + self._usual_sync_s

    @property
    def reached(self) -> int:
        """Every change with a frame before this LSN is committed."""
        return min(
            (queue[0].start for queue in (self._until_written, self._until_synced) if queue),
            default=self.wal.next_lsn,
        )

    def leaving(self) -> list[Topic]:
        """Topics whose end is decided and not committed: it may yet be undone."""
        return [
            each.change.topic for each in self._pending() if isinstance(each.change, DeleteTopic)
        ]

    def position_of(self, topic: Topic) -> int:
        """LSN before which every change of the topic is committed, and from which on none is."""
        if not topic.pending:
            return self.wal.next_lsn
        # Reservations and floors may overtake others and be overtaken: replaying them twice does no
        # harm.
        return min(
            (
                each.start
                for each in self._pending()
                if each.change.topic is topic
                and not isinstance(each.change, FloorMoved | Reservation)
            ),
            default=self.wal.next_lsn,
        )

    def _pending(self) -> chain[PendingChange]:
        return chain(self._until_written, self._until_synced)

    # Into the log

    def submit(
        self, change: Change, settle: Settle | None, resident: RecordsView | None = None
    ) -> None:
        """Put the change's frames into the group under way; `flush` sends the group off.

        ``resident``: records of an append whose class keeps them in memory, when the change does
        not carry them itself.
        """
        frames = change.frames
        if len(frames) > 1:
            # One of them without the others would come back after a restart, though the change was
            # undone.
            self.wal.hold_together(sum(frame.length for frame in frames))
        locator, start = NOWHERE, self.wal.next_lsn
        for frame in frames:
            lsn = self.wal.append(frame)
            if frame.kind is FrameKind.APPEND:
                locator = in_log(lsn)
                if frame.flags & EXTERNAL:
                    self.wal.blobs.add(frame.topic_id, frame.first_seq, lsn)
        if isinstance(change, Append) and (resident or change.resident):
            locator = self._keep(change, resident)
        self._add(change, locator, start, settle)

    def submit_forward(
        self, forwarded: Forwarded, settle: Callable[[Forward | Advance, Progress | OSError], None]
    ) -> int:
        """Put changes that share a frame into the group under way; the LSN of the frame.

        ``settle`` is called for each of them, as that of `submit`.
        """
        frame, changes = forwarded.frame, forwarded.changes
        others = [other for change in changes for other in change.frames]
        self.wal.hold_together(frame.length + sum(other.length for other in others))
        start = self.wal.append(frame)
        for other in others:
            self.wal.append(other)
        for index, change in enumerate(changes):
            locator = NOWHERE
            if isinstance(change, Forward):
                locator = in_log(row_lsn(start, frame.ext_len, index))
                if change.resident:
                    locator = self._keep(change, None)
            change.frames.append(frame)
            self._add(change, locator, start, partial(settle, change))
        return start

    def _add(self, change: Change, locator: Locator, start: int, settle: Settle | None) -> None:
        """The frames of the change are in the group, from ``start`` on."""
        self._serial += 1
        pending = PendingChange(change, locator, start, self.wal.next_lsn, self._serial, settle)
        if change.sync:
            self.is_unsent = self._wants_sync = True
            self._until_synced.append(pending)
        elif change.frames or change.topic.pending > 1:
            self.is_unsent = True
            self._until_written.append(pending)
        else:
            self._commit(pending, NO_IO, self.now())

    def _keep(self, change: Append, view: RecordsView | None) -> Locator:
        encoded = change.resident
        if encoded is not None:
            body = memoryview(b"".join(encoded.parts))
            view = RecordsView(encoded.flags, encoded.record_count, len(encoded.ext), body)
            change.resident = None
        assert view is not None, "an ephemeral append comes with its records"
        return self.store.keep(view)

    def flush(self, *, at_once: bool = True) -> None:
        """Send the group off. What the log writes, or syncs, at once is committed and answered at
        once.

        ``at_once``: a turn ends with this, or follows.
        """
        while True:
            sync, self._wants_sync = self._wants_sync, False
            self.is_unsent = False
            progress = self.wal.flush(sync=sync, at_once=at_once)
            if progress is None:
                self.waiting_peak = max(self.waiting_peak, len(self))
                return
            if sync:
                self._note_usual(progress)
            if self._until_written:
                self._settle_up_to(self._until_written, progress.written, progress)
            if self._until_synced:
                self._settle_up_to(self._until_synced, progress.synced, progress)
            if self._progress is not None or self.on_progress is not None:
                self._tell_progress()
            if not self._has_floors:
                return
            self._has_floors = False

    # Back from the log

    def advance(self) -> OSError | None:
        """Commit and answer what the log has reached; the error that made it stop, if it did."""
        for progress in self.wal.take_progress():
            if progress.error is not None:
                self._lose(progress.error)
                if not isinstance(progress.error, NoRoom):
                    self._tell_progress()
                    return progress.error
                self.wal.resume(progress.written)
                continue
            self._note_usual(progress)
            self._settle_up_to(self._until_written, progress.written, progress)
            self._settle_up_to(self._until_synced, progress.synced, progress)
        self._tell_progress()
        if self._has_floors:
            self._has_floors = False
            self.flush()
        return None

    def _note_usual(self, progress: Progress) -> None:
        """Most writes are not synced at once: they say nothing of what a sync takes."""
        if progress.write_ms:
            self._usual_write_s += (progress.write_ms / 1000 - self._usual_write_s) / USUAL_OVER
        if progress.sync_ms:
            self._usual_sync_s += (progress.sync_ms / 1000 - self._usual_sync_s) / USUAL_OVER

    def _settle_up_to(self, queue: deque[PendingChange], lsn: int, progress: Progress) -> None:
        if not queue:
            return
        now = self.now()
        while queue and queue[0].end <= lsn:
            self._commit(queue.popleft(), progress, now)

    def _commit(self, pending: PendingChange, progress: Progress, now: Now) -> None:
        change, topic = pending.change, pending.change.topic
        if change.frames:
            self.store.committed_to = max(self.store.committed_to, pending.end)
        try:
            has_tags = isinstance(change, Append) and change.tags
            generation = self._generation(pending.locator) if has_tags else 0
            self.engine.commit(change, pending.locator, now, generation)
            if topic.floor_due and not topic.deleted:
                # At once: a replay could not come to it by itself.
                floor = self.engine.expire(topic, now)
                if floor is not None:
                    self.submit(floor, None)
                    self._has_floors = True
        except Damaged as damage:
            # The change itself is done. The records that it should have removed cannot be read;
            # they go when all around them have gone.
            self.store.report(damage)
        if pending.settle is not None:
            pending.settle(progress)
        if self._idle:
            self._tell_idle(topic)
        self.on_commit(change)
        if isinstance(change, DeleteTopic):
            self.store.drop_topic(topic)

    def _generation(self, locator: Locator) -> int:
        """Base of the log file of tagged records: their tags leave memory with the file."""
        return 0 if is_in_memory(locator) else self.wal.base_of(locator)

    def _lose(self, error: OSError) -> None:
        self.losses += 1
        lost = sorted(self._pending(), key=lambda pending: pending.serial, reverse=True)
        self._until_written.clear()
        self._until_synced.clear()
        for pending in lost:
            self.engine.undo(pending.change)
            self.store.drop(pending.locator)
        for pending in reversed(lost):
            if pending.settle is not None:
                pending.settle(error)
            self._tell_idle(pending.change.topic)
        self.on_loss()

    # For tasks that wait

    async def submit_and_wait(
        self, change: Change, resident: RecordsView | None = None
    ) -> Progress | OSError:
        """Submit one change, send it off and wait for its end."""
        if self.wal.failed is not None:
            # It may have failed since the change was wanted, and would never tell of it.
            self.engine.undo(change)
            return self.wal.failed
        done = trio.Event()
        results: list[Progress | OSError] = []

        def settle(result: Progress | OSError) -> None:
            results.append(result)
            done.set()

        self.submit(change, settle, resident)
        self.flush(at_once=False)
        await done.wait()
        return results[0]

    async def wait_idle(self, topic: Topic) -> None:
        """Wait until no change of the topic is under way."""
        while topic.pending:
            await self._idle.setdefault(topic.id, trio.Event()).wait()

    async def wait_drained(self) -> None:
        """Wait until nothing is under way, or the log has failed."""
        self.flush(at_once=False)
        while len(self) and self.wal.failed is None:
            await self.wait_progress()

    async def wait_synced(self, lsn: int) -> bool:
        """Wait until the log is synced up to ``lsn``; False when it has failed, or when changes
        were undone meanwhile.
        """
        losses = self.losses
        while self.wal.failed is None and self.losses == losses:
            if self.wal.synced_lsn >= lsn:
                return True
            await self.wait_progress()
        return False

    async def wait_progress(self) -> None:
        """Wait until the log has written, synced or failed the next time."""
        if self._progress is None:
            self._progress = trio.Event()
        await self._progress.wait()

    def _tell_progress(self) -> None:
        if self._progress is not None:
            self._progress.set()
            self._progress = None
        if self.on_progress is not None:
            self.on_progress()

    def _tell_idle(self, topic: Topic) -> None:
        if not topic.pending:
            event = self._idle.pop(topic.id, None)
            if event is not None:
                event.set()
