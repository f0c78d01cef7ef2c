"""Topic table: the topics of one shard, by name and by id, and what they share.

Topic ids are unique over all shards and never used again: ``id % shards == shard``. A `$ts` below
``reserved_ts`` may be given to a record in memory: a restart goes on above it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Final

from topics.engine.now import Now
from topics.engine.quota import ByteQuota, SharedCap
from topics.engine.routing.graph import RouterGraph
from topics.engine.store import DeleteFlags, Store
from topics.engine.topic import RESERVE_MIN, Topic
from topics.errors import TopicNotFound
from topics.formats.api.topic_config import TopicConfig
from topics.formats.disk.frame_bodies import TS_AHEAD_MS
from topics.formats.names import covered

SORTED_RATIO: Final = 16  # of more names than so many pages, the first are found without sorting


class TopicTable:
    """Topics of one shard.

    ``store`` finds their records. It must be set before records go: by caps, age, deletes or a
    replay.
    """

    store: Store

    def __init__(self, shard: int = 0, shards: int = 1) -> None:
        self.shard, self.shards = shard, shards
        self.by_name: dict[str, Topic] = {}
        self.by_id: dict[int, Topic] = {}
        self.last_id = shard
        self.last_epoch = 0
        # No record in memory has a `$ts` above it, unless the log or a checkpoint holds that `$ts`.
        self.reserved_ts = 0
        self.reserving_ts = 0  # the same, reservations on their way to the disk included
        # A process begins at a random one: no token of an earlier process holds.
        self.next_lease_number = 1
        self.delete_flags = DeleteFlags()  # of records that are in no segment; the store keeps them
        self.routers = RouterGraph()  # all routers of the server, in the shard that owns them
        # What changes of the shard itself are about. It is in no table.
        self.shard_topic = Topic(0, "", 0, TopicConfig())
        # Caps of the whole server (§11), None where there is none.
        self.topic_cap: SharedCap | None = None
        self.byte_quota: ByteQuota | None = None

    def topic(self, name: str) -> Topic:
        """The topic of that name. Raises `TopicNotFound`."""
        found = self.by_name.get(name)
        if found is None:
            raise TopicNotFound(name)
        return found

    def names(
        self, prefix: str, after: str | None, prefixes: list[str] | None, limit: int
    ) -> list[str]:
        """The first names of topics in order, from behind ``after`` on (§1.3)."""
        found = _matching(self.by_name, prefix, after, prefixes)
        if len(found) > SORTED_RATIO * limit:
            return heapq.nsmallest(limit, found)
        return sorted(found)[:limit]

    def new_topic(self, name: str, config: TopicConfig, now: Now) -> Topic:
        """The next incarnation of this name, not yet in the table."""
        return Topic(
            self.last_id + self.shards,
            name,
            max(self.last_epoch + 1, now.ts),
            config,
            0 if config.durability == "fsync" else RESERVE_MIN,
        )

    def add(self, topic: Topic) -> None:
        """From now on the topic is found by its name and by its id."""
        topic.deleted = False
        self.by_name[topic.name] = self.by_id[topic.id] = topic
        self.last_id = max(self.last_id, topic.id)
        self.last_epoch = max(self.last_epoch, topic.epoch)

    def add_older(self, topic: Topic) -> None:
        """`add`, but a later topic of the same name keeps the name."""
        later = self.by_name.get(topic.name)
        self.add(topic)
        if later is not None and later.id > topic.id:
            self.by_name[topic.name] = later

    def remove(self, topic: Topic) -> None:
        """The topic is no longer found."""
        topic.deleted = True
        del self.by_id[topic.id]
        if self.by_name.get(topic.name) is topic:
            del self.by_name[topic.name]

    def admit(self, topic: Topic, *, has_place: bool = False) -> None:
        """`add` a new topic, which takes a place among those of the whole server. ``has_place``: it
        is kept for this topic. Raises as `SharedCap.take`; then the topic is not there.
        """
        if self.topic_cap is not None:
            if has_place:
                self.topic_cap.take_reserved()
            else:
                self.topic_cap.take()
        self.add(topic)

    def dismiss(self, topic: Topic) -> None:
        """A topic that was admitted is not made: `remove` it and all that it has taken."""
        self.remove(topic)
        self.vacate(topic)

    def vacate(self, topic: Topic) -> None:
        """A topic that was removed is gone for good: its place and its bytes are free."""
        if self.topic_cap is not None:
            self.topic_cap.give_back()
        if self.byte_quota is not None:
            self.byte_quota.release(topic)

    def let_go(self, topic: Topic) -> None:
        """The append for which the topic was made is decided, or will not be."""
        if self.byte_quota is not None:
            self.byte_quota.let_go(topic)

    def take_lease_numbers(self, count: int) -> int:
        """The first of ``count`` numbers of leases, which are never given again."""
        first = self.next_lease_number
        self.next_lease_number += count
        return first

    def reserve_ts(self, now: Now) -> int:
        """The ceiling up to which frames of now reserve `$ts`."""
        ceiling = now.ts + TS_AHEAD_MS
        self.reserving_ts = max(self.reserving_ts, ceiling)
        return ceiling

    def ts_reserved(self, ceiling: int) -> None:
        """This reservation is durable."""
        self.reserved_ts = max(self.reserved_ts, ceiling)

    def forget_ts_reservation(self) -> None:
        """A reservation of `$ts` failed: only what is durable counts."""
        self.reserving_ts = self.reserved_ts


def _matching(
    names: Iterable[str], prefix: str, after: str | None, prefixes: list[str] | None
) -> list[str]:
    if prefix:
        names = [name for name in names if name.startswith(prefix)]
    if after is not None:
        names = [name for name in names if name > after]
    return [*names] if prefixes is None else [name for name in names if covered(name, prefixes)]
