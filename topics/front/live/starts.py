"""Starts: where the readers of several topics begin, decided from what was asked for and from the
topics' heads. The same for watch sessions and WebSockets.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from topics.actors.shard_client.shards import Shards
from topics.formats.api.watch import Start
from topics.formats.wire.calls import TOPIC_HEADS, TopicHeadsParams


class TopicHead(NamedTuple):
    """Where a topic stands."""

    head_seq: int
    earliest_seq: int
    epoch: int


class Begun(NamedTuple):
    """Where a reader begins. ``epoch`` is 0 when its cursor cannot belong to the topic of now."""

    from_seq: int
    epoch: int
    head: TopicHead

    def members(self) -> dict[str, int]:
        """What the client is told of it."""
        return {"from_seq": self.from_seq, **self.head._asdict()}


def begin_at(start: Start, head: TopicHead) -> Begun:
    """Where a reader that asks for ``start`` begins in a topic."""
    from_seq = head.head_seq if start.tail else start.from_seq
    if start.epoch is not None:
        return Begun(from_seq, start.epoch, head)
    return Begun(from_seq, head.epoch if from_seq <= head.head_seq else 0, head)


async def heads_of(shards: Shards, topics: Iterable[str]) -> dict[str, TopicHead]:
    """The heads of those topics that exist, in the order of ``topics``. Raises `NotReady`."""
    by_shard: dict[int, list[str]] = {}
    for topic in topics:
        by_shard.setdefault(shards.shard_of(topic), []).append(topic)
    found: dict[str, TopicHead] = {}
    for shard, names in by_shard.items():
        reply = await shards.answer(shard, TOPIC_HEADS, TopicHeadsParams(names))
        found.update({name: TopicHead(*head) for name, head in reply.result.heads.items()})
        reply.release()
    return {topic: found[topic] for topic in topics if topic in found}
