"""Jobs: what is known of the jobs of a queue beyond their records (§10).

    append --> fresh ---------------------------claim--> held --ack--> acking --durable--> gone
         '--> delayed --its time--> due --------claim-----^  |
                                                          |  '--nack, end of the lease--.
         hidden <--nack with a delay------------.         |                             v
            '--its time--> free <---------------'---------'-----------claim----------- free
                             '--a pass finds it exhausted--> dead --> dying --moved--> gone
                                                              '-refused-'

Every live record is in one state. Only the fresh are not listed: they are the live seqs from
``cursor`` on that ``_apart`` does not name. So the cost of a claim does not depend on how many jobs
wait, and what is ready is what remains of the live ones.

Leases, delays after a nack and delivery times run on the monotonic clock. A record that a cap, its
age or a delete takes leaves every state at once (`cut`, `forget_runs`).
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from itertools import chain, islice
from typing import Any, NamedTuple

from topics.engine.moved_keys import BATCH_JOBS
from topics.engine.now import Now
from topics.engine.queue.leases import Holder, Lease, LeaseTable
from topics.engine.queue.ledger import JobRow, JobState, Ledger
from topics.engine.queue.timetable import Timetable
from topics.formats.api.limits import DELAY_MS_MAX, LEASE_MS_BOUNDS
from topics.formats.api.topic_config import TopicConfig
from topics.formats.ranges import SeqRun

HEAP_STALE_MIN = 4096
LEDGER_STEP = 512  # jobs that are told at once: half a millisecond


class Counters(NamedTuple):
    """The ``queue`` object of a topic's state (§10.7)."""

    ready: int
    in_flight: int
    dead_lettered: int
    delayed: int


class Apart(Enum):
    """The state of a job before it was set aside."""

    FRESH = "fresh"
    FREE = "free"
    HIDDEN = "hidden"
    DELAYED = "delayed"
    DUE = "due"
    DEAD = "dead"


class Jobs:
    """The jobs of one queue. ``dead_lettered``: how many the dead-letter topic has got.

    While a replay is under way ``ledger`` holds all of it, and `begin` ends that.
    """

    __slots__ = (
        *("_apart", "_delayed", "_delayed_times", "_deliveries", "_due", "_due_ts"),
        *("_first_in_line", "_free", "_hidden", "_hidden_times", "_in_line", "_lowest"),
        *("acking", "aside", "cursor", "dead", "dead_lettered", "doomed", "dying"),
        *("leases", "ledger"),
    )

    def __init__(self, ledger: Ledger | None = None) -> None:
        self.ledger = ledger
        self.leases = LeaseTable()
        self.cursor = 1  # no fresh job is below it
        self._apart: set[int] = set()  # seqs from the cursor on that are not fresh
        self._in_line: deque[int] = deque()  # free jobs, and some that no longer stand there
        self._first_in_line = 0  # number of the first place
        self._free: dict[int, int] = {}  # number of its place
        self._hidden: dict[int, int] = {}  # until when (monotonic ms)
        self._hidden_times = Timetable(self._hidden.get)
        self._delayed: dict[int, int] = {}  # until when (monotonic ms)
        self._delayed_times = Timetable(self._delayed.get)
        self._due_ts: dict[int, int] = {}  # of jobs that are delayed or due (wall ms)
        self._due: list[tuple[int, int]] = []  # heap of (time, seq); some are no longer due
        # Of each job that has been delivered, but 1 of those that are held is left out.
        self._deliveries: dict[int, int] = {}
        self.acking: dict[int, Lease] = {}
        self.dead: OrderedDict[int, None] = OrderedDict()  # exhausted, and not on their way
        # On their way to the dead-letter topic, which may have them: one batch, until each is gone
        # or refused (decision 0049).
        self.dying: dict[int, None] = {}
        # Those of which the log says last that they are dying: the topic that they go to, "" where
        # a version wrote it whose keys of copies do not name the queue.
        self.doomed: dict[int, str] = {}
        self.aside: dict[int, tuple[Apart, int]] = {}  # on their way to another topic
        self.dead_lettered = 0
        self._lowest: list[int] | None = None  # heap of all listed seqs, once `cut` needs it

    # What may be asked

    def counters(self, live_count: int) -> Counters:
        """The counters as of the last `advance`, when so many records of the topic live."""
        in_flight = len(self.leases) + len(self.acking)
        hidden, delayed = len(self._hidden), len(self._delayed)
        ready = live_count - in_flight - hidden - delayed
        return Counters(ready, in_flight, self.dead_lettered, delayed)

    def deliveries(self, seq: int) -> int:
        """How many times a job has been delivered."""
        return self._deliveries.get(seq, 1 if seq in self.leases or seq in self.acking else 0)

    @property
    def next_at(self) -> int | None:
        """No job becomes claimable by time before it (monotonic ms); None: none ever does."""
        times = (self.leases.next_over_at, self._hidden_times.next_at, self._delayed_times.next_at)
        return min((at for at in times if at is not None), default=None)

    def is_exhausted(self, seq: int, config: TopicConfig) -> bool:
        """Whether the job is to be moved and not to be delivered again (§10.6)."""
        return (
            0 < config.max_deliveries <= self._deliveries.get(seq, 0)
            and config.dead_letter is not None
        )

    # Time

    def advance(self, now_ms: int) -> None:
        """Do what time has brought: leases end, delays are over."""
        freed = self.leases.take_over(now_ms)
        for _, seq in freed:
            self._deliveries.setdefault(seq, 1)
        # Also of an empty dict: what is dropped must not stand in the way of `next_at`.
        shown = self._hidden_times.take_due(now_ms)
        if shown:
            freed += [due for due in shown if self._hidden.pop(due[1], None) is not None]
            freed.sort()
        for _, seq in freed:
            self.free(seq)
        for _, seq in self._delayed_times.take_due(now_ms):
            if self._delayed.pop(seq, None) is not None:
                heapq.heappush(self._due, (self._due_ts[seq], seq))

    # The states

    def free(self, seq: int) -> None:
        """The job is claimable again, behind all others that are."""
        self._free[seq] = self._first_in_line + len(self._in_line)
        self._in_line.append(seq)

    def hide(self, seq: int, until_ms: int) -> None:
        """The job is claimable again from then on."""
        self._hidden[seq] = until_ms
        self._hidden_times.add(until_ms, (seq,))
        self._hidden_times.trim(
            len(self._hidden), lambda: ((at, seq) for seq, at in self._hidden.items())
        )

    def delay(self, seq: int, due_ts: int, now: Now) -> None:
        """The job is delivered at ``due_ts`` (wall ms) at the earliest."""
        self._apart.add(seq)
        self._due_ts[seq] = due_ts
        self._note((seq,))
        if due_ts <= now.ts:
            heapq.heappush(self._due, (due_ts, seq))
            return
        due_ms = now.ms + min(due_ts - now.ts, DELAY_MS_MAX)
        self._delayed[seq] = due_ms
        self._delayed_times.add(due_ms, (seq,))
        self._delayed_times.trim(
            len(self._delayed), lambda: ((at, seq) for seq, at in self._delayed.items())
        )

    def take_free(self, count: int, config: TopicConfig) -> list[int]:
        """Take up to ``count`` free jobs out of the line; exhausted ones die on the way."""
        taken: list[int] = []
        line, free = self._in_line, self._free
        while line and len(taken) < count:
            seq, place = line.popleft(), self._first_in_line
            self._first_in_line += 1
            if free.get(seq) != place:
                continue
            del free[seq]
            if self.is_exhausted(seq, config):
                self.dead[seq] = None
            else:
                taken.append(seq)
        return taken

    def park(self, seq: int, until_ms: int) -> None:
        """A job that was taken cannot be delivered before then."""
        self._deliveries.setdefault(seq, 0)
        self.hide(seq, until_ms)
        self._note((seq,))

    def untake(self, seqs: Sequence[int]) -> None:
        """Jobs that were taken are not delivered: they are the first in line, in this order."""
        for seq in reversed(seqs):
            self._deliveries.setdefault(seq, 0)
            self._free_first(seq)
        self._note(seqs)

    def next_due(self) -> tuple[int, int] | None:
        """(time, seq) of the due job that comes first."""
        due = self._due
        while due and self._due_ts.get(due[0][1]) != due[0][0]:
            heapq.heappop(due)
        return due[0] if due else None

    def take_due(self) -> int:
        """Take the job that `next_due` has shown."""
        _, seq = heapq.heappop(self._due)
        del self._due_ts[seq]
        return seq

    def take_fresh(self, first: int, stop: int) -> Sequence[int]:
        """Take the fresh ones of the live seqs ``first`` to ``stop`` (exclusive), the next ones
        from the cursor on.
        """
        self.cursor = stop
        seqs: Sequence[int] = range(first, stop)
        if self._apart:
            apart = self._apart.intersection(seqs) if len(self._apart) > len(seqs) else self._apart
            seqs = [seq for seq in seqs if seq not in apart]
            self._apart.difference_update(range(first, stop))
        return seqs

    def deliver(self, seqs: Sequence[int], number: int, deadline_ms: int, holder: Holder) -> None:
        """Lease jobs that were taken; each counts as delivered once more."""
        counts = self._deliveries
        if counts:
            for seq in seqs:
                count = counts.pop(seq, 0) + 1
                if count > 1:
                    counts[seq] = count
        self.leases.grant(seqs, number, deadline_ms, holder)
        self._note(seqs)

    def take_back(self, seq: int, number: int) -> None:
        """Undo the delivery of a job that is still held under this number."""
        if self.leases.has_number(seq, number):
            self._deliveries[seq] = self.deliveries(seq) - 1
            self.leases.drop(seq)
            self._free_first(seq)

    def _free_first(self, seq: int) -> None:
        self._first_in_line -= 1
        self._free[seq] = self._first_in_line
        self._in_line.appendleft(seq)

    def uncount(self, seq: int) -> None:
        """The last delivery of a free job has reached nobody."""
        self._deliveries[seq] -= 1

    def end_lease(self, seq: int, until_ms: int | None) -> Lease:
        """A held job is claimable again, at once or from ``until_ms`` on."""
        lease = self.leases.drop(seq)
        assert lease is not None, "only held jobs are released"
        self._deliveries.setdefault(seq, 1)
        if until_ms is None:
            self.free(seq)
        else:
            self.hide(seq, until_ms)
        return lease

    def restore_lease(self, lease: Lease, *, uncounted: int = 0) -> None:
        """Undo the end of a lease, unless the record has gone meanwhile. ``uncounted``: deliveries
        that count again.
        """
        seq, ended = lease.seq, False
        for listed in (self._free, self._hidden, self.dead, self.acking):
            if seq in listed:
                del listed[seq]
                ended = True
        if ended:
            count = self._deliveries.pop(seq, 1) + uncounted
            if count > 1:
                self._deliveries[seq] = count
            self.leases.grant((seq,), lease.number, lease.deadline_ms, lease.holder)

    def begin_ack(self, seq: int) -> Lease:
        """A held job is done: it goes when that is durable."""
        lease = self.leases.drop(seq)
        assert lease is not None, "only held jobs are acked"
        self.acking[seq] = lease
        return lease

    def revive_dead(self) -> None:
        """The config has changed: the next pass looks at the exhausted ones again."""
        for seq in self.dead:
            self.free(seq)
        self.dead.clear()

    # Jobs on their way to another topic

    def busy(self) -> list[int]:
        """Jobs that cannot be set aside, rising."""
        return sorted(chain(self.leases, self.acking, self.dying, self.aside))

    def set_aside(self, seq: int) -> bool:
        """Nobody may claim this job until `put_back`; False when it is held or on its way."""
        if seq in self.leases or any(seq in on for on in (self.acking, self.dying, self.aside)):
            return False
        self.aside[seq] = self._leave_state(seq)
        self._note((seq,))
        return True

    def _leave_state(self, seq: int) -> tuple[Apart, int]:
        if seq in self.dead:
            del self.dead[seq]
            return Apart.DEAD, 0
        if seq in self._free:
            del self._free[seq]
            return Apart.FREE, 0
        if seq in self._hidden:
            return Apart.HIDDEN, self._hidden.pop(seq)
        if seq in self._due_ts:
            due_ts, until_ms = self._due_ts.pop(seq), self._delayed.pop(seq, None)
            return (Apart.DUE, due_ts) if until_ms is None else (Apart.DELAYED, due_ts)
        self._apart.add(seq)
        return Apart.FRESH, 0

    def put_back(self, seq: int, now: Now) -> None:
        """Undo `set_aside`, if the record still lives."""
        state, time = self.aside.pop(seq, (None, 0))
        if state is Apart.FRESH and seq >= self.cursor:
            self._apart.discard(seq)
        elif state is Apart.HIDDEN:
            self.hide(seq, time)
        elif state is Apart.DELAYED:
            self.delay(seq, time, now)
        elif state is Apart.DUE:  # also by a clock that has been set back
            self._due_ts[seq] = time
            heapq.heappush(self._due, (time, seq))
            if len(self._due) > 2 * len(self._due_ts) + HEAP_STALE_MIN:
                self._due = sorted({due for due in self._due if self._due_ts.get(due[1]) == due[0]})
        elif state is Apart.DEAD:
            self.dead[seq] = None
        elif state is not None:
            self._deliveries.setdefault(seq, 0)
            self.free(seq)
            if len(self._in_line) > 2 * len(self._free) + HEAP_STALE_MIN:
                self._in_line = deque(sorted(self._free, key=self._free.__getitem__))
                self._first_in_line = 0
                self._free = {seq: place for place, seq in enumerate(self._in_line)}

    # What a restart knows

    def begin(self, now: Now, dead_letter: str | None = None) -> None:
        """The replay has ended: go on from what it has found. ``dead_letter``: of the queue."""
        ledger, self.ledger = self.ledger, None
        assert ledger is not None, "a replay ends once"
        self.dead_lettered = ledger.dead_lettered
        for seq, due_ts in ledger.delays.items():
            if seq not in ledger.rows:
                self.delay(seq, due_ts, now)
        # Free jobs of one time are in the order of their line.
        for seq, row in sorted(ledger.rows.items(), key=lambda item: item[1].until_ts):
            self._apart.add(seq)
            self._begin_row(seq, row, now)
        # Of those that were dying only the last batch may be in the target.
        for seq in [*islice(reversed(self.dead), BATCH_JOBS)][::-1]:
            if self.doomed[seq] in ("", dead_letter):
                del self.dead[seq]
                self.dying[seq] = None

    def _begin_row(self, seq: int, row: JobRow, now: Now) -> None:
        left_ms = min(row.until_ts - now.ts, LEASE_MS_BOUNDS[1])
        if row.state is JobState.HELD and left_ms >= 0:
            if row.deliveries > 1:
                self._deliveries[seq] = row.deliveries
            holder = self.leases.poller(row.node)
            self.leases.grant((seq,), row.number, now.ms + left_ms, holder)
            return
        self._deliveries[seq] = row.deliveries
        if row.state is JobState.DYING:
            self.dead[seq] = None
            self.doomed[seq] = row.node
        elif left_ms > 0:
            self.hide(seq, now.ms + left_ms)
        else:
            self.free(seq)

    def ledgers(self, now: Now, *, with_leases: bool) -> Iterator[Ledger]:
        """What a restart must know, some jobs at a time. ``with_leases``: of leases and deliveries,
        too.

        Jobs may change between two steps. Each of those that are listed now is told as it is when
        its turn comes; all else that changes is told by frames that are written from now on.
        """
        seqs = [*self._listed()]
        for start in range(0, len(seqs), LEDGER_STEP):
            ledger = Ledger()
            for seq in seqs[start : start + LEDGER_STEP]:
                row = self._row(seq, now)
                if row is not None and (with_leases or row.state is JobState.DYING):
                    ledger.rows[seq] = row
                elif (due_ts := self._due_at(seq)) is not None:
                    ledger.delays[seq] = due_ts
            yield ledger

    def _row(self, seq: int, now: Now) -> JobRow | None:
        """The job, unless it was never delivered."""
        deliveries = self.deliveries(seq)
        if seq in self.doomed:
            # The dead-letter topic may have it: it is not delivered again, whatever refused it.
            return JobRow(JobState.DYING, 0, 0, deliveries, self.doomed[seq])
        lease = self.leases.lease(seq) if seq in self.leases else self.acking.get(seq)
        if lease is not None:
            until_ts = now.ts + lease.deadline_ms - now.ms
            return JobRow(JobState.HELD, until_ts, lease.number, deliveries, lease.holder.node)
        state, until_ms = self.aside.get(seq, (None, 0))
        if seq in self._hidden or state is Apart.HIDDEN:
            until_ts = now.ts + self._hidden.get(seq, until_ms) - now.ms
            return JobRow(JobState.FREE, until_ts, 0, deliveries, "")
        has_ended = (seq in each for each in (self._free, self.dead, self.dying))
        if state in (Apart.FREE, Apart.DEAD) or any(has_ended):
            return JobRow(JobState.FREE, 0, 0, deliveries, "")
        return None

    def _due_at(self, seq: int) -> int | None:
        """When a job that has a delay is due (wall ms)."""
        state, due_ts = self.aside.get(seq, (None, 0))
        return due_ts if state in (Apart.DUE, Apart.DELAYED) else self._due_ts.get(seq)

    # Records that go

    def cut(self, start_seq: int) -> None:
        """No record below ``start_seq`` lives."""
        if self.ledger is not None:
            self.ledger.cut(start_seq)
            return
        if self._lowest is None:
            if not any(self._lists()):
                return
            self._lowest = list(self._listed())
            heapq.heapify(self._lowest)
        lowest = self._lowest
        while lowest and lowest[0] < start_seq:
            self._forget(heapq.heappop(lowest))
        if not lowest:
            self._lowest = None

    def forget_runs(self, runs: Iterable[SeqRun]) -> None:
        """No record of these runs lives."""
        if self.ledger is not None:
            self.ledger.forget_runs(runs)
            return
        if not any(self._lists()):
            return
        for first, length in runs:
            listed = sum(map(len, self._lists()))
            seqs: Iterable[int] = range(first, first + length)
            if length > listed:
                seqs = [seq for seq in set(self._listed()) if first <= seq < first + length]
            for seq in seqs:
                self._forget(seq)

    def _lists(self) -> tuple[LeaseTable | dict[int, Any], ...]:
        return (
            *(self.leases, self.acking, self._free, self._hidden, self._due_ts),
            *(self.dead, self.aside, self.dying),  # a restart finds the dying ones last
        )

    def is_listed(self, seq: int) -> bool:
        """Whether the job lives and is not fresh."""
        return any(seq in each for each in self._lists())

    def _listed(self) -> Iterator[int]:
        return chain.from_iterable(self._lists())

    def finish(self, seqs: Iterable[int]) -> None:
        """The ack of these jobs is durable: as `forget_runs`, and cheaper, for it names most of all
        jobs.
        """
        acking, deliveries, apart, doomed = self.acking, self._deliveries, self._apart, self.doomed
        for seq in seqs:
            acking.pop(seq, None)
            deliveries.pop(seq, None)
            apart.discard(seq)
            doomed.pop(seq, None)

    def _forget(self, seq: int) -> None:
        self.leases.drop(seq)
        named: tuple[dict[int, Any], ...] = (
            *(self.acking, self._free, self._hidden, self._delayed, self._due_ts),
            *(self.dead, self.dying, self.aside, self._deliveries),
        )
        for each in named:
            each.pop(seq, None)
        self._apart.discard(seq)
        self.doomed.pop(seq, None)

    def _note(self, seqs: Sequence[int]) -> None:
        """These seqs are listed from now on."""
        if self._lowest is not None:
            for seq in seqs:
                heapq.heappush(self._lowest, seq)
            if len(self._lowest) > 2 * sum(map(len, self._lists())) + HEAP_STALE_MIN:
                self._lowest = None
