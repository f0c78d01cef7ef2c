"""Readers and feed subscriptions: who follows which topic, and where each of them stands.

A *reader* is one stream's cursor in one topic. A *feed subscription* is a topic in a view, as a
shard sends it to this front; readers of equal views share it. A reader is *live* while it stands
exactly where its feed stands: the next page of the feed is then shown to it as it arrives.

    catching up --reaches the feed's seq--> live --socket takes no more, feed ends--> catching up
         '---shard not ready---> waiting ---shard back, or RETRY_S later---> catching up
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVarTuple

from topics.engine.priority import NEW_BAND
from topics.errors import TopicsError
from topics.formats.api.watch import Start, View
from topics.front.live.pages import FeedPage, FeedPages

TOLD_EVERY_S = 10.0  # how often a stream is told that it is paced, at most

Args = TypeVarTuple("Args")


class Isolated(Protocol):
    """A stream, seen by those that serve many streams."""

    ended: bool

    def attempt(self, call: Callable[[*Args], None], *args: *Args) -> None:
        """Run what concerns this stream alone; an unexpected error ends this stream only."""


class ReaderStream(Isolated, Protocol):
    """What feeds need of the stream that a reader belongs to."""

    readers: dict[str, Reader]
    told_at: float  # when it was last told that it is paced
    key: bytes  # of the client, in the ledger of held memory

    @property
    def is_stalled(self) -> bool:
        """The socket takes no more for now."""

    def broke(self) -> None:
        """End the stream because of the unexpected error that is being handled."""

    def show(self, reader: Reader, page: FeedPage) -> None:
        """Show a page to the reader that stands where the page begins."""

    def is_following(self, reader: Reader) -> bool:
        """The stream has not ended, nor dropped the reader's topic, nor begun to follow it anew."""

    def catch_up(self) -> None:
        """Start to show what the readers of this stream have not been shown."""

    def remove(self, topic: str) -> None:
        """Stop following a topic."""

    def tell_caught_up(self, reader: Reader, head_seq: int) -> None:
        """Tell that the reader stands at the head."""

    def tell_paced(self, now: float) -> None:
        """Tell which topics are paced, unless it was told within TOLD_EVERY_S."""

    def tell_deleted(self, reader: Reader, head_seq: int) -> None:
        """Tell that the topic was deleted, and stop following it."""

    def tell_topic_error(self, reader: Reader, failure: TopicsError) -> None:
        """Tell that the topic cannot be read."""


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
