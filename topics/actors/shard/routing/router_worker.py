"""Router worker: the state of one router in the shard of its source, and of each shared source.

IDLE --new records--> READY --forward--> IN_FLIGHT --reply--> IDLE
  ^                     ^                       |
  |                     '--after a pause- RETRYING <--dest full, shard unavailable--'
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
HOPS_STORED_MAX = 1024  # above this number of hop ranges, `drop_hops` does not wait for idleness


class WorkerState(Enum):
    """The states of a worker."""

    IDLE = "idle"
    READY = "ready"
    IN_FLIGHT = "flying"
    RETRYING = "retrying"


class GroupKey(NamedTuple):
    """The properties by which workers are grouped. Workers of a group can share a message."""

    shard: int  # the shard of the dest
    is_known: bool
    cursor: int
    seen: int
    drops: int
    match: TagMatch | None
    is_stamped: bool
    hop_max: int
    need: int


class RouterWorker:
    """One router. Both cursors are valid only after the dest has reported its state.

    ``cursor``: the cursor that the dest's log contains. ``seen``: a seq at or above ``cursor``; no
    record up to ``seen`` remains to be copied.
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
        # The size of the next copy if the dest has no space for it, otherwise 0. The next forward
        # contains no records, but requests this space.
        self.need = 0
        self.must_log = False  # whether the dest's log must store ``seen``
        self.on_removed: Callable[[int], object] | None = None  # called with ``total``
        self.configure(row, shard)

    def configure(self, row: RouterRow, shard: int) -> None:
        """Apply the config in ``row``. ``shard``: the shard of the dest."""
        if self.seen > self.cursor:
            self.must_log = True  # so that records skipped by the old config stay skipped
        self.row, self.shard = row, shard
        self.match = None if row.filter is None else TagMatch._make(row.filter)
        self.drops = (0 if row.preserve_node else Drops.NODE) | (
            0 if row.preserve_tag else Drops.TAG
        )

    @property
    def group_key(self) -> GroupKey:
        """See `GroupKey`."""
        return GroupKey(
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
        """The entry of this router in the targets of a forward."""
        row = self.row
        return ForwardTarget(row.id, row.dest, row.dest_id, row.start_seq, row.name)

    def set_position(self, cursor: int, total: int) -> None:
        """Store the cursor and total that the dest has reported."""
        self.cursor = self.seen = cursor
        self.total, self.is_known, self.must_log = total, True, False

    def skip_to(self, seq: int) -> None:
        """Advance ``seen`` to ``seq``: no record up to there is left to copy."""
        self.seen = seq

    def end_removal(self) -> None:
        """Report the total of a removed router. Called when none of its forwards is in flight."""
        self.state = WorkerState.IDLE
        if self.on_removed is not None:
            call, self.on_removed = self.on_removed, None
            call(self.total)


class RouterSource:
    """A topic and the routers that have it as their source.

    ``ready``: workers that may send, by `GroupKey`.
    """

    __slots__ = ("has_new_records", "hops", "hops_from", "idle", "ready", "topic", "workers")

    def __init__(self, topic: Topic) -> None:
        self.topic, self.hops = topic, Hops()
        self.hops_from = U64_MAX  # the hop counts of copies above this seq are known
        self.workers: dict[int, RouterWorker] = {}
        self.idle: dict[RouterWorker, None] = {}
        self.ready: dict[GroupKey, dict[RouterWorker, None]] = {}
        self.has_new_records = True

    def add(self, worker: RouterWorker) -> None:
        """Add a router."""
        self.workers[worker.row.id] = worker
        self.make_ready(worker)

    def remove(self, worker: RouterWorker) -> None:
        """Remove a router."""
        del self.workers[worker.row.id]
        self.unmark_ready(worker)
        self.idle.pop(worker, None)

    def make_ready(self, worker: RouterWorker) -> None:
        """Mark the worker as ready to send."""
        self.idle.pop(worker, None)
        worker.state = WorkerState.READY
        self.ready.setdefault(worker.group_key, {})[worker] = None

    def unmark_ready(self, worker: RouterWorker) -> None:
        """Unmark a ready worker. Call this before its group key changes."""
        alike = self.ready.get(worker.group_key)
        if alike is not None:
            alike.pop(worker, None)
            if not alike:
                del self.ready[worker.group_key]

    def mark_idle(self, worker: RouterWorker) -> None:
        """Mark the worker as idle."""
        worker.state = WorkerState.IDLE
        self.idle[worker] = None

    def wake_idle_workers(self) -> None:
        """Make idle workers ready if the source has new records."""
        if self.has_new_records:
            self.has_new_records = False
            for worker in tuple(self.idle):
                self.make_ready(worker)

    def take_group(self, count: int, has_capacity: Callable[[int], bool]) -> list[RouterWorker]:
        """Return up to ``count`` ready workers of one group, or an empty list.

        ``has_capacity`` returns whether the shard of their dests accepts a message.
        """
        group_key = next((each for each in self.ready if has_capacity(each.shard)), None)
        if group_key is None:
            return []
        alike = self.ready[group_key]
        taken = [worker for worker, _ in zip(tuple(alike), range(count), strict=False)]
        for worker in taken:
            del alike[worker]
        if not alike:
            del self.ready[group_key]
        return taken

    def drop_hops(self) -> None:
        """Drop the hop counts of records that every router has handled.

        With many routers this is expensive, so it is done only when all routers are idle or the
        table is large.
        """
        if not self.hops or (
            len(self.idle) < len(self.workers) and len(self.hops) < HOPS_STORED_MAX
        ):
            return
        self.hops.drop_to(min((worker.seen for worker in self.workers.values()), default=0))
