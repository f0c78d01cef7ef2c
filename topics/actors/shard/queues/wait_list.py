"""Wait list: the claimers of one queue in the order of arrival, and the cohort that is dealt to.

A claimer is whoever wants jobs: a polled claim or a work stream.

    waiting --served--> its leases are decided --settle--> the jobs go out, or the log lost them
        |--get_nothing--> answered without jobs
        '--end--> told why it gets no more

    greedy (`claim_jitter_ms` 0)   the first claimer takes what it can, then the next one
    jitter                         GATHERING --window over--> DEALING --cohort served--> GATHERING

A cohort is everybody who waits when its window is over. Each gets its even share of the jobs, in
the order of arrival, in passes of what a turn may take. Where jobs are fewer than members, the
first ones get one each, and no work is done for the others: they stay in the list.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from itertools import islice
from operator import attrgetter
from typing import ClassVar, NamedTuple

from topics.actors.shard.deadlines import Deadline
from topics.engine.changes.lease_jobs import LeaseChange
from topics.engine.queue.claims import Ask
from topics.engine.queue.leases import Holder
from topics.engine.topic import Topic
from topics.formats.grouping import grouped
from topics.storage.wal.progress import Progress


class Claimer:
    """Base of both kinds. ``lease_ms`` None: as the queue says when the jobs are leased. ``room``:
    how many jobs it takes now; one without room leaves the wait list.
    """

    __slots__ = ("holder", "lease_ms", "topic")
    topic: Topic
    holder: Holder
    lease_ms: int | None
    room: int
    is_stream: ClassVar[bool]
    max_bytes: ClassVar[int]  # about how many bytes of jobs it takes at once

    def ask(self, max_jobs: int) -> Ask:
        """What it asks the engine for."""
        lease_ms = self.topic.config.lease_ms if self.lease_ms is None else self.lease_ms
        return Ask(self.holder, max_jobs, lease_ms)

    def begin_waiting(self) -> None:
        """Note that it was not served in the turn in which it came."""

    def served(self, change: LeaseChange) -> None:
        """Note that it has left the wait list with these leases."""
        raise NotImplementedError

    def settle(self, change: LeaseChange, result: Progress | OSError) -> None:
        """Send the jobs; the log may have lost their leases."""
        raise NotImplementedError

    def get_nothing(self) -> None:
        """It has left the wait list without jobs. Only for one that does not wait any longer."""
        raise NotImplementedError

    def end(self, error: Exception) -> None:
        """It has left the wait list because of ``error``, and gets no more jobs."""
        raise NotImplementedError


class Share(NamedTuple):
    """How many jobs a member of a cohort gets at most."""

    claimer: Claimer
    max_jobs: int


class WaitList:
    """The claimers of one queue.

    ``waiting``: those with room, the next one first. ``impatient``: those of them that are answered
    without jobs rather than wait on. ``streams``: all work streams of the queue. ``newcomers`` came
    since the list was served last, ``unheard`` since a cohort was formed. ``window`` ends the
    gathering of a cohort, ``slices`` of it are dealt to in one pass each.
    """

    __slots__ = (
        *("topic", "waiting", "impatient", "streams", "newcomers", "unheard"),
        *("window", "slices", "alarm"),
    )

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.waiting = OrderedDict[Claimer, None]()
        self.impatient: dict[Claimer, None] = {}
        self.streams: dict[Holder, Claimer] = {}
        self.newcomers: list[Claimer] = []
        self.unheard: dict[Claimer, None] = {}
        self.window: Deadline | None = None
        self.slices: deque[Sequence[Share]] | None = None
        self.alarm: Deadline | None = None

    @property
    def is_empty(self) -> bool:
        """Nobody waits, and nobody may wait later."""
        return not (self.waiting or self.streams)

    # Who waits

    def join(self, claimer: Claimer, *, is_patient: bool) -> None:
        """Put the claimer at the end."""
        self.waiting[claimer] = None
        if not is_patient:
            self.impatient[claimer] = None
        self.newcomers.append(claimer)
        self.unheard[claimer] = None

    def leave(self, claimer: Claimer) -> None:
        """Take the claimer out, if it waits."""
        self.waiting.pop(claimer, None)
        self.impatient.pop(claimer, None)
        self.unheard.pop(claimer, None)

    def admit(self, loosened: Iterable[Holder]) -> None:
        """Streams that hold fewer jobs than before may have room again."""
        for holder in loosened:
            stream = self.streams.get(holder)
            if stream is not None and stream not in self.waiting and stream.room:
                self.join(stream, is_patient=True)

    # Windows and cohorts

    def close_window(self) -> None:
        """No cohort is gathered."""
        if self.window is not None:
            self.window.cancel()
            self.window = None

    def form_cohort(self, ready: int, jobs_max: int) -> None:
        """Deal ``ready`` jobs, ``jobs_max`` in one pass."""
        self.unheard.clear()
        members = [*islice((claimer for claimer in self.waiting if claimer.room), ready)]
        shares = even_shares([claimer.room for claimer in members], ready)
        self.slices = deque(grouped(map(Share, members, shares), attrgetter("max_jobs"), jobs_max))


def even_shares(rooms: Sequence[int], jobs: int) -> list[int]:
    """What each of them gets when ``jobs`` are dealt one at a time: the same, or its room where
    that is less. The first ones get what is left over.
    """
    rounds, having_room = 0, len(rooms)
    for room in sorted(rooms):
        more = min(room - rounds, jobs // having_room)
        rounds += more
        jobs -= more * having_room
        if rounds < room:
            break
        having_room -= 1
    shares = [min(room, rounds) for room in rooms]
    for at, room in enumerate(rooms):
        if jobs and room > rounds:
            shares[at] += 1
            jobs -= 1
    return shares
