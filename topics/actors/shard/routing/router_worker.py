"""Worker: one router at its source, and the router's place among those that share a source.

IDLE --new records--> READY --forward--> FLYING --answer--> IDLE
  ^                     ^                       |
  |                     '--a while later--- RETRYING <--full, away--'
  '---------------------------------------------'
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from topics.actors.shard.deadlines import Deadline
from topics.engine.routing.hops import HOPS_MAX, Hops
from topics.engine.topic import Topic
from topics.formats.api.diff_body import TagMatch
from topics.formats.api.limits import U64_MAX
from topics.formats.disk.copies import Drops
from topics.formats.wire.calls import ForwardTarget, RouterRow

RETRY_MIN_S, RETRY_MAX_S = 0.02, 1.0
HOPS_KEPT = 1024  # ranges, while routers are on their way


class WorkerState(Enum):
    """What a worker does."""

    IDLE = "idle"
    READY = "ready"
    FLYING = "flying"
    RETRYING = "retrying"


class Likeness(NamedTuple):
    """Workers that are alike in this can share a message."""

    shard: int  # of the dest
    is_known: bool
    cursor: int
    seen: int
    drops: int
    match: TagMatch | None
    is_stamped: bool
    hop_max: int
    need: int


class Worker:
    """One router. ``cursor``: where the dest's log has it; ``seen``: up to where nothing else is
    wanted, at or above ``cursor``; both count only once they are known from the dest.
    """

    __slots__ = (
        *("row", "shard", "match", "drops", "cursor", "seen", "total", "is_known", "is_removed"),
        *("state", "retry", "retry_s", "need", "must_log", "on_removed"),
    )

    def __init__(self, row: RouterRow, shard: int) -> None:
        self.cursor = self.seen = row.start_seq
        self.total = 0
        self.is_known = self.is_removed = False
        self.state = WorkerState.IDLE
        self.retry: Deadline | None = None
        self.retry_s = 0.0
        self.need = 0  # bytes for which a full dest had no room: asked for before more is sent
        self.must_log = False  # the dest's log must hear of ``seen``
        self.on_removed: Callable[[int], object] | None = None  # called with ``total``
        self.configure(row, shard)

    def configure(self, row: RouterRow, shard: int) -> None:
        """Copy as ``row`` says from now on; ``shard``: of the dest."""
        if self.seen > self.cursor:
            self.must_log = True  # what was passed over stays so
        self.row, self.shard = row, shard
        self.match = None if row.filter is None else TagMatch._make(row.filter)
        self.drops = (0 if row.preserve_node else Drops.NODE) | (
            0 if row.preserve_tag else Drops.TAG
        )

    @property
    def likeness(self) -> Likeness:
        """See `Likeness`."""
        return Likeness(
            self.shard,
            self.is_known,
            self.cursor,
            self.seen,
            self.drops,
            self.match,
            self.row.exactly_once,
            HOPS_MAX if self.row.is_cyclic else U64_MAX,
            self.need,
        )

    @property
    def target(self) -> ForwardTarget:
        """This router, in a forward."""
        row = self.row
        return ForwardTarget(row.id, row.dest, row.dest_id, row.start_seq, row.name)

    def stands_at(self, cursor: int, total: int) -> None:
        """The dest says so."""
        self.cursor = self.seen = cursor
        self.total, self.is_known, self.must_log = total, True, False

    def passed(self, seq: int) -> None:
        """Nothing up to ``seq`` is wanted."""
        self.seen = seq

    def end_removal(self) -> None:
        """Report the total of a removed router: none of its forwards is in flight."""
        self.state = WorkerState.IDLE
        if self.on_removed is not None:
            call, self.on_removed = self.on_removed, None
            call(self.total)


class Source:
    """A topic and the routers that it feeds. ``ready``: those that may send, by their likeness."""

    __slots__ = ("has_news", "hops", "hops_from", "idle", "ready", "topic", "workers")

    def __init__(self, topic: Topic) -> None:
        self.topic, self.hops = topic, Hops()
        self.hops_from = U64_MAX  # hops of copies above it are known
        self.workers: dict[int, Worker] = {}
        self.idle: dict[Worker, None] = {}
        self.ready: dict[Likeness, dict[Worker, None]] = {}
        self.has_news = True

    def add(self, worker: Worker) -> None:
        """Another router."""
        self.workers[worker.row.id] = worker
        self.make_ready(worker)

    def remove(self, worker: Worker) -> None:
        """A router that is gone."""
        del self.workers[worker.row.id]
        self.leave_ready(worker)
        self.idle.pop(worker, None)

    def make_ready(self, worker: Worker) -> None:
        """It may send."""
        self.idle.pop(worker, None)
        worker.state = WorkerState.READY
        self.ready.setdefault(worker.likeness, {})[worker] = None

    def leave_ready(self, worker: Worker) -> None:
        """It may not, for now: before its likeness changes."""
        alike = self.ready.get(worker.likeness)
        if alike is not None:
            alike.pop(worker, None)
            if not alike:
                del self.ready[worker.likeness]

    def rest(self, worker: Worker) -> None:
        """It has nothing to do."""
        worker.state = WorkerState.IDLE
        self.idle[worker] = None

    def take_news(self) -> None:
        """Idle routers look at what is new."""
        if self.has_news:
            self.has_news = False
            for worker in tuple(self.idle):
                self.make_ready(worker)

    def take_alike(self, count: int, has_room: Callable[[int], bool]) -> list[Worker]:
        """Up to ``count`` ready workers that are alike, whose dests' shard ``has_room``; none when
        there are none.
        """
        likeness = next((each for each in self.ready if has_room(each.shard)), None)
        if likeness is None:
            return []
        alike = self.ready[likeness]
        taken = [worker for worker, _ in zip(tuple(alike), range(count), strict=False)]
        for worker in taken:
            del alike[worker]
        if not alike:
            del self.ready[likeness]
        return taken

    def forget_hops(self) -> None:
        """Drop the hops of what every router has passed. There may be many routers, so this is done
        now and then only.
        """
        if not self.hops or (len(self.idle) < len(self.workers) and len(self.hops) < HOPS_KEPT):
            return
        self.hops.drop_to(min((worker.seen for worker in self.workers.values()), default=0))
