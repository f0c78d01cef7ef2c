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

from collections.abc import Callable
from functools import partial
from itertools import islice

from topics.actors.rpc.session import Reply
from topics.actors.shard_client.shards import Shards
from topics.errors import TopicsError
from topics.formats.api.watch import View
from topics.formats.buffers import Buffer
from topics.formats.wire.calls import (
    FEED_CLOSE,
    FEED_OPEN,
    FEED_TAKEN,
    FeedEndedParams,
    FeedOpenParams,
    FeedOpenResult,
    FeedPageParams,
    FeedParams,
    FeedView,
)
from topics.front.live.feed_reads import FeedReads, SharedAnswer
from topics.front.live.pages import FeedPage, KeptPages
from topics.front.live.streams import TOLD_EVERY_S
from topics.front.live.subscriptions import FeedSubscription, Reader
from topics.front.pressure.governor import COALESCE_S
from topics.front.pressure.pressure import Pressure

RETRY_S = 0.25  # after a shard has refused a reader
TOLD_MAX = 256  # streams that one page tells of its pace


class Feeds:
    """All feed subscriptions of a front. `Live` tells it what shards say."""

    def __init__(
        self,
        shards: Shards,
        pressure: Pressure,
        call_in: Callable[[float, Callable[[], None]], None],
        now: float,
    ) -> None:
        self._shards, self._pressure, self._call_in = shards, pressure, call_in
        self.reads = FeedReads(shards)
        self.kept = KeptPages()
        self.by_number: dict[int, FeedSubscription] = {}
        self._opening: dict[int, SharedAnswer[FeedOpenResult]] = {}  # by the number of the feed
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
            await self._opened(feed).wait()
        return feed

    def _opened(self, feed: FeedSubscription) -> SharedAnswer[FeedOpenResult]:
        """The shard's answer, which is asked now unless it is under way."""
        opening = self._opening.get(feed.number)
        if opening is None:
            opening = self._opening[feed.number] = SharedAnswer()

            def then(answer: Reply[FeedOpenResult] | TopicsError) -> None:
                del self._opening[feed.number]
                if not isinstance(answer, TopicsError):
                    # At once: the feed's first page may be the next message of the same batch.
                    feed.is_open, feed.epoch = True, answer.result.epoch
                    feed.seq = feed.head_seq = answer.result.head_seq
                opening.settle(answer)

            params = FeedOpenParams(feed.number, feed.topic, FeedView(*feed.view))
            self._shards.call(feed.shard, FEED_OPEN, params, b"", then)
        return opening

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
                self._shards.notify(feed.shard, FEED_CLOSE, FeedParams(feed.number))

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
        """The shard serves, for the first time or again."""
        for reader in [reader for reader in self._waiting if reader.shard == shard]:
            self._wake(reader)

    def closed(self, shard: int) -> None:
        """The shard is gone, and with it all its feeds."""
        for feed in [feed for feed in self.by_number.values() if feed.shard == shard]:
            self._drop(feed)
            for reader in _detached(feed):
                reader.stream.catch_up()

    def feed_ended(self, shard: int, params: FeedEndedParams) -> None:  # noqa: ARG002 - numbers are the front's
        """An error has ended a feed, or its topic was deleted."""
        feed = self.by_number.get(params.feed)
        if feed is None:
            return
        self._drop(feed)
        for reader in _detached(feed):
            if params.error:
                reader.stream.catch_up()
            else:
                reader.stream.attempt(reader.stream.tell_deleted, reader, params.head_seq)

    def page(self, shard: int, params: FeedPageParams, records: Buffer) -> None:
        """A page of a feed; ``records`` is valid until this returns."""
        feed = self.by_number.get(params.feed)
        if feed is None:
            return
        feed.band = params.band
        is_calm = self._pressure.is_calm
        pause_s = 0.0 if is_calm else self._pressure.pause_s(shard, feed.band)
        if pause_s:
            self._call_in(pause_s, partial(self._taken_late, feed))
        else:
            # Of two pages under way the shard wakes up for the second one only, or for more.
            quiet = is_calm and params.to_seq == params.head_seq and not params.is_awaited
            self._shards.notify(shard, FEED_TAKEN, FeedParams(feed.number), quiet=quiet)
        page = FeedPage(feed.topic, params, bytes(records))
        feed.seq, feed.head_seq = page.to_seq, page.head_seq
        self.kept.keep(feed.kept, page)
        for reader in list(feed.live):
            stream = reader.stream
            if page.to_seq <= reader.seq:
                continue
            if stream.outbox.unsent is not None or reader.seq != page.follows_seq:
                feed.live.pop(reader, None)
                reader.is_live = False
                stream.catch_up()
                continue
            try:  # not `Stream.attempt`: a page costs each of many streams a call
                stream.show(reader, page)
            except Exception:
                stream.broke()
        if pause_s > COALESCE_S:
            self._tell_paced(feed)

    def _taken_late(self, feed: FeedSubscription) -> None:
        """A feed that has ended meanwhile is not mentioned."""
        if feed.is_open:
            self._shards.notify(feed.shard, FEED_TAKEN, FeedParams(feed.number))

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
