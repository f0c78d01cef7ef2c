"""Topic streams: clients that are shown live records, whatever protocol they are shown them in.

                    page                 its cursor stands where a page of the feed begins
    Feeds (feeds.py) ----> live reader  <-------------------------------------------- reader that
                               |  the socket takes no more                            catches up
                               '--------------------------------------------------->

A stream follows topics with one `Reader` each. To catch up, it has one task for each shard, so a
slow shard delays its own topics only; within a task the readers take turns:

    reader below its feed --> a kept page, or one read from the shard --> shown --> again
    reader at its feed's seq --> live in the feed

A page that arrives while the stream is stalled is discarded and read again later: nothing waits in
memory for a client that does not read. While clients hold too much (`topics.front.held_memory`),
pages are read later.
"""

from __future__ import annotations

import socket
from abc import abstractmethod
from typing import Any

import trio

from topics.engine.access import Principal
from topics.errors import NotReady, Throttled, TopicNotFound, TopicsError
from topics.formats.api.watch import Start, View
from topics.front.live.live import Live
from topics.front.live.pages import FeedPage
from topics.front.live.subscriptions import FeedSubscription, Reader, ReaderStream

LOSSES = ("cap", "ttl", "mixed")  # records that the topic itself has evicted


class TopicStream(ReaderStream):
    """One client that is shown live records. Subclasses say what its events look like."""

    live: Live

    def __init__(
        self,
        live: Live,
        sock: socket.socket,
        principal: Principal,
        heartbeat_s: float,
        *,
        is_chunked: bool = False,
    ) -> None:
        super().__init__(live, sock, principal, heartbeat_s, is_chunked=is_chunked)
        self.readers: dict[str, Reader] = {}
        self._busy_shards: set[int] = set()  # those with a task that catches up

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
        """Leave all feeds, too."""
        if not self.ended:
            super().end()
            readers, self.readers = self.readers, {}
            for reader in readers.values():
                self.live.feeds.leave(reader)

    def resumed(self) -> None:
        """Catch up."""
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

    # Catching up

    def catch_up(self) -> None:
        """Start a task for each shard with a reader to catch up, where none is running."""
        if not self.ended:
            shards = {one.shard for one in self.readers.values() if one.needs_catch_up}
            for shard in shards - self._busy_shards:
                self._busy_shards.add(shard)
                self.live.nursery.start_soon(self._catch_up_with, shard)

    async def _catch_up_with(self, shard: int) -> None:
        try:
            while not self.ended and not self.is_stalled:
                behind = (one for one in self.readers.values() if one.needs_catch_up)
                reader = next((one for one in behind if one.shard == shard), None)
                if reader is None:
                    return
                self.readers[reader.topic] = self.readers.pop(reader.topic)  # to the end
                await self._advance(reader)
        except Exception:
            self.broke()
        finally:
            self._busy_shards.discard(shard)

    async def _advance(self, reader: Reader) -> None:
        """Show one page, or make the reader live."""
        feeds = self.live.feeds
        try:
            feed = await feeds.join(reader)
            if reader.feed is not feed or not feed.is_open:
                return
            if _stands_at(reader, feed):
                self._go_live(reader, feed)
                await trio.lowlevel.checkpoint()
                return
            page, epoch = await self._next_page(reader, feed)
        except TopicNotFound:
            self.tell_deleted(reader, reader.seq)
        except (NotReady, Throttled):
            feeds.wait_for_shard(reader)
        except TopicsError as failure:
            if self.is_following(reader):
                self.outbox.write(self.topic_error_event(reader, failure))
                self.remove(reader.topic)
        else:
            if self.is_following(reader) and not self.is_stalled:
                reader.epoch = epoch
                self.show(reader, page)
                if not self.live.pressure.is_calm and page.to_seq < page.head_seq:
                    feeds.pace(reader)

    async def _next_page(self, reader: Reader, feed: FeedSubscription) -> tuple[FeedPage, int]:
        """The page that continues the reader, kept or read for this stream, and its epoch. Raises
        `Throttled` while clients of its key hold too much, or all of them; `TopicsError`.
        """
        until_seq = None
        if _has_epoch_of(reader, feed):
            page = None if reader.is_connecting else feed.kept.page_from(reader.seq)
            if page is not None:
                epoch = feed.epoch
                await trio.lowlevel.checkpoint()
                return page, epoch
            if reader.seq < feed.seq:
                until_seq = feed.kept.next_edge(reader.seq, feed.seq)
        refusal = self.live.held.refusal(self.principal.digest, reader.view.bytes)
        if refusal is not None:
            raise refusal
        return await self.live.feeds.reads.read(reader, until_seq)

    def _go_live(self, reader: Reader, feed: FeedSubscription) -> None:
        reader.epoch = feed.epoch
        reader.is_live, reader.is_connecting = True, False
        feed.live[reader] = None
        # A reader above the feed knows of a later head, and was told when it came there.
        if not reader.is_caught_up and reader.seq == feed.head_seq:
            reader.is_caught_up = True
            self.outbox.write(self.caught_up_event(reader, feed.head_seq))

    # Showing

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
        known_seq = page.head_seq
        if not reader.is_caught_up and reader.feed is not None:
            known_seq = max(known_seq, reader.feed.head_seq)  # a page knows the head of its time
        if page.to_seq < known_seq:
            reader.is_caught_up = False
        elif not reader.is_caught_up:
            reader.is_caught_up = True
            # The head of a strong view is the last synced record; a tail begins at the last one.
            parts.append(self.caught_up_event(reader, max(page.head_seq, reader.seq)))
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


def _has_epoch_of(reader: Reader, feed: FeedSubscription) -> bool:
    return reader.epoch is None or reader.epoch == feed.epoch


def _stands_at(reader: Reader, feed: FeedSubscription) -> bool:
    """The reader needs nothing below what the feed will send; it may have read further already."""
    return _has_epoch_of(reader, feed) and (
        reader.seq == feed.seq or (reader.seq > feed.seq and not reader.is_connecting)
    )
