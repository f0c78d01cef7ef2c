"""Wait list: the claimers of one queue in order of arrival, and the current cohort.

A claimer is a polled claim or a work stream.

    waiting --served--> has leases --settle--> jobs are sent, or the log has lost the leases
        |--finish_unserved--> gets a reply that contains no jobs
        '--end--> receives an error, and claims no further jobs

    `claim_jitter_ms` 0    each claimer in turn gets as many jobs as its capacity allows
    `claim_jitter_ms` > 0  GATHERING --window over--> DISTRIBUTING --cohort served--> GATHERING

A cohort consists of the claimers that are waiting when the window is over. The jobs are divided
evenly among them, in order of arrival, in slices that one loop iteration can lease. If there are
fewer jobs than claimers, the claimers that arrived first get one job each, and the other claimers
stay in the list.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from itertools import islice
from operator import attrgetter
from typing import ClassVar, NamedTuple

from topics.actors.shard.deadlines import Deadline
from topics.engine.changes.lease_jobs import LeaseChange
from topics.engine.queue.claims import ClaimRequest
from topics.engine.queue.leases import LeaseHolder
from topics.engine.topic import Topic
from topics.formats.grouping import grouped
from topics.storage.wal.log_progress import LogProgress


class Claimer:
    """Base class of both kinds of claimers.

    ``lease_ms``: None selects the queue's setting when the jobs are leased. ``capacity``: the
    number of jobs that the claimer accepts now. A claimer with capacity 0 leaves the wait list.
    """

    __slots__ = ("holder", "lease_ms", "topic")
    topic: Topic
    holder: LeaseHolder
    lease_ms: int | None
    capacity: int
    is_stream: ClassVar[bool]
    max_bytes: ClassVar[int]  # approximate maximum bytes of jobs in one batch

    def claim_request(self, max_jobs: int) -> ClaimRequest:
        """Return the request to the engine for up to ``max_jobs`` jobs."""
        lease_ms = self.topic.config.lease_ms if self.lease_ms is None else self.lease_ms
        return ClaimRequest(self.holder, max_jobs, lease_ms)

    def begin_waiting(self) -> None:
        """Start to wait, because the first pass after the claimer joined has not served it."""

    def served(self, change: LeaseChange) -> None:
        """Record the leases of the claimer, which is no longer in the wait list."""
        raise NotImplementedError

    def settle(self, change: LeaseChange, result: LogProgress | OSError) -> None:
        """Send the jobs. If ``result`` is an error, the log has lost their leases."""
        raise NotImplementedError

    def finish_unserved(self) -> None:
        """Reply with no jobs, because the wait is over. Never called for a stream."""
        raise NotImplementedError

    def end(self, error: Exception) -> None:
        """Handle the error because of which the claimer was removed from the wait list.

        The claimer gets no further jobs.
        """
        raise NotImplementedError


class Share(NamedTuple):
    """A member of a cohort, and the maximum number of jobs that it gets."""

    claimer: Claimer
    max_jobs: int


class WaitList:
    """The claimers of one queue.

    ``waiting``: claimers with capacity; the first is served next. ``unserved``: waiting claimers
    that get an empty reply instead of waiting longer. ``streams``: all work streams of the
    queue. ``joined``: claimers that joined after the list was last served. ``uncounted``: claimers
    that joined after a cohort was last formed. ``window``: the deadline at which the next cohort is
    formed. ``slices``: the remaining shares of the cohort, each slice served in one step.
    ``timer``: the deadline at which the list is served even if no other event makes it due.
    """

    __slots__ = (
        *("topic", "waiting", "unserved", "streams", "joined", "uncounted"),
        *("window", "slices", "timer"),
    )

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.waiting = OrderedDict[Claimer, None]()
        self.unserved: dict[Claimer, None] = {}
        self.streams: dict[LeaseHolder, Claimer] = {}
        self.joined: list[Claimer] = []
        self.uncounted: dict[Claimer, None] = {}
        self.window: Deadline | None = None
        self.slices: deque[Sequence[Share]] | None = None
        self.timer: Deadline | None = None

    @property
    def is_empty(self) -> bool:
        """Return whether no claimer is waiting and no stream, which may wait later, is open."""
        return not (self.waiting or self.streams)

    # Claimers

    def join(self, claimer: Claimer, *, may_wait: bool) -> None:
        """Add the claimer at the end."""
        self.waiting[claimer] = None
        if not may_wait:
            self.unserved[claimer] = None
        self.joined.append(claimer)
        self.uncounted[claimer] = None

    def leave(self, claimer: Claimer) -> None:
        """Remove the claimer, if it is waiting."""
        self.waiting.pop(claimer, None)
        self.unserved.pop(claimer, None)
        self.uncounted.pop(claimer, None)

    def admit(self, changed_holders: Iterable[LeaseHolder]) -> None:
        """Add streams that have capacity again.

        ``changed_holders``: the holders that hold fewer leases than before.
        """
        for holder in changed_holders:
            stream = self.streams.get(holder)
            if stream is not None and stream not in self.waiting and stream.capacity:
                self.join(stream, may_wait=True)

    # Windows and cohorts

    def close_window(self) -> None:
        """Cancel the window, so that no cohort is formed."""
        if self.window is not None:
            self.window.cancel()
            self.window = None

    def form_cohort(self, ready: int, jobs_max: int) -> None:
        """Divide ``ready`` jobs among waiting claimers, in slices of about ``jobs_max`` jobs."""
        self.uncounted.clear()
        members = [*islice((claimer for claimer in self.waiting if claimer.capacity), ready)]
        shares = even_shares([claimer.capacity for claimer in members], ready)
        self.slices = deque(grouped(map(Share, members, shares), attrgetter("max_jobs"), jobs_max))


def even_shares(capacities: Sequence[int], jobs: int) -> list[int]:
    """Return the share of each claimer if ``jobs`` jobs are distributed round-robin.

    All shares are equal, except that no share exceeds the claimer's capacity in ``capacities``. The
    first claimers with further capacity get the remainder.
    """
    # Raise the common share to the capacity of each claimer in turn, from the smallest to the
    # largest, until the jobs do not suffice for all claimers that have capacity left.
    rounds, with_capacity = 0, len(capacities)
    for capacity in sorted(capacities):
        more = min(capacity - rounds, jobs // with_capacity)
        rounds += more
        jobs -= more * with_capacity
        if rounds < capacity:
            break
        with_capacity -= 1
    shares = [min(capacity, rounds) for capacity in capacities]
    # Distribute the remainder, one job each.
    for at, capacity in enumerate(capacities):
        if jobs and capacity > rounds:
            shares[at] += 1
            jobs -= 1
    return shares
