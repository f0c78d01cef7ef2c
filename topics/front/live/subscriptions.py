"""Readers and feed subscriptions: who follows which topic, where each of them begins and stands.

A *reader* is one stream's cursor in one topic. A *feed subscription* is a topic in a view, as a
shard sends it to this front; readers of equal views share it. A reader is *live* while it stands
exactly where its feed stands: the next page of the feed is then shown to it as it arrives.

    catching up --reaches the feed's seq--> live --socket takes no more, feed ends--> catching up
         '---shard not ready---> waiting ---shard back, or RETRY_S later---> catching up
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import NamedTuple

from topics.actors.shard_client.shards import Shards
from topics.engine.priority import NEW_BAND
from topics.formats.api.watch import Start, View
from topics.formats.wire.calls import TOPIC_HEADS, TopicHeadsParams
from topics.front.live.pages import FeedPage, FeedPages
from topics.front.live.streams import Stream


class ReaderStream(Stream):
    """What feeds need of the stream that a reader belongs to, a `TopicStream`."""

    readers: dict[str, Reader]

    @abstractmethod
    def show(self, reader: Reader, page: FeedPage) -> None:
        """Show a page to the reader that stands where the page begins."""

    @abstractmethod
    def is_following(self, reader: Reader) -> bool:
        """The stream has not ended, nor dropped the reader's topic, nor begun to follow it anew."""

    @abstractmethod
    def catch_up(self) -> None:
        """Start to show what the readers of this stream have not been shown."""

    @abstractmethod
    def tell_paced(self, now: float) -> None:
        """Tell which topics are paced, unless it was told within TOLD_EVERY_S."""

    @abstractmethod
    def tell_deleted(self, reader: Reader, head_seq: int) -> None:
        """Tell that the topic was deleted, and stop following it; the stream goes on."""


class Reader:
    """One stream's cursor in one topic."""

    __slots__ = (
        "epoch",
        "feed",
        "is_caught_up",
        "is_connecting",
        "is_live",
        "is_waiting",
        "seq",
        "shard",
        "stream",
        "topic",
        "view",
    )

    def __init__(
        self, stream: ReaderStream, topic: str, shard: int, view: View, start: Start
    ) -> None:
        self.stream, self.topic, self.shard, self.view = stream, topic, shard, view
        self.seq, self.epoch = start.from_seq, start.epoch
        self.feed: FeedSubscription | None = None
        self.is_live = False
        self.is_caught_up = False  # the client was told that there is no more
        self.is_connecting = True  # nothing has been shown yet
        self.is_waiting = False  # for its shard

    @property
    def needs_catch_up(self) -> bool:
        """There may be something to read for it now."""
        return not self.is_live and not self.is_waiting


class FeedSubscription:
    """A topic in a view, as a shard sends it to this front. The feed stands at ``seq``."""

    def __init__(self, number: int, shard: int, topic: str, view: View) -> None:
        self.number, self.shard, self.topic, self.view = number, shard, topic, view
        self.is_open = False
        self.seq = 0
        self.epoch = 0
        self.head_seq = 0
        self.band = NEW_BAND  # of the topic's priority
        self.readers: set[Reader] = set()
        self.live: dict[Reader, None] = {}  # ordered by when they became live
        self.kept = FeedPages()


# Where readers begin, the same for watch sessions and WebSockets


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
