"""Feeds: the subscriptions of a front to its shards, and the pages that arrive on them.

    shard --feed.page--> feed --> every reader that is live in it, from the loop that took the
                           |      message out of the ring
                           '----> the kept pages (pages.py)

Under pressure the shard hears late that a page was taken, so the next one is longer; nothing is
dropped, and no order changes. Readers that catch up wait as long between two pages.

A feed opens with its first reader and closes with its last one. It lives as long as its link
session: when a shard goes, its feeds are dropped, and their readers subscribe again. A page is
never shown to a reader that does not stand exactly where the page begins.
"""

from __future__ import annotations

from functools import partial
from itertools import islice

from topics.actors.shard_client.shards import Shards
from topics.formats.api.watch import View
from topics.formats.buffers import Buffer
from topics.formats.wire.calls import FeedEndedParams, FeedPageParams
from topics.front.live.feed_calls import FeedCalls
from topics.front.live.later import Later
from topics.front.live.pages import FeedPage, KeptPages
from topics.front.live.subscriptions import TOLD_EVERY_S, FeedSubscription, Reader
from topics.front.pressure.governor import COALESCE_S
from topics.front.pressure.pressure import Pressure

RETRY_S = 0.25  # after a shard has refused a reader
TOLD_MAX = 256  # streams that one page tells of its pace


class Feeds:
    """All feed subscriptions of a front. `Live` tells it what shards say."""

    def __init__(self, shards: Shards, pressure: Pressure, later: Later, now: float) -> None:
        self._pressure, self._later = pressure, later
        self.calls = FeedCalls(shards)
        self.kept = KeptPages()
        self.by_number: dict[int, FeedSubscription] = {}
        self._by_view: dict[tuple[str, View], FeedSubscription] = {}
        self._last_number = 0
        self._now = now  # of the last tick
        self._waiting: dict[Reader, float] = {}  # until when, at the latest

    # What streams ask for

    async def join(self, reader: Reader) -> FeedSubscription:
        """The reader's feed, open. Raises `TopicsError`."""
        feed = self._by_view.get((reader.topic, reader.view)) or self._subscription(reader)
        if reader.feed is not feed:
            self.leave(reader)
            reader.feed = feed
            feed.readers.add(reader)
        if not feed.is_open:
            await self.calls.open(feed)
        return feed

    def _subscription(self, reader: Reader) -> FeedSubscription:
        self._last_number += 1
        feed = FeedSubscription(self._last_number, reader.shard, reader.topic, reader.view)
        self._by_view[reader.topic, reader.view] = self.by_number[feed.number] = feed
        return feed

    def leave(self, reader: Reader) -> None:
        """Take the reader out of its feed; a feed without readers is closed."""
        self._waiting.pop(reader, None)
        feed, reader.feed = reader.feed, None
        reader.is_live = False
        if feed is not None:
            feed.live.pop(reader, None)
            feed.readers.discard(reader)
            if not feed.readers:
                self._drop(feed)
                self.calls.close(feed)

    def wait_for_shard(self, reader: Reader) -> None:
        """The shard cannot serve the reader now, or there is no memory for what it would be shown:
        try again when the shard is back, or soon.
        """
        if reader.stream.is_following(reader):
            reader.is_waiting = True
            self._waiting[reader] = self._now + RETRY_S

    def pace(self, reader: Reader) -> None:
        """A reader that catches up has been shown a page: the next one waits for its band."""
        feed = reader.feed
        if feed is not None and (pause_s := self.pause_s(feed)):
            reader.is_waiting = True
            self._waiting[reader] = self._now + pause_s
            reader.stream.tell_paced(self._now)

    def pause_s(self, feed: FeedSubscription) -> float:
        """How long its readers wait between two pages; 0: not long enough to tell them."""
        if self._pressure.is_calm:
            return 0.0
        pause_s = self._pressure.pause_s(feed.shard, feed.band)
        return pause_s if pause_s > COALESCE_S else 0.0

    def tick(self, now: float) -> None:
        """Wake readers that have waited long enough for their shard."""
        self._now = now
        for reader in [reader for reader, until in self._waiting.items() if until <= now]:
            self._wake(reader)

    def _wake(self, reader: Reader) -> None:
        self._waiting.pop(reader, None)
        reader.is_waiting = False
        reader.stream.catch_up()

    def _drop(self, feed: FeedSubscription) -> None:
        feed.is_open = False
        self.kept.forget(feed.kept)
        self.by_number.pop(feed.number, None)
        if self._by_view.get((feed.topic, feed.view)) is feed:
            del self._by_view[feed.topic, feed.view]

    # What shards say

    def opened(self, shard: int) -> None:
        """As `Listener.opened`."""
        for reader in [reader for reader in self._waiting if reader.shard == shard]:
            self._wake(reader)

    def closed(self, shard: int) -> None:
        """As `Listener.closed`."""
        for feed in [feed for feed in self.by_number.values() if feed.shard == shard]:
            self._drop(feed)
            for reader in _detached(feed):
                reader.stream.catch_up()

    def feed_ended(self, _shard: int, params: FeedEndedParams) -> None:
        """As `Listener.feed_ended`: an error, or the topic was deleted."""
        feed = self.by_number.get(params.feed)
        if feed is None:
            return
        self._drop(feed)
        for reader in _detached(feed):
            if params.error:
                reader.stream.catch_up()
            else:
                reader.stream.attempt(reader.stream.tell_deleted, reader, params.head_seq)

    def page(self, _shard: int, params: FeedPageParams, records: Buffer) -> None:
        """As `Listener.page`."""
        feed = self.by_number.get(params.feed)
        if feed is None:
            return
        feed.band = params.band
        if self._pressure.is_calm:
            # Of two pages under way the shard wakes up for the second one only, or for more.
            is_last = params.to_seq == params.head_seq
            self.calls.taken(feed, quiet=is_last and not params.is_awaited)
        else:
            self._take_late(feed)
        page = FeedPage(feed.topic, params, bytes(records))
        feed.seq, feed.head_seq = page.to_seq, page.head_seq
        self.kept.keep(feed.kept, page)
        for reader in list(feed.live):
            stream = reader.stream
            if page.to_seq <= reader.seq:
                continue
            if stream.is_stalled or reader.seq != page.follows_seq:
                feed.live.pop(reader, None)
                reader.is_live = False
                stream.catch_up()
            else:
                stream.attempt(stream.show, reader, page)
        if not self._pressure.is_calm and self.pause_s(feed):
            self._tell_paced(feed)

    def _take_late(self, feed: FeedSubscription) -> None:
        pause_s = self._pressure.pause_s(feed.shard, feed.band)
        if pause_s:
            self._later.call_in(pause_s, partial(self.calls.taken_late, feed))
        else:
            self.calls.taken(feed)

    def _tell_paced(self, feed: FeedSubscription) -> None:
        """Not all at once: that would make the loop later still."""
        before = self._now - TOLD_EVERY_S
        streams = (reader.stream for reader in feed.live)
        for stream in [*islice((one for one in streams if one.told_at <= before), TOLD_MAX)]:
            stream.attempt(stream.tell_paced, self._now)


def _detached(feed: FeedSubscription) -> list[Reader]:
    """The readers of a dropped feed, which follow no feed now."""
    readers = list(feed.readers)
    for reader in readers:
        reader.feed, reader.is_live = None, False
    return readers
