"""The parts of the client for asyncio and trio that use tasks.

`topics.client.threads` has the same names without the prefix ``Async``.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import anyio
import anyio.abc
from anyio import CancelScope
from anyio import Lock as AsyncLock

__all__ = ["AsyncBackground", "AsyncLock", "AsyncProducing", "shielded"]
T = TypeVar("T")


def shielded() -> CancelScope:
    """Return a context whose requests are sent even if the task is cancelled."""
    return CancelScope(shield=True)


class AsyncProducing:
    """The base class of `AsyncTopic`. It has no producer, because a `Producer` is a thread."""


class AsyncBackground:
    """The base class of `AsyncWorker`: its background task and its stop. It handles no signals.

    The task runs in the caller's loop, so a handler that computes for longer than a third of a
    lease must do that in a thread.
    """

    def __init__(self, _name: str) -> None:
        self._is_stopped = False
        self._tasks: anyio.abc.TaskGroup
        self._waiting: CancelScope | None = None

    def stop(self) -> None:
        """Claim no more jobs. Loops end after their current job."""
        self._is_stopped = True
        if self._waiting is not None:
            self._waiting.cancel()

    async def _begin(self, keep: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run ``keep`` until `_end`."""
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(keep)

    async def _end(self) -> None:
        self._tasks.cancel_scope.cancel()
        # The exception of the caller's block is not passed in: the group would wrap it.
        await self._tasks.__aexit__(None, None, None)

    async def _ends_within(self, wait_s: float) -> bool:
        """Wait; `_end` cancels the task."""
        await anyio.sleep(wait_s)
        return False

    async def _unless_stopped(self, call: Callable[[], Coroutine[Any, Any, list[T]]]) -> list[T]:
        """Return the result of ``call``, or nothing if the worker is stopped first."""
        found: list[T] = []
        with CancelScope() as self._waiting:
            found = await call()
        self._waiting = None
        return found
