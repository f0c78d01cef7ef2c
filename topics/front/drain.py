"""Draining: the server goes down, in-flight requests finish, waiting calls end early.

serving --begin--> draining (new requests are refused) --stop_waiting--> long polls end too

Waiting calls also end when their key is gone.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

import trio

from topics.actors.rpc.stepping import NOW, Driver, in_task
from topics.errors import ShuttingDown, TopicsError
from topics.front.errors import RETRY_AFTER_MS
from topics.front.request import Request

T = TypeVar("T")
LATE_READ_S: Final = 0.5  # for a call that begins after the waiting calls have ended


class Drain:
    """Whether this front drains, and the calls that a drain ends early."""

    def __init__(self) -> None:
        self.is_draining = False
        self._stepped: dict[Driver, Request] = {}
        self._waiting: dict[trio.CancelScope, Request] = {}
        self._refused: dict[trio.CancelScope, TopicsError] = {}
        self._may_wait = True

    def begin(self) -> None:
        """From now on new requests are refused."""
        self.is_draining = True

    async def wait(self, request: Request, call: Awaitable[T]) -> T:
        """As `waiting`, for one call of a shard: it needs no task."""
        driver = NOW.driver
        if driver is None or not self._may_wait:
            await in_task()
            with self.waiting(request):
                return await call
        self._stepped[driver] = request
        try:
            return await call
        finally:
            del self._stepped[driver]

    @contextmanager
    def waiting(self, request: Request) -> Iterator[None]:
        """Around a call that may wait for records. Raises `ShuttingDown` when the drain ends it,
        and what `end_refused` ends it with.
        """
        # A body may arrive after the waiting calls have ended: there is time for a page, not for a
        # wait.
        deadline = math.inf if self._may_wait else trio.current_time() + LATE_READ_S
        with trio.CancelScope(deadline=deadline) as scope:
            self._waiting[scope] = request
            try:
                yield
            finally:
                del self._waiting[scope]
                refusal = self._refused.pop(scope, None)
        if scope.cancelled_caught:
            raise refusal or shutting_down()

    def end_refused(self, check: Callable[[Request], None]) -> None:
        """End the waiting calls whose requests ``check`` refuses, with its failure."""
        for driver, request in [*self._stepped.items()]:
            try:
                check(request)
            except TopicsError as failure:
                driver.failed(failure)
        for scope, request in self._waiting.items():
            try:
                check(request)
            except TopicsError as failure:
                self._refused[scope] = failure
                scope.cancel()

    def stop_waiting(self) -> None:
        """End all waiting calls with `ShuttingDown`, and soon those that still begin."""
        self._may_wait = False
        for driver in [*self._stepped]:
            driver.failed(shutting_down())
        for scope in self._waiting:
            scope.cancel()


def shutting_down() -> ShuttingDown:
    """The failure of a request that comes during the drain."""
    return ShuttingDown("the server is shutting down", retry_after_ms=RETRY_AFTER_MS)
