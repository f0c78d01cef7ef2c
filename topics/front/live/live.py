"""Live records: feeds from the shards, and the streams that show them to readers (decision 0010).

    shard --> Feed --page--> every stream that stands where it begins (streams.py)
                '-> the newest pages are kept for those that are a little behind (pages.py)

Live pages are written to the sockets from the loop that took them out of the ring.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

import trio

from topics.config import Settings
from topics.engine.access import ANYONE, Principal
from topics.errors import Throttled, TopicsError
from topics.formats.api.watch import View
from topics.formats.buffers import Buffer
from topics.formats.wire.calls import (
    FEED_CLOSE,
    FEED_OPEN,
    FEED_READ,
    FEED_TAKEN,
    FeedCloseParams,
    FeedEndedParams,
    FeedOpenParams,
    FeedOpenResult,
    FeedPageParams,
    FeedReadParams,
    FeedReadResult,
    FeedTakenParams,
    FeedView,
)
from topics.formats.wire.contract import Call, P, R
from topics.front.backend import Backend, Reply
from topics.front.live.message_budget import MessageBudget
from topics.front.live.pages import FeedPage, FeedSubscription, KeptPages
from topics.front.live.streams import Reader, Stream

MESSAGES_MAX = (
    2  # of the longest that WebSockets may be sending or waiting for at a time, all together
)
TICK_S = 0.25  # the grain of heartbeats and of the patience with slow readers
RETRY_S = 0.25  # after a shard has refused


K = TypeVar("K")


class Live:
    """All feeds and streams of a front."""

    def __init__(self, backend: Backend, settings: Settings) -> None:
        self.backend, self._settings = backend, settings
        self.now = time.monotonic()
        self.streams: set[Stream] = set()
        self.draining = False
        self.by_key: Counter[bytes] = Counter()  # how many of them each key has, by its digest
        self.nursery: trio.Nursery
        self._feeds: dict[tuple[str, View], FeedSubscription] = {}
        self._by_number: dict[int, FeedSubscription] = {}
        self._number = 0
        self._kept = KeptPages()
        self._waiting: dict[Reader, float] = {}  # until when, at the latest
        self._opening: dict[int, _Shared[FeedOpenResult]] = {}  # by the number of the feed
        self._reads: dict[tuple[Any, ...], _Shared[FeedReadResult]] = {}
        self.messages = MessageBudget(MESSAGES_MAX * settings.max_body_bytes)
        self._due: list[tuple[Stream, Callable[[], None]]] = []
        self._due_now = trio.Event()
        backend.listen(self)

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as self.nursery:
            self.nursery.start_soon(self._do_due)
            while True:
                await trio.sleep(TICK_S)
                self.now = now = time.monotonic()
                for stream in list(self.streams):
                    stream.attempt(stream.tick, now)
                for reader in [reader for reader, until in self._waiting.items() if until <= now]:
                    self._wake(reader)

    def check_room(self, principal: Principal, leaving: Stream | None = None) -> None:
        """For another stream, which must begin before anything is waited for; ``leaving`` ends
        then. Raises `Throttled` (§11).
        """
        settings, less = self._settings, 0 if leaving is None or leaving.ended else 1
        if 0 < settings.max_sse_connections <= len(self.streams) - less:
            raise _too_many("max_sse_connections", settings.max_sse_connections)
        if (
            principal is not ANYONE
            and 0 < settings.max_sse_connections_per_key <= self.by_key[principal.digest] - less
        ):
            raise _too_many("max_sse_connections_per_key", settings.max_sse_connections_per_key)

    def soon(self, stream: Stream, call: Callable[[], None]) -> None:
        """Call it once the loop has done what it is doing: what comes together is sent together."""
        self._due.append((stream, call))
        self._due_now.set()

    async def _do_due(self) -> None:
        while True:
            await self._due_now.wait()
            self._due_now = trio.Event()
            due, self._due = self._due, []
            for stream, call in due:
                stream.attempt(call)

    def drain(self) -> None:
        """The server goes down: tell all streams, and those that still begin."""
        self.draining = True
        for stream in list(self.streams):
            stream.attempt(stream.drain)

    # What streams need

    async def feed_of(self, reader: Reader) -> FeedSubscription:
        """The reader's feed, open. Raises `TopicsError`."""
        feed = self._feeds.get((reader.topic, reader.view))
        if feed is None:
            self._number += 1
            feed = self._feeds[reader.topic, reader.view] = FeedSubscription(
                self._number, reader.shard, reader.topic, reader.view
            )
            self._by_number[feed.number] = feed
        if reader.feed is not feed:
            self.leave(reader)
            reader.feed = feed
            feed.readers.add(reader)
        if not feed.is_open:
            params = FeedOpenParams(feed.number, feed.topic, FeedView(*feed.view))
            await self._share(
                self._opening,
                feed.number,
                feed.shard,
                FEED_OPEN,
                params,
                partial(self._opened, feed),
            ).wait()
        return feed

    @staticmethod
    def _opened(feed: FeedSubscription, result: FeedOpenResult) -> None:
        feed.is_open = True
        feed.seq = feed.head_seq = result.head_seq
        feed.epoch = result.epoch

    async def read(self, reader: Reader, until_seq: int | None) -> tuple[FeedPage, int]:
        """A page from where the reader stands, and the topic's epoch; readers that ask alike share
        it. Raises `TopicsError`.
        """
        key = (reader.topic, reader.view, reader.seq, until_seq, reader.epoch)
        params = FeedReadParams(
            reader.topic, FeedView(*reader.view), reader.seq, until_seq, reader.epoch
        )
        shared = self._share(self._reads, key, reader.shard, FEED_READ, params, _ignore)
        result, body = await shared.wait()
        if shared.page is None:
            shared.page = FeedPage(reader.topic, result, body)
        return shared.page, result.epoch

    def _share(
        self,
        under_way: dict[K, _Shared[R]],
        key: K,
        shard: int,
        call: Call[P, R],
        params: P,
        answered: Callable[[R], None],
    ) -> _Shared[R]:
        shared = under_way.get(key)
        if shared is None:
            shared = under_way[key] = _Shared()

            def then(answer: Reply[R] | TopicsError) -> None:
                under_way.pop(key, None)
                if not isinstance(answer, TopicsError):
                    answered(
                        answer.result
                    )  # at once: what the shard sends next may be behind it in the same batch
                shared.settle(answer)

            self.backend.ask(shard, call, params, b"", then)
            self.backend.flush(shard)
        return shared

    def leave(self, reader: Reader) -> None:
        """The reader follows its feed no more; a feed without readers is closed."""
        self._waiting.pop(reader, None)
        feed, reader.feed = reader.feed, None
        reader.is_live = False
        if feed is not None:
            feed.live.pop(reader, None)
            feed.readers.discard(reader)
            if not feed.readers:
                self._drop(feed)
                self.backend.notify(feed.shard, FEED_CLOSE, FeedCloseParams(feed.number))
                self.backend.flush(feed.shard)

    def _drop(self, feed: FeedSubscription) -> None:
        feed.is_open = False
        self._kept.forget(feed)
        self._by_number.pop(feed.number, None)
        if self._feeds.get((feed.topic, feed.view)) is feed:
            del self._feeds[feed.topic, feed.view]

    def wait_for(self, reader: Reader) -> None:
        """The shard cannot serve the reader now: try again when it comes back, or soon."""
        reader.waits = True
        self._waiting[reader] = self.now + RETRY_S

    def _wake(self, reader: Reader) -> None:
        self._waiting.pop(reader, None)
        reader.waits = False
        reader.stream.catch_up()

    def tell_deleted(self, reader: Reader, head_seq: int) -> None:
        """The reader's topic has gone: the end for this topic, not for the stream."""
        stream = reader.stream
        if stream.readers.get(reader.topic) is reader and not stream.ended:
            stream.write(stream.shown_deleted(reader, head_seq))
            stream.remove(reader.topic)

    # What shards say

    def opened(self, shard: int) -> None:
        """As `Listener.opened`."""
        for reader in [reader for reader in self._waiting if reader.shard == shard]:
            self._wake(reader)

    def closed(self, shard: int) -> None:
        """As `Listener.closed`."""
        for feed in [feed for feed in self._by_number.values() if feed.shard == shard]:
            self._drop(feed)
            for reader in list(feed.readers):
                reader.feed, reader.is_live = None, False
                reader.stream.catch_up()

    def feed_ended(self, _shard: int, params: FeedEndedParams) -> None:
        """As `Listener.feed_ended`."""
        feed = self._by_number.get(params.feed)
        if feed is None:
            return
        self._drop(feed)
        for reader in list(feed.readers):
            reader.feed, reader.is_live = None, False
            if params.error:
                reader.stream.catch_up()
            else:
                reader.stream.attempt(self.tell_deleted, reader, params.head_seq)

    def page(self, shard: int, params: FeedPageParams, records: Buffer) -> None:
        """As `Listener.page`."""
        feed = self._by_number.get(params.feed)
        if feed is None:
            return
        self.backend.notify(shard, FEED_TAKEN, FeedTakenParams(feed.number))
        page = FeedPage(feed.topic, params, bytes(records))
        feed.seq, feed.head_seq = page.to_seq, page.head_seq
        self._kept.keep(feed, page)
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


class _Shared(Generic[R]):
    """An answer that several readers wait for."""

    def __init__(self) -> None:
        self.page: FeedPage | None = None
        self._done = trio.Event()
        self._answer: tuple[R, bytes] | TopicsError

    def settle(self, answer: Reply[R] | TopicsError) -> None:
        if isinstance(answer, TopicsError):
            self._answer = answer
        else:
            self._answer = answer.result, bytes(answer.body)
            answer.release()
        self._done.set()

    async def wait(self) -> tuple[R, bytes]:
        await self._done.wait()
        if isinstance(self._answer, TopicsError):
            raise self._answer
        return self._answer


def _too_many(limit: str, most: int) -> Throttled:
    return Throttled(
        "there are too many streams and sockets", limit=limit, max=most, retry_after_ms=1000
    )


def _ignore(_: object) -> None:
    pass
