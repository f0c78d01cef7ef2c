"""Shard engine: the rules of one shard. It is pure: time comes in, and what must happen comes out.

    decide  ->  Change  ->  (the caller makes its frames durable)  ->  commit
                                                                  '->  undo, when that failed

Each kind of change has a module in ``changes/``; this class is how the shard's services reach them.
Changes of a topic are committed in the order of their decisions. When the log fails, every change
that is not committed is undone, the last one first.
"""

from __future__ import annotations

from collections.abc import Iterator

from topics.engine.changes import (
    append,
    delete_records,
    delete_topic,
    floor,
    put_topic,
    reservation,
)
from topics.engine.changes.append import Append, InFlightDuplicate
from topics.engine.changes.change import Change
from topics.engine.changes.delete_records import DeleteRecords
from topics.engine.changes.delete_topic import DeleteTopic
from topics.engine.changes.floor import FloorMoved
from topics.engine.changes.put_topic import PutTopic
from topics.engine.changes.reservation import Reservation
from topics.engine.dedupe import DedupeEntry
from topics.engine.locators import Locator
from topics.engine.now import Now
from topics.engine.store import DeleteFlags, Store
from topics.engine.topic import Topic
from topics.engine.topic_table import TopicTable
from topics.formats.api.append_body import AppendBody
from topics.formats.api.delete_body import TagMatch
from topics.formats.api.topic_config import TopicConfigPatch
from topics.formats.disk.rendering import Rendering


class ShardEngine:
    """Decisions about the topics of one shard; ``table`` holds the topics."""

    def __init__(self, shard: int = 0, shards: int = 1) -> None:
        self.table = TopicTable(shard, shards)
        self.topics, self.by_id = self.table.by_name, self.table.by_id

    # The table

    @property
    def store(self) -> Store:
        """Finds the records of the topics."""
        return self.table.store

    @store.setter
    def store(self, store: Store) -> None:
        self.table.store = store

    @property
    def delete_flags(self) -> DeleteFlags:
        """Flags of deleted records that are in no segment, for the store to keep."""
        return self.table.delete_flags

    def topic(self, name: str) -> Topic:
        """The topic of that name. Raises `TopicNotFound`."""
        return self.table.topic(name)

    def names(self, prefix: str, after: str | None, prefixes: list[str] | None) -> Iterator[str]:
        """Names of topics in order, from behind ``after`` on (§1.3)."""
        return self.table.names(prefix, after, prefixes)

    # Decisions

    def append(
        self, name: str, body: AppendBody, now: Now, prefixes: list[str] | None = None
    ) -> Append | InFlightDuplicate | DedupeEntry:
        """Give the records their seqs (§2), unless their key is known.

        Raises `TopicFull` when they do not fit and the topic rejects, `TopicNotFound` when it is
        not to be made.
        """
        return append.decide(self.table, name, body, now, prefixes)

    def append_streamed(
        self, topic: Topic, body: AppendBody, rendering: Rendering, size: int, now: Now
    ) -> Append:
        """Give seqs to a write that is rendered run by run, of ``size`` bytes. The topic has no
        other change under way.

        Its frame holds no records: they must be durable in a blob before it is written.
        """
        return append.decide_streamed(self.table, topic, body, rendering, size, now)

    def known(self, topic: Topic, key: str, now: Now) -> InFlightDuplicate | DedupeEntry | None:
        """The write that an idempotency key stands for, if it has been used (§0.8)."""
        return append.find_duplicate(topic, key, now)

    def reserve(self, topic: Topic) -> Reservation | None:
        """The reservation that is due after an append, None for most. No other change waits for
        it.
        """
        return reservation.decide(topic)

    def create(
        self,
        name: str,
        body: AppendBody,
        now: Now,
        prefixes: list[str] | None = None,
        size: int = 0,
    ) -> PutTopic:
        """Make the topic that a streamed append asks for, before its records. ``size``: their
        bytes, where it matters.
        """
        topic = put_topic.new_topic_for(self.table, name, body, now, prefixes)
        append.check_topic_room(topic, len(body.records), size)
        return put_topic.make(self.table, topic, now)

    def put(
        self, name: str, patch: TopicConfigPatch, now: Now, prefixes: list[str] | None = None
    ) -> PutTopic:
        """Make or configure a topic (§1.1). Without a difference it has no frame, but still waits
        for earlier ones.
        """
        return put_topic.decide(self.table, name, patch, now, prefixes)

    def delete(self, name: str, if_empty: bool, now: Now) -> DeleteTopic | None:
        """Remove a topic with everything in it (§1.4); None when there is none. Raises
        `TopicNotEmpty`.
        """
        return delete_topic.decide(self.table, name, if_empty, now)

    def delete_records(
        self, name: str, before_seq: int | None, match: TagMatch | None, now: Now
    ) -> DeleteRecords:
        """Delete the records below ``before_seq`` that match, of those that are there now (§5).
        Raises `TopicNotFound`.
        """
        return delete_records.decide(self.table, name, before_seq, match, now)

    def delete_must_wait(self, name: str) -> bool:
        """Whether a delete of matching records is decided only when its topic has no other change
        under way.

        A replay lets what this delete names live until it comes to it. Had another delete taken
        some of that before, caps on the way would count it and evict more than they did at first.
        """
        return delete_records.must_wait(self.table, name)

    def expire(self, topic: Topic, now: Now) -> FloorMoved | None:
        """Remove what is too old, at once, before anything is answered or decided. The change tells
        the log, if it must know.
        """
        return floor.decide(self.table, topic, now)

    # What became of them

    def commit(self, change: Change, locator: Locator, now: Now, generation: int = 0) -> None:
        """Make a change visible: its frames are as durable as the class promises.

        ``locator``: finds the records of an append again. ``generation``: LSN at which their log
        file begins; their tags are dropped when that is sealed.
        """
        if isinstance(change, Append):
            change.commit_records(self.table, locator, now, generation)
        else:
            change.commit(self.table)

    def undo(self, change: Change) -> None:
        """Take a change back, as if it had never been asked: its frames could not be written. The
        last one first, of those that are under way.
        """
        change.undo(self.table)
