"""Drain: refuses new requests, and ends waiting calls early, so that the server can shut down.

    serving --begin--> draining: new requests are refused --stop_waiting--> long polls also end

In-flight requests finish normally. Waiting calls also end when their key is removed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from topics.errors import ShuttingDown, TopicsError
from topics.front.answers import Answer
from topics.front.dispatch import OnResult, Pending
from topics.front.error_answers import RETRY_AFTER_MS
from topics.front.request import Request

LATE_READ_S: Final = 0.5  # time limit for calls that begin after the waiting calls were ended


class WaitingCall:
    """A call that may wait for records.

    ``then`` is called with its result, or with the failure that ends it.
    """

    __slots__ = ("_calls", "_shard_call", "_then", "request")

    def __init__(self, calls: set[WaitingCall], request: Request, then: OnResult) -> None:
        self._calls, self._then, self.request = calls, then, request
        # The call to the shard, whose callback is `answered`.
        self._shard_call: Pending | None = None
        calls.add(self)

    def attach(self, shard_call: Pending | None) -> None:
        """Store the call to a shard whose callback is `answered`, unless the result has already
        arrived.
        """
        if self in self._calls:
            self._shard_call = shard_call

    def answered(self, result: Answer | TopicsError) -> None:
        """Pass the shard's result to ``then``."""
        self._calls.discard(self)
        self._shard_call = None
        self._then(result)

    def abandon(self) -> None:
        """Abandon the call, because its client has disconnected."""
        self._calls.discard(self)
        shard_call, self._shard_call = self._shard_call, None
        if shard_call is not None:
            shard_call.abandon()

    def fail(self, failure: TopicsError) -> None:
        """Stop the call with a failure if it is still waiting."""
        if self in self._calls:
            self.abandon()
            self._then(failure)


class Drain:
    """The drain state of a front, and the waiting calls, which the drain ends early."""

    def __init__(self) -> None:
        self.is_draining = False
        self._calls: set[WaitingCall] = set()
        self._may_wait = True

    def begin(self) -> None:
        """Start the drain, so that new requests are refused."""
        self.is_draining = True

    def waiting(self, request: Request, then: OnResult) -> WaitingCall:
        """Register a call that may wait for records. The caller must call `attach` afterwards."""
        call = WaitingCall(self._calls, request, then)
        if not self._may_wait:
            # A body may arrive after the waiting calls were ended. In that case there is time to
            # read a page, but not to wait for records.
            trio.lowlevel.spawn_system_task(_end_late, call)
        return call

    def end_refused(self, check: Callable[[Request], object]) -> None:
        """Stop the waiting calls whose requests ``check`` refuses, with the exception that
        ``check`` raises.
        """
        for call in [*self._calls]:
            try:
                check(call.request)
            except TopicsError as failure:
                call.fail(failure)

    def stop_waiting(self) -> None:
        """Stop all waiting calls with `ShuttingDown`. Stop each call that begins later after
        `LATE_READ_S`.
        """
        self._may_wait = False
        for call in [*self._calls]:
            call.fail(shutting_down())


async def _end_late(call: WaitingCall) -> None:
    await trio.sleep(LATE_READ_S)
    call.fail(shutting_down())


def shutting_down() -> ShuttingDown:
    """Return the error for a request that arrives during the drain."""
    return ShuttingDown("the server is shutting down", retry_after_ms=RETRY_AFTER_MS)
