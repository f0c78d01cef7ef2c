"""Catching up: page by page, a stream's readers come from their cursors to where their feeds stand.

    reader below its feed --> a kept page, or one read from the shard --> shown --> again
    reader at its feed's seq --> live in the feed

A stream has one task for each shard that it must catch up with, so a slow shard delays its own
topics only; within a task the readers take turns. A page that arrives while the stream is stalled
is discarded and read again later: nothing waits in memory for a client that does not read. While
clients hold too much (`topics.front.held_memory`), pages are read later.
"""

from __future__ import annotations

import trio

from topics.errors import NotReady, Throttled, TopicNotFound, TopicsError
from topics.front.live.live import Live
from topics.front.live.pages import FeedPage
from topics.front.live.subscriptions import FeedSubscription, Reader, ReaderStream


class CatchUp:
    """The tasks of one stream that read what it has not been shown."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._busy_shards: set[int] = set()  # those with a task

    def start(self, stream: ReaderStream) -> None:
        """Start a task for each shard with a reader to catch up, where none is running."""
        if not stream.ended:
            readers = stream.readers.values()
            shards = {reader.shard for reader in readers if reader.needs_catch_up}
            for shard in shards - self._busy_shards:
                self._busy_shards.add(shard)
                self._live.nursery.start_soon(self._run, stream, shard)

    async def _run(self, stream: ReaderStream, shard: int) -> None:
        try:
            while not stream.ended and not stream.is_stalled:
                reader = _next_reader(stream, shard)
                if reader is None:
                    return
                stream.readers[reader.topic] = stream.readers.pop(reader.topic)  # to the end
                await self._advance(reader)
        except Exception:
            stream.broke()
        finally:
            self._busy_shards.discard(shard)

    async def _advance(self, reader: Reader) -> None:
        """Show one page, or make the reader live."""
        stream, feeds = reader.stream, self._live.feeds
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
            stream.tell_deleted(reader, reader.seq)
        except (NotReady, Throttled):
            feeds.wait_for_shard(reader)
        except TopicsError as failure:
            if stream.is_following(reader):
                stream.tell_topic_error(reader, failure)
                stream.remove(reader.topic)
        else:
            if stream.is_following(reader) and not stream.is_stalled:
                reader.epoch = epoch
                stream.show(reader, page)
                if not self._live.pressure.is_calm and page.to_seq < page.head_seq:
                    feeds.pace(reader)

    async def _next_page(self, reader: Reader, feed: FeedSubscription) -> tuple[FeedPage, int]:
        """The page that continues the reader, and its epoch. Raises `TopicsError`."""
        if not _has_epoch_of(reader, feed):
            return await self._read(reader, None)
        page = None if reader.is_connecting else feed.kept.page_from(reader.seq)
        if page is not None:
            epoch = feed.epoch
            await trio.lowlevel.checkpoint()
            return page, epoch
        until_seq = feed.kept.next_edge(reader.seq, feed.seq) if reader.seq < feed.seq else None
        return await self._read(reader, until_seq)

    async def _read(self, reader: Reader, until_seq: int | None) -> tuple[FeedPage, int]:
        """A page read for this stream. Raises `Throttled` while clients of its key hold too
        much, or all of them.
        """
        refusal = self._live.held.refusal(reader.stream.key, reader.view.bytes)
        if refusal is not None:
            raise refusal
        return await self._live.feeds.calls.read(reader, until_seq)

    def _go_live(self, reader: Reader, feed: FeedSubscription) -> None:
        reader.epoch = feed.epoch
        reader.is_live, reader.is_connecting = True, False
        feed.live[reader] = None
        # A reader above the feed knows of a later head, and was told when it came there.
        if not reader.is_caught_up and reader.seq == feed.head_seq:
            reader.is_caught_up = True
            reader.stream.tell_caught_up(reader, feed.head_seq)


def _next_reader(stream: ReaderStream, shard: int) -> Reader | None:
    for reader in stream.readers.values():
        if reader.shard == shard and reader.needs_catch_up:
            return reader
    return None


def _has_epoch_of(reader: Reader, feed: FeedSubscription) -> bool:
    return reader.epoch is None or reader.epoch == feed.epoch


def _stands_at(reader: Reader, feed: FeedSubscription) -> bool:
    """The reader needs nothing below what the feed will send; it may have read further already."""
    return _has_epoch_of(reader, feed) and (
        reader.seq == feed.seq or (reader.seq > feed.seq and not reader.is_connecting)
    )
