"""Job dispatch: give the jobs of queues to those who wait for them (§10.2, §10.8).

A claim that nobody waits beside is served at once, if there are jobs; all others join the wait list
of their queue. What makes that due: a claimer that joins, a commit that makes jobs claimable or
gives a stream room, jobs that are released, a window that is over, and the time at which jobs
become claimable by themselves, or full streams lose jobs by age. A turn leases ``JOBS_PER_TURN``
jobs, and serves the wait lists that are due each in its turn: while one waits for the next turn, no
claim is served before it. A list without claimers is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import structlog
import trio

from topics.actors.shard.context import ShardContext
from topics.actors.shard.group_commit import NO_IO
from topics.actors.shard.queues.wait_list import Claimer, Share, WaitList
from topics.actors.shard.service import Service
from topics.engine import retention
from topics.engine.changes import lease_jobs
from topics.engine.changes.append import Append
from topics.engine.changes.change import Change
from topics.engine.changes.delete_topic import DeleteTopic
from topics.engine.changes.put_topic import PutTopic
from topics.engine.queue.claims import Ask, jobs_of
from topics.engine.queue.ledger import keeps_leases
from topics.engine.queue.timetable import NEVER
from topics.engine.topic import Topic
from topics.errors import NotReady, TopicNotFound

JOBS_PER_TURN = 4096  # to all wait lists, about
JOB_BYTES = 4096  # a job with more bytes counts as several
TURN_BYTES_MAX = JOBS_PER_TURN * JOB_BYTES
VISIT_COST = 4  # in jobs: what it costs to find that a wait list gets nothing
RETRY_S = 1.0  # after the log has refused leases, or age has found damage
ALARM_MIN_S = 0.005  # an alarm may be early; it is never set for a time that has passed

log = structlog.get_logger()


class JobDispatch(Service):
    """The wait lists of all queues of a shard. ``on_dead(topic)``: jobs were found to be
    exhausted.
    """

    def __init__(self, context: ShardContext, on_dead: Callable[[Topic], object]) -> None:
        self._context, self._commits, self._engine = context, context.commits, context.engine
        self._on_dead = on_dead
        self._wait_lists: dict[int, WaitList] = {}  # by topic id
        self._due: dict[WaitList, None] = {}  # in the order in which turns serve them
        self._spent = 0  # of the `JOBS_PER_TURN` of this turn

    def __len__(self) -> int:
        return len(self._wait_lists)

    # Who waits

    def serve_at_once(self, claimer: Claimer) -> bool:
        """Lease jobs to a claimer with whom nobody waits; False: it has to join. Raises OSError."""
        topic = claimer.topic
        if self._due or topic.id in self._wait_lists or self._spent >= JOBS_PER_TURN:
            return False
        if topic.config.claim_jitter_ms:
            return False
        if keeps_leases(topic.committed):
            self._context.check_leasable(topic)
        self.is_due = True  # a turn that has spent something ends with `on_due`
        asked = claimer.ask(claimer.room)
        return self._lease(topic, [claimer], [asked], claimer.max_bytes, evenly=False) > 0

    def join(self, claimer: Claimer, *, is_patient: bool) -> None:
        """Put a claimer at the end of its wait list, in a turn. ``is_patient``: until `hurry`."""
        wait_list = self._wait_list(claimer.topic)
        wait_list.join(claimer, is_patient=is_patient)
        self._make_due(wait_list)

    def leave(self, claimer: Claimer) -> None:
        """Take a claimer out of its wait list, if it waits there."""
        wait_list = self._wait_lists.get(claimer.topic.id)
        if wait_list is not None:
            wait_list.leave(claimer)
            self._drop_if_empty(wait_list)

    def hurry(self, claimer: Claimer) -> None:
        """Its time is over: it gets what its cohort is dealt, or nothing at once."""
        wait_list = self._wait_lists[claimer.topic.id]
        if wait_list.window is not None or wait_list.slices is not None:
            wait_list.impatient[claimer] = None
            return
        self.leave(claimer)
        claimer.get_nothing()

    def follow(self, stream: Claimer) -> None:
        """Let a work stream join whenever it has room, until `unfollow`."""
        self._wait_list(stream.topic).streams[stream.holder] = stream

    def unfollow(self, stream: Claimer) -> None:
        """Take a work stream out of its wait list for good."""
        wait_list = self._wait_lists.get(stream.topic.id)
        if wait_list is not None:
            wait_list.streams.pop(stream.holder, None)
            wait_list.leave(stream)
            self._drop_if_empty(wait_list)

    def note_claimable(self, topic: Topic) -> None:
        """Jobs may have become claimable, or streams may have room."""
        self._context.note_changed(topic)
        wait_list = self._wait_lists.get(topic.id)
        if wait_list is None:
            jobs_of(topic).leases.loosened.clear()
        elif wait_list not in self._due:
            self._make_due(wait_list)
            # It may be noted behind `on_due`, or outside of any turn.
            self._context.deadlines.wake()

    def _make_due(self, wait_list: WaitList) -> None:
        self._due[wait_list] = None
        self.is_due = True

    def _wait_list(self, topic: Topic) -> WaitList:
        wait_list = self._wait_lists.get(topic.id)
        if wait_list is None:
            wait_list = self._wait_lists[topic.id] = WaitList(topic)
            topic.follow(self._changed)
        return wait_list

    # Hooks

    def _changed(self, change: Change) -> None:
        """Note what a commit may give to those who wait; end the list of a queue that is gone."""
        topic = change.topic
        if isinstance(change, DeleteTopic):
            self._end(self._wait_lists[topic.id])
        elif isinstance(change, Append | PutTopic) or jobs_of(topic).leases.loosened:
            self.note_claimable(topic)

    def on_due(self) -> None:
        """Serve the wait lists that are due; some of them may wait for the next turn."""
        for wait_list in tuple(self._due):
            if self._spent >= JOBS_PER_TURN:
                break
            if wait_list in self._due:
                del self._due[wait_list]
                self._spent += VISIT_COST
                self._visit(wait_list)
        self._spent = 0
        self.is_due = bool(self._due)

    def on_loss(self) -> None:
        """A topic that is gone now was never made; leases that were taken back are claimable."""
        for wait_list in tuple(self._wait_lists.values()):
            if wait_list.topic.deleted:
                self._end(wait_list)
            elif wait_list.topic.config.leases_durable:
                # Not at once: the log would refuse the same leases, turn by turn.
                self._set_alarm(wait_list, RETRY_S)
            else:
                self._make_due(wait_list)

    # Serving

    def _visit(self, wait_list: WaitList) -> None:
        topic = wait_list.topic
        if topic.deleted:
            return  # its commit ends the wait list; if the log loses it, the wait list is due again
        self._context.freshen(topic)
        jobs = jobs_of(topic)
        jobs.advance(self._context.now.ms)
        wait_list.admit(jobs.leases.loosened)
        jobs.leases.loosened.clear()
        if wait_list.waiting:
            self._serve(wait_list)
        for claimer in wait_list.newcomers:
            if claimer in wait_list.waiting:
                claimer.begin_waiting()
        wait_list.newcomers.clear()
        if not self._drop_if_empty(wait_list):
            self._await_jobs(wait_list)

    def _serve(self, wait_list: WaitList) -> None:
        try:
            self._context.check_leasable(wait_list.topic)
        except NotReady as error:
            self._put_off(wait_list, error)
            return
        jitter_ms = wait_list.topic.config.claim_jitter_ms
        if wait_list.slices is not None:
            self._deal(wait_list)
        elif not jitter_ms:
            wait_list.close_window()
            self._serve_in_order(wait_list)
        elif wait_list.window is None and (wait_list.unheard or self._ready(wait_list.topic)):
            until = trio.current_time() + jitter_ms / 1000
            wait_list.window = self._context.deadlines.call_at(
                until, partial(self._form, wait_list)
            )

    def _put_off(self, wait_list: WaitList, error: NotReady) -> None:
        """The shard cannot write: polls are told, streams wait."""
        for claimer in tuple(wait_list.waiting):
            if not claimer.is_stream:
                wait_list.leave(claimer)
                claimer.end(error)
        self._set_alarm(wait_list, RETRY_S)

    def _serve_in_order(self, wait_list: WaitList) -> None:
        while wait_list.waiting:
            if self._spent >= JOBS_PER_TURN:
                self._due[wait_list] = None
                return
            claimer = next(iter(wait_list.waiting))
            if not claimer.room:  # an ack that made room was taken back
                wait_list.leave(claimer)
            elif not self._claim(wait_list, [Share(claimer, claimer.room)], evenly=False) and (
                self._spent < JOBS_PER_TURN
            ):
                break
        wait_list.unheard.clear()
        self._answer_impatient(wait_list, tuple(wait_list.impatient))

    def _form(self, wait_list: WaitList) -> None:
        """The window of a wait list is over."""
        wait_list.window = None
        wait_list.form_cohort(self._ready(wait_list.topic), JOBS_PER_TURN)
        self._make_due(wait_list)

    def _deal(self, wait_list: WaitList) -> None:
        assert wait_list.slices is not None, "a cohort is formed before it is dealt to"
        has_more = False
        while wait_list.slices and self._spent < JOBS_PER_TURN:
            shares = [
                share for share in wait_list.slices.popleft() if share.claimer in wait_list.waiting
            ]
            has_more = bool(shares) and self._claim(wait_list, shares, evenly=True) > 0
            if shares and jobs_of(wait_list.topic).is_unfinished:
                wait_list.slices.appendleft(shares)
        if wait_list.slices:
            self._due[wait_list] = None
            return
        wait_list.slices = None
        self._answer_impatient(
            wait_list, [each for each in wait_list.impatient if each not in wait_list.unheard]
        )
        if wait_list.unheard or (wait_list.waiting and has_more):
            self._due[wait_list] = None  # a window may open

    def _claim(self, wait_list: WaitList, shares: Sequence[Share], *, evenly: bool) -> int:
        """As `_lease`. What cannot be read costs these claimers their jobs, and nobody else."""
        claimers = [share.claimer for share in shares]
        asks = [share.claimer.ask(share.max_jobs) for share in shares]
        bounds = [claimer.max_bytes for claimer in claimers]
        max_bytes = min(max(TURN_BYTES_MAX, *bounds), sum(bounds))
        try:
            return self._lease(wait_list.topic, claimers, asks, max_bytes, evenly=evenly)
        except OSError as error:
            log.exception("claim failed", topic=wait_list.topic.name)
            for claimer in claimers:
                wait_list.leave(claimer)
                claimer.end(error)
            return 0

    def _lease(
        self,
        topic: Topic,
        claimers: Sequence[Claimer],
        asks: Sequence[Ask],
        max_bytes: int,
        *,
        evenly: bool,
    ) -> int:
        """Lease jobs to these claimers; how many. 0: there are no more, or the turn is over."""
        table, now = self._engine.table, self._context.now
        changes = lease_jobs.claim(table, topic, asks, now, evenly=evenly, max_bytes=max_bytes)
        leased, wait_list = 0, self._wait_lists.get(topic.id)
        for claimer, change in zip(claimers, changes, strict=True):
            if not change.jobs:
                continue
            leased, size = leased + len(change.jobs), 0
            for job in change.jobs:
                size += len(job.record)
            self._spent += len(change.jobs) + size // JOB_BYTES
            if wait_list is not None:
                wait_list.leave(claimer)
            claimer.served(change)
            if change.frames:
                self._commits.submit(change, partial(claimer.settle, change))
            else:  # leases in memory are not committed
                self._context.note_changed(topic)
                claimer.settle(change, NO_IO)
        jobs = jobs_of(topic)
        if jobs.steps_left <= 0:
            self._spent = JOBS_PER_TURN
        if jobs.dead:
            self._on_dead(topic)
        return leased

    @staticmethod
    def _answer_impatient(wait_list: WaitList, claimers: Iterable[Claimer]) -> None:
        for claimer in claimers:
            wait_list.leave(claimer)
            claimer.get_nothing()

    def _ready(self, topic: Topic) -> int:
        jobs = jobs_of(topic)
        jobs.advance(self._context.now.ms)
        return jobs.counters(topic.count).ready

    # Time, and the end of a wait list

    def _await_jobs(self, wait_list: WaitList) -> None:
        """Set the alarm to the time at which jobs become claimable, or age may give a full stream
        room for one that is, unless something comes before.

        An earlier alarm stays: when it goes off, the wait list is visited and it is set anew.
        """
        if wait_list in self._due or wait_list.window is not None:
            return
        now, next_at = self._commits.now(), jobs_of(wait_list.topic).next_at
        if next_at < NEVER:
            self._set_alarm(wait_list, max(ALARM_MIN_S, (next_at - now.ms) / 1000))
        if not wait_list.waiting and self._ready(wait_list.topic):
            expires_at = retention.next_expiry(wait_list.topic, self._engine.store)
            if expires_at is not None:  # what is due and still there is damaged
                left_ms = expires_at - now.ts
                self._set_alarm(wait_list, left_ms / 1000 if left_ms > 0 else RETRY_S)

    def _set_alarm(self, wait_list: WaitList, seconds: float) -> None:
        at = trio.current_time() + seconds
        if wait_list.alarm is None or at < wait_list.alarm.at:
            if wait_list.alarm is not None:
                wait_list.alarm.cancel()
            wait_list.alarm = self._context.deadlines.call_at(at, partial(self._alarmed, wait_list))

    def _alarmed(self, wait_list: WaitList) -> None:
        wait_list.alarm = None
        self._make_due(wait_list)

    def _end(self, wait_list: WaitList) -> None:
        """The queue is gone."""
        claimers = dict.fromkeys((*wait_list.waiting, *wait_list.streams.values()))
        wait_list.waiting.clear()
        wait_list.impatient.clear()
        wait_list.streams.clear()
        self._drop_if_empty(wait_list)
        for claimer in claimers:
            claimer.end(TopicNotFound(wait_list.topic.name))

    def _drop_if_empty(self, wait_list: WaitList) -> bool:
        if not wait_list.is_empty:
            return False
        wait_list.close_window()
        if wait_list.alarm is not None:
            wait_list.alarm.cancel()
        if self._wait_lists.get(wait_list.topic.id) is wait_list:
            del self._wait_lists[wait_list.topic.id]
            wait_list.topic.unfollow(self._changed)
            jobs_of(wait_list.topic).leases.loosened.clear()
        self._due.pop(wait_list, None)
        return True
