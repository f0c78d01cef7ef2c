"""Jobs: the states of the jobs of one queue (§10). A job is a live record of the queue.

    append --> fresh ---------------------------claim--> held --ack--> acking --durable--> deleted
         '--> delayed --its time--> due --------claim-----^  |
                                                          |  '--nack, end of the lease--.
         hidden <--nack with a delay------------.         |                             v
            '--its time--> free <---------------'---------'-----------claim----------- free
                             '--exhausted, found by a pass--> dead --> dying --moved--> deleted
                                                               '-refused-'

Every live record is in exactly one state. A job is exhausted if it has been delivered
``max_deliveries`` times and the queue has a dead-letter topic. A pass, which takes jobs for one or
more claims, moves an exhausted job to the state dead instead of delivering it.

Jobs in all states except fresh are listed by seq. The fresh jobs are the live seqs from ``cursor``
on that ``_not_fresh`` does not contain. So the cost of a claim does not depend on the number of
waiting or reserved jobs. The number of ready jobs is the number of live records minus the jobs in
the other states.

Work that grows with the number of jobs is bounded. A pass takes at most `PASS_STEPS` steps without
success, and then `is_unfinished` is true. `advance` ends at most `ADVANCE_MAX` leases and delays in
one call. The next call continues `ADVANCE_PAUSE_MS` later, or as soon as a pass finds fewer jobs
than requested. The counters treat expired leases and delays as ended even if `advance` has not
reached them (`DueCounter`), so ``ready`` is at most 16 ms late.

Leases, delays after a nack and delivery times use the monotonic clock. When a cap, the maximum age
or a delete removes a record, its job is immediately removed from its state (`cut`, `remove_runs`).
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from enum import Enum
from itertools import chain, islice
from typing import Any, NamedTuple, TypeAlias

from topics.engine.moved_keys import BATCH_JOBS
from topics.engine.now import Now
from topics.engine.queue.delays import Delays
from topics.engine.queue.leases import Lease, LeaseHolder, LeaseTable
from topics.engine.queue.ledger import JobRow, JobState, Ledger, seqs_in_runs
from topics.engine.queue.seq_set import SeqSet
from topics.engine.queue.timer_queue import DueCounter, TimerQueue
from topics.formats.api.limits import DELAY_MS_MAX, LEASE_MS_BOUNDS
from topics.formats.api.topic_config import TopicConfig
from topics.formats.ranges import SeqRun

# A heap or a free queue is rebuilt only if it has more than this number of stale entries.
HEAP_STALE_MIN = 4096
LEDGER_STEP = 512  # number of jobs in a part of a checkpoint; encoding a part takes .5 ms
ADVANCE_MAX, ADVANCE_PAUSE_MS = 2048, 10
PASS_STEPS = 4096  # maximum number of unsuccessful steps in a pass; they take a few milliseconds


class QueueCounters(NamedTuple):
    """The ``queue`` object of a topic's state (§10.7).

    ``ready`` is the number of jobs that the next pass may deliver. These jobs are live, not leased,
    not delayed, and not being moved to another topic. An exhausted job counts as ready until a pass
    has found it.
    """

    ready: int
    in_flight: int
    dead_lettered: int
    delayed: int


# A function that wraps an iterable and counts its items, to report the progress of startup.
Watched: TypeAlias = Callable[[Iterable[Any]], Iterable[Any]]


class StateBeforeReserve(Enum):
    """The state of a job before it was reserved by `Jobs.reserve`."""

    FRESH = "fresh"
    FREE = "free"
    HIDDEN = "hidden"
    DELAYED = "delayed"
    DUE = "due"
    DEAD = "dead"


class Hidden(dict[int, int]):
    """The time until which each job is hidden (monotonic ms), by seq. ``ends`` counts these times.

    Only the methods below may change the dict.
    """

    __slots__ = ("ends",)

    def __init__(self) -> None:
        super().__init__()
        self.ends = DueCounter()

    def __setitem__(self, seq: int, until_ms: int) -> None:
        self.pop(seq)
        super().__setitem__(seq, until_ms)
        self.ends.add(until_ms)

    def __delitem__(self, seq: int) -> None:
        self.ends.remove(self[seq])
        super().__delitem__(seq)

    def pop(self, seq: int, default: Any = None) -> Any:
        """Remove and return the time of a job, or ``default`` if the job is not hidden."""
        until_ms = super().pop(seq, None)
        if until_ms is None:
            return default
        self.ends.remove(until_ms)
        return until_ms


class Jobs:
    """The jobs of one queue.

    ``dead_lettered`` is the number of jobs moved to the dead-letter topic so far. While a replay
    is in progress, ``ledger`` contains the complete state of the jobs and the other fields are
    empty. `begin` ends this phase.
    """

    __slots__ = (
        *("_not_fresh", "_delays", "_delay_times", "_deliveries", "_free_queue_head"),
        *("_unfinished_since", "_free", "_hidden", "_hidden_times", "_free_queue", "_paused_until"),
        "_start_seq",
        *(
            "acking",
            "reserved",
            "cursor",
            "dead",
            "dead_lettered",
            "logged_dying",
            "due",
            "dead_lettering",
        ),
        *("errors", "leases", "ledger", "steps_left", "unlogged"),
    )

    def __init__(self, ledger: Ledger | None = None) -> None:
        # Set only while a replay is in progress. `begin` reads it and sets it to None. Until
        # then, `cut` and `remove_runs` change the ledger and nothing else.
        self.ledger = ledger
        self.leases = LeaseTable()
        self.cursor = 1  # no fresh job has a seq below the cursor
        # From the cursor on: the jobs that are not fresh. It may also contain seqs of deleted
        # records.
        self._not_fresh = SeqSet()
        # The free queue: the free jobs, in the order in which they became free. An entry is stale
        # if its slot is not the one in `_free`.
        self._free_queue: deque[int] = deque()
        self._free_queue_head = 0  # number of the first slot of the free queue
        self._free: dict[int, int] = {}  # by seq of a free job: the number of its slot
        self._hidden = Hidden()
        self._hidden_times = TimerQueue(self._hidden.get)
        self._delays = Delays()  # delivery times of jobs that are delayed or due
        self._delay_times = TimerQueue(self._delays.until_ms)
        self.due: list[tuple[int, int]] = []  # heap of (time, seq), with stale entries
        # By seq: the number of deliveries. A held or acking job without an entry has been delivered
        # once.
        self._deliveries: dict[int, int] = {}
        self.errors: dict[int, str] = {}  # by seq: the error text of the last nack that had one
        # Acked jobs with their former leases, until the delete is durable.
        self.acking: dict[int, Lease] = {}
        self.dead: OrderedDict[int, None] = OrderedDict()  # exhausted jobs that are not being moved
        # One batch of jobs that are being moved to the dead-letter topic. The topic may already
        # contain them. The batch ends when each job is deleted or refused (decision 0049).
        self.dead_lettering: dict[int, None] = {}
        # Jobs whose last frame in the log marks them as DYING, with the name of their dead-letter
        # topic. The name is "" in frames of an earlier version, whose copy keys do not contain the
        # name of the queue.
        self.logged_dying: dict[int, str] = {}
        # Jobs that a redrive has reserved, by seq. A reserved job is in no other state. The value
        # is the former state, to which `unreserve` returns the job, with a monotonic time (hidden),
        # a wall time (delayed, due) or 0 (all others).
        self.reserved: dict[int, tuple[StateBeforeReserve, int]] = {}
        # The change that made leases durable, until the log contains the leases from before it.
        self.unlogged: object = None
        self.dead_lettered = 0
        # Monotonic ms. Before this time, `advance` does nothing unless a claim needs more jobs.
        self._paused_until = 0
        # Monotonic ms of the last `advance` if it left expired leases or delays; otherwise 0.
        self._unfinished_since = 0
        self._start_seq = 0  # start seq of the last `cut`
        # Unsuccessful steps that the current pass may still take; the pass ends at 0.
        self.steps_left = 0

    # Queries

    def counters(self, live_count: int) -> QueueCounters:
        """Return the counters as of the last `advance`.

        ``live_count`` is the number of live records of the topic.
        """
        # Start from all live records and subtract the other states, because fresh jobs are not
        # listed anywhere. A job that is in two lists would be subtracted twice and make ``ready``
        # too low.
        in_flight = len(self.leases.held) + len(self.acking)
        hidden, delayed = len(self._hidden), self._delays.waiting
        # If `advance` left expired leases and delays, count them as ended.
        if self._unfinished_since:
            now_ms = self._unfinished_since
            in_flight -= self.leases.ends.due(self.leases.expiry.next_at, now_ms)
            hidden -= self._hidden.ends.due(self._hidden_times.next_at, now_ms)
            delayed -= self._delays.ends.due(self._delay_times.next_at, now_ms)
        moving = len(self.dead) + len(self.dead_lettering) + len(self.reserved)
        ready = live_count - in_flight - hidden - delayed - moving
        return QueueCounters(ready, in_flight, self.dead_lettered, delayed)

    def deliveries(self, seq: int) -> int:
        """Return the number of deliveries of a job."""
        is_held = seq in self.leases.held or seq in self.acking
        return self._deliveries.get(seq, 1 if is_held else 0)

    @property
    def next_at(self) -> int:
        """Return a time before which no lease and no delay ends (monotonic ms)."""
        times = self.leases.expiry, self._hidden_times, self._delay_times
        return min([timetable.next_at for timetable in times])

    def is_exhausted(self, seq: int, config: TopicConfig) -> bool:
        """Return whether the job must be moved to the dead-letter topic and not delivered again
        (§10.6).
        """
        return (
            0 < config.max_deliveries <= self._deliveries.get(seq, 0)
            and config.dead_letter is not None
        )

    # Time

    def advance(self, now_ms: int, wanted: int = 0) -> None:
        """End up to `ADVANCE_MAX` leases and delays that have expired by ``now_ms``.

        ``wanted`` is the number of jobs that the caller is about to claim.
        """
        if (
            now_ms < self.leases.expiry.next_at
            and now_ms < self._hidden_times.next_at
            and now_ms < self._delay_times.next_at
        ):
            self._unfinished_since = 0
            return
        # If the last call left work, pause before the next one, unless a claim needs jobs now.
        if now_ms < self._paused_until and len(self._free) + len(self.due) >= wanted:
            self._unfinished_since = now_ms
            return
        # Jobs whose leases or hidden times have ended become free in the order of these times.
        freed = self.leases.expire(now_ms, ADVANCE_MAX)
        # While a job is held, a count of 1 is not stored. Store it now, because `deliveries`
        # would report 0 for a free job without an entry, and the job would get one delivery too
        # many.
        for _, seq in freed:
            self._deliveries.setdefault(seq, 1)
        # Also call this if no job is hidden, because stale entries must not hold back `next_at`.
        shown = self._hidden_times.take_due(now_ms, ADVANCE_MAX)
        if shown:
            freed += [due for due in shown if self._hidden.pop(due[1], None) is not None]
            freed.sort()
        for _, seq in freed:
            self.free(seq)
        for _, seq in self._delay_times.take_due(now_ms, ADVANCE_MAX):
            due_ts = self._delays.note_due(seq)
            if due_ts is not None:
                heapq.heappush(self.due, (due_ts, seq))
        # If more have expired than one call ends, the counters use ``_unfinished_since`` to count
        # the rest as ended.
        is_done = self.next_at > now_ms
        self._paused_until = 0 if is_done else now_ms + ADVANCE_PAUSE_MS
        self._unfinished_since = 0 if is_done else now_ms

    # State transitions

    def free(self, seq: int) -> None:
        """Make a job claimable again, after all other free jobs."""
        # The number of a slot is absolute, so it remains valid while jobs are removed from the
        # front of the queue. A job that is freed again gets another number, which makes its earlier
        # entry in the queue stale.
        self._free[seq] = self._free_queue_head + len(self._free_queue)
        self._free_queue.append(seq)

    def hide(self, seq: int, until_ms: int) -> None:
        """Hide a job until ``until_ms`` (monotonic ms). Then it is claimable again."""
        self._hidden[seq] = until_ms
        self._hidden_times.add(until_ms, (seq,))
        # A job that is hidden again leaves its earlier timer in the queue. `trim` rebuilds the
        # queue when most timers are stale, so that repeated nacks of one job do not make it grow.
        self._hidden_times.trim(len(self._hidden), 1)

    def delay(self, seq: int, due_ts: int, now: Now) -> None:
        """Delay a new job: it is delivered at ``due_ts`` (wall ms) at the earliest."""
        self._not_fresh.add(seq)
        # A job that is due already needs no timer. Time 0 marks it as due.
        if due_ts <= now.ts:
            self._delays.put(seq, due_ts, 0)
            heapq.heappush(self.due, (due_ts, seq))
            return
        # The timer uses the monotonic clock, so that a wall clock that is set back does not delay
        # the job. The limit bounds the wait if the wall clock was wrong when the time was
        # computed.
        until_ms = now.ms + min(due_ts - now.ts, DELAY_MS_MAX)
        self._delays.put(seq, due_ts, until_ms)
        self._delay_times.add(until_ms, (seq,))
        self._delay_times.trim(self._delays.waiting, 1)

    @property
    def is_unfinished(self) -> bool:
        """Return whether the last pass may have missed jobs.

        This is the case if the pass took too many steps without success, or if it found no job for
        one of its claimers after `advance` had left expired leases or delays.
        """
        return self.steps_left <= 0

    def end_pass(self, is_short: bool) -> None:
        """End a pass. ``is_short``: the pass found no job for at least one of its claimers."""
        if is_short and self._unfinished_since:
            self.steps_left = 0

    def take_free(self, count: int, config: TopicConfig) -> list[int]:
        """Take up to ``count`` jobs from the free queue, and return their seqs.

        Exhausted jobs that the pass finds change to the state dead.
        """
        taken: list[int] = []
        order, free = self._free_queue, self._free
        # The pass ends after too many unsuccessful steps, because the free queue may begin with any
        # number of stale or exhausted entries. The next pass continues after them.
        while order and len(taken) < count and self.steps_left > 0:
            seq, rank = order.popleft(), self._free_queue_head
            self._free_queue_head += 1
            # Skip a stale entry. The job has left this slot.
            if free.get(seq) != rank:
                self.steps_left -= 1
                continue
            del free[seq]
            if self.is_exhausted(seq, config):
                self.dead[seq] = None
                self.steps_left -= 1
            else:
                taken.append(seq)
        return taken

    def hide_taken(self, seq: int, until_ms: int) -> None:
        """Hide a taken job until ``until_ms``, because it cannot be delivered now."""
        self._deliveries.setdefault(seq, 0)
        self.hide(seq, until_ms)
        self.steps_left -= 1

    def return_taken(self, seqs: Sequence[int]) -> None:
        """Return undelivered taken jobs to the front of the free queue, keeping their order."""
        for seq in reversed(seqs):
            self._deliveries.setdefault(seq, 0)
            self._free_first(seq)

    def next_due(self) -> tuple[int, int] | None:
        """Return (time, seq) of the first due job, or None if there is none.

        The result is not reliable if the pass `is_unfinished`.
        """
        due = self.due
        # The top of the heap is stale if the job has been taken, reserved or removed, or now has a
        # different time.
        while due and self._delays.get(due[0][1]) != due[0][0] and self.steps_left > 0:
            heapq.heappop(due)
            self.steps_left -= 1
        return due[0] if due else None

    def take_due(self) -> int:
        """Take the job that `next_due` returned, and return its seq."""
        _, seq = heapq.heappop(self.due)
        self._delays.take(seq)
        return seq

    def skip(self, seq: int) -> int:
        """Move the cursor from ``seq`` to the next seq that may be fresh, and return the cursor."""
        # Below the cursor no job is fresh, so seqs there are dropped from the set. Without this,
        # the set would grow with each job that a redrive has reserved or a delay has held back.
        self.cursor = max(self.cursor, seq)
        if self._not_fresh.blocks:
            self.cursor = self._not_fresh.next_out(self.cursor)
            self._not_fresh.discard_below(self.cursor)
        return self.cursor

    def fresh_until(self, first: int, stop: int) -> int:
        """Return the first seq from ``first`` on that is not fresh, or ``stop`` if it is lower.

        All live seqs from ``first`` to the result (exclusive) are fresh.
        """
        return self._not_fresh.next_in(first, stop) if self._not_fresh.blocks else stop

    def deliver(
        self, seqs: Sequence[int], number: int, deadline_ms: int, holder: LeaseHolder
    ) -> list[int]:
        """Lease taken jobs, and return the number of deliveries of each job, including this one.

        The leases get ``number`` and the numbers after it.

        The caller must have taken the jobs from their states, so that each job is in one state
        only.
        """
        delivery_counts, counts = [1] * len(seqs), self._deliveries
        if counts:
            # A count of 1 is not stored while the job is held.
            for at, seq in enumerate(seqs):
                count = counts.pop(seq, 0) + 1
                if count > 1:
                    counts[seq] = delivery_counts[at] = count
        self.leases.grant(seqs, number, deadline_ms, holder)
        return delivery_counts

    def undo_delivery(self, seq: int, number: int) -> None:
        """Undo the delivery of a job, if it is still leased under this number."""
        # The number distinguishes the leases of one job. The lease may have ended since, and
        # another client may hold the job under a later number.
        if self.leases.has_number(seq, number):
            self._deliveries[seq] = self.deliveries(seq) - 1
            self.leases.drop(seq)
            self._free_first(seq)

    def _free_first(self, seq: int) -> None:
        """Put a job at the front of the free queue."""
        self._free_queue_head -= 1
        self._free[seq] = self._free_queue_head
        self._free_queue.appendleft(seq)

    def undo_delivery_count(self, seq: int) -> None:
        """Undo the count of the last delivery of a free job, because no client has received it."""
        self._deliveries[seq] -= 1

    def end_lease(self, seq: int, until_ms: int | None) -> Lease:
        """End the lease of a held job, and return the lease.

        The job is claimable immediately, or from ``until_ms`` on (monotonic ms).
        """
        lease = self.leases.drop(seq)
        assert lease is not None, "only leased jobs are released"
        self._deliveries.setdefault(seq, 1)
        if until_ms is None:
            self.free(seq)
        else:
            self.hide(seq, until_ms)
        return lease

    def restore_lease(self, lease: Lease, *, uncounted: int = 0) -> None:
        """Undo the end of a lease, unless the record was deleted in the meantime.

        ``uncounted`` is the number of deliveries that count again.
        """
        seq, ended = lease.seq, False
        # If the job is in none of these states, it was claimed again or its record was deleted.
        for listed in (self._free, self._hidden, self.dead, self.acking):
            if seq in listed:
                del listed[seq]
                ended = True
        if ended:
            count = self._deliveries.pop(seq, 1) + uncounted
            if count > 1:
                self._deliveries[seq] = count
            self.leases.grant((seq,), lease.number, lease.deadline_ms, lease.holder)

    def begin_acks(self, seqs: Iterable[int]) -> list[Lease]:
        """End the leases of acked jobs, and return the leases. The jobs are in the state acking
        until the delete is durable.
        """
        ended = list[Lease]()
        for seq in seqs:
            lease = self.leases.drop(seq)
            assert lease is not None, "only leased jobs are acked"
            self.acking[seq] = lease
            ended.append(lease)
        return ended

    def recheck_dead(self) -> None:
        """Free the exhausted jobs after a config change. The next pass checks them again."""
        for seq in self.dead:
            self.free(seq)
        self.dead.clear()

    # Jobs that are moved to another topic

    def is_busy(self, seq: int, now_ms: int) -> bool:
        """Return whether the job is leased or being moved, so that it cannot be reserved."""
        lease = self.leases.held.get(seq)
        if lease is not None:
            return lease.deadline_ms >= now_ms
        return seq in self.acking or seq in self.dead_lettering or seq in self.reserved

    def reserve(self, seq: int, now_ms: int) -> bool:
        """Reserve this job, so that no client can claim it until `unreserve`.

        Return False if the job is busy. An expired lease is ended here, even if `advance` has not
        reached it yet.
        """
        if self.is_busy(seq, now_ms):
            return False
        if seq in self.leases:
            # The lease is in the table only because `advance` has not reached it. Its job becomes
            # free first, because `_leave_state` does not handle held jobs.
            self.end_lease(seq, None)
        self.reserved[seq] = self._leave_state(seq)
        return True

    def _leave_state(self, seq: int) -> tuple[StateBeforeReserve, int]:
        """Remove a job from its state. Return the state and its time (0 if the state has none)."""
        # The order of the checks has no effect, because a job is in one state only. The entry of a
        # free job in the free queue becomes stale, and `take_free` skips it.
        if seq in self.dead:
            del self.dead[seq]
            return StateBeforeReserve.DEAD, 0
        if seq in self._free:
            del self._free[seq]
            return StateBeforeReserve.FREE, 0
        if seq in self._hidden:
            return StateBeforeReserve.HIDDEN, self._hidden.pop(seq)
        delay = self._delays.take(seq)
        if delay is not None:
            due_ts, is_due = delay
            return StateBeforeReserve.DUE if is_due else StateBeforeReserve.DELAYED, due_ts
        self._not_fresh.add(seq)
        return StateBeforeReserve.FRESH, 0

    def unreserve(self, seq: int, now: Now) -> None:
        """Undo `reserve`, if the record is still live. The job returns to its former state."""
        state, time = self.reserved.pop(seq, (None, 0))
        # A fresh job is in no list and is found only from the cursor on. If it is below the cursor,
        # the last branch makes it free.
        if state is StateBeforeReserve.FRESH and seq >= self.cursor:
            self._not_fresh.discard(seq)
        elif state is StateBeforeReserve.HIDDEN:
            self.hide(seq, time)
        elif state is StateBeforeReserve.DELAYED:
            self.delay(seq, time, now)
        elif state is StateBeforeReserve.DUE:  # the job stays due even if the clock was set back
            self._delays.put(seq, time, 0)
            heapq.heappush(self.due, (time, seq))
            # Each reservation of a due job leaves a stale entry in the heap. Rebuild the heap
            # when most entries are stale.
            if len(self.due) > 2 * len(self._delays) + HEAP_STALE_MIN:
                self.due = sorted({due for due in self.due if self._delays.get(due[1]) == due[0]})
        elif state is StateBeforeReserve.DEAD:
            self.dead[seq] = None
        # The job was free, or it was fresh and is below the cursor now.
        elif state is not None:
            self._deliveries.setdefault(seq, 0)
            self.free(seq)
            # The same applies to the free queue. The slots are renumbered in the same order.
            if len(self._free_queue) > 2 * len(self._free) + HEAP_STALE_MIN:
                self._free_queue = deque(sorted(self._free, key=self._free.__getitem__))
                self._free_queue_head = 0
                self._free = {seq: rank for rank, seq in enumerate(self._free_queue)}

    # State across a restart

    def begin(
        self,
        now: Now,
        start_seq: int = 0,
        dead_letter: str | None = None,
        watched: Watched = iter,
    ) -> None:
        """End the replay, and continue with the state in the ledger.

        No record below ``start_seq`` is live. ``dead_letter`` is the dead-letter topic of the
        queue. ``watched`` wraps an iterable of jobs and counts its items, to report the progress.
        """
        ledger, self.ledger = self.ledger, None
        assert ledger is not None, "the replay ends only once"
        self.dead_lettered, self._start_seq = ledger.dead_lettered, start_seq
        self.errors = ledger.errors
        for seq, due_ts in watched(ledger.delays.items()):
            # A job with a row was delivered after its delay had ended, so the row replaces the
            # delay.
            if seq not in ledger.rows:
                self.delay(seq, due_ts, now)
        # `sorted` is stable, so free jobs with the same time keep their order.
        rows = sorted(ledger.rows.items(), key=lambda item: item[1].until_ts)
        for seq, row in watched(rows):
            self._not_fresh.add(seq)
            self._begin_row(seq, row, now)
        # Only the last batch of the dying jobs may already be in the dead-letter topic.
        for seq in [*islice(reversed(self.dead), BATCH_JOBS)][::-1]:
            if self.logged_dying[seq] == dead_letter:
                del self.dead[seq]
                self.dead_lettering[seq] = None

    def _begin_row(self, seq: int, row: JobRow, now: Now) -> None:
        """Restore the state of a job from a row of the ledger."""
        # The wall clock may have been set back since the row was written. No lease and no hidden
        # time is longer than the maximum, so a longer remaining time is reduced to the maximum.
        left_ms = min(row.until_ts - now.ts, LEASE_MS_BOUNDS[1])
        if row.state is JobState.HELD and left_ms >= 0:
            if row.deliveries > 1:
                self._deliveries[seq] = row.deliveries
            # The name of the holder is the node that the row contains. After a restart no
            # connection of a work stream exists, so all restored leases belong to polled claims.
            holder = self.leases.poller(row.node)
            self.leases.grant((seq,), row.number, now.ms + left_ms, holder)
            return
        self._deliveries[seq] = row.deliveries
        if row.state is JobState.DYING:
            self.dead[seq] = None
            self.logged_dying[seq] = row.node
        elif left_ms > 0:
            self.hide(seq, now.ms + left_ms)
        else:
            self.free(seq)

    def ledgers(
        self, now: Now, *, with_leases: bool, with_counts: bool = False
    ) -> Iterator[Ledger]:
        """Yield the state that a restart needs, split into parts.

        ``with_leases`` also includes leases and deliveries. ``with_counts`` also includes
        deliveries, delays after nacks and errors, and ends all leases.

        Jobs may change between two steps. Each job that is listed now is included in its state at
        the time of its step. All other changes are in frames that are written from now on.
        """
        aside, last = tuple(self.reserved), 0  # some may be delayed jobs again when their step runs
        while delays := [*self._delays.rows(last, LEDGER_STEP)]:
            ledger = Ledger()
            for last, due_ts in delays:
                ledger.delays.put(last, due_ts, 0)
            yield ledger
        seqs = [*self.listed(), *aside]  # some seqs may occur twice
        for start in range(0, len(seqs), LEDGER_STEP):
            ledger = Ledger()
            for seq in seqs[start : start + LEDGER_STEP]:
                # `row` describes the job as of now. If leases are not to survive the restart, a
                # held job is stored as free, with its number of deliveries.
                row = self.row(seq, now)
                if row is not None and row.state is JobState.HELD and not with_leases:
                    row = JobRow(JobState.FREE, 0, 0, row.deliveries, "")
                # A job without a row is fresh after a restart. DYING jobs are always stored,
                # because the dead-letter topic may already contain copies of them.
                if row is not None and (with_leases or with_counts or row.state is JobState.DYING):
                    ledger.rows[seq] = row
                    if seq in self.errors:
                        ledger.errors[seq] = self.errors[seq]
                elif (due_at := self._due_at(seq)) is not None:
                    ledger.delays.put(seq, due_at, 0)
            yield ledger

    def listed(self) -> list[int]:
        """Return the seqs of jobs that may have been delivered, in the order of `ledgers`.

        Some seqs may be listed twice.
        """
        return [*chain(*self._lists())]

    def row(self, seq: int, now: Now) -> JobRow | None:
        """Return the row of a job for the ledger, or None if the job has never been delivered."""
        deliveries = self.deliveries(seq)
        if seq in self.logged_dying:
            # The dead-letter topic may already contain a copy of the job. So the job stays DYING,
            # even if the topic has refused it since, and a restart does not deliver it again.
            return JobRow(JobState.DYING, 0, 0, deliveries, self.logged_dying[seq])
        lease = self.leases.held.get(seq) or self.acking.get(seq)
        # An acking job is stored as held: its delete is not durable yet, and after a crash the
        # job must not be claimable before its lease would have ended.
        if lease is not None:
            until_ts = now.ts + lease.deadline_ms - now.ms
            return JobRow(JobState.HELD, until_ts, lease.number, deliveries, lease.holder.node)
        state, until_ms = self.reserved.get(seq, (None, 0))
        if seq in self._hidden or state is StateBeforeReserve.HIDDEN:
            until_ts = now.ts + self._hidden.get(seq, until_ms) - now.ms
            return JobRow(JobState.FREE, until_ts, 0, deliveries, "")
        # Exhausted jobs are stored as free. The first pass after a restart finds them again.
        has_ended = (seq in each for each in (self._free, self.dead, self.dead_lettering))
        if state in (StateBeforeReserve.FREE, StateBeforeReserve.DEAD) or any(has_ended):
            return JobRow(JobState.FREE, 0, 0, deliveries, "")
        return None

    def _due_at(self, seq: int) -> int | None:
        """Return the delivery time of a delayed job (wall ms), or None."""
        state, due_ts = self.reserved.get(seq, (None, 0))
        return (
            due_ts
            if state in (StateBeforeReserve.DUE, StateBeforeReserve.DELAYED)
            else self._delays.get(seq)
        )

    # Removed records

    def cut(self, start_seq: int) -> None:
        """Remove all jobs below ``start_seq``, because their records were removed.

        The cost depends only on the number of seqs since the last call.
        """
        if self.ledger is not None:
            self.ledger.cut(start_seq)
            return
        # Store the start, so that the next call does not remove the same seqs again.
        first, self._start_seq = self._start_seq, max(self._start_seq, start_seq)
        if first < start_seq:
            self._not_fresh.discard_below(start_seq)
            self.remove_runs((SeqRun(first, start_seq - first),))

    def remove_runs(self, runs: Iterable[SeqRun]) -> None:
        """Remove the jobs of these runs, because their records were deleted. The runs are in
        ascending order.
        """
        if self.ledger is not None:
            self.ledger.remove_runs(runs)
            return
        # `seqs_in_runs` examines either the runs or the lists, whichever is shorter, so deleting
        # millions of fresh records costs nothing here.
        lists = [each for each in self._lists() if each]
        if lists or self._delays:
            runs = tuple(runs)
            self._delays.drop_runs(runs)
            self._remove(seqs_in_runs(runs, sum(map(len, lists)), chain(*lists)))

    def _lists(self) -> tuple[LeaseTable | dict[int, Any], ...]:
        """Return the lists of all jobs that are neither fresh, delayed nor due."""
        return (
            # This is the order after a restart: jobs whose leases ended follow the free jobs, and
            # DYING jobs are last.
            *(self._free, self._hidden, self.dead, self.reserved),
            *(self.leases, self.acking, self.dead_lettering),
        )

    def is_listed(self, seq: int) -> bool:
        """Return whether the job is live and not fresh."""
        return seq in self._delays or any(seq in each for each in self._lists())

    def finish(self, seqs: Iterable[int]) -> None:
        """Remove jobs whose ack is durable.

        This does the same as `remove_runs` for acking jobs. It is faster, because acked jobs are in
        few lists and this is the most frequent way for a job to end.
        """
        acking, deliveries = self.acking, self._deliveries
        logged_dying, errors = self.logged_dying, self.errors
        for seq in seqs:
            acking.pop(seq, None)
            deliveries.pop(seq, None)
            logged_dying.pop(seq, None)
            errors.pop(seq, None)

    def _remove(self, seqs: Collection[int]) -> None:
        """Remove jobs from all lists. The seqs that are in no list are ignored."""
        # Skip empty lists, because most queues use only a few of them.
        for seq in seqs if self.leases else ():
            self.leases.drop(seq)
        named: tuple[dict[int, Any], ...] = (
            *(self.acking, self._free, self._hidden),
            *(self.dead, self.dead_lettering, self.reserved, self._deliveries, self.errors),
        )
        for each in named:
            for seq in seqs if each else ():
                each.pop(seq, None)
        for seq in seqs if self.logged_dying else ():
            self.logged_dying.pop(seq, None)
