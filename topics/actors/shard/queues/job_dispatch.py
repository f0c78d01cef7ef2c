"""Job dispatch: leases the jobs of queues to waiting claims and work streams (§10.2, §10.8).

If no other claimer is waiting and jobs are ready, a claim is served immediately. All other claims
join the wait list of their queue. A wait list becomes due in these cases:

- a claimer joins
- a commit makes jobs claimable, or gives a stream capacity again
- jobs are released
- the window of a cohort is over
- a timer fires when jobs become claimable, or when jobs of a full stream expire

A loop iteration leases at most about ``JOBS_PER_ITERATION`` jobs, and serves due wait lists in FIFO
order. While a wait list waits for the next iteration, no claim is served before it. A wait list is
dropped when it has no claimers.
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
from topics.engine.queue.claims import ClaimRequest, jobs_of
from topics.engine.queue.ledger import keeps_leases
from topics.engine.queue.timer_queue import NEVER
from topics.engine.topic import Topic
from topics.errors import NotReady, TopicNotFound

JOBS_PER_ITERATION = 4096  # approximate maximum for all wait lists together
JOB_BYTES = 4096  # this number of record bytes costs as much as one job
ITERATION_BYTES_MAX = JOBS_PER_ITERATION * JOB_BYTES
PASS_COST = 4  # cost, in jobs, of a pass over a wait list, in addition to the leased jobs
RETRY_S = 1.0  # pause after the log has refused leases, or expiry has found damaged data
TIMER_MIN_S = 0.005  # minimum delay of a timer, to prevent a busy loop if a timer fires early

log = structlog.get_logger()


class JobDispatch(Service):
    """The wait lists of all queues of a shard.

    ``on_dead(topic)`` is called when a pass finds exhausted jobs.
    """

    def __init__(self, context: ShardContext, on_dead: Callable[[Topic], object]) -> None:
        self._context, self._commits, self._engine = context, context.commits, context.engine
        self._on_dead = on_dead
        # A queue has an entry only while a claimer is waiting or a work stream is open.
        # `_wait_list` creates the entry, and `_drop_if_empty` removes it.
        self._wait_lists: dict[int, WaitList] = {}  # by topic id
        self._due: dict[WaitList, None] = {}  # in the order in which iterations serve them
        # The cost of this iteration, limited to about `JOBS_PER_ITERATION`. `_lease` and `on_due`
        # increase it, and `on_due` resets it at the end of the iteration.
        self._spent = 0

    def __len__(self) -> int:
        return len(self._wait_lists)

    # Claimers

    def serve_immediately(self, claimer: Claimer) -> bool:
        """Lease jobs to a claimer if no other claimer is waiting.

        Return False if the claimer must join the wait list. Raises OSError if records cannot be
        read, and `NotReady` if the leases must be logged but cannot be.
        """
        # Earlier claimers take precedence. This includes the claimers of other queues whose lists
        # are due, because all queues share the cost limit of an iteration.
        topic = claimer.topic
        if self._due or topic.id in self._wait_lists or self._spent >= JOBS_PER_ITERATION:
            return False
        # With jitter, every claim takes part in a cohort.
        if topic.config.claim_jitter_ms:
            return False
        # Durable leases need the log. Refuse the claim now if the log accepts no writes.
        if keeps_leases(topic.committed):
            self._context.check_leasable(topic)
        self.is_due = True  # `on_due` resets the cost at the end of the iteration
        request = claimer.claim_request(claimer.capacity)
        return self._lease(topic, [claimer], [request], claimer.max_bytes, evenly=False) > 0

    def join(self, claimer: Claimer, *, may_wait: bool) -> None:
        """Add a claimer to its wait list. Call this only within an iteration.

        ``may_wait``: if no jobs are available, the claimer waits until `end_wait`.
        """
        wait_list = self._wait_list(claimer.topic)
        wait_list.join(claimer, may_wait=may_wait)
        self._make_due(wait_list)

    def leave(self, claimer: Claimer) -> None:
        """Remove a claimer from its wait list, if it is waiting there."""
        wait_list = self._wait_lists.get(claimer.topic.id)
        if wait_list is not None:
            wait_list.leave(claimer)
            self._drop_if_empty(wait_list)

    def end_wait(self, claimer: Claimer) -> None:
        """End the wait. The claimer gets its share of a pending cohort, or an empty reply now."""
        wait_list = self._wait_lists[claimer.topic.id]
        # A cohort is being gathered or served, and the claimer may be one of its members. If the
        # claimer got a reply now, it could lose the share that `form_cohort` has assigned to it.
        if wait_list.window is not None or wait_list.slices is not None:
            wait_list.unserved[claimer] = None
            return
        self.leave(claimer)
        claimer.finish_unserved()

    def follow(self, stream: Claimer) -> None:
        """Make a work stream join the list whenever it has capacity, until `unfollow`."""
        self._wait_list(stream.topic).streams[stream.holder] = stream

    def unfollow(self, stream: Claimer) -> None:
        """Remove a work stream from its wait list permanently."""
        wait_list = self._wait_lists.get(stream.topic.id)
        if wait_list is not None:
            wait_list.streams.pop(stream.holder, None)
            wait_list.leave(stream)
            self._drop_if_empty(wait_list)

    def note_claimable(self, topic: Topic) -> None:
        """Make the wait list due, because jobs may be claimable or streams may have capacity."""
        self._context.note_changed(topic)
        wait_list = self._wait_lists.get(topic.id)
        if wait_list is None:
            # If there is no wait list, no stream waits for capacity.
            jobs_of(topic).leases.loosened.clear()
        elif wait_list not in self._due:
            self._make_due(wait_list)
            # Request an iteration, because this may run after `on_due` or outside an iteration.
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
        """Check whether a commit makes jobs claimable. End the wait list of a deleted queue."""
        topic = change.topic
        if isinstance(change, DeleteTopic):
            self._end(self._wait_lists[topic.id])
        elif isinstance(change, Append | PutTopic) or jobs_of(topic).leases.loosened:
            self.note_claimable(topic)

    def on_due(self) -> None:
        """Serve due wait lists up to the cost limit. Other lists wait for the next iteration."""
        # Copy `_due`, because a pass may add and remove entries. A list that was made due
        # again during this loop waits for the next iteration, so that a busy queue does not
        # starve the others.
        for wait_list in tuple(self._due):
            if self._spent >= JOBS_PER_ITERATION:
                break
            if wait_list in self._due:
                del self._due[wait_list]
                # A pass costs time even without jobs. Counting it bounds an iteration with
                # thousands of empty lists.
                self._spent += PASS_COST
                self._run_pass(wait_list)
        self._spent = 0
        self.is_due = bool(self._due)

    def on_rollback(self) -> None:
        """End the lists of topics whose creation was undone, and serve the other lists again."""
        # The log has lost a group. The leases in it were undone, so their jobs are claimable again.
        for wait_list in tuple(self._wait_lists.values()):
            if wait_list.topic.deleted:
                self._end(wait_list)
            elif wait_list.topic.config.leases_durable:
                # Wait first, because the log would refuse the same leases in each iteration.
                self._set_timer(wait_list, RETRY_S)
            else:
                self._make_due(wait_list)

    # Serving

    def _run_pass(self, wait_list: WaitList) -> None:
        topic = wait_list.topic
        if topic.deleted:
            # The commit of the delete ends the wait list. If the log loses the delete, the list
            # becomes due again.
            return
        # Remove expired records and leases first, because both change which jobs are claimable.
        self._context.remove_expired(topic)
        jobs = jobs_of(topic)
        jobs.advance(self._context.now.ms)
        # Streams that hold fewer leases than before join the list again.
        wait_list.admit(jobs.leases.loosened)
        jobs.leases.loosened.clear()
        if wait_list.waiting:
            self._serve(wait_list)
        # The wait of a claimer begins only after its first pass, because this pass serves most
        # claimers.
        for claimer in wait_list.joined:
            if claimer in wait_list.waiting:
                claimer.begin_waiting()
        wait_list.joined.clear()
        if not self._drop_if_empty(wait_list):
            self._await_jobs(wait_list)

    def _serve(self, wait_list: WaitList) -> None:
        # While the shard cannot write, no jobs are leased. Durable leases also need space in the
        # log.
        try:
            self._context.check_leasable(wait_list.topic)
        except NotReady as error:
            self._postpone(wait_list, error)
            return
        jitter_ms = wait_list.topic.config.claim_jitter_ms
        # With jitter, jobs are distributed to the list's current cohort. If there is none, claimers
        # join a new cohort until its window ends.
        if wait_list.slices is not None:
            self._distribute(wait_list)
        elif not jitter_ms:
            wait_list.close_window()
            self._serve_in_order(wait_list)
        # Open a window only for a new claimer, or if there are jobs for the waiting claimers.
        elif wait_list.window is None and (wait_list.uncounted or self._ready(wait_list.topic)):
            until = trio.current_time() + jitter_ms / 1000
            wait_list.window = self._context.deadlines.call_at(
                until, partial(self._form, wait_list)
            )

    def _postpone(self, wait_list: WaitList, error: NotReady) -> None:
        """Reply to claims with ``error``, because the shard cannot write. Streams wait."""
        # Copy the list, because `leave` changes it.
        for claimer in tuple(wait_list.waiting):
            if not claimer.is_stream:
                wait_list.leave(claimer)
                claimer.end(error)
        self._set_timer(wait_list, RETRY_S)

    def _serve_in_order(self, wait_list: WaitList) -> None:
        while wait_list.waiting:
            # The limit of the iteration is reached. Keep the list due, so that its claimers are
            # served before new claims.
            if self._spent >= JOBS_PER_ITERATION:
                self._due[wait_list] = None
                return
            claimer = next(iter(wait_list.waiting))
            if not claimer.capacity:  # the ack that freed its capacity was undone
                wait_list.leave(claimer)
            # No job was leased although the limit was not reached: the queue has no further jobs
            # for now.
            elif not self._claim(wait_list, [Share(claimer, claimer.capacity)], evenly=False) and (
                self._spent < JOBS_PER_ITERATION
            ):
                break
        # All claimers have been served, or the queue has no further jobs. Claimers that may not
        # wait get an empty reply.
        wait_list.uncounted.clear()
        self._answer_unserved(wait_list, tuple(wait_list.unserved))

    def _form(self, wait_list: WaitList) -> None:
        """Form the cohort, because the window of the wait list is over."""
        wait_list.window = None
        wait_list.form_cohort(self._ready(wait_list.topic), JOBS_PER_ITERATION)
        self._make_due(wait_list)

    def _distribute(self, wait_list: WaitList) -> None:
        assert wait_list.slices is not None, "a cohort is formed before jobs are distributed"
        has_more = False
        # A slice contains as many jobs as one iteration can lease. Members that have left the wait
        # list are skipped, and their jobs remain in the queue.
        while wait_list.slices and self._spent < JOBS_PER_ITERATION:
            shares = [
                share for share in wait_list.slices.popleft() if share.claimer in wait_list.waiting
            ]
            has_more = bool(shares) and self._claim(wait_list, shares, evenly=True) > 0
            # The scan for jobs has reached its limit: serve this slice again in the next iteration.
            if shares and jobs_of(wait_list.topic).is_unfinished:
                wait_list.slices.appendleft(shares)
        if wait_list.slices:
            self._due[wait_list] = None
            return
        wait_list.slices = None
        # Claimers that joined after the cohort was formed wait for the next window.
        self._answer_unserved(
            wait_list, [each for each in wait_list.unserved if each not in wait_list.uncounted]
        )
        if wait_list.uncounted or (wait_list.waiting and has_more):
            self._due[wait_list] = None  # another window may open

    def _claim(self, wait_list: WaitList, shares: Sequence[Share], *, evenly: bool) -> int:
        """Call `_lease`. If records are unreadable, only these claimers fail."""
        claimers = [share.claimer for share in shares]
        requests = [share.claimer.claim_request(share.max_jobs) for share in shares]
        # Each claimer has its own byte limit. Together they get at most the limit of an iteration,
        # or the largest limit of a single claimer if that is higher.
        bounds = [claimer.max_bytes for claimer in claimers]
        max_bytes = min(max(ITERATION_BYTES_MAX, *bounds), sum(bounds))
        try:
            return self._lease(wait_list.topic, claimers, requests, max_bytes, evenly=evenly)
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
        requests: Sequence[ClaimRequest],
        max_bytes: int,
        *,
        evenly: bool,
    ) -> int:
        """Lease jobs and return their number.

        The number is 0 if the scan finds no available job within its limit.
        """
        table, now = self._engine.table, self._context.now
        changes = lease_jobs.claim(table, topic, requests, now, evenly=evenly, max_bytes=max_bytes)
        leased, wait_list = 0, self._wait_lists.get(topic.id)
        # A change contains the leases of one claimer. The claimer leaves the list before the
        # commit, so that it is not served twice. If the log loses the leases, `settle` gets the
        # error.
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
            else:  # leases in memory need no commit
                self._context.note_changed(topic)
                claimer.settle(change, NO_IO)
        # The scan has reached its limit of steps. Set the cost of the iteration to its limit, so
        # that other work runs before the scan continues.
        jobs = jobs_of(topic)
        if jobs.steps_left <= 0:
            self._spent = JOBS_PER_ITERATION
        # The pass has found exhausted jobs. They are moved in their own loop iterations.
        if jobs.dead:
            self._on_dead(topic)
        return leased

    @staticmethod
    def _answer_unserved(wait_list: WaitList, claimers: Iterable[Claimer]) -> None:
        for claimer in claimers:
            wait_list.leave(claimer)
            claimer.finish_unserved()

    def _ready(self, topic: Topic) -> int:
        jobs = jobs_of(topic)
        jobs.advance(self._context.now.ms)
        return jobs.counters(topic.count).ready

    # Timers, and the end of a wait list

    def _await_jobs(self, wait_list: WaitList) -> None:
        """Set the timer for the next time at which jobs may become available without another event.

        At that time jobs become claimable, or a job of a full stream expires, which frees capacity.
        An earlier timer stays set. When it fires, the wait list is served and the timer is set
        again.
        """
        if wait_list in self._due or wait_list.window is not None:
            return
        now, next_at = self._commits.now(), jobs_of(wait_list.topic).next_at
        if next_at < NEVER:
            self._set_timer(wait_list, max(TIMER_MIN_S, (next_at - now.ms) / 1000))
        # Jobs are ready, but all streams are full. A stream has capacity again when one of its jobs
        # expires.
        if not wait_list.waiting and self._ready(wait_list.topic):
            expires_at = retention.next_expiry(wait_list.topic, self._engine.store)
            if expires_at is not None:
                # A job that still exists after this time has a damaged record, so try again later.
                left_ms = expires_at - now.ts
                self._set_timer(wait_list, left_ms / 1000 if left_ms > 0 else RETRY_S)

    def _set_timer(self, wait_list: WaitList, seconds: float) -> None:
        at = trio.current_time() + seconds
        if wait_list.timer is None or at < wait_list.timer.at:
            if wait_list.timer is not None:
                wait_list.timer.cancel()
            wait_list.timer = self._context.deadlines.call_at(
                at, partial(self._on_timer, wait_list)
            )

    def _on_timer(self, wait_list: WaitList) -> None:
        wait_list.timer = None
        self._make_due(wait_list)

    def _end(self, wait_list: WaitList) -> None:
        """End the wait list of a deleted queue."""
        # A stream may be in both lists, but must get the error only once.
        claimers = dict.fromkeys((*wait_list.waiting, *wait_list.streams.values()))
        # Clear the lists before the errors are sent, because `end` may call `leave` or
        # `unfollow`.
        wait_list.waiting.clear()
        wait_list.unserved.clear()
        wait_list.streams.clear()
        self._drop_if_empty(wait_list)
        for claimer in claimers:
            claimer.end(TopicNotFound(wait_list.topic.name))

    def _drop_if_empty(self, wait_list: WaitList) -> bool:
        if not wait_list.is_empty:
            return False
        wait_list.close_window()
        if wait_list.timer is not None:
            wait_list.timer.cancel()
        if self._wait_lists.get(wait_list.topic.id) is wait_list:
            del self._wait_lists[wait_list.topic.id]
            wait_list.topic.unfollow(self._changed)
            jobs_of(wait_list.topic).leases.loosened.clear()
        self._due.pop(wait_list, None)
        return True
