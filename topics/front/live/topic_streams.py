"""Topic streams: deliver live records of topics to a client, independent of the protocol.

             page                 the reader's cursor is where a page of the feed begins
    feed    ----> live reader    <---------------------------------------------------- reader that
                        |  the socket accepts no more data                             catches up
                        '---------------------------------------------------------->

A stream follows each topic with one `Reader`. To catch up, it has one task for each shard, so that
a slow shard delays only its own topics. Within a task, the readers take turns:

    reader below its feed --> a kept page, or a page read from the shard --> sent --> again
    reader at the seq of its feed --> live in the feed

A page that arrives while the stream is stalled is discarded and read again later. So no pages are
kept in memory for a client that does not read. While too much memory is held for clients
(`topics.front.held_memory`), pages are read later.
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

# The values of ``reason`` in tombstones for records that the topic itself has evicted.
LOSSES = ("cap", "ttl", "mixed")


class TopicStream(ReaderStream):
    """One client that receives live records. Subclasses define the form of the events."""

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
        # Keyed by topic, in the order in which readers catch up: `_catch_up_with` moves a reader to
        # the end.
        self.readers: dict[str, Reader] = {}
        # At most one task for each shard, so that pages of one reader cannot overtake each other.
        self._busy_shards: set[int] = set()  # shards for which a catch-up task runs

    # Events as bytes, which subclasses define

    @abstractmethod
    def page_event(self, reader: Reader, page: FeedPage) -> tuple[bytes, ...]:
        """Return the records of a page, in parts.

        The reader's cursor is already at the end of the page.
        """

    @abstractmethod
    def tombstone_event(self, reader: Reader, tombstone: dict[str, Any]) -> bytes:
        """Return a loss report. The reader's cursor is already at the end of the gap."""

    @abstractmethod
    def caught_up_event(self, reader: Reader, head_seq: int) -> bytes:
        """Return the event that reports that the reader has received all records of the topic."""

    @abstractmethod
    def deleted_event(self, reader: Reader, head_seq: int) -> bytes:
        """Return the event that reports that the topic was deleted."""

    @abstractmethod
    def topic_error_event(self, reader: Reader, failure: TopicsError) -> bytes:
        """Return the event that reports that the topic cannot be read. The stream continues."""

    def moved(self, reader: Reader) -> None:
        """Called when the reader's cursor has moved."""

    # Begin and end

    def end(self) -> None:
        """Close the stream without sending more data, and leave all feeds."""
        if not self.ended:
            super().end()
            readers, self.readers = self.readers, {}
            for reader in readers.values():
                self.live.feeds.leave(reader)

    def resumed(self) -> None:
        """Catch up, because the socket accepts data again."""
        self.catch_up()

    # Topics

    def add(self, topic: str, view: View, start: Start) -> None:
        """Follow a topic, or restart a topic that is already followed.

        The caller must call `catch_up` afterwards.
        """
        # A topic is followed by one reader at most. A restarted topic gets a new reader, and pages
        # for the old reader are ignored (`is_following`).
        self.remove(topic)
        self.readers[topic] = Reader(self, topic, self.live.shards.shard_of(topic), view, start)

    def remove(self, topic: str) -> None:
        """Stop following a topic."""
        reader = self.readers.pop(topic, None)
        if reader is not None:
            self.live.feeds.leave(reader)

    def is_following(self, reader: Reader) -> bool:
        """Return whether the stream still uses this reader.

        It does not if it has ended, has dropped the topic, or follows the topic with a new reader.
        """
        return self.readers.get(reader.topic) is reader and not self.ended

    # Catching up

    def catch_up(self) -> None:
        """Start a task for each shard that has readers to catch up and no running task."""
        if not self.ended:
            shards = {one.shard for one in self.readers.values() if one.needs_catch_up}
            for shard in shards - self._busy_shards:
                self._busy_shards.add(shard)
                self.live.nursery.start_soon(self._catch_up_with, shard)

    async def _catch_up_with(self, shard: int) -> None:
        """Advance the readers of one shard in rotation, until no reader needs to catch up or the
        stream is stalled.
        """
        try:
            # A stalled socket ends the task. `resumed` starts it again.
            while not self.ended and not self.is_stalled:
                behind = (one for one in self.readers.values() if one.needs_catch_up)
                reader = next((one for one in behind if one.shard == shard), None)
                if reader is None:
                    return
                # Move the reader to the end, so that the readers take turns.
                self.readers[reader.topic] = self.readers.pop(reader.topic)
                await self._advance(reader)
        except Exception:
            self.fail_unexpectedly()
        finally:
            self._busy_shards.discard(shard)

    async def _advance(self, reader: Reader) -> None:
        """Send one page to the reader's client, or make the reader live."""
        feeds = self.live.feeds
        try:
            feed = await feeds.join(reader)
            # The feed was closed or replaced during the wait. The next iteration joins the new
            # feed.
            if reader.feed is not feed or not feed.is_open:
                return
            # The reader has all records before the next page of the feed. Make it live without
            # another await, so that no page can arrive in between.
            if _has_reached(reader, feed):
                self._make_live(reader, feed)
                await trio.lowlevel.checkpoint()
                return
            page, epoch = await self._next_page(reader, feed)
        except TopicNotFound:
            # The shard does not know the topic. Notify the client, and continue with the other
            # topics.
            self.notify_deleted(reader, reader.seq)
        # The condition is temporary. Try again when the shard serves or memory is free.
        except (NotReady, Throttled):
            feeds.wait_for_shard(reader)
        except TopicsError as failure:
            if self.is_following(reader):
                self.outbox.write(self.topic_error_event(reader, failure))
                self.remove(reader.topic)
        else:
            # The stream may have stalled or dropped the topic during the read. The page is then
            # read again later.
            if self.is_following(reader) and not self.is_stalled:
                reader.epoch = epoch
                self.show(reader, page)
                if not self.live.pressure.is_unthrottled and page.to_seq < page.head_seq:
                    feeds.pace(reader)

    async def _next_page(self, reader: Reader, feed: FeedSubscription) -> tuple[FeedPage, int]:
        """Return the page that continues the reader, and its epoch.

        The page is a kept page or is read from the shard. Raise `Throttled` while too much memory
        is held for the clients of this key or for all clients. Also raise the shard's
        `TopicsError`.
        """
        until_seq = None
        if _has_epoch_of(reader, feed):
            # A connecting reader must read from the shard, which determines its start and its
            # tombstone.
            page = None if reader.is_connecting else feed.kept.page_from(reader.seq)
            if page is not None:
                epoch = feed.epoch
                await trio.lowlevel.checkpoint()
                return page, epoch
            # Read only up to the next kept page, which then continues the reader.
            if reader.seq < feed.seq:
                until_seq = feed.kept.next_edge(reader.seq, feed.seq)
        # A page occupies memory until the client has read it. Refuse before the page is read.
        refusal = self.live.held.refusal(self.principal.digest, reader.view.bytes)
        if refusal is not None:
            raise refusal
        return await self.live.feeds.reads.read(reader, until_seq)

    def _make_live(self, reader: Reader, feed: FeedSubscription) -> None:
        """Make a reader live, because it has read all pages before the next page of the feed."""
        reader.epoch = feed.epoch
        # From now on pages of the feed are delivered to this reader.
        reader.is_live, reader.is_connecting = True, False
        feed.live[reader] = None
        # A reader above the feed has read up to a later head, and its client was notified there.
        if not reader.is_caught_up and reader.seq == feed.head_seq:
            reader.is_caught_up = True
            self.outbox.write(self.caught_up_event(reader, feed.head_seq))

    # Delivery

    def show(self, reader: Reader, page: FeedPage) -> None:
        """Send a page to the client. The reader's cursor must be where the page begins."""
        parts = []
        if page.tombstone is not None:
            parts.append(self._cross_gap(reader, page, page.tombstone))
        reader.is_connecting = False
        # The cursor is moved before the events are made, because they contain it.
        if reader.seq != page.to_seq:
            reader.seq = page.to_seq
            self.moved(reader)
        if page.count:
            parts += self.page_event(reader, page)
        # Notify the client once that it has caught up, and again after it has fallen behind.
        known_seq = page.head_seq
        if not reader.is_caught_up and reader.feed is not None:
            known_seq = max(known_seq, reader.feed.head_seq)  # the head in a page may be outdated
        if page.to_seq < known_seq:
            reader.is_caught_up = False
        elif not reader.is_caught_up:
            reader.is_caught_up = True
            # In a strong view, the head is the last synced record. A reader with ``tail`` begins at
            # the last record, which may be above this head.
            parts.append(self.caught_up_event(reader, max(page.head_seq, reader.seq)))
        # Send all parts in one write, so that the client gets them together.
        if parts:
            self.outbox.write(*parts)

    def _cross_gap(self, reader: Reader, page: FeedPage, tombstone: dict[str, Any]) -> bytes:
        """Move the reader across the gap that precedes the records of a page.

        Return the loss report.
        """
        # The client has requested records that the topic had already evicted.
        is_start_too_old = (
            reader.is_connecting
            and tombstone["reason"] in LOSSES
            and tombstone["gap_to"] < tombstone["earliest_seq"]
        )
        if is_start_too_old:
            tombstone = {**tombstone, "reason": "from_seq_too_old"}
        reader.seq = page.from_seq
        # The client has caught up only with the earlier incarnation of the topic.
        if tombstone["reason"] == "recreated":
            reader.is_caught_up = False
        self.moved(reader)
        return self.tombstone_event(reader, tombstone)

    def notify_paced(self, now: float) -> None:
        """Report to the client which topics are paced, unless this was reported within
        `NOTICE_INTERVAL_S`.
        """
        feeds = self.live.feeds
        pauses_s = {
            topic: feeds.pause_s(reader.feed)
            for topic, reader in self.readers.items()
            if reader.feed is not None
        }
        self.notify_pauses(now, {topic: pause_s for topic, pause_s in pauses_s.items() if pause_s})

    def notify_deleted(self, reader: Reader, head_seq: int) -> None:
        """Report that the topic was deleted, and stop following it. The stream continues."""
        if self.is_following(reader):
            self.outbox.write(self.deleted_event(reader, head_seq))
            self.remove(reader.topic)


def _has_epoch_of(reader: Reader, feed: FeedSubscription) -> bool:
    """Return whether the reader's cursor belongs to the incarnation of the topic that the feed
    sends.
    """
    return reader.epoch is None or reader.epoch == feed.epoch


def _has_reached(reader: Reader, feed: FeedSubscription) -> bool:
    """Return whether the reader needs no records below the seq of the feed.

    The reader's cursor may already be above the feed, because it has read further itself.
    """
    return _has_epoch_of(reader, feed) and (
        reader.seq == feed.seq or (reader.seq > feed.seq and not reader.is_connecting)
    )
