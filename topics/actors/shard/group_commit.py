"""Group commit: batches the frames of one loop iteration into one write and one fsync.

The services submit each `Change` here. When it is durable, it is committed to the engine.

    submit    add frames to the open group; submit_forward: several changes share a frame
    flush     pass the group to the log's writer, once per iteration
    advance   commit and settle the changes that the log has written or synced, in the order in
              which they were submitted; if the log has failed, undo all pending changes, newest
              first, and refuse them

A change with ``sync`` is committed when its frames are synced. Any other change that has frames is
committed when they are written. A change that has no frames is committed after the earlier changes
of its topic, or immediately if no earlier change is pending.

This module never blocks, and never raises for a log error: the error is passed to the ``settle``
callback of each lost change.
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
from topics.storage.wal.log import Wal
from topics.storage.wal.log_file import NoSpace
from topics.storage.wal.log_progress import LogProgress

EXTERNAL = int(RecordFlags.EXTERNAL)
NO_IO = LogProgress(0, 0, 0.0, 0.0)  # the result of a change that was committed without I/O
NOWHERE = in_log(0)  # locator of a change that has no records
SYNC_INITIAL_S = 0.01  # assumed duration of a sync before the first measurement
AVERAGE_WINDOW = 32  # number of writes or syncs over which durations are averaged

Settle = Callable[[LogProgress | OSError], None]


class PendingChange(msgspec.Struct, frozen=True, eq=False):
    """A submitted change whose frames occupy the LSNs from ``start`` to ``end``.

    ``settle`` is called with the log progress that made the change durable, or with the error that
    caused the loss of the change.
    """

    change: Change
    locator: Locator
    start: int
    end: int
    serial: int
    settle: Settle | None


# The states of a change until its outcome. ``settle`` is called exactly once, with the outcome.
#
#     decided --submit--> until written --the log has written its frames--> committed
#        |                until synced ---the log has synced its frames---> committed
#        |                     '--the log has failed, or has no space-----> undone
#        '--no frames, no earlier change of its topic-----> committed immediately
class GroupCommit:
    """The only path of a change into the log. ``clock`` returns the time of a commit."""

    def __init__(
        self, engine: ShardEngine, wal: Wal, store: RecordStore, clock: Callable[[], Now]
    ) -> None:
        self.engine, self.wal, self.store, self.now = engine, wal, store, clock
        self.on_commit: Callable[[Change], None] = lambda _: None
        self.on_rollback: Callable[[], None] = lambda: None
        # Called when the log has been written or synced, or has failed. Set by the service that
        # tracks syncs.
        self.on_progress: Callable[[], None] | None = None
        self.is_unsent = False  # the open group contains work for the log
        self.rollback_count = 0  # number of times that all pending changes were undone
        self.waiting_peak = 0  # the largest number of pending changes after a flush
        self._average_write_s, self._average_sync_s = 0.0, SYNC_INITIAL_S  # moving averages
        # Both queues are in order of LSNs. A change is in exactly one of them, until its outcome
        # is known.
        self._until_written: deque[PendingChange] = deque()
        self._until_synced: deque[PendingChange] = deque()
        # The serial number of the last submitted change. Serial numbers define the order of the
        # decisions across both queues, which `_roll_back` reverses.
        self._serial = 0
        # Whether a change in the open group waits for a sync. `flush` passes this to the log.
        self._wants_sync = False
        # Whether a commit has submitted floor changes, which need a flush outside of an iteration.
        self._has_floors = False
        # Keyed by topic id: events for tasks that wait until no change of the topic is pending. An
        # event is removed when it is set.
        self._idle: dict[int, trio.Event] = {}
        # Set when the log next makes progress, to wake all tasks that are waiting for it. None if
        # no task is waiting.
        self._progress: trio.Event | None = None

    # Pending changes

    def __len__(self) -> int:
        return len(self._until_written) + len(self._until_synced)

    @property
    def oldest(self) -> tuple[int, ...]:
        """Serial numbers of the oldest changes that are waiting for a write and for a sync.

        If they do not change between two checks, the log makes no progress.
        """
        return tuple(
            queue[0].serial for queue in (self._until_written, self._until_synced) if queue
        )

    @property
    def average_s(self) -> float:
        """The average duration of a write and a sync of a group, in seconds."""
        return self._average_write_s + self._average_sync_s

    @property
    def reached(self) -> int:
        """The LSN before which the frames of all changes are committed."""
        # The queues are ordered, so only their first changes can be the oldest.
        return min(
            (queue[0].start for queue in (self._until_written, self._until_synced) if queue),
            default=self.wal.next_lsn,
        )

    def deleting_topics(self) -> list[Topic]:
        """Return the topics whose deletion is pending. It may still be undone."""
        return [
            each.change.topic for each in self._pending() if isinstance(each.change, DeleteTopic)
        ]

    def position_of(self, topic: Topic) -> int:
        """Return an LSN that divides the topic's changes: before it, all are committed; after it,
        none are.
        """
        if not topic.pending:
            return self.wal.next_lsn
        # Reservations and floors can be committed out of order with other changes, because
        # replaying them twice has no effect.
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

    # Submitting to the log

    def submit(
        self, change: Change, settle: Settle | None, resident: RecordsView | None = None
    ) -> None:
        """Add the change's frames to the open group. `flush` sends the group to the log.

        ``resident``: the records of an append whose durability class keeps them in memory, if the
        change does not carry them itself.
        """
        frames = change.frames
        if len(frames) > 1:
            # Begin a new log file if the current file cannot hold all frames. Otherwise a full disk
            # could refuse only some of the frames, and a restart would replay the other frames
            # although the change was undone.
            self.wal.keep_contiguous(sum(frame.length for frame in frames))
        # The LSNs are assigned here, before anything is written. A lost group is cut off, and its
        # LSNs are used again (`Wal.resume`).
        locator, start = NOWHERE, self.wal.next_lsn
        for frame in frames:
            lsn = self.wal.append(frame)
            if frame.kind is FrameKind.APPEND:
                locator = in_log(lsn)
                if frame.flags & EXTERNAL:
                    self.wal.blobs.add(frame.topic_id, frame.first_seq, lsn)
        # Records of class `ephemeral` are stored in memory instead of the log.
        if isinstance(change, Append) and (resident or change.resident):
            locator = self._keep(change, resident)
        self._add(change, locator, start, settle)

    def submit_forward(
        self,
        forwarded: Forwarded,
        settle: Callable[[Forward | Advance, LogProgress | OSError], None],
    ) -> int:
        """Add changes that share one frame to the open group, and return the LSN of the frame.

        ``settle`` is called for each of the changes, as in `submit`.
        """
        # The shared frame comes first. Each of the other frames concerns one dest. All frames must
        # be in one file, so that the log loses either all or none of them.
        frame, changes = forwarded.frame, forwarded.changes
        others = [other for change in changes for other in change.frames]
        self.wal.keep_contiguous(frame.length + sum(other.length for other in others))
        start = self.wal.append(frame)
        for other in others:
            self.wal.append(other)
        # Each change has its own row in the shared frame, and its locator refers to this row.
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
        """Record the change as pending.

        Its frames begin at ``start`` and are already in the group.
        """
        self._serial += 1
        pending = PendingChange(change, locator, start, self.wal.next_lsn, self._serial, settle)
        # A change with ``sync`` must not be committed before its frames are synced, even if they
        # are written early.
        if change.sync:
            self.is_unsent = self._wants_sync = True
            self._until_synced.append(pending)
        # A change that needs no sync is committed when it is written. The order within a topic is
        # kept, because a change without frames also queues here while earlier changes of its topic
        # are pending.
        elif change.frames or change.topic.pending > 1:
            self.is_unsent = True
            self._until_written.append(pending)
        else:
            # The change has no frames, and no earlier change of the topic is pending.
            self._commit(pending, NO_IO, self.now())

    def _keep(self, change: Append, view: RecordsView | None) -> Locator:
        encoded = change.resident
        # The records were rendered for the log. They are kept as one buffer, with the same
        # tables.
        if encoded is not None:
            body = memoryview(b"".join(encoded.parts))
            view = RecordsView(encoded.flags, encoded.record_count, len(encoded.ext), body)
            change.resident = None
        assert view is not None, "an ephemeral append contains its records"
        return self.store.put(view)

    def flush(self, *, immediate: bool = True) -> None:
        """Pass the group to the log.

        With ``immediate``, the log may write and sync the group within this call. The changes that
        it completes are then committed and settled here. Without it, the writer thread writes the
        group.
        """
        # The loop runs again only if a commit has submitted floor changes.
        while True:
            sync, self._wants_sync = self._wants_sync, False
            self.is_unsent = False
            # If the result is None, the writer thread writes the group, and `advance` handles its
            # outcome. Otherwise this call has written the group, and its changes are committed in
            # this iteration.
            progress = self.wal.flush(sync=sync, immediate=immediate)
            if progress is None:
                self.waiting_peak = max(self.waiting_peak, len(self))
                return
            if sync:
                self._update_averages(progress)
            if self._until_written:
                self._settle_up_to(self._until_written, progress.written, progress)
            if self._until_synced:
                self._settle_up_to(self._until_synced, progress.synced, progress)
            if self._progress is not None or self.on_progress is not None:
                self._notify_progress()
            # Floor changes that a commit submitted need another pass.
            if not self._has_floors:
                return
            self._has_floors = False

    # Progress of the log

    def advance(self) -> OSError | None:
        """Commit and settle the changes that the log has written or synced.

        Return the error that stopped the log, or None.
        """
        # The log reports each step once. The steps are handled in order, because a failure after
        # a success must not undo changes that were committed before.
        for progress in self.wal.take_progress():
            if progress.error is not None:
                # The changes of the lost group and all later ones are undone, since they may
                # depend on each other.
                self._roll_back(progress.error)
                if not isinstance(progress.error, NoSpace):
                    self._notify_progress()
                    return progress.error
                # A full disk is not fatal: the group is lost, and the log accepts later groups.
                # The following groups are written from the end of the written frames on.
                self.wal.resume(progress.written)
                continue
            self._update_averages(progress)
            self._settle_up_to(self._until_written, progress.written, progress)
            self._settle_up_to(self._until_synced, progress.synced, progress)
        self._notify_progress()
        # Outside of an iteration, no other code flushes the floor changes.
        if self._has_floors:
            self._has_floors = False
            self.flush()
        return None

    def _update_averages(self, progress: LogProgress) -> None:
        """Update the average durations of a write and of a sync.

        The averages are separate, because most writes are not followed by their own sync.
        """
        if progress.write_ms:
            self._average_write_s += (
                progress.write_ms / 1000 - self._average_write_s
            ) / AVERAGE_WINDOW
        if progress.sync_ms:
            self._average_sync_s += (
                progress.sync_ms / 1000 - self._average_sync_s
            ) / AVERAGE_WINDOW

    def _settle_up_to(self, queue: deque[PendingChange], lsn: int, progress: LogProgress) -> None:
        if not queue:
            return
        # All changes of this step have the same commit time.
        now = self.now()
        while queue and queue[0].end <= lsn:
            self._commit(queue.popleft(), progress, now)

    def _commit(self, pending: PendingChange, progress: LogProgress, now: Now) -> None:
        # Apply the change to the engine before the response is sent, so that a client that has
        # received the response finds the write in any later read.
        change, topic = pending.change, pending.change.topic
        if change.frames:
            # Readers of the log may access frames up to here.
            self.store.committed_to = max(self.store.committed_to, pending.end)
        try:
            has_tags = isinstance(change, Append) and change.tags
            generation = self._generation(pending.locator) if has_tags else 0
            self.engine.commit(change, pending.locator, now, generation)
            if topic.floor_due and not topic.deleted:
                # Log the floor now, because a replay cannot derive it from other frames.
                floor = self.engine.expire(topic, now)
                if floor is not None:
                    self.submit(floor, None)
                    self._has_floors = True
        except Damaged as damage:
            # The change itself is committed, but the records that it should have removed are
            # unreadable. They are removed later, together with the records around them.
            self.store.report(damage)
        if pending.settle is not None:
            pending.settle(progress)
        if self._idle:
            self._notify_idle(topic)
        self.on_commit(change)
        if isinstance(change, DeleteTopic):
            # The records of a deleted topic are dropped last, because the callbacks above may
            # still refer to the topic.
            self.store.drop_topic(topic)

    def _generation(self, locator: Locator) -> int:
        """Return the base LSN of the log file that contains a change with tagged records.

        The tags are dropped from memory when this file is sealed.
        """
        return 0 if is_in_memory(locator) else self.wal.base_of(locator)

    def _roll_back(self, error: OSError) -> None:
        self.rollback_count += 1
        # Undo the changes of both queues, the newest decision first. An undo returns the topic to
        # its state before the change, so it must follow the undo of all later changes.
        lost = sorted(self._pending(), key=lambda pending: pending.serial, reverse=True)
        self._until_written.clear()
        self._until_synced.clear()
        # No callback runs before all changes are undone: it would see a state that never existed.
        # Undo in reverse order of the decisions, then refuse in order.
        for pending in lost:
            self.engine.undo(pending.change)
            self.store.drop(pending.locator)
        for pending in reversed(lost):
            if pending.settle is not None:
                pending.settle(error)
            self._notify_idle(pending.change.topic)
        self.on_rollback()

    # For tasks that wait

    async def submit_and_wait(
        self, change: Change, resident: RecordsView | None = None
    ) -> LogProgress | OSError:
        """Submit one change, flush it and wait for its outcome."""
        if self.wal.failed is not None:
            # The log has failed since the change was made, and would never report an outcome.
            self.engine.undo(change)
            return self.wal.failed
        done = trio.Event()
        results: list[LogProgress | OSError] = []

        def settle(result: LogProgress | OSError) -> None:
            results.append(result)
            done.set()

        self.submit(change, settle, resident)
        self.flush(immediate=False)
        await done.wait()
        return results[0]

    async def wait_idle(self, topic: Topic) -> None:
        """Wait until no change of the topic is pending."""
        # Check again after each event, because another task may have submitted a change.
        while topic.pending:
            await self._idle.setdefault(topic.id, trio.Event()).wait()

    async def wait_drained(self) -> None:
        """Wait until no change is pending, or the log has failed."""
        self.flush(immediate=False)
        while len(self) and self.wal.failed is None:
            await self.wait_progress()

    async def wait_synced(self, lsn: int) -> bool:
        """Wait until the log is synced up to ``lsn``.

        Return False if the log has failed, or if changes were undone in the meantime.
        """
        # An undo between two checks means that LSNs were assigned again: ``lsn`` may now belong to
        # another frame.
        rollback_count = self.rollback_count
        while self.wal.failed is None and self.rollback_count == rollback_count:
            if self.wal.synced_lsn >= lsn:
                return True
            await self.wait_progress()
        return False

    async def wait_progress(self) -> None:
        """Wait until the log reports its next write, sync or failure."""
        if self._progress is None:
            self._progress = trio.Event()
        await self._progress.wait()

    def _notify_progress(self) -> None:
        if self._progress is not None:
            self._progress.set()
            self._progress = None
        if self.on_progress is not None:
            self.on_progress()

    def _notify_idle(self, topic: Topic) -> None:
        if not topic.pending:
            event = self._idle.pop(topic.id, None)
            if event is not None:
                event.set()
