"""Catch-up reads: reads pages from the shards for readers that are behind their feeds.

Readers that request the same page while it is in flight share one call and its result. For each
shard, a front has at most `READING_MAX_BYTES` of pages in flight or not yet delivered. Further
reads wait in order until earlier pages were delivered.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial
from typing import Generic

import trio

from topics.actors.rpc.session import Reply
from topics.actors.shard_client.shards import Shards
from topics.errors import NotReady, TopicsError
from topics.formats.wire.calls import FEED_READ, FeedReadParams, FeedReadResult, FeedView
from topics.formats.wire.contract import R
from topics.front.live.pages import FeedPage
from topics.front.live.subscriptions import Reader

READING_MAX_BYTES = 16 << 20
LONG_BYTES = 32 * 1024
LONG_PER_PASS = 16  # readers that receive a long page in one loop iteration


class SharedResult(Generic[R]):
    """The result of one call, shared by all readers that are waiting for it."""

    def __init__(self) -> None:
        self._done = trio.Event()
        self._answer: tuple[R, bytes] | TopicsError

    def settle(self, answer: Reply[R] | TopicsError) -> None:
        """Store the result and wake the waiting readers.

        Release the shared memory of the result.
        """
        if isinstance(answer, TopicsError):
            self._answer = answer
        else:
            self._answer = answer.result, bytes(answer.body)
            answer.release()
        self._done.set()

    async def wait(self) -> tuple[R, bytes]:
        """Wait for the result and its body. Raise the shard's `TopicsError`."""
        await self._done.wait()
        if isinstance(self._answer, TopicsError):
            raise self._answer
        return self._answer


class PageRead(SharedResult[FeedReadResult]):
    """A page that is being read.

    ``readers`` wait for it, or for the iteration in which they receive it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.page: FeedPage | None = None
        self.readers: dict[Reader, None] = {}
        # Releases its space in `ReadBudget`; set when the page is requested.
        self.leave: Callable[[], None] | None = None


class ReadBudget:
    """The budget of a shard for pages that were requested and not yet delivered to their streams.

    It admits one page of any size, or as many pages as fit into `READING_MAX_BYTES`.
    """

    def __init__(self) -> None:
        self._used = 0
        self._is_busy = False
        self._waiting: deque[tuple[int, Callable[[], bool]]] = deque()

    def enter(self, size: int, start: Callable[[], bool]) -> None:
        """Call ``start`` when there is space for ``size`` bytes.

        If ``start`` returns True, the caller must call `leave` afterwards.
        """
        self._waiting.append((size, start))
        self._admit_waiting()

    def leave(self, size: int) -> None:
        """Release the space of a page that was delivered."""
        self._used -= size
        self._admit_waiting()

    def _admit_waiting(self) -> None:
        """Call waiting functions in order while there is space."""
        waiting = self._waiting
        # A call to a shard that is down fails within ``start``, which may call this function again.
        if self._is_busy:
            return
        self._is_busy = True
        while waiting and (not self._used or self._used + waiting[0][0] <= READING_MAX_BYTES):
            size, start = waiting.popleft()
            self._used += size
            if not start():
                self._used -= size
        self._is_busy = False


class CatchUpReads:
    """The reads in flight for all readers of a front."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._reads: dict[FeedReadParams, PageRead] = {}
        self._budgets: dict[int, ReadBudget] = defaultdict(ReadBudget)  # by shard
        self._long = trio.CapacityLimiter(LONG_PER_PASS)

    async def read(self, reader: Reader, until_seq: int | None) -> tuple[FeedPage, int]:
        """Return the page that continues the reader, and the topic's epoch.

        The page ends at ``until_seq`` at the latest. Raise `TopicsError`.
        """
        view = FeedView(*reader.view)
        params = FeedReadParams(reader.topic, view, reader.seq, until_seq, reader.epoch)
        read = self._reads.get(params)
        if read is None:
            read = self._reads[params] = PageRead()
            read.readers[reader] = None
            self._budgets[reader.shard].enter(
                view.bytes, partial(self._request, reader, params, read)
            )
        else:
            read.readers[reader] = None
        try:
            result, body = await read.wait()
            if len(body) > LONG_BYTES:
                # Limit the number of long pages that one iteration delivers.
                async with self._long:
                    pass
        finally:
            del read.readers[reader]
            # The last reader releases the space of the page.
            if not read.readers and read.leave is not None:
                read.leave()
        if read.page is None:
            read.page = FeedPage(reader.topic, result, body)
        return read.page, result.epoch

    def _request(self, first: Reader, params: FeedReadParams, read: PageRead) -> bool:
        """Request a page. Return False if no reader is waiting for it any longer."""

        def then(answer: Reply[FeedReadResult] | TopicsError) -> None:
            del self._reads[params]
            read.settle(answer)

        # The readers may have left while the read was waiting for space.
        if not any(reader.stream.is_following(reader) for reader in read.readers):
            then(NotReady("no stream waits for this page"))
            return False
        read.leave = partial(self._budgets[first.shard].leave, first.view.bytes)
        self._shards.call(first.shard, FEED_READ, params, b"", then)
        return True
