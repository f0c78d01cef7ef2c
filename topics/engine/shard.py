"""Shard engine: the topics of one shard and what holds for all of their changes. It is pure: time
comes in, and what must happen comes out.

    decide  ->  Change  ->  (the caller makes its frames durable)  ->  commit
                                                                  '->  undo, when that failed

Each kind of change has a module in ``changes/`` that decides it. Changes of a topic are committed
in the order of their decisions. When the log fails, every change that is not committed is undone,
the last one first.
"""

from __future__ import annotations

from topics.engine.ahead import AheadOfClock
from topics.engine.changes import floor
from topics.engine.changes.append import Append
from topics.engine.changes.change import Change
from topics.engine.changes.floor import FloorMoved
from topics.engine.locators import Locator
from topics.engine.now import Now
from topics.engine.quota import ByteQuota, SharedCap
from topics.engine.store import Store
from topics.engine.topic import Topic
from topics.engine.topic_table import TopicTable
from topics.errors import NotAQueue, TopicNotFound

SWEEP_TOPICS = 1024  # half a millisecond
SWEEP_KEYS = 1 << 17  # some milliseconds


class ShardEngine:
    """Decisions about the topics of one shard; ``table`` holds the topics."""

    def __init__(self, shard: int = 0, shards: int = 1) -> None:
        self.table = table = TopicTable(shard, shards)
        self.topics, self.by_id, self.topic = table.by_name, table.by_id, table.topic
        self.names, self.delete_flags, self.routers = table.names, table.delete_flags, table.routers
        self.ahead = AheadOfClock()
        self._unswept: list[int] = []

    @property
    def store(self) -> Store:
        """Finds the records of the topics."""
        return self.table.store

    @store.setter
    def store(self, store: Store) -> None:
        self.table.store = store

    def expire(self, topic: Topic, now: Now) -> FloorMoved | None:
        """Remove what is too old, at once, before anything is answered or decided. The change tells
        the log, if it must know.
        """
        try:
            return floor.decide(self.table, topic, now)
        finally:
            self.recharge(topic)

    def queue(self, name: str) -> Topic:
        """The queue of that name. Raises `TopicNotFound` and `NotAQueue`."""
        topic = self.topics.get(name)
        if topic is None:
            raise TopicNotFound(name)
        if topic.jobs is None:
            raise NotAQueue(name)
        return topic

    # Idempotency keys

    def sweep_keys(self, now: Now) -> list[Topic]:
        """Drop keys that are over, of the next `SWEEP_TOPICS` topics and not many more than
        `SWEEP_KEYS`; the topics that have lost some. Call by call it comes to all topics.
        """
        swept, left = list[Topic](), SWEEP_KEYS
        if not self._unswept:
            self._unswept = [*self.by_id]
        for _ in range(SWEEP_TOPICS):
            if not self._unswept or left <= 0:
                break
            topic = self.by_id.get(self._unswept[-1])
            count = topic.dedupe.expire(now.ms, topic.config.idempotency_window_ms) if topic else 0
            if not count or topic is None:
                self._unswept.pop()
                continue
            swept.append(topic)
            left -= count
        return swept

    # What became of them

    def commit(self, change: Change, locator: Locator, now: Now, generation: int = 0) -> None:
        """Make a change visible: its frames are as durable as the class promises.

        ``locator``: finds the records of an append again. ``generation``: LSN at which their log
        file begins; their tags are dropped when that is sealed.
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
        """Take a change back, as if it had never been asked: its frames could not be written. The
        last one first, of those that are under way.
        """
        change.undo(self.table)
        self.recharge(change.topic)

    # Caps of the whole server

    def limit(self, topic_cap: SharedCap | None, byte_quota: ByteQuota | None) -> None:
        """From now on the topics share these caps with other shards (§11). What is there is held
        already: `count_held` tells how much.
        """
        self.table.topic_cap, self.table.byte_quota = topic_cap, byte_quota

    def count_held(self) -> tuple[int, int]:
        """How many topics there are, and the bytes that they are charged for. No change is under
        way.
        """
        for topic in self.by_id.values():
            topic.charge = topic.bytes
        return len(self.by_id), sum(topic.charge for topic in self.by_id.values())

    def recharge(self, topic: Topic) -> None:
        """Records of the topic went, other than by a change."""
        if self.table.byte_quota is not None:
            self.table.byte_quota.recharge(topic)
