"""Wait list: the claimers of one queue in the order of arrival, and the cohort that is dealt to.

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
from typing import NamedTuple

from topics.actors.shard.deadlines import Deadline
from topics.actors.shard.queues.claimers import Claimer
from topics.engine.queue.leases import Holder
from topics.engine.topic import Topic
from topics.formats.grouping import grouped


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
