"""The parts of the client for asyncio and trio that use tasks.

`topics.client.threads` has the same names without the prefix ``Async``.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Generic, Self, TypeVar

import anyio
import anyio.abc
from anyio import CancelScope
from anyio import Lock as AsyncLock
from httpcore2 import AsyncNetworkStream

__all__ = [
    "AsyncAbortable",
    "AsyncBackground",
    "AsyncLock",
    "AsyncMonitor",
    "AsyncOpened",
    "AsyncSending",
    "AsyncSent",
    "AsyncStop",
    "AsyncWorking",
    "async_alongside",
    "async_connect",
    "async_sent",
    "shielded",
]
T = TypeVar("T")
AsyncOpened = set  # an abandoned stream stays open until its client is closed


def shielded() -> CancelScope:
    """Return a context whose requests are sent even if the task is cancelled."""
    return CancelScope(shield=True)


class AsyncStop:
    """A request to stop. It also interrupts the waits and calls that are in progress."""

    def __init__(self) -> None:
        self._event, self._scopes = anyio.Event(), set[CancelScope]()

    def set(self) -> None:
        """Stop. This must be called in the thread of the event loop."""
        self._event.set()
        for scope in self._scopes:
            scope.cancel()

    def is_set(self) -> bool:
        """Whether `set` was called."""
        return self._event.is_set()

    async def wait(self, timeout_s: float) -> bool:
        """Wait up to ``timeout_s`` s and return whether `set` was called."""
        with anyio.move_on_after(timeout_s):
            await self._event.wait()
        return self._event.is_set()

    async def interrupts(
        self,
        call: Callable[[], Awaitable[T]],
        _abort: Callable[[], None],
        timeout_s: float | None = None,
    ) -> T | None:
        """Return the result of ``call``, or None if it is stopped or times out first."""
        with CancelScope() as scope:
            if timeout_s is not None:
                scope.deadline = anyio.current_time() + timeout_s
            self._scopes.add(scope)
            try:
                return None if self._event.is_set() else await call()
            finally:
                self._scopes.discard(scope)
        return None

    async def wait_until_interrupted(self) -> None:
        """See `topics.client.threads.Stop`. A cancelled call does not use its socket."""


class AsyncAbortable:
    """The base class of `AsyncPool`. `AsyncStop` cancels its calls, so `abort` does nothing."""

    def abort(self) -> None:
        """See `topics.client.threads.Abortable.abort`."""

    def _opened(self, stream: AsyncNetworkStream) -> AsyncNetworkStream:
        """See `topics.client.threads.Abortable`."""
        return stream


class AsyncMonitor(anyio.Condition):
    """A condition with timeouts."""

    async def wait_until(self, is_true: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until ``is_true()``, up to ``timeout_s`` s. Return its last value."""
        with CancelScope() as scope:
            if timeout_s is not None:
                scope.deadline = anyio.current_time() + timeout_s
            while not is_true():
                await self.wait()
        return is_true()


class AsyncSent(Generic[T]):
    """The result of a send. Await it. Cancelling the awaiting task does not cancel the send."""

    def __init__(self) -> None:
        self._done = anyio.Event()
        self._result: T
        self._error: BaseException | None = None

    def __await__(self) -> Generator[Any, Any, T]:
        yield from self._done.wait().__await__()
        if self._error is not None:
            raise self._error
        return self._result

    def done(self) -> bool:
        """Whether the result is known."""
        return self._done.is_set()

    def exception(self) -> BaseException | None:
        """Return the exception with which the send failed, or None."""
        return self._error

    def set_result(self, result: T) -> None:
        """Finish the send."""
        self._result = result
        self._done.set()

    def set_exception(self, error: BaseException) -> None:
        """Finish the send with a failure."""
        self._error = error
        self._done.set()


def async_sent() -> AsyncSent[Any]:
    """Return an object for the result of a send that is in progress."""
    return AsyncSent()


class AsyncBackground:
    """A task that runs in the background from `_begin` to `_end`. It runs in the caller's loop, so
    long computations must run in a thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: anyio.abc.TaskGroup | None = None

    async def _begin(self, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start the task."""
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(run)

    async def _end(self) -> None:
        """Cancel the task."""
        tasks, self._tasks = self._tasks, None
        if tasks is None:
            return
        tasks.cancel_scope.cancel()
        with _unwrapped():  # the caller's exception is not passed in: the group would wrap it
            await tasks.__aexit__(None, None, None)

    async def _wait_for_end(self, wait_s: float) -> bool:
        """Wait; `_end` cancels the task."""
        await anyio.sleep(wait_s)
        return False


class AsyncSending(AsyncBackground):
    """The base class of `AsyncProducer` and `AsyncPublisher`."""

    _run: Callable[[], Coroutine[Any, Any, None]]

    async def _enter(self) -> None:
        """Start the task."""
        await self._begin(self._run)

    async def _start_sending(self) -> None:
        """Raise `RuntimeError` outside of ``async with``, because no task sends there."""
        if self._tasks is None:
            raise RuntimeError("use `async with`: a task of this object sends the records")


class AsyncWorking(AsyncBackground):
    """The base class of `AsyncWorker`: stops the worker and runs handlers concurrently. It handles
    no signals.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._stop = AsyncStop()

    def stop(self) -> None:
        """Stop claiming jobs. Loops exit after their current job."""
        self._stop.set()

    async def _run_concurrently(
        self, run: Callable[[], Coroutine[Any, Any, None]], concurrency: int
    ) -> None:
        """Run ``run`` several times concurrently. Raise the first failure."""
        with _unwrapped():
            async with anyio.create_task_group() as tasks:
                for _ in range(concurrency):
                    tasks.start_soon(run)


class _unwrapped:  # noqa: N801 - a context manager
    """Raises the only exception of a group instead of the group."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        only = error
        while isinstance(only, BaseExceptionGroup) and len(only.exceptions) == 1:
            only = only.exceptions[0]
        if only is not error and only is not None:
            raise only from None


@asynccontextmanager
async def async_alongside(
    run: Callable[[], Coroutine[Any, Any, None]], _socket: object
) -> AsyncIterator[None]:
    """Run ``run``, which reads from a socket, in a task alongside the block."""
    with _unwrapped():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            yield
            tasks.cancel_scope.cancel()


def async_connect(url: str, **options: Any) -> AbstractAsyncContextManager[Any]:
    """Open a WebSocket."""
    if (trio := sys.modules.get("trio")) is not None and trio.lowlevel.in_trio_run():
        from websockets.trio.client import connect as connect_trio

        return connect_trio(url, **options)
    from websockets.asyncio.client import connect

    return connect(url, **options)
