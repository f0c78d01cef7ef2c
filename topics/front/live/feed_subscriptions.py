"""Feeds: the subscriptions of a front to its shards, and the delivery of their pages.

    shard --feed.page--> feed --> all live readers of the feed, in the loop iteration that reads
                           |      the message from the ring
                           '----> the kept pages (pages.py)

Under pressure, the front acknowledges pages late, so that the next page is longer. No record is
dropped, and the order does not change. Readers that are catching up wait for the same time between
two pages.

A feed opens with its first reader and closes with its last one. It lasts at most as long as its
link session: when a shard goes down, its feeds are dropped, and their readers subscribe again. A
page must never be delivered to a reader whose cursor is not exactly where the page begins.
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
from topics.front.live.catch_up_reads import CatchUpReads, SharedResult
from topics.front.live.pages import FeedPage, PageCache
from topics.front.live.streams import NOTICE_INTERVAL_S
from topics.front.live.subscriptions import FeedSubscription, Reader
from topics.front.pressure.governor import COALESCE_S
from topics.front.pressure.pressure import Pressure

RETRY_S = 0.25  # delay after a shard has refused a reader
NOTIFIED_MAX = 256  # streams that one page notifies of its pause


class FeedSubscriptions:
    """All feed subscriptions of a front. `Live` forwards the messages of shards to it."""

    def __init__(
        self,
        shards: Shards,
        pressure: Pressure,
        call_in: Callable[[float, Callable[[], None]], None],
        now: float,
    ) -> None:
        self._shards, self._pressure, self._call_in = shards, pressure, call_in
        self.reads = CatchUpReads(shards)
        self.kept = PageCache()
        # Keyed by the number that the shard uses in its messages. Numbers are never reused, so a
        # late message for a closed feed is ignored.
        self.by_number: dict[int, FeedSubscription] = {}
        self._opening: dict[int, SharedResult[FeedOpenResult]] = {}  # by feed number
        # Readers with equal options share a feed.
        self._by_view: dict[tuple[str, View], FeedSubscription] = {}
        self._last_number = 0
        self._now = now  # time of the last tick
        # Waiting readers, each with the time at which it retries.
        self._waiting: dict[Reader, float] = {}

    # Requests from streams

    async def join(self, reader: Reader) -> FeedSubscription:
        """Return the open feed of the reader, and open it if necessary. Raise `TopicsError`."""
        # The feed of the reader may have been dropped, for example because the shard restarted.
        feed = self._by_view.get((reader.topic, reader.view)) or self._subscription(reader)
        if reader.feed is not feed:
            self.leave(reader)
            reader.feed = feed
            feed.readers.add(reader)
        # All readers that join in the meantime wait for one request.
        if not feed.is_open:
            await self._opened(feed).wait()
        return feed

    def _opened(self, feed: FeedSubscription) -> SharedResult[FeedOpenResult]:
        """Return the pending result of opening the feed. Request it if no request is in flight."""
        opening = self._opening.get(feed.number)
        if opening is None:
            opening = self._opening[feed.number] = SharedResult()

            def then(answer: Reply[FeedOpenResult] | TopicsError) -> None:
                del self._opening[feed.number]
                if not isinstance(answer, TopicsError):
                    # Set this immediately, because the feed's first page may be the next message of
                    # the same batch.
                    feed.is_open, feed.epoch = True, answer.result.epoch
                    feed.seq = feed.head_seq = answer.result.head_seq
                opening.settle(answer)

            params = FeedOpenParams(feed.number, feed.topic, FeedView(*feed.view))
            self._shards.call(feed.shard, FEED_OPEN, params, b"", then)
        return opening

    def _subscription(self, reader: Reader) -> FeedSubscription:
        """Create a subscription that is not open yet."""
        self._last_number += 1
        feed = FeedSubscription(self._last_number, reader.shard, reader.topic, reader.view)
        self._by_view[reader.topic, reader.view] = self.by_number[feed.number] = feed
        return feed

    def leave(self, reader: Reader) -> None:
        """Remove the reader from its feed. Close the feed if it has no more readers."""
        # Also remove a waiting reader, which is in `_waiting` and in no live list.
        self._waiting.pop(reader, None)
        feed, reader.feed = reader.feed, None
        reader.is_live = False
        if feed is not None:
            feed.live.pop(reader, None)
            feed.readers.discard(reader)
            # The last reader has left. The shard need not send more pages.
            if not feed.readers:
                self._drop(feed)
                self._shards.notify(feed.shard, FEED_CLOSE, FeedParams(feed.number))

    def wait_for_shard(self, reader: Reader) -> None:
        """Retry later, because the shard cannot serve the reader or there is no memory for its
        pages.

        The reader retries when the shard serves again, or after `RETRY_S`.
        """
        if reader.stream.is_following(reader):
            reader.is_waiting = True
            self._waiting[reader] = self._now + RETRY_S

    def pace(self, reader: Reader) -> None:
        """Let a reader that has received a page wait for the pause of its band before it reads the
        next page.
        """
        feed = reader.feed
        if feed is not None and (pause_s := self.pause_s(feed)):
            reader.is_waiting = True
            # The time of the last tick is exact enough, and costs no call.
            self._waiting[reader] = self._now + pause_s
            reader.stream.notify_paced(self._now)

    def pause_s(self, feed: FeedSubscription) -> float:
        """Return the seconds that readers of the feed wait between two pages.

        Return 0 if the pause is too short to notify clients.
        """
        pause_s = self._pressure.pause_s(feed.shard, feed.band)
        return pause_s if pause_s > COALESCE_S else 0.0

    def tick(self, now: float) -> None:
        """Wake readers whose wait is over."""
        self._now = now
        for reader in [reader for reader, until in self._waiting.items() if until <= now]:
            self._wake(reader)

    def _wake(self, reader: Reader) -> None:
        """Let a waiting reader catch up."""
        self._waiting.pop(reader, None)
        reader.is_waiting = False
        reader.stream.catch_up()

    def _drop(self, feed: FeedSubscription) -> None:
        """Remove a feed and its kept pages."""
        feed.is_open = False
        self.kept.remove(feed.kept)
        self.by_number.pop(feed.number, None)
        if self._by_view.get((feed.topic, feed.view)) is feed:
            del self._by_view[feed.topic, feed.view]

    # Messages from shards

    def opened(self, shard: int) -> None:
        """Wake the waiting readers of a shard that has started or resumed serving."""
        for reader in [reader for reader in self._waiting if reader.shard == shard]:
            self._wake(reader)

    def closed(self, shard: int) -> None:
        """Drop all feeds of a shard that went down. Their readers subscribe again."""
        # The link session of these feeds has ended. Their numbers are not used in the next session.
        for feed in [feed for feed in self.by_number.values() if feed.shard == shard]:
            self._drop(feed)
            for reader in _detached(feed):
                reader.stream.catch_up()

    def feed_ended(self, shard: int, params: FeedEndedParams) -> None:  # noqa: ARG002 - the front assigns the numbers
        """Handle the end of a feed, caused by an error or by the deletion of its topic."""
        feed = self.by_number.get(params.feed)
        if feed is None:
            return
        self._drop(feed)
        for reader in _detached(feed):
            if params.error:
                # A retry opens the feed again, or reports the error to the client.
                reader.stream.catch_up()
            # The stream reports the deletion. It continues with its other topics.
            else:
                reader.stream.attempt(reader.stream.notify_deleted, reader, params.head_seq)

    def page(self, shard: int, params: FeedPageParams, records: Buffer) -> None:
        """Deliver a page of a feed. ``records`` is valid until this function returns."""
        feed = self.by_number.get(params.feed)
        # The feed was closed while this page was in flight.
        if feed is None:
            return
        # The topic's band, which the shard has determined, selects the pause under pressure.
        feed.band = params.band
        is_calm = self._pressure.is_unthrottled
        pause_s = 0.0 if is_calm else self._pressure.pause_s(shard, feed.band)
        if pause_s:
            # A late acknowledgement slows down the feed: the shard collects more records for the
            # next page.
            self._call_in(pause_s, partial(self._confirm_late, feed))
        else:
            # If the shard may send another page without this acknowledgement, do not wake it up: it
            # gets the acknowledgement with the next message.
            is_deferred = is_calm and params.to_seq == params.head_seq and not params.is_awaited
            self._shards.notify(shard, FEED_TAKEN, FeedParams(feed.number), is_deferred=is_deferred)
        # Copy the records, because the memory of the message is released when this returns.
        page = FeedPage(feed.topic, params, bytes(records))
        feed.seq, feed.head_seq = page.to_seq, page.head_seq
        # Keep the page before it is delivered. A reader that cannot receive it now may read it from
        # the cache later.
        self.kept.add(feed.kept, page)
        for reader in list(feed.live):
            stream = reader.stream
            # The reader has already caught up beyond this page.
            if page.to_seq <= reader.seq:
                continue
            if stream.outbox.unsent is not None or reader.seq != page.follows_seq:
                # The socket is stalled, or the reader's cursor is not where the page begins: it
                # must catch up.
                feed.live.pop(reader, None)
                reader.is_live = False
                stream.catch_up()
                continue
            # An error in one stream must not affect the readers after it.
            try:  # not `Stream.attempt`, which would cost one more call per stream and page
                stream.show(reader, page)
            except Exception:
                stream.fail_unexpectedly()
        if pause_s > COALESCE_S:
            self._notify_paced(feed)

    def _confirm_late(self, feed: FeedSubscription) -> None:
        """Acknowledge a page after a pause, unless the feed has ended in the meantime."""
        if feed.is_open:
            self._shards.notify(feed.shard, FEED_TAKEN, FeedParams(feed.number))

    def _notify_paced(self, feed: FeedSubscription) -> None:
        """Notify at most `NOTIFIED_MAX` streams that they are paced, because more would delay the
        loop further.
        """
        before = self._now - NOTICE_INTERVAL_S
        streams = (reader.stream for reader in feed.live)
        for stream in [
            *islice((one for one in streams if one.notified_at <= before), NOTIFIED_MAX)
        ]:
            stream.attempt(stream.notify_paced, self._now)


def _detached(feed: FeedSubscription) -> list[Reader]:
    """Return the readers of a dropped feed, after removing them from the feed."""
    readers = list(feed.readers)
    for reader in readers:
        reader.feed, reader.is_live = None, False
    return readers
