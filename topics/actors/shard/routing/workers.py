"""Router workers: forward new records from their sources to dests in any shard (§6).

    commit to a source --> due --later iteration--> batch -> `router.forward`
                            ^                                       |
                            '--- reply: cursor, or a retry later ---'

A commit only marks its source as due, so routers add no work to the path of a write. An iteration
forwards for about a millisecond, and the rest follows in the next iteration. A round lasts from the
first message to the last reply. While clients are writing, there are pauses between rounds, which
leave most of the loop's time to clients. After a period with few rounds there is no pause. Routers
with equal cursors and copies share batches and messages. A router has at most one forward in
flight. Records that are written in the meantime are part of its next forward.

No request to a dest waits for a router, because forwarding is asynchronous (§6, `decisions/0027`).

Records that do not fit in the dest remain in the source. The router requests space at increasing
intervals, and sends the records when the dest has space.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, TypeAlias

import trio

from topics.actors.rpc.session import Reply
from topics.actors.shard.context import ShardContext
from topics.actors.shard.deadlines import Deadline
from topics.actors.shard.routing.batches import ForwardBatch, body_batch, named_batch
from topics.actors.shard.routing.router_worker import (
    RETRY_MAX_S,
    RETRY_MIN_S,
    RouterSource,
    RouterWorker,
    WorkerState,
)
from topics.actors.shard.service import Service
from topics.engine.changes.append import Append
from topics.engine.changes.change import Change
from topics.engine.changes.delete_topic import DeleteTopic
from topics.engine.changes.forward import Advance, Forward
from topics.engine.changes.lease_jobs import LeaseChange
from topics.engine.changes.reservation import Reservation
from topics.engine.locators import is_in_log
from topics.engine.routing.hops import Hops
from topics.engine.routing.picking import Picked, pick
from topics.engine.routing.router_lag import lag
from topics.engine.store import Unreadable
from topics.engine.topic import Topic
from topics.errors import TopicsError
from topics.formats.api.diff_body import TagMatch
from topics.formats.disk.copies import decode_forward, is_row
from topics.formats.wire.calls import (
    FORWARD,
    ForwardParams,
    ForwardResult,
    ForwardStatus,
    RouterRow,
)

WORK_S: Final = 0.001  # time that one iteration spends on forwarding
# While clients are writing, forwarding pauses after each round; this is the pause as a multiple of
# the round's duration. Clients thus get most of the loop's time, and with a large fan-out each
# round copies more records. Idle time before a round counts as credit, so a single record is
# forwarded without a pause.
PAUSE_RATIO: Final = 3.0
PAUSE_MIN_S, PAUSE_MAX_S = 0.002, 0.05
CREDIT_MAX_S: Final = 0.02
TARGETS_MAX: Final = 64  # maximum number of routers in one message
# Maximum number of targets in flight to one shard. The shard serves other requests between two
# messages.
IN_FLIGHT_MAX: Final = 128
BATCH_RECORDS: Final = 4096
BATCH_BYTES: Final = 1 << 20
BATCH_RUNS: Final = 1024
SCAN_RECORDS: Final = 16_384
LOG_SKIPPED_S: Final = 1.0  # interval at which cursors that only skipped records are logged
BATCHES_MAX: Final = 16  # maximum number of stored batches that contain their records
NON_REMOVING: Final = (Reservation, LeaseChange)  # changes of other types may remove records

BatchKey: TypeAlias = tuple[int, int, TagMatch | None, int]
"""Topic id, cursor, filter for the records, maximum hop count."""


# States of a worker (`router_worker.WorkerState`):
#
#     set --> READY --taken into a group, sent--> IN_FLIGHT --reply: nothing left to copy--> IDLE
#               ^                                     |                                        |
#               |<-----reply: more records to copy----|                                        |
#               |                                     '--error, busy or full dest--> RETRYING  |
#               |<----------------its pause is over-----------------------------------'        |
#               '<------------------new records, another config, cursor to be logged-----------'
#
# `remove` is possible in every state. In IN_FLIGHT it is completed when the reply arrives.
class RouterWorkers(Service):
    """The routers whose source is in this shard.

    All methods run in the shard's loop, so no lock is needed. A worker has at most one forward in
    flight, so the copies of a router are in the order of its source.
    """

    def __init__(self, context: ShardContext) -> None:
        self._context, self._shard = context, context.engine.table.shard
        self._sources: dict[int, RouterSource] = {}  # by topic id
        # Keyed by router id. Each worker is also in the ``workers`` of its source.
        self._by_router: dict[int, tuple[RouterSource, RouterWorker]] = {}
        # Ordered set of the topic ids of sources with records to forward. A source that has more
        # records after an iteration is added again at the end.
        self._due: dict[int, None] = {}
        # Topic ids of sources that are waiting for replies to other forwards.
        self._blocked: dict[int, None] = {}
        # None if no round is scheduled. `_plan` sets it and `_work` clears it, so at most one round
        # is scheduled.
        self._next: Deadline | None = None  # deadline of the next round
        # The context's number of appends at the last round, to detect whether clients have written
        # since then.
        self._appends_seen = 0
        # Number of messages without a reply, to all shards. A round ends when this number is 0.
        self._pending_calls = 0
        # Monotonic seconds. ``_free_at``: the time at which the next round may begin while
        # clients write.
        self._round_start = self._free_at = 0.0
        self._in_flight: Counter[int] = Counter()  # targets in flight, by the dest's shard
        # Only valid within one iteration. A later append may begin another log file, and a frame
        # may refer only to frames of its own file.
        self._named: dict[BatchKey, ForwardBatch] = {}  # batches of this iteration
        # Batches that contain their records, the newest last.
        self._bodies: dict[BatchKey, ForwardBatch] = {}
        # The number of the last batch with records. A dest's shard recognizes a batch by its
        # number, so a number is never used twice in a link session.
        self._numbered = 0
        self._unlogged: dict[RouterWorker, None] = {}  # workers whose cursors have skipped records

    # The set of routers

    def set(self, row: RouterRow, topic: Topic) -> None:
        """Add or change a router with the source ``topic``."""
        shard = self._context.peers.shard_of(row.dest)
        known = self._by_router.get(row.id)
        if known is not None:
            source, worker = known
            # Take the worker out of its group before its config changes, because the config
            # determines the group.
            source.unmark_ready(worker)
            worker.configure(row, shard)
            if worker.state in (WorkerState.READY, WorkerState.IDLE):
                source.make_ready(worker)
        else:
            source = self._source(topic)
            worker = RouterWorker(row, shard)
            self._by_router[row.id] = source, worker
            source.add(worker)
        self._wake(source)

    def _source(self, topic: Topic) -> RouterSource:
        topic.follow(self._source_changed)
        return self._sources.setdefault(topic.id, RouterSource(topic))

    def _load_hops(self, source: RouterSource, cursor: int) -> None:
        """Read the hop counts of copies in the source after ``cursor``, at which a router begins.

        Only the frames of copies in the log contain hop counts.
        """
        topic, wal, noted = source.topic, self._context.wal, source.hops
        # There is nothing to read if no router writes to the source, or if the hop counts after
        # ``cursor`` are already known.
        if topic.derivations is None or cursor >= source.hops_from:
            return
        # Build the table again from the earlier cursor. Keep the known hop counts, and read the
        # others from frames that are still in the log. Sealed copies whose hop counts are unknown
        # are treated as records appended by clients (`decisions/0027`).
        source.hops, source.hops_from = Hops(), cursor
        for entry in topic.index.from_seq(cursor + 1):
            hop = noted.at(entry.first_seq)[0]
            if is_in_log(entry.locator) and is_row(entry.locator):
                hop = decode_forward(*wal.frame_at(entry.locator)).hop
            source.hops.note(entry.first_seq, entry.last_seq, hop)

    def remove(self, router: int, then: Callable[[int], object]) -> None:
        """Remove a router. ``then`` gets its total when none of its forwards is in flight.

        Do nothing for an unknown router.
        """
        known = self._by_router.pop(router, None)
        if known is None:
            return
        source, worker = known
        # Unlink the worker first, so that no reply and no timer makes it ready again.
        source.remove(worker)
        worker.is_removed = True
        self._unlogged.pop(worker, None)
        # If this was the last router of the source, stop following the commits of the topic.
        if not source.workers:
            del self._sources[source.topic.id]
            source.topic.unfollow(self._source_changed)
        if worker.retry is not None:
            worker.retry.cancel()
        # The total is unknown until the dest has replied, so query the dest first.
        if not worker.is_known and worker.state is not WorkerState.IN_FLIGHT:
            self._send_forward(source, [worker], ForwardBatch(worker.cursor, 0))
        if worker.state is WorkerState.IN_FLIGHT:
            worker.on_removed = then
        else:
            then(worker.total)

    def known(self) -> Iterable[int]:
        """Return the ids of all routers whose source is in this shard."""
        return self._by_router.keys()

    def rows(self) -> Iterator[RouterRow]:
        """Return all routers whose source is in this shard."""
        return (worker.row for _, worker in self._by_router.values())

    def worker(self, router: int) -> tuple[RouterSource, RouterWorker] | None:
        """Return a router and its source, if the source is in this shard."""
        return self._by_router.get(router)

    def stats(self, router: int) -> tuple[int, int, int, int] | None:
        """Return id, total, and lag in records and in ms; None until the dest has replied."""
        known = self._by_router.get(router)
        if known is None or not known[1].is_known:
            return None
        source, worker = known
        self._context.remove_expired(source.topic)
        now_ts = self._context.now.ts
        return router, worker.total, *lag(source.topic, self._context.store, worker.seen, now_ts)

    # Scheduling

    def _source_changed(self, change: Change) -> None:
        """Schedule the source for new records, and remove its routers if it is deleted.

        Drop its stored batches after any other change that may remove records.
        """
        source = self._sources[change.topic.id]
        if isinstance(change, Append | Advance):
            _note_hops(source, change)
            self._wake(source)
        elif isinstance(change, DeleteTopic):
            for router in tuple(source.workers):
                self.remove(router, lambda _: None)
        elif not isinstance(change, NON_REMOVING):
            # Records were removed or the config has changed. A stored batch may contain removed
            # records, so the batches of this source are built again.
            topic_id = source.topic.id
            for key in [key for key in self._bodies if key[0] == topic_id]:
                del self._bodies[key]

    def _wake(self, source: RouterSource) -> None:
        """Schedule a source that has new records or a new router."""
        source.has_new_records = True
        self._schedule(source)

    def _schedule(self, source: RouterSource) -> None:
        self._due[source.topic.id] = None
        self._plan()

    def _plan(self) -> None:
        """Schedule the next round.

        While clients are writing, the round begins after the pause that follows the previous round.
        It then includes the records that were written in the meantime.
        """
        if self._next is None:
            # If clients have not written since the last round, no client needs the loop, and the
            # round begins in the next iteration.
            is_free = self._context.append_count == self._appends_seen
            at = -math.inf if is_free or self._free_at <= trio.current_time() else self._free_at
            self._next = self._context.deadlines.call_at(at, self._work)

    def _work(self) -> None:
        self._next, self._appends_seen = None, self._context.append_count
        # During shutdown no forward is started. While a backup holds all moves, the round is
        # deferred.
        if self._context.is_stopping or self._context.moves.defer_if_held(self._plan):
            return
        until = time.perf_counter() + WORK_S
        self._named.clear()
        for topic_id in tuple(self._due):
            del self._due[topic_id]
            source = self._sources.get(topic_id)
            # The time limit of the iteration has been reached, but the source has more to forward.
            # The other sources are served before it continues.
            if source is not None and not self._feed(source, until):
                self._due[topic_id] = None  # at the end, after the other sources
            if time.perf_counter() > until:
                break
        if self._due:
            self._plan()

    def _has_capacity(self, shard: int) -> bool:
        return self._in_flight[shard] < IN_FLIGHT_MAX

    def _has_remote_capacity(self, shard: int) -> bool:
        return shard != self._shard and self._has_capacity(shard)

    def _feed(self, source: RouterSource, until: float) -> bool:
        """Forward to the dests of one source. Return False if time ran out before all were served.

        Messages to other shards are sent first, so that those shards work in parallel with this
        one.
        """
        # Do not copy expired records, because readers of the source cannot read them either.
        self._context.remove_expired(source.topic)
        source.wake_idle_workers()
        for has_capacity in (self._has_remote_capacity, self._has_capacity):
            while workers := source.take_group(TARGETS_MAX, has_capacity):
                self._send(source, workers)
                if time.perf_counter() > until:
                    return not source.ready
            self._context.send()
        # The remaining workers wait until a shard has capacity. A reply makes the source due again.
        if source.ready:
            self._blocked[source.topic.id] = None
        source.drop_hops()
        return True

    # One forward

    def _send(self, source: RouterSource, workers: list[RouterWorker]) -> None:
        """Send one forward for a group of workers with equal group keys."""
        first = workers[0]
        # A forward that contains no records requests the cursor, or the space that a full dest did
        # not have.
        if not first.is_known or first.need:
            self._send_forward(source, workers, ForwardBatch(first.cursor, 0))
            return
        # All workers of the group have the same key, so one batch serves all of them.
        key = (source.topic.id, first.seen, first.match, first.group_key.hop_max)
        is_local = first.shard == self._context.wal.shard
        # In this shard, a frame can refer to records that the log contains. Other shards get the
        # records in the message.
        batch = self._named.get(key) if is_local else self._body(source, key)
        if batch is None:
            try:
                batch = self._prepare(source, workers, key, is_local=is_local)
            except Unreadable:
                self._retry(source, workers)
                return
        if batch is not None:
            self._send_forward(source, workers, batch)

    def _prepare(
        self,
        source: RouterSource,
        workers: list[RouterWorker],
        key: BatchKey,
        *,
        is_local: bool,
        reads_all: bool = False,
    ) -> ForwardBatch | None:
        """Return the batch after the cursor of the workers, or None if there is nothing to copy.

        ``is_local``: the dests are in this shard. Raises `Unreadable`.
        """
        first = workers[0]
        # Select the records after the cursor, within the bounds of a batch.
        picked = pick(
            source.topic,
            self._context.store,
            first.seen,
            first.match,
            source.hops,
            max_records=BATCH_RECORDS,
            max_bytes=BATCH_BYTES,
            max_runs=BATCH_RUNS,
            scan_records=SCAN_RECORDS,
            hop_max=first.group_key.hop_max,
            reads_all=reads_all,
        )
        if not picked.runs:
            self._skip(source, workers, picked)
            return None
        names = [worker.row.name for worker in workers]
        # Prefer a batch that refers to frames, because its records need not be read or written
        # again.
        if is_local and (named := named_batch(picked, self._context.wal, names)) is not None:
            self._named[key] = named
            return named
        if (known := self._body(source, key)) is not None:
            return known
        try:
            batch = body_batch(picked, self._context.store, self._numbered + 1)
        except Unreadable:
            # A record is unreadable. Select again and read each record, so that only the
            # damaged ones are left out. A second failure is retried later.
            if reads_all:
                raise
            return self._prepare(source, workers, key, is_local=is_local, reads_all=True)
        self._numbered += 1
        self._bodies[key] = batch
        # The oldest batches are dropped. They are built again if a slow router still needs them.
        while len(self._bodies) > BATCHES_MAX:
            del self._bodies[next(iter(self._bodies))]
        return batch

    def _body(self, source: RouterSource, key: BatchKey) -> ForwardBatch | None:
        """Return the stored batch. Return None if there is none or its first record was evicted."""
        batch = self._bodies.get(key)
        return None if batch is None or batch.seqs[0] < source.topic.start_seq else batch

    def _skip(self, source: RouterSource, workers: list[RouterWorker], picked: Picked) -> None:
        """Advance the cursors: no record up to ``picked.to_seq`` is to be copied."""
        first = workers[0]
        # The next records were lost in the source. The dest must log the gap.
        if picked.trimmed:
            self._send_forward(
                source, workers, ForwardBatch(picked.to_seq, picked.hop), trimmed=picked.trimmed
            )
            return
        is_at_end = picked.to_seq == first.seen
        # Advance the cursors in memory. Not every skip is logged, because a filter may skip all
        # records.
        for worker in workers:
            worker.skip_to(picked.to_seq)
            if not is_at_end:
                source.make_ready(worker)
            # Log the skip if the interval of `_log_later` is over. Also log it if the config has
            # changed, because a restart would otherwise copy records that the old filter excluded.
            elif worker.must_log and worker.seen > worker.cursor:
                self._send_forward(source, [worker], ForwardBatch(worker.seen, 0))
            else:
                source.mark_idle(worker)
                if worker.seen > worker.cursor:
                    self._log_later(worker)

    def _send_forward(
        self,
        source: RouterSource,
        workers: list[RouterWorker],
        batch: ForwardBatch,
        trimmed: int = 0,
    ) -> None:
        first, row = workers[0], workers[0].row
        for worker in workers:
            worker.state = WorkerState.IN_FLIGHT
        # The first message begins a round if no messages are in flight.
        if not self._pending_calls:
            self._round_start = trio.current_time()
        self._pending_calls += 1
        self._context.moves.enter()
        self._in_flight[first.shard] += len(workers)
        # ``from_seq`` makes the forward idempotent: a dest whose cursor differs reports its
        # cursor and appends nothing.
        params = ForwardParams(
            source=row.source,
            source_id=row.source_id,
            epoch=row.epoch,
            from_seq=first.cursor,
            to_seq=batch.to_seq,
            trimmed=trimmed,
            hop=batch.hop + 1,
            need=first.need,
            batch=batch.number,
            runs=batch.packed(first.drops, is_stamped=row.exactly_once),
            seqs=batch.seqs,
            targets=[worker.target for worker in workers],
        )
        then = partial(self._answered, source, first.shard, workers)
        self._context.peers.call(first.shard, FORWARD, params, batch.body, then)

    # Replies

    def _answered(
        self,
        source: RouterSource,
        shard: int,
        workers: Sequence[RouterWorker],
        answer: Reply[ForwardResult] | TopicsError,
    ) -> None:
        self._in_flight[shard] -= len(workers)
        self._pending_calls -= 1
        self._context.moves.leave()
        # The last reply ends the round. Compute the pause that follows, in which the loop serves
        # only clients.
        if not self._pending_calls:
            now = trio.current_time()
            round_s = now - self._round_start
            pause_s = min(max(PAUSE_RATIO * round_s, PAUSE_MIN_S), PAUSE_MAX_S)
            # Time in which no pause was due counts as credit, up to CREDIT_MAX_S.
            unused_from = max(self._free_at, self._round_start - CREDIT_MAX_S)
            # Rounds that ran without a pause, because no client was writing, do not extend the
            # pause.
            self._free_at = min(unused_from + round_s, now) + pause_s
        # Sources that were waiting for capacity of a shard may send again.
        self._due.update(self._blocked)
        self._blocked.clear()
        if isinstance(answer, TopicsError):
            # No outcome is known, so the cursors are not changed. If the copies were made, the dest
            # replies BEHIND to the next attempt, with its cursor.
            self._retry(source, workers)
        else:
            outcomes = answer.result.outcomes
            answer.release()
            for worker, (status, cursor, total, need) in zip(workers, outcomes, strict=True):
                worker.need = need
                self._settle(source, worker, ForwardStatus(status), cursor, total)
        # Records may have been written while the forward was in flight. The next round forwards
        # them.
        if source.ready or source.has_new_records:
            self._due[source.topic.id] = None
        else:
            source.drop_hops()
        if self._due:
            self._plan()

    def _settle(
        self,
        source: RouterSource,
        worker: RouterWorker,
        status: ForwardStatus,
        cursor: int,
        total: int,
    ) -> None:
        has_moved = cursor != worker.cursor
        # The dest has reported its cursor for the first time. The cursor may be below the first seq
        # whose hops are known.
        if not worker.is_known:
            self._load_hops(source, cursor)
        # With these statuses, ``cursor`` is the cursor that the log of the dest contains.
        if status in (ForwardStatus.DONE, ForwardStatus.BEHIND, ForwardStatus.FULL):
            worker.set_position(cursor, total)
        if worker.is_removed:
            worker.end_removal()
            return
        # With FULL, BUSY or NO_DEST, the dest accepts no further copies now. With NO_DEST, the
        # owner removes the router soon.
        if status not in (ForwardStatus.DONE, ForwardStatus.BEHIND):
            # The dest has accepted some copies, so begin with a short pause.
            if has_moved:
                worker.retry_s = 0.0
            self._retry(source, (worker,))
            return
        worker.retry_s = 0.0
        if worker.seen < source.topic.head_seq:
            source.make_ready(worker)
        else:
            source.mark_idle(worker)

    def _retry(self, source: RouterSource, workers: Iterable[RouterWorker]) -> None:
        """Retry the forwards of the workers after a pause."""
        now = trio.current_time()
        for worker in workers:
            if worker.is_removed:
                worker.end_removal()
                continue
            # The pause doubles from `RETRY_MIN_S` to `RETRY_MAX_S` while the dest appends nothing.
            worker.state = WorkerState.RETRYING
            worker.retry_s = min(max(2 * worker.retry_s, RETRY_MIN_S), RETRY_MAX_S)
            call = partial(self._continue, source, (worker,))
            worker.retry = self._context.deadlines.call_at(now + worker.retry_s, call)

    def _continue(self, source: RouterSource, workers: Iterable[RouterWorker]) -> None:
        for worker in workers:
            worker.retry = None
            if not worker.is_removed:
                source.make_ready(worker)
        self._schedule(source)

    # Cursors that skipped records

    def _log_later(self, worker: RouterWorker) -> None:
        """Make the dest log the cursor within `LOG_SKIPPED_S`, unless a copy does so earlier."""
        if not self._unlogged:
            until = trio.current_time() + LOG_SKIPPED_S
            self._context.deadlines.call_at(until, self._log_skipped)
        self._unlogged[worker] = None

    def _log_skipped(self) -> None:
        unlogged, self._unlogged = self._unlogged, {}
        for worker in unlogged:
            known = self._by_router.get(worker.row.id)
            # A worker that is not idle will send a forward anyway, which logs its cursor.
            if known is not None and worker.state is WorkerState.IDLE:
                worker.must_log = worker.seen > worker.cursor
                known[0].make_ready(worker)
                self._schedule(known[0])


def _note_hops(source: RouterSource, change: Append | Advance) -> None:
    """Store the hop counts of new copies, if the source is itself the dest of a router."""
    if isinstance(change, Forward):
        source.hops.note(change.first_seq, change.last_seq, change.hop)
    elif isinstance(change, Advance) and change.skipped is not None:
        source.hops.note(*change.skipped, change.hop)
