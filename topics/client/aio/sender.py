"""Sender: sends records in the background. It is the base of producers and publishers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from time import monotonic
from typing import Final, NamedTuple, Self

from topics.client.aio.caller import AsyncCaller
from topics.client.calls import LOG, SHUTDOWN_S
from topics.client.errors import ConnectionLost
from topics.client.tasks import (
    AsyncMonitor,
    AsyncSending,
    AsyncSent,
    AsyncStop,
    async_sent,
    shielded,
)

FAILURES_MAX: Final = 100  # maximum number of reported failures; all are counted and logged


class Pending(NamedTuple):
    """A record that has neither been acknowledged nor failed. No attempt begins after ``until``."""

    message: bytes
    sent: AsyncSent[int]
    until: float


class AsyncSender(AsyncSending):
    """Accepts records and bounds the bytes of unacknowledged records. A record fails when the
    client's retry deadline has passed since it was sent.
    """

    def __init__(self, name: str, client: AsyncCaller, max_unacked: int) -> None:
        super().__init__(name)
        self._caller, self._max_unacked = client.caller(), max_unacked
        self._changed, self._stop = AsyncMonitor(), AsyncStop()
        self._pending: dict[int, Pending] = {}  # by the number of the send
        self._unacked = self._sends = self._failed = 0
        self._failures: list[Exception] = []
        self._is_closing, self._pid = False, os.getpid()

    async def __aenter__(self) -> Self:
        await self._enter()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self.close()
            return
        try:
            with shielded():
                await self._drain(None if issubclass(kind, Exception) else SHUTDOWN_S)
        finally:  # failures are only logged, so that the exception of the block is propagated
            await self._finish()

    async def flush(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - the sync client has the same parameter
        """Wait until all records that were sent before this call have been acknowledged or have
        failed. Raise `TimeoutError` after ``timeout`` s.
        """
        last = self._sends
        async with self._changed:
            is_done = await self._changed.wait_until(
                lambda: next(iter(self._pending), last + 1) > last, timeout
            )
        if not is_done:
            raise TimeoutError(f"{self._name}: records were not acknowledged within {timeout} s")

    async def close(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - the sync client has the same parameter
        """Send the remaining records for up to ``timeout`` s, by default until their deadlines.
        Raise an `ExceptionGroup` if any record has failed.
        """
        try:
            await self._drain(timeout)
        finally:
            await self._finish()
        failures, self._failures = self._failures, []
        if failures:
            raise ExceptionGroup(f"{self._failed} of {self._sends} records failed", failures)

    async def _drain(self, timeout_s: float | None) -> None:
        if self._pid != os.getpid():  # the records belong to the parent process
            return
        async with self._changed:
            self._is_closing = True
            self._changed.notify_all()
            await self._changed.wait_until(lambda: not self._pending, timeout_s)
            self._stop.set()
            self._fail([*self._pending], ConnectionLost(f"{self._name} was closed"))

    async def _finish(self) -> None:
        try:
            await self._end()
        finally:
            with shielded():
                await self._caller.close()

    async def _run(self) -> None:
        raise NotImplementedError

    async def _admit(self, message: bytes) -> int:
        """Wait for capacity, add a record and return its number. `_changed` must be held."""
        size = len(message)
        await self._changed.wait_until(
            lambda: (
                self._is_closing or not self._pending or self._unacked + size <= self._max_unacked
            )
        )
        if self._is_closing:
            raise ValueError(f"{self._name} is closed")
        self._sends += 1
        self._unacked += size
        until = monotonic() + self._caller.retry.deadline
        self._pending[self._sends] = Pending(message, async_sent(), until)
        return self._sends

    def _acknowledge(self, number: int, seq: int) -> None:
        """Finish a record. `_changed` must be held."""
        if (pending := self._pending.pop(number, None)) is not None:
            self._unacked -= len(pending.message)
            pending.sent.set_result(seq)
            self._changed.notify_all()

    def _fail(self, numbers: Sequence[int], error: Exception) -> None:
        """Finish records with a failure and log it. `_changed` must be held."""
        failed = [self._pending.pop(number) for number in numbers if number in self._pending]
        if not failed:
            return
        LOG.error("%s: %d of its records failed: %s", self._name, len(failed), error)
        self._failed += len(failed)
        if len(self._failures) < FAILURES_MAX:
            self._failures.append(error)
        for pending in failed:
            self._unacked -= len(pending.message)
            pending.sent.set_exception(error)
        self._changed.notify_all()
