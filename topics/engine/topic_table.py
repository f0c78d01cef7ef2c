"""Topic table: the topics of one shard by name and by id, and the state that they share.

Topic ids are unique over all shards and are never reused: ``id % shards == shard``. A record in
memory gets no `$ts` above ``reserved_ts``, because a restart continues with a `$ts` above it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Final

from topics.engine.now import Now
from topics.engine.quota import ByteQuota, SharedCap
from topics.engine.routing.graph import RouterGraph
from topics.engine.store import DeleteFlagTable, Store
from topics.engine.topic import RESERVE_MIN, Topic
from topics.errors import TopicNotFound
from topics.formats.api.topic_config import TopicConfig
from topics.formats.disk.frame_bodies import TS_AHEAD_MS
from topics.formats.names import covered

# If more names match than this number of pages contains, a page is selected with a heap.
SORTED_RATIO: Final = 16


class TopicTable:
    """The topics of one shard.

    ``store`` reads and releases the records of the topics. It must be set before records are
    removed by caps, age, deletes or a replay.
    """

    store: Store

    def __init__(self, shard: int = 0, shards: int = 1) -> None:
        self.shard, self.shards = shard, shards
        self.by_name: dict[str, Topic] = {}
        self.by_id: dict[int, Topic] = {}
        self.last_id = shard
        self.last_epoch = 0
        # The durable reservation: no record in memory has a `$ts` above it, unless the log or a
        # checkpoint contains that `$ts`.
        self.reserved_ts = 0
        self.reserving_ts = 0  # the same, including reservations that are not durable yet
        # A process starts with a random number, so that lease tokens of an earlier process are
        # invalid.
        self.next_lease_number = 1
        # The delete flags of records in the log or in memory. The store updates them.
        self.delete_flags = DeleteFlagTable()
        # All routers of the server. It is empty in the shards that do not own them.
        self.routers = RouterGraph()
        # The topic of changes that concern the shard itself. It is in none of the tables above.
        self.shard_topic = Topic(0, "", 0, TopicConfig())
        # Caps that all shards share (§11); None if there is no cap.
        self.topic_cap: SharedCap | None = None
        self.byte_quota: ByteQuota | None = None

    def topic(self, name: str) -> Topic:
        """Return the topic of that name. Raise `TopicNotFound` if there is none."""
        found = self.by_name.get(name)
        if found is None:
            raise TopicNotFound(name)
        return found

    def names(
        self, prefix: str, after: str | None, prefixes: list[str] | None, limit: int
    ) -> list[str]:
        """Return up to ``limit`` topic names after ``after``, in ascending order (§1.3).

        Only names that start with ``prefix`` and with one of ``prefixes``, the name prefixes of the
        API key, are returned.
        """
        found = _matching(self.by_name, prefix, after, prefixes)
        if len(found) > SORTED_RATIO * limit:
            return heapq.nsmallest(limit, found)
        return sorted(found)[:limit]

    def new_topic(self, name: str, config: TopicConfig, now: Now) -> Topic:
        """Return a new incarnation of this name, without adding it to the table.

        Its id and epoch are higher than the ids and epochs of all earlier topics of this shard.
        """
        return Topic(
            self.last_id + self.shards,
            name,
            max(self.last_epoch + 1, now.ts),
            config,
            0 if config.durability == "fsync" else RESERVE_MIN,
        )

    def add(self, topic: Topic) -> None:
        """Make the topic available by its name and by its id."""
        topic.deleted = False
        self.by_name[topic.name] = self.by_id[topic.id] = topic
        self.last_id = max(self.last_id, topic.id)
        self.last_epoch = max(self.last_epoch, topic.epoch)

    def add_older(self, topic: Topic) -> None:
        """Add the topic by its id, but do not replace a later topic of the same name."""
        later = self.by_name.get(topic.name)
        self.add(topic)
        if later is not None and later.id > topic.id:
            self.by_name[topic.name] = later

    def remove(self, topic: Topic) -> None:
        """Remove the topic from the table, so that it is no longer found."""
        topic.deleted = True
        del self.by_id[topic.id]
        if self.by_name.get(topic.name) is topic:
            del self.by_name[topic.name]

    def admit(self, topic: Topic, *, has_slot: bool = False) -> None:
        """Add a new topic, and count it against the server-wide topic cap.

        ``has_slot``: another shard has already reserved the slot for this topic. Raise the errors
        of `SharedCap.take`; in that case the topic is not added.
        """
        if self.topic_cap is not None:
            if has_slot:
                self.topic_cap.take_reserved()
            else:
                self.topic_cap.take()
        self.add(topic)

    def undo_admit(self, topic: Topic) -> None:
        """Undo `admit`: remove the topic and release its share of the caps."""
        self.remove(topic)
        self.release_caps(topic)

    def release_caps(self, topic: Topic) -> None:
        """Release the slot and the bytes of a topic that has been removed permanently."""
        if self.topic_cap is not None:
            self.topic_cap.release()
        if self.byte_quota is not None:
            self.byte_quota.release(topic)

    def release_reserved_bytes(self, topic: Topic) -> None:
        """Release the bytes held for the first append of the topic, because the append has been
        decided or dropped.
        """
        if self.byte_quota is not None:
            self.byte_quota.release_reserved(topic)

    def take_lease_numbers(self, count: int) -> int:
        """Return the first of ``count`` consecutive lease numbers. They are never returned
        again.
        """
        first = self.next_lease_number
        self.next_lease_number += count
        return first

    def reserve_ts(self, now: Now) -> int:
        """Start a reservation of `$ts` and return its ceiling. The next written frames make the
        reservation durable.
        """
        ceiling = now.ts + TS_AHEAD_MS
        self.reserving_ts = max(self.reserving_ts, ceiling)
        return ceiling

    def ts_reserved(self, ceiling: int) -> None:
        """Record that the reservation of `$ts` up to ``ceiling`` is durable."""
        self.reserved_ts = max(self.reserved_ts, ceiling)

    def drop_ts_reservation(self) -> None:
        """Record that a reservation of `$ts` failed, and fall back to the durable reservation."""
        self.reserving_ts = self.reserved_ts


def _matching(
    names: Iterable[str], prefix: str, after: str | None, prefixes: list[str] | None
) -> list[str]:
    if prefix:
        names = [name for name in names if name.startswith(prefix)]
    if after is not None:
        names = [name for name in names if name > after]
    return [*names] if prefixes is None else [name for name in names if covered(name, prefixes)]
