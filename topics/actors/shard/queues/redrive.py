"""Redrive: moves records, such as dead letters, from a topic to their sources or to one target.

    search a slice --> wait until moves may begin --> choose a window --> move it --> search ...
    at the end: count the remaining records, slice by slice --> reply

Each record is in one state:

    selected --> chosen: hidden from clients, in flight --> moved
       |           '--> skipped: visible again
       |--> skipped: no target, or a target that is forbidden or has refused another record
       |--> deferred: leased, or already being moved; counted later
       '--> counted for the result: not reached in time

The records of a window are moved to all their targets in parallel. The keys of copies prevent
duplicates if a redrive is repeated after a crash. One redrive of a topic runs at a time, and other
redrives wait for it. A redrive is counted in `Moves` from the first copy of a window until no copy
is in flight.
After `TIME_MAX_S` it chooses no further records and returns the number of records moved so far. A
window that is in flight at that time is still completed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias, TypeVar

import trio

from topics.actors.rpc.message_router import MessageRouter
from topics.actors.rpc.replies import answer_error, reply_json
from topics.actors.rpc.session import InboundMessage
from topics.actors.shard.context import ShardContext
from topics.actors.shard.queues import mover
from topics.actors.shard.queues.mover import COPIES_BYTES, RecordCopy
from topics.actors.shard.service import Service
from topics.engine import selection
from topics.engine.changes import finish_jobs
from topics.engine.changes.delete_records import SLICE_RECORDS
from topics.engine.moved_keys import WINDOW_RECORDS
from topics.engine.now import Now
from topics.engine.queue import claims
from topics.engine.shard import ShardEngine
from topics.engine.topic import Topic
from topics.errors import Forbidden, Internal, InvalidRequest, TopicsError
from topics.formats.api import queue_answers
from topics.formats.api.queue_answers import record_parts, source_of, unstamped
from topics.formats.api.queue_bodies import Redrive, decode_redrive
from topics.formats.names import covered
from topics.formats.wire.calls import NO_RESULT, REDRIVE, NoResult, RedriveParams

RedriveCall: TypeAlias = InboundMessage[RedriveParams, NoResult]
Result = TypeVar("Result")

TIME_MAX_S: Final = 20.0
READ_RECORDS: Final = 16  # records read in one batch, before their bytes are counted
# A redrive ends early when it has found too many records that cannot be moved. The maximum is
# SKIPPED_PER_RECORD times the limit of the request, but at least SKIPPED_MIN.
SKIPPED_MIN: Final = 10_000
SKIPPED_PER_RECORD: Final = 1_000
NO_SOURCE: Final = "no_source"


class SkippedRecord(NamedTuple):
    """A record that is not moved, and the error code that is the reason."""

    seq: int
    code: str


class Transfer:
    """One redrive.

    ``in_flight``: the seqs of chosen records that are neither moved nor visible again.

    ``ended`` is set when no further records will be chosen and no record is in flight. ``error`` is
    set if records could not be chosen.
    """

    def __init__(
        self, request: RedriveCall, topic: Topic, redrive: Redrive, engine: ShardEngine
    ) -> None:
        self.request, self.topic, self.redrive = request, topic, redrive
        # ``is_answered``: the result is being computed or has been sent, so no further records are
        # chosen. ``is_stopped``: the selection is exhausted, or the only target refuses records.
        self.is_answered = self.is_stopped = False
        self.ended = trio.Event()
        self.error: Exception | None = None
        self.moved = self.skipped = 0
        self.reason: SkippedRecord | None = None  # the first record that was skipped
        self.in_flight: set[int] = set()
        # The number of remaining records that `count_slice` has counted.
        self._counted = 0
        self._engine = engine
        self._selection = selection.select(topic, engine.store, redrive.before_seq, redrive.match)
        # Records that could not be chosen because they were busy. Those that still exist at the end
        # count as remaining.
        self._skipped_seqs: list[int] = []
        self._refused: dict[str, str] = {}  # error codes by target, for targets that have refused

    @property
    def is_done(self) -> bool:
        """Return whether the redrive must choose no further records."""
        return (
            self.is_answered
            or self.is_stopped
            or self.error is not None
            or self.topic.deleted
            or self.request.session.closed
            or self.moved >= self.redrive.limit
            or self.skipped + len(self._skipped_seqs)
            >= max(SKIPPED_MIN, SKIPPED_PER_RECORD * self.redrive.limit)
        )

    @property
    def remaining(self) -> int:
        """The number of records that still match, excluding skipped records.

        The number is complete when all records are counted.
        """
        if self.topic.deleted:
            return 0
        in_flight = sorted(self.in_flight)
        return self._counted + selection.count_live(self.topic, self._engine.store, in_flight)

    # Choosing

    def search(self) -> None:
        """Find the next slice of records, for `choose`."""
        if not self.topic.deleted:
            self._selection.search()

    def choose(self, now: Now) -> dict[str, list[RecordCopy]]:
        """Choose the next window of records, and return copies for each target in order of seqs.

        The records are in flight afterwards, and hidden from clients. No other records may be in
        flight. An empty window does not mean that all records have been chosen.
        """
        assert not self.in_flight, "one window is in flight at a time"
        found: dict[str, list[RecordCopy]] = {}
        # The window is bounded by scanned records, by bytes and by the limit of the request.
        scanned, size, room = 0, 0, self.redrive.limit - self.moved
        while scanned < WINDOW_RECORDS and size < COPIES_BYTES and len(self.in_flight) < room:
            seqs = self._selection.take(min(READ_RECORDS, room - len(self.in_flight)))
            if not seqs:
                break
            scanned += len(seqs)
            # Records that are leased or already being moved cannot be hidden. They are counted at
            # the end.
            # `reserve` hides the records from claims, so that no client gets a record that is
            # being moved.
            free = claims.reserve(self.topic, seqs, now)
            self._skipped_seqs += sorted(set(seqs).difference(free))
            self.in_flight.update(free)
            try:
                records = dict(claims.records_of(self.topic, self._engine.store, free))
            except OSError:
                # Make all records of the window visible, because none of them has been copied.
                self._make_visible(tuple(self.in_flight), now)
                raise
            for seq in free:
                self._choose_record(seq, records.get(seq), found, now)
            size += sum(map(len, records.values()))
        # `refuse` may have stopped the redrive before the selection was exhausted.
        self.is_stopped = self.is_stopped or self._selection.is_exhausted
        return found

    # Counting the remaining records, after the last one was chosen

    def count_slice(self, now: Now) -> bool:
        """Count a slice of the remaining records. Return False when all are counted."""
        topic, store = self.topic, self._engine.store
        if topic.deleted:
            return False
        # First count the busy records, then the records that the selection has not returned.
        if self._skipped_seqs:
            seqs, self._skipped_seqs = (
                self._skipped_seqs[:SLICE_RECORDS],
                self._skipped_seqs[SLICE_RECORDS:],
            )
            self._counted += selection.count_live(topic, store, seqs)
        elif self._selection.is_exhausted:
            return False
        # The requested target has refused no record, so the other records count as remaining.
        elif self.redrive.to not in self._refused:
            self._counted += self._selection.count_slice()
        elif topic.jobs is None:  # the only target refuses further records
            self.skipped += self._selection.count_slice()
        else:
            # In a queue, busy jobs count as remaining, because they may become claimable again.
            self._selection.search()
            seqs = self._selection.take()
            busy = claims.count_busy(topic, seqs, now)
            self._counted += busy
            self.skipped += len(seqs) - busy
        return True

    def _choose_record(
        self, seq: int, record: bytes | None, found: dict[str, list[RecordCopy]], now: Now
    ) -> None:
        parts = None if record is None else record_parts(record)
        if parts is None:
            self.skip(seq, Internal.code, now)  # skipped because the record is unreadable
            return
        # If the request has no target, the target is the source that the record names.
        target = source_of(parts.meta) if self.redrive.to is None else self.redrive.to
        code = self._refusal_code(target)
        if code is not None or target is None:
            self.skip(seq, code or NO_SOURCE, now)
            return
        # The stamp of the dead-letter move is removed, so that the record has its original form.
        parts = parts._replace(meta=unstamped(parts.meta))
        copy = mover.render_copy("redrive", self.topic, seq, parts, create=False)
        found.setdefault(target, []).append(copy)

    def _refusal_code(self, target: str | None) -> str | None:
        """Return the error code if no records can be moved to ``target``, or None."""
        if target is None or target == self.topic.name:
            return NO_SOURCE
        if not covered(target, self.request.params.prefixes):
            return Forbidden.code
        return self._refused.get(target)

    # The outcome of a chosen record

    def skip(self, seq: int, code: str, now: Now) -> None:
        """Make the record visible again. It stays in the topic because of the error ``code``."""
        self._make_visible((seq,), now)
        self.skipped += 1
        skip = SkippedRecord(seq, code)
        # Report the reason for the lowest seq, so that the result does not depend on the order of
        # the targets.
        self.reason = skip if self.reason is None else min(self.reason, skip)

    def refuse(self, target: str, refused: Mapping[int, TopicsError], now: Now) -> None:
        """Skip records that could not be moved to ``target``, which gets no further records."""
        for seq, failure in refused.items():
            self._refused.setdefault(target, failure.code)
            self.skip(seq, failure.code, now)
        # The only target refuses records, and would also refuse all further records.
        if self.redrive.to in self._refused:
            self.is_stopped = True

    def finish(self, seqs: Sequence[int]) -> None:
        """Count these records as moved."""
        self.moved += len(seqs)
        self.in_flight.difference_update(seqs)

    def _make_visible(self, seqs: Sequence[int], now: Now) -> None:
        claims.unreserve(self.topic, seqs, now)
        self.in_flight.difference_update(seqs)


class Redrives(Service):
    """Handles `queue.redrive`.

    ``note_claimable`` is called with a queue if some of its jobs may be claimable again because
    they could not be moved.
    """

    def __init__(self, context: ShardContext, note_claimable: Callable[[Topic], object]) -> None:
        self._context, self._note_claimable = context, note_claimable
        # An entry exists while a redrive of the topic is running or waiting.
        self._locks: dict[int, trio.Lock] = {}  # by topic id
        self._slices = trio.Lock()

    def register(self, router: MessageRouter) -> None:
        """Register the handlers for all sessions of ``router``."""
        router.serve(REDRIVE, self._redrive)

    def _redrive(self, request: RedriveCall) -> None:
        context, params = self._context, request.params
        context.check_writable()
        redrive = decode_redrive(request.attachment)
        # Before the transfer begins, make all checks that need no record.
        if redrive.to == params.topic:
            raise InvalidRequest("to must differ from the topic in the path", field="to")
        if redrive.to is not None and not covered(redrive.to, params.prefixes):
            raise Forbidden("to is outside the key's prefixes", field="to")
        topic = context.find_topic(params.topic)
        # The reply may take longer than `TIME_MAX_S`, so the timeout of calls does not apply.
        request.disable_timeout()
        request.release()
        transfer = Transfer(request, topic, redrive, context.engine)
        context.start(self._run, transfer)
        # Run two tasks, so that the moves are completed even if the reply is sent earlier.
        context.start(self._answer, transfer)

    async def _run(self, transfer: Transfer) -> None:
        lock = self._locks.setdefault(transfer.topic.id, trio.Lock())
        # Run one redrive of a topic at a time, because two would choose the same records.
        async with lock:
            while self._may_choose(transfer):
                await self._move_window(transfer)
        # If the lock is free, no other redrive of the topic waits for it.
        if not lock.locked():
            self._locks.pop(transfer.topic.id, None)
        transfer.ended.set()

    def _may_choose(self, transfer: Transfer) -> bool:
        is_writable = self._context.disk_space.refusal(grows=False) is None
        return is_writable and not (transfer.is_done or self._context.is_stopping)

    async def _move_window(self, transfer: Transfer) -> None:
        """Move a window of records. On return, each record is moved or visible again."""
        moves, copies = self._context.moves, dict[str, list[RecordCopy]]()
        try:
            await self._run_step(transfer.search)
            # A backup holds all moves, because its files must contain each record in exactly one
            # of the topics.
            await moves.wait_free()
            copies = self._choose(transfer)
        except Exception as error:
            transfer.error = error
        # The step may have hidden jobs, or made jobs visible again.
        self._notify_claimable(transfer.topic)
        if copies:
            moves.enter()  # a backup waits until no copy is in flight
            # Move the records to all targets in parallel. The nursery ends when the outcome of each
            # record is known.
            async with trio.open_nursery() as nursery:
                for target, those in copies.items():
                    nursery.start_soon(self._move, transfer, target, those)
            moves.leave()

    def _choose(self, transfer: Transfer) -> dict[str, list[RecordCopy]]:
        context = self._context
        if self._may_choose(transfer):
            # Expired records must not be moved.
            with context.iteration():
                context.remove_expired(transfer.topic)
        # The end of the iteration may have deleted the topic.
        return transfer.choose(context.now) if self._may_choose(transfer) else {}

    async def _move(self, transfer: Transfer, target: str, copies: Sequence[RecordCopy]) -> None:
        topic = transfer.topic
        moved = await mover.move(self._context, topic, target, copies, finish_jobs.remove)
        transfer.finish(moved.seqs)
        transfer.refuse(target, moved.failures, self._context.clock())
        self._notify_claimable(topic)

    async def _run_step(self, step: Callable[[], Result]) -> Result:
        """Run a step of a few milliseconds.

        In each iteration of the shard loop, only one redrive of the shard runs a step.
        """
        async with self._slices:
            return step()

    def _notify_claimable(self, topic: Topic) -> None:
        if topic.jobs is not None:
            self._note_claimable(topic)

    async def _answer(self, transfer: Transfer) -> None:
        """Wait for the end, count the remaining records, and send the result.

        Copies that are still in flight count as remaining until they are moved.
        """
        # The client gets a result in time. `_run` still completes the copies in flight.
        with trio.move_on_after(TIME_MAX_S):
            await transfer.ended.wait()
        transfer.is_answered = True
        session, clock = transfer.request.session, self._context.clock
        try:
            if transfer.error is not None:
                raise transfer.error
            # Count in slices, so that other requests are served in between.
            while not session.closed:
                if not await self._run_step(lambda: transfer.count_slice(clock())):
                    break
        except Exception as error:
            with self._context.iteration():
                answer_error(transfer.request, error)
            return
        with self._context.iteration():
            body = queue_answers.redriven(
                transfer.topic.name,
                transfer.moved,
                transfer.remaining,
                transfer.skipped,
                transfer.reason.code if transfer.reason is not None else None,
            )
            reply_json(transfer.request, NO_RESULT, body, transfer.request.params.at)
