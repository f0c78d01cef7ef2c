"""Shard context: the state that the services of one shard share, and checks that precede requests.

The loop sets `now` at the start of each iteration, so that all requests of the iteration are
evaluated at the same time. A task evaluates requests and replies to them inside `iteration`, which
runs an iteration of its own. A message that is sent outside an iteration stays in its link until
the next iteration.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVarTuple

import trio

from topics.actors.link.board import ShardCells
from topics.actors.link.liveness import DISK_STALLED
from topics.actors.shard.deadlines import Deadlines
from topics.actors.shard.disk_space import DiskSpace, DiskWatch, unwritable
from topics.actors.shard.group_commit import GroupCommit
from topics.actors.shard.held_topics import Handler, HeldTopics, Request, handle_late
from topics.actors.shard.inbox import Inbox
from topics.actors.shard.moves import Moves
from topics.actors.shard.peers import Peers
from topics.actors.shard.record_store import RecordStore
from topics.engine.changes.change import Change
from topics.engine.now import Now
from topics.engine.priority import NEW_BAND
from topics.engine.queue.ledger import keeps_leases
from topics.engine.topic import Topic
from topics.errors import NotReady
from topics.formats.api.limits import Limits
from topics.storage.disk import Damaged
from topics.storage.recovery.shard_recovery import RecoveredShard

Args = TypeVarTuple("Args")

NS_PER_MS = 1_000_000
# Maximum drift of the wall clock. A larger difference means that the clock was set.
DRIFT_MAX_NS = 5 * NS_PER_MS


class Clock:
    """Reads the wall clock and the monotonic clock, in milliseconds.

    The difference between the wall clock and the monotonic clock is a constant number of whole
    milliseconds until the wall clock is set. So a deadline is rendered identically each time.
    """

    def __init__(self) -> None:
        self._ahead_ns = 0

    def __call__(self) -> Now:
        """Return the current time."""
        ns, wall_ns = time.monotonic_ns(), time.time_ns()
        if abs(wall_ns - ns - self._ahead_ns) > DRIFT_MAX_NS:
            # Read again, because the process may have been suspended between the two calls.
            ns, wall_ns = time.monotonic_ns(), time.time_ns()
            self._ahead_ns = wall_ns - ns
        ts = (ns + self._ahead_ns) // NS_PER_MS
        return Now(ts, ts - self._ahead_ns // NS_PER_MS)


clock = Clock()


class ShardContext:
    """The engine, log and clock of one shard, and the objects that its services share."""

    def __init__(self, shard: RecoveredShard, limits: Limits, cells: ShardCells) -> None:
        self.engine, self.wal, self.limits = shard.engine, shard.wal, limits
        self.cells, self.deadlines = cells, Deadlines()
        self.moves = Moves(self.deadlines)
        self.clock: Callable[[], Now] = clock
        self.store = RecordStore(shard.engine, shard.wal, shard.segments)
        self.commits = GroupCommit(shard.engine, shard.wal, self.store, clock)
        self.disk_space = DiskSpace(shard, self.commits, cells)
        self.disk = DiskWatch(self.commits, self.disk_space, cells)
        self.held = HeldTopics()
        self.inbox = Inbox(self.band_of, time.monotonic)
        self.now = clock()
        self.refused_writes = 0  # number of writes refused because the log cannot write them
        self.iteration_count = 0
        self.append_count = 0  # number of evaluated appends from clients and shards
        self.is_stopping = False  # if true, services start no background work
        # Called when the content of a topic may have changed. Set by the gauges.
        self.note_changed: Callable[[Topic], object] = lambda _: None
        # Returns whether any router known to this shard refers to the topic.
        self.routers_of: Callable[[str], bool] = lambda _: False
        self.peers: Peers
        self.nursery: trio.Nursery
        self.end_iteration: Callable[[], None]
        self.send: Callable[[], None]  # send messages to the links before the end of the iteration

    def begin_iteration(self) -> None:
        """Read the clock for the requests of this iteration."""
        self.now = self.clock()

    @contextmanager
    def iteration(self) -> Iterator[None]:
        """Run an iteration of the loop for a task that makes changes or sends messages."""
        self.begin_iteration()
        yield
        self.end_iteration()

    def start(self, task: Callable[[*Args], Awaitable[object]], *args: *Args) -> None:
        """Run ``task`` concurrently with the loop, until the shard stops."""
        self.nursery.start_soon(task, *args)

    def release_topic(self, topic: str, *first: tuple[Handler, Request]) -> None:
        """Release a held topic.

        Handle ``first`` and then the deferred requests, in a new iteration.
        """
        with self.iteration():
            deferred = self.held.release(topic)
            for handler, request in first:
                handle_late(handler, request)
            for call in deferred:
                call()

    def check_writable(self, *, grows: bool = False) -> None:
        """Raise `NotReady` while the shard cannot write.

        ``grows``: the write frees no space.
        """
        disk_space = self.disk_space
        if (
            disk_space.broken is not None
            or disk_space.unwritten
            or (grows and self.wal.lacks_space)
        ):
            refusal = disk_space.refusal(grows=grows)
            assert refusal is not None, "the shard cannot write"
            self.refused_writes += 1
            raise unwritable(refusal)
        if self.disk.is_stalled:
            self.refused_writes += 1
            raise NotReady("the disk of this shard does not respond", reason=DISK_STALLED)

    def find_topic(self, name: str) -> Topic:
        """Return the topic ``name`` after removing its expired records. Raises `TopicNotFound`."""
        topic = self.engine.topic(name)
        if topic.committed.ttl_ms or topic.floor_due:
            self.remove_expired(topic)
        return topic

    def find_queue(self, name: str) -> Topic:
        """Return the queue ``name`` after removing its expired jobs.

        Raises `TopicNotFound` or `NotAQueue`.
        """
        topic = self.engine.queue(name)
        if topic.committed.ttl_ms or topic.floor_due:
            self.remove_expired(topic)
        return topic

    def band_of(self, name: str) -> int:
        """Return the topic's priority band, or the band of new topics if it does not exist."""
        topic = self.engine.topics.get(name)
        return NEW_BAND if topic is None else topic.band(self.now.ms)

    def remove_expired(self, topic: Topic | None) -> None:
        """Remove expired records, so that no decision or reply includes them."""
        if topic is None or not (topic.committed.ttl_ms or topic.floor_due):
            return
        self.note_changed(topic)
        try:
            change = self.engine.expire(topic, self.now)
        except Damaged as damage:
            # Damaged records must not make the rest of the topic unavailable.
            self.store.report(damage)
            return
        if change is not None:
            # If the change is undone, the floor is written to the log when it is writable again.
            self.submit_or_undo(change, grows=False)

    def check_leasable(self, topic: Topic) -> None:
        """Raise `NotReady` while leases of the queue cannot change.

        Durable leases grow the log, and must not use the space that is reserved for acks and for
        startup.
        """
        self.check_writable(grows=keeps_leases(topic.committed))

    def submit_or_undo(self, change: Change, *, grows: bool) -> None:
        """Submit a change that no request waits for, or undo it if the log cannot write it.

        ``grows``: the change frees no space.
        """
        if self.disk_space.refusal(grows=grows) is None:
            self.commits.submit(change, None)
        else:
            self.engine.undo(change)
