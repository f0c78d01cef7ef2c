"""Shard engine: the topics of one shard, and the operations that all of their changes share.

The engine reads no clock and does no I/O: the current time is an argument, and the required effects
are returned as values.

    decide  ->  Change  ->  (the caller makes its frames durable)  ->  commit
                                                                  '->  undo, if that failed

Each kind of change has a module in ``changes/`` that decides it. Changes of a topic are committed
in the order of their decisions. If the log fails, all changes that have not been committed are
undone, from the newest to the oldest.
"""

from __future__ import annotations

from topics.engine.changes import floor
from topics.engine.changes.append import Append
from topics.engine.changes.change import Change
from topics.engine.changes.floor import FloorMoved
from topics.engine.future_timestamps import FutureTimestamps
from topics.engine.locators import Locator
from topics.engine.now import Now
from topics.engine.quota import ByteQuota, SharedCap
from topics.engine.store import Store
from topics.engine.topic import Topic
from topics.engine.topic_table import TopicTable
from topics.errors import NotAQueue, TopicNotFound

SWEEP_TOPICS = 1024  # maximum number of topics that `sweep_keys` checks, in half a millisecond
SWEEP_KEYS = 1 << 17  # number of keys at which `sweep_keys` ends, after a few milliseconds


class ShardEngine:
    """Decides the changes of the topics of one shard. ``table`` contains the topics."""

    def __init__(self, shard: int = 0, shards: int = 1) -> None:
        self.table = table = TopicTable(shard, shards)
        self.topics, self.by_id, self.topic = table.by_name, table.by_id, table.topic
        self.names, self.delete_flags, self.routers = table.names, table.delete_flags, table.routers
        self.future_timestamps = FutureTimestamps()
        self._unswept: list[int] = []

    @property
    def store(self) -> Store:
        """The store that reads and releases the records of the topics."""
        return self.table.store

    @store.setter
    def store(self, store: Store) -> None:
        self.table.store = store

    def expire(self, topic: Topic, now: Now) -> FloorMoved | None:
        """Remove records that are older than the maximum age.

        The caller must call this before it serves a request for the topic or decides a change.
        Return a change if the log must record the new floors, else None.
        """
        try:
            return floor.decide(self.table, topic, now)
        finally:
            self.recharge(topic)

    def queue(self, name: str) -> Topic:
        """Return the queue of that name. Raise `TopicNotFound` or `NotAQueue` if there is none."""
        topic = self.topics.get(name)
        if topic is None:
            raise TopicNotFound(name)
        if topic.jobs is None:
            raise NotAQueue(name)
        return topic

    # Idempotency keys

    def sweep_keys(self, now: Now) -> list[Topic]:
        """Drop expired idempotency keys from the next topics. Return the topics that lost keys.

        A call checks at most `SWEEP_TOPICS` topics and stops soon after it has dropped `SWEEP_KEYS`
        keys. Successive calls visit all topics in a cycle.
        """
        swept, left = list[Topic](), SWEEP_KEYS
        if not self._unswept:
            self._unswept = [*self.by_id]
        for _ in range(SWEEP_TOPICS):
            if not self._unswept or left <= 0:
                break
            topic = self.by_id.get(self._unswept[-1])
            count = topic.dedupe.expire(now.ms, topic.config.idempotency_window_ms) if topic else 0
            # The next topic is not checked until this topic has no more expired keys.
            if not count or topic is None:
                self._unswept.pop()
                continue
            swept.append(topic)
            left -= count
        return swept

    # Commit and undo

    def commit(self, change: Change, locator: Locator, now: Now, generation: int = 0) -> None:
        """Make a change visible. The caller guarantees that its frames are as durable as the
        durability class of the topic promises.

        ``locator`` finds the records of an append in the store. ``generation`` is the LSN at which
        their log file begins. Their tags are dropped from memory when that file is sealed.
        """
        table, written = self.table, 0
        try:
            if isinstance(change, Append):
                written = change.size
                change.commit_records(table, locator, now, generation)
            else:
                change.commit(table)
        finally:
            if table.byte_quota is not None:
                table.byte_quota.recharge(change.topic, written)

    def undo(self, change: Change) -> None:
        """Roll back a change whose frames could not be written, as if it had never been requested.

        The caller undoes all pending changes, from the newest to the oldest.
        """
        change.undo(self.table)
        self.recharge(change.topic)

    # Server-wide caps

    def limit(self, topic_cap: SharedCap | None, byte_quota: ByteQuota | None) -> None:
        """Apply these caps, which all shards share, to the topics of this shard (§11).

        The existing topics must be counted against the caps already (`count_charged`).
        """
        self.table.topic_cap, self.table.byte_quota = topic_cap, byte_quota

    def count_charged(self) -> tuple[int, int]:
        """Charge each topic for its bytes. Return the number of topics and the sum of the charges.

        No change may be pending.
        """
        for topic in self.by_id.values():
            topic.charge = topic.bytes
        return len(self.by_id), sum(topic.charge for topic in self.by_id.values())

    def recharge(self, topic: Topic) -> None:
        """Update the charge of a topic whose records were removed other than by a change."""
        if self.table.byte_quota is not None:
            self.table.byte_quota.recharge(topic)
