"""Draining: the server goes down, in-flight requests finish, waiting calls end early.

serving --begin--> draining (new requests are refused) --stop_waiting--> long polls end too

Waiting calls also end when their key is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from topics.errors import ShuttingDown, TopicsError
from topics.front.answers import Answer
from topics.front.dispatch import Pending, Then
from topics.front.error_answers import RETRY_AFTER_MS
from topics.front.request import Request

LATE_READ_S: Final = 0.5  # for a call that begins after the waiting calls have ended


class WaitingCall:
    """A call that may wait for records. ``then`` is called with its answer, or with that which ends
    it.
    """

    __slots__ = ("_asked", "_calls", "_then", "request")

    def __init__(self, calls: set[WaitingCall], request: Request, then: Then) -> None:
        self._calls, self._then, self.request = calls, then, request
        self._asked: Pending | None = None  # of a shard; it has `answered`
        calls.add(self)

    def wait_for(self, asked: Pending | None) -> None:
        """Keep the call to a shard whose callback is `answered`, unless it is over already."""
        if self in self._calls:
            self._asked = asked

    def answered(self, result: Answer | TopicsError) -> None:
        """The shard has answered."""
        self._calls.discard(self)
        self._asked = None
        self._then(result)

    def abandon(self) -> None:
        """Nobody waits any more."""
        self._calls.discard(self)
        asked, self._asked = self._asked, None
        if asked is not None:
            asked.abandon()

    def fail(self, failure: TopicsError) -> None:
        """End it, if it waits."""
        if self in self._calls:
            self.abandon()
            self._then(failure)


class Drain:
    """Whether this front drains, and the calls that a drain ends early."""

    def __init__(self) -> None:
        self.is_draining = False
        self._calls: set[WaitingCall] = set()
        self._may_wait = True

    def begin(self) -> None:
        """From now on new requests are refused."""
        self.is_draining = True

    def waiting(self, request: Request, then: Then) -> WaitingCall:
        """A call begins that may wait for records; `wait_for` follows."""
        call = WaitingCall(self._calls, request, then)
        if not self._may_wait:
            # A body may arrive after the waiting calls have ended: there is time for a page, not
            # for a wait.
            trio.lowlevel.spawn_system_task(_end_late, call)
        return call

    def end_refused(self, check: Callable[[Request], object]) -> None:
        """End the waiting calls whose requests ``check`` refuses, with its failure."""
        for call in [*self._calls]:
            try:
                check(call.request)
            except TopicsError as failure:
                call.fail(failure)

    def stop_waiting(self) -> None:
        """End all waiting calls with `ShuttingDown`, and soon those that still begin."""
        self._may_wait = False
        for call in [*self._calls]:
            call.fail(shutting_down())


async def _end_late(call: WaitingCall) -> None:
    await trio.sleep(LATE_READ_S)
    call.fail(shutting_down())


def shutting_down() -> ShuttingDown:
    """The failure of a request that comes during the drain."""
    return ShuttingDown("the server is shutting down", retry_after_ms=RETRY_AFTER_MS)
