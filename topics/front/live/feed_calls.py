"""Feed calls: what a front asks of the shards on behalf of readers, each question once.

    feed.open   subscribe; the answer says where the feed stands
    feed.read   one page for readers that catch up
    feed.taken  a page has been received: the shard may send the next one; quiet unless it waits
    feed.close  unsubscribe

Readers that ask the same question while it is in flight share one call and its answer. A shard
reads pages of `READING_MAX_BYTES` at once for a front; further ones are asked for in order, when
those were shown.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable
from functools import partial
from typing import Generic, TypeVar

import trio

from topics.actors.rpc.session import Reply
from topics.actors.shard_client.shards import Shards
from topics.errors import NotReady, TopicsError
from topics.formats.wire.calls import (
    FEED_CLOSE,
    FEED_OPEN,
    FEED_READ,
    FEED_TAKEN,
    FeedOpenParams,
    FeedOpenResult,
    FeedParams,
    FeedReadParams,
    FeedReadResult,
    FeedView,
)
from topics.formats.wire.contract import Call, P, R
from topics.front.live.pages import FeedPage
from topics.front.live.subscriptions import FeedSubscription, Reader

K = TypeVar("K", bound=Hashable)
READING_MAX_BYTES = 16 << 20
LONG_BYTES = 32 * 1024
LONG_PER_PASS = 16  # readers that are shown a long page in one pass of the loop


class FeedCalls:
    """The questions in flight, and the notifications, of all feeds of a front."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._opening: dict[int, SharedAnswer[FeedOpenResult]] = {}  # by the number of the feed
        self._reading: dict[FeedReadParams, SharedAnswer[FeedReadResult]] = {}
        self._rooms: dict[int, ReadingRoom] = defaultdict(ReadingRoom)  # of the shards
        self._long = trio.CapacityLimiter(LONG_PER_PASS)

    async def open(self, feed: FeedSubscription) -> None:
        """Subscribe. Raises `TopicsError`."""
        params = FeedOpenParams(feed.number, feed.topic, FeedView(*feed.view))
        opened = partial(_note_open, feed)
        await self._share(self._opening, feed.number, feed.shard, FEED_OPEN, params, opened).wait()

    async def read(self, reader: Reader, until_seq: int | None) -> tuple[FeedPage, int]:
        """The page from where the reader stands, to ``until_seq`` at most, and the topic's epoch.
        Raises `TopicsError`.
        """
        view = FeedView(*reader.view)
        params = FeedReadParams(reader.topic, view, reader.seq, until_seq, reader.epoch)
        shared = self._reading.get(params)
        if shared is None:
            shared = self._reading[params] = SharedAnswer()
            shared.readers[reader] = None
            ask = partial(self._ask_page, reader.shard, params, shared)
            self._rooms[reader.shard].enter(view.bytes, ask)
        else:
            shared.readers[reader] = None
        try:
            result, body = await shared.wait()
            if len(body) > LONG_BYTES:
                async with self._long:
                    pass
        finally:
            del shared.readers[reader]
            if not shared.readers:
                shared.over()
        if shared.page is None:
            shared.page = FeedPage(reader.topic, result, body)
        return shared.page, result.epoch

    def taken(self, feed: FeedSubscription, *, quiet: bool = False) -> None:
        """Tell the shard that a page has been received; the link flushes behind each batch, but
        not for quiet ones alone.
        """
        self._shards.notify(feed.shard, FEED_TAKEN, FeedParams(feed.number), quiet=quiet)

    def taken_late(self, feed: FeedSubscription) -> None:
        """As `taken`, from elsewhere than a batch of messages; a feed that has ended is not
        mentioned.
        """
        if feed.is_open:
            self.taken(feed)

    def close(self, feed: FeedSubscription) -> None:
        """Unsubscribe."""
        self._shards.notify(feed.shard, FEED_CLOSE, FeedParams(feed.number))

    def _share(
        self,
        in_flight: dict[K, SharedAnswer[R]],
        key: K,
        shard: int,
        call: Call[P, R],
        params: P,
        answered: Callable[[R], None],
    ) -> SharedAnswer[R]:
        """The answer to this question, which is asked now unless it is in flight."""
        shared = in_flight.get(key)
        if shared is None:
            shared = in_flight[key] = SharedAnswer()

            def then(answer: Reply[R] | TopicsError) -> None:
                in_flight.pop(key, None)
                if not isinstance(answer, TopicsError):
                    # At once: the feed's first page may be the next message of the same batch.
                    answered(answer.result)
                shared.settle(answer)

            self._shards.call(shard, call, params, b"", then)
        return shared

    def _ask_page(
        self, shard: int, params: FeedReadParams, shared: SharedAnswer[FeedReadResult]
    ) -> bool:
        """Ask for a page; False when nobody waits for it any more."""

        def then(answer: Reply[FeedReadResult] | TopicsError) -> None:
            del self._reading[params]
            shared.settle(answer)

        if not any(reader.stream.is_following(reader) for reader in shared.readers):
            del self._reading[params]
            shared.settle(NotReady("nobody waits for this page"))
            return False
        shared.over = partial(self._rooms[shard].leave, FeedView(*params.view).bytes)
        self._shards.call(shard, FEED_READ, params, b"", then)
        return True


class ReadingRoom:
    """What a shard reads, and streams were not shown yet: one page, or all that have room."""

    def __init__(self) -> None:
        self._used = 0
        self._is_busy = False
        self._waiting: deque[tuple[int, Callable[[], bool]]] = deque()

    def enter(self, size: int, ask: Callable[[], bool]) -> None:
        """Call ``ask`` when there is room; if that is true, `leave` follows."""
        self._waiting.append((size, ask))
        self._let_in()

    def leave(self, size: int) -> None:
        """A page of this size has been read."""
        self._used -= size
        self._let_in()

    def _let_in(self) -> None:
        waiting = self._waiting
        if self._is_busy:  # a shard that is away answers at once
            return
        self._is_busy = True
        while waiting and (not self._used or self._used + waiting[0][0] <= READING_MAX_BYTES):
            size, ask = waiting.popleft()
            self._used += size
            if not ask():
                self._used -= size
        self._is_busy = False


class SharedAnswer(Generic[R]):
    """The answer to one question, for all readers that wait for it."""

    def __init__(self) -> None:
        self.page: FeedPage | None = None
        self.readers: dict[Reader, None] = {}  # that wait for a page, or for a turn to be shown it
        self.over: Callable[[], None] = _nothing  # called when there are no more of them
        self._done = trio.Event()
        self._answer: tuple[R, bytes] | TopicsError

    def settle(self, answer: Reply[R] | TopicsError) -> None:
        """The answer has come; its shared memory is released here."""
        if isinstance(answer, TopicsError):
            self._answer = answer
        else:
            self._answer = answer.result, bytes(answer.body)
            answer.release()
        self._done.set()

    async def wait(self) -> tuple[R, bytes]:
        """Result and body. Raises the shard's `TopicsError`."""
        await self._done.wait()
        if isinstance(self._answer, TopicsError):
            raise self._answer
        return self._answer


def _note_open(feed: FeedSubscription, result: FeedOpenResult) -> None:
    feed.is_open = True
    feed.seq = feed.head_seq = result.head_seq
    feed.epoch = result.epoch


def _nothing() -> None:
    pass
