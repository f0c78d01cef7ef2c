"""What the client for asyncio and trio does by tasks; `topics.client.threads` has the same names
without ``Async``.
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
    """A block whose requests are sent even if the task is cancelled."""
    return CancelScope(shield=True)


class AsyncProducing:
    """Adds nothing: a `Producer` is a thread."""


class AsyncBackground:
    """A worker's background task, and the end of its claims. Signals are the caller's.

    The task runs in the caller's loop, so a handler that computes for longer than a third of a
    lease belongs into a thread.
    """

    def __init__(self, _name: str) -> None:
        self._is_stopped = False
        self._tasks: anyio.abc.TaskGroup
        self._waiting: CancelScope | None = None

    def stop(self) -> None:
        """Claim nothing more: loops end behind the job that they handle."""
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
        # Without the exception of the caller's block, which would come out of it in a group.
        await self._tasks.__aexit__(None, None, None)

    async def _ends_within(self, wait_s: float) -> bool:
        """Wait. `_end` cancels the task."""
        await anyio.sleep(wait_s)
        return False

    async def _unless_stopped(self, call: Callable[[], Coroutine[Any, Any, list[T]]]) -> list[T]:
        """The result of ``call``; empty if `stop` is called before it has one."""
        found: list[T] = []
        with CancelScope() as self._waiting:
            found = await call()
        self._waiting = None
        return found
