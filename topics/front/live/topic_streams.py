"""Topic streams: clients that are shown live records, whatever protocol they are shown them in.

                    page                 its cursor stands where a page of the feed begins
    Feeds (feeds.py) ----> live reader  <-------------------------------------------- reader that
                               |  the socket takes no more                            catches up
                               '---------------------------------------------------> (catch_up.py)

A stream follows topics with one `Reader` each. Subclasses say what its events look like.
"""

from __future__ import annotations

import socket
from abc import abstractmethod
from typing import Any

from topics.engine.access import Principal
from topics.errors import TopicsError
from topics.formats.api.watch import Start, View
from topics.front.live.catch_up import CatchUp
from topics.front.live.live import Live
from topics.front.live.pages import FeedPage
from topics.front.live.streams import Stream
from topics.front.live.subscriptions import Reader

LOSSES = ("cap", "ttl", "mixed")  # records that the topic itself has evicted


class TopicStream(Stream):
    """One client that is shown live records."""

    def __init__(
        self, live: Live, sock: socket.socket, principal: Principal, heartbeat_s: float
    ) -> None:
        super().__init__(live, sock, principal, heartbeat_s)
        self.readers: dict[str, Reader] = {}
        self._catching_up = CatchUp(live)

    # What subclasses say: events as bytes

    @abstractmethod
    def page_event(self, reader: Reader, page: FeedPage) -> tuple[bytes, ...]:
        """The records of a page, in parts; the reader already stands behind it."""

    @abstractmethod
    def tombstone_event(self, reader: Reader, tombstone: dict[str, Any]) -> bytes:
        """Loss; the reader already stands behind the gap."""

    @abstractmethod
    def caught_up_event(self, reader: Reader, head_seq: int) -> bytes:
        """There are no more records now."""

    @abstractmethod
    def deleted_event(self, reader: Reader, head_seq: int) -> bytes:
        """The topic was deleted."""

    @abstractmethod
    def topic_error_event(self, reader: Reader, failure: TopicsError) -> bytes:
        """The topic cannot be read; the rest of the stream goes on."""

    def moved(self, reader: Reader) -> None:
        """The reader's cursor has changed."""

    # Life

    def end(self) -> None:
        """As any stream, and leave all feeds."""
        if not self.ended:
            super().end()
            readers, self.readers = self.readers, {}
            for reader in readers.values():
                self.live.feeds.leave(reader)

    def resumed(self) -> None:
        """As any stream, and catch up."""
        self.catch_up()

    # Topics

    def add(self, topic: str, view: View, start: Start) -> None:
        """Follow a topic as well, or anew. `catch_up` must follow."""
        self.remove(topic)
        self.readers[topic] = Reader(self, topic, self.live.shards.shard_of(topic), view, start)

    def remove(self, topic: str) -> None:
        """Stop following a topic."""
        reader = self.readers.pop(topic, None)
        if reader is not None:
            self.live.feeds.leave(reader)

    def is_following(self, reader: Reader) -> bool:
        """The stream has not ended, nor dropped the reader's topic, nor begun to follow it anew."""
        return self.readers.get(reader.topic) is reader and not self.ended

    def catch_up(self) -> None:
        """Start to show what the readers of this stream have not been shown."""
        self._catching_up.start(self)

    def show(self, reader: Reader, page: FeedPage) -> None:
        """Show a page to the reader that stands where the page begins."""
        parts = []
        if page.tombstone is not None:
            parts.append(self._pass_gap(reader, page, page.tombstone))
        reader.is_connecting = False
        if reader.seq != page.to_seq:
            reader.seq = page.to_seq
            self.moved(reader)
        if page.count:
            parts += self.page_event(reader, page)
        if page.to_seq < page.head_seq:
            reader.is_caught_up = False
        elif not reader.is_caught_up:
            reader.is_caught_up = True
            parts.append(self.caught_up_event(reader, page.head_seq))
        if parts:
            self.outbox.write(*parts)

    def _pass_gap(self, reader: Reader, page: FeedPage, tombstone: dict[str, Any]) -> bytes:
        """Move the reader behind the gap that comes before the records of a page."""
        is_start_too_old = (
            reader.is_connecting
            and tombstone["reason"] in LOSSES
            and tombstone["gap_to"] < tombstone["earliest_seq"]
        )
        if is_start_too_old:
            tombstone = {**tombstone, "reason": "from_seq_too_old"}
        reader.seq = page.from_seq
        if tombstone["reason"] == "recreated":  # the head that it has seen was another topic's
            reader.is_caught_up = False
        self.moved(reader)
        return self.tombstone_event(reader, tombstone)

    def tell_caught_up(self, reader: Reader, head_seq: int) -> None:
        """Tell that the reader stands at the head."""
        self.outbox.write(self.caught_up_event(reader, head_seq))

    def tell_topic_error(self, reader: Reader, failure: TopicsError) -> None:
        """Tell that the topic cannot be read."""
        self.outbox.write(self.topic_error_event(reader, failure))

    def tell_paced(self, now: float) -> None:
        """Tell which topics are paced, unless it was told within TOLD_EVERY_S."""
        feeds = self.live.feeds
        pauses_s = {
            topic: feeds.pause_s(reader.feed)
            for topic, reader in self.readers.items()
            if reader.feed is not None
        }
        self.tell_paces(now, {topic: pause_s for topic, pause_s in pauses_s.items() if pause_s})

    def tell_deleted(self, reader: Reader, head_seq: int) -> None:
        """Tell that the topic was deleted, and stop following it; the stream goes on."""
        if self.is_following(reader):
            self.outbox.write(self.deleted_event(reader, head_seq))
            self.remove(reader.topic)
