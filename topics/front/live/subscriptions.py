"""Readers and feed subscriptions: the cursors of streams, and the topics that shards send.

A *reader* is the cursor of one stream in one topic. A *feed subscription* is a topic in a view that
a shard sends to this front. Readers with equal views share it. A reader is *live* while its cursor
is exactly at the seq of its feed. Then the next page of the feed is delivered to it as soon as the
page arrives.

    catching up --reaches the feed's seq--> live --socket is full, feed ends--> catching up
         '---shard not ready---> waiting ---shard serves, or RETRY_S later---> catching up
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
    """The part of a `TopicStream` that feeds use."""

    readers: dict[str, Reader]

    @abstractmethod
    def show(self, reader: Reader, page: FeedPage) -> None:
        """Send a page to the client. The reader's cursor must be where the page begins."""

    @abstractmethod
    def is_following(self, reader: Reader) -> bool:
        """Return whether the stream still uses this reader."""

    @abstractmethod
    def catch_up(self) -> None:
        """Start to deliver the records that the readers of this stream have not received."""

    @abstractmethod
    def notify_paced(self, now: float) -> None:
        """Report to the client which topics are paced, unless this was reported within
        `NOTICE_INTERVAL_S`.
        """

    @abstractmethod
    def notify_deleted(self, reader: Reader, head_seq: int) -> None:
        """Report that the topic was deleted, and stop following it. The stream continues."""


class Reader:
    """The cursor of one stream in one topic."""

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
        self.is_caught_up = False  # the client was notified that it has received all records
        self.is_connecting = True  # nothing has been delivered yet
        self.is_waiting = False  # waiting for its shard, or for the pause of its band

    @property
    def needs_catch_up(self) -> bool:
        """Whether the reader is neither live nor waiting, so that it must read records now."""
        return not self.is_live and not self.is_waiting


class FeedSubscription:
    """The subscription of this front to a topic in one view.

    The shard sends each page of records once, for all ``readers``. ``seq`` is the last seq of the
    last page.
    """

    def __init__(self, number: int, shard: int, topic: str, view: View) -> None:
        self.number, self.shard, self.topic, self.view = number, shard, topic, view
        self.is_open = False
        self.seq = 0
        self.epoch = 0
        self.head_seq = 0
        self.band = NEW_BAND  # the priority band of the topic
        self.readers: set[Reader] = set()
        self.live: dict[Reader, None] = {}  # ordered by the time at which they became live
        self.kept = FeedPages()


# Start positions of readers, for watch sessions and WebSockets


class TopicHead(NamedTuple):
    """The current head, earliest seq and epoch of a topic."""

    head_seq: int
    earliest_seq: int
    epoch: int


class ReaderStart(NamedTuple):
    """The start position of a reader. ``epoch`` is 0 if ``from_seq`` is above the head of the
    topic.
    """

    from_seq: int
    epoch: int
    head: TopicHead

    def members(self) -> dict[str, int]:
        """Return the response members that report the start position."""
        return {"from_seq": self.from_seq, **self.head._asdict()}


def begin_at(start: Start, head: TopicHead) -> ReaderStart:
    """Return the position at which a reader that requests ``start`` begins in a topic."""
    from_seq = head.head_seq if start.tail else start.from_seq
    if start.epoch is not None:
        return ReaderStart(from_seq, start.epoch, head)
    return ReaderStart(from_seq, head.epoch if from_seq <= head.head_seq else 0, head)


async def heads_of(shards: Shards, topics: Iterable[str]) -> dict[str, TopicHead]:
    """Return the heads of the topics that exist, in the order of ``topics``. Raise `NotReady`."""
    by_shard: dict[int, list[str]] = {}
    for topic in topics:
        by_shard.setdefault(shards.shard_of(topic), []).append(topic)
    found: dict[str, TopicHead] = {}
    for shard, names in by_shard.items():
        reply = await shards.answer(shard, TOPIC_HEADS, TopicHeadsParams(names))
        found.update({name: TopicHead(*head) for name, head in reply.result.heads.items()})
        reply.release()
    return {topic: found[topic] for topic in topics if topic in found}
