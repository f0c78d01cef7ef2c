"""Caller: sends calls to one server and retries them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from math import inf
from time import monotonic
from typing import Self, TypeVar, cast

from topics.client.aio.pool import AsyncPool
from topics.client.calls import ATTEMPT_MIN_S, FOREVER, LOG, Attempts, Call, Page, Retry
from topics.client.errors import ClientClosed, TopicsError
from topics.client.http import CONNECT_S
from topics.client.settings import Target
from topics.client.tasks import AsyncStop

T = TypeVar("T")


class AsyncCaller:
    """The base class of `AsyncTopics`. Workers, producers and publishers have their own callers."""

    def __init__(
        self,
        target: Target,
        *,
        node: str | None = None,
        timeout: float = 30.0,
        connect_timeout: float = CONNECT_S,
        retry: Retry | None = None,
        on_pause: Callable[[TopicsError, float], None] | None = None,
    ) -> None:
        self.target, self.node, self.timeout = target, node, timeout
        self.retry, self.retry_streams = retry or Retry(), retry or FOREVER
        self.connect_timeout, self._on_pause = min(timeout, connect_timeout), on_pause
        self.pool, self._closing = AsyncPool(target, self.connect_timeout), AsyncStop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closing.is_set()

    async def close(self) -> None:
        """Close all connections. Calls that are in progress, and all later calls, raise
        `ClientClosed`.
        """
        self._closing.set()
        await self._closing.wait_until_interrupted()
        await self.pool.close()

    def caller(self, *, timeout: float | None = None) -> AsyncCaller:
        """Return a caller for the same server with its own connections."""
        self.check_open()
        caller = AsyncCaller(
            self.target,
            node=self.node,
            timeout=timeout or self.timeout,
            connect_timeout=self.connect_timeout,
            on_pause=self._on_pause,
        )
        caller.retry, caller.retry_streams = self.retry, self.retry_streams
        return caller

    async def call(self, call: Call[T], *, until: float = inf, retry: Retry | None = None) -> T:
        """Send a call, and repeat it while ``retry`` permits it and the time ``until`` (monotonic
        clock) is not reached. Raises `TopicsError`.
        """
        attempts = Attempts(retry or self.retry, until)
        while True:
            try:
                return await self.once(call, until=until)
            except TopicsError as failure:
                pause_s = attempts.pause_after(failure, is_repeatable=call.is_repeatable)
                self.report_pause(failure, pause_s)
            await self._closing.wait(pause_s)

    async def once(self, call: Call[T], *, until: float = inf) -> T:
        """Send a call once. Raises `TopicsError`."""
        self.check_open()
        left_s = max(until - monotonic(), ATTEMPT_MIN_S)
        send = partial(self.pool.send, call, min(self.timeout, left_s))
        result = await self._closing.interrupts(send, self.pool.abort)
        if result is None:  # `close` has interrupted the call, or the result is None
            self.check_open()
        return cast("T", result)

    def check_open(self) -> None:
        """Raise `ClientClosed` after `close`."""
        if self.is_closed:
            raise ClientClosed

    def report_pause(self, failure: TopicsError, pause_s: float) -> None:
        """Report a failed attempt to ``on_pause``, or log it."""
        if self._on_pause is not None:
            self._on_pause(failure, pause_s)
        else:
            LOG.warning("request failed, retry in %.1f s: %s", pause_s, failure)

    async def pages(self, page: Callable[[str | None], Call[Page[T]]]) -> AsyncIterator[T]:
        """Yield the items of all pages of a list."""
        cursor = None
        while True:
            found = await self.call(page(cursor))
            for item in found.items:
                yield item
            cursor = found.next_cursor
            if cursor is None:
                return
