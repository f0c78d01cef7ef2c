"""Shard context: what the services of one shard share, and the checks in front of each request.

The loop sets `now` at the start of each turn, so that all decisions of a turn have one time. A task
decides and answers in a `turn` of its own: what is sent outside of one stays in its link until the
next.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVarTuple

import trio

from topics.actors.link.board import ShardWords
from topics.actors.link.pulse import DISK_STALLED
from topics.actors.shard.deadlines import Deadlines
from topics.actors.shard.group_commit import GroupCommit
from topics.actors.shard.held_topics import Handler, HeldTopics, Request, handle_late
from topics.actors.shard.inbox import Inbox
from topics.actors.shard.moves import Moves
from topics.actors.shard.peers import Peers
from topics.actors.shard.record_store import RecordStore
from topics.actors.shard.room import DiskWatch, Room, unwritable
from topics.engine.changes.change import Change
from topics.engine.now import Now
from topics.engine.priority import NEW_BAND
from topics.engine.queue.ledger import keeps_leases
from topics.engine.topic import Topic
from topics.errors import NotReady
from topics.formats.api.limits import Limits
from topics.storage.disk import Damaged
from topics.storage.recovery.steps import Shard

Args = TypeVarTuple("Args")

NS_PER_MS = 1_000_000
DRIFT_MAX_NS = 5 * NS_PER_MS  # of the wall clock, until it counts as set


class Clock:
    """Both clocks, in milliseconds. As long as nobody sets the wall clock it stays a whole number
    of milliseconds ahead of the monotonic one: a deadline is rendered alike each time.
    """

    def __init__(self) -> None:
        self._ahead_ns = 0

    def __call__(self) -> Now:
        """The time of now."""
        ns, wall_ns = time.monotonic_ns(), time.time_ns()
        if abs(wall_ns - ns - self._ahead_ns) > DRIFT_MAX_NS:
            # Once more: the process may have been stopped between the two.
            ns, wall_ns = time.monotonic_ns(), time.time_ns()
            self._ahead_ns = wall_ns - ns
        ts = (ns + self._ahead_ns) // NS_PER_MS
        return Now(ts, ts - self._ahead_ns // NS_PER_MS)


clock = Clock()


class ShardContext:
    """One shard's engine, log and clock, as its services see them."""

    def __init__(self, shard: Shard, limits: Limits, words: ShardWords) -> None:
        self.engine, self.wal, self.limits = shard.engine, shard.wal, limits
        self.words, self.deadlines = words, Deadlines()
        self.moves = Moves(self.deadlines)
        self.clock: Callable[[], Now] = clock
        self.store = RecordStore(shard.engine, shard.wal, shard.segments)
        self.commits = GroupCommit(shard.engine, shard.wal, self.store, clock)
        self.room = Room(shard, self.commits, words)
        self.disk = DiskWatch(self.commits, self.room, words)
        self.held = HeldTopics()
        self.inbox = Inbox(self.band_of, time.monotonic)
        self.now = clock()
        self.refused_writes = 0  # for want of a log that takes them
        self.turn_count = 0
        self.append_count = 0  # of appends that were decided, of clients and of shards
        self.is_stopping = False  # no work is begun that nobody has asked for
        # What the topic holds may have changed: told to the gauges.
        self.note_changed: Callable[[Topic], object] = lambda _: None
        # Whether routers name the topic, as far as the shard knows.
        self.routers_of: Callable[[str], bool] = lambda _: False
        self.peers: Peers
        self.nursery: trio.Nursery
        self.end_turn: Callable[[], None]
        self.send: Callable[[], None]  # messages to the links, before the end of the turn

    def begin_turn(self) -> None:
        """Read the clock for the decisions that follow."""
        self.now = self.clock()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """A turn of the loop, for what a task decides and sends."""
        self.begin_turn()
        yield
        self.end_turn()

    def start(self, task: Callable[[*Args], Awaitable[object]], *args: *Args) -> None:
        """Run ``task`` beside the loop, until the shard stops."""
        self.nursery.start_soon(task, *args)

    def give_back(self, topic: str, *first: tuple[Handler, Request]) -> None:
        """Free a held topic: handle ``first``, then what was deferred, in a turn of their own."""
        with self.turn():
            deferred = self.held.give_back(topic)
            for handler, request in first:
                handle_late(handler, request)
            for call in deferred:
                call()

    def check_writable(self, *, grows: bool = False) -> None:
        """Raise `NotReady` while the shard cannot take a write. ``grows``: it makes no room."""
        room = self.room
        if room.broken is not None or room.owed or (grows and self.wal.short_of_room):
            refusal = room.refusal(grows=grows)
            assert refusal is not None, "the shard cannot write"
            self.refused_writes += 1
            raise unwritable(refusal)
        if self.disk.is_stalled:
            self.refused_writes += 1
            raise NotReady("the disk of this shard does not answer", reason=DISK_STALLED)

    def fresh_topic(self, name: str) -> Topic:
        """The topic of that name, as it is now. Raises `TopicNotFound`."""
        topic = self.engine.topic(name)
        if topic.committed.ttl_ms or topic.floor_due:
            self.freshen(topic)
        return topic

    def fresh_queue(self, name: str) -> Topic:
        """The queue of that name, as it is now. Raises `TopicNotFound` or `NotAQueue`."""
        topic = self.engine.queue(name)
        if topic.committed.ttl_ms or topic.floor_due:
            self.freshen(topic)
        return topic

    def band_of(self, name: str) -> int:
        """The band of the topic of that name; that of a new one if there is none."""
        topic = self.engine.topics.get(name)
        return NEW_BAND if topic is None else topic.band(self.now.ms)

    def freshen(self, topic: Topic | None) -> None:
        """Remove what is too old by now, before anything is answered or decided."""
        if topic is None or not (topic.committed.ttl_ms or topic.floor_due):
            return
        self.note_changed(topic)
        try:
            change = self.engine.expire(topic, self.now)
        except Damaged as damage:
            # Damaged records do not keep the rest of the topic from its users.
            self.store.report(damage)
            return
        if change is not None:
            # Undone, the log gets the floor when it can be written.
            self.submit_or_undo(change, grows=False)

    def check_leasable(self, topic: Topic) -> None:
        """Raise `NotReady` while leases of the queue cannot change. Durable ones grow the log, and
        must not take the room that acks and starts need.
        """
        self.check_writable(grows=keeps_leases(topic.committed))

    def submit_or_undo(self, change: Change, *, grows: bool) -> None:
        """Submit a change that nobody waits for, unless the log cannot take it. ``grows``: it makes
        no room.
        """
        if self.room.refusal(grows=grows) is None:
            self.commits.submit(change, None)
        else:
            self.engine.undo(change)
