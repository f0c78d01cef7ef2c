"""Cold loader: imports Hypercorn and Quart in a thread, beside a front that serves already.

    waiting --first cold request, or LOAD_AFTER_S--> loading --> serving --> ended

Cold requests that come earlier wait; none is refused. The import is all Python, so the thread and
the loop take turns in the interpreter. Meanwhile the switch interval is SWITCH_S, which bounds how
long the loop waits for the interpreter whenever it wakes up, and the collector is off: imports make
no garbage, and a full collection, which looks at all modules, would hold up the loop.

A thread that is still importing when the front ends is abandoned; it dies with the process.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import trio

from topics.front.http.cold_call import ColdCall

LOAD_AFTER_S = 0.5  # of service without a cold request: shards that start beside it go first
LOAD_MAX_S = 60.0  # then the front gives up, and the supervisor starts another one
SWITCH_S = 0.0005


class Stack(Protocol):
    """What is loaded: `topics.front.http.cold_bridge.ColdStack`."""

    async def ask(self, call: ColdCall) -> bytes:
        """The answer, head and body."""

    def serving(self) -> AbstractAsyncContextManager[None]:
        """The time in which it may be asked."""


class ColdLoader:
    """The cold lane as connections see it."""

    def __init__(self, load: Callable[[], Stack]) -> None:
        """``load`` imports and builds; it runs in a thread, once."""
        self._load = load
        self._stack: Stack | None = None
        self._wanted, self._loaded, self._ended = trio.Event(), trio.Event(), trio.Event()
        self._loading = trio.CancelScope()

    async def ask(self, call: ColdCall) -> bytes:
        """The answer, head and body. Waits until the lane is loaded, and never for the client."""
        if not self._loaded.is_set():
            self._wanted.set()
            try:
                await self._loaded.wait()
            except BaseException:
                call.drop_body()
                raise
        assert self._stack is not None, "it is loaded"
        return await self._stack.ask(call)

    async def run(self) -> None:
        """Load, then serve until `end`."""
        with self._loading:
            with trio.move_on_after(LOAD_AFTER_S):
                await self._wanted.wait()
            with trio.CancelScope() as patience:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_end_late, patience)
                    self._stack = await trio.to_thread.run_sync(
                        _undisturbed, self._load, abandon_on_cancel=True
                    )
                    nursery.cancel_scope.cancel()
            if patience.cancelled_caught:
                raise trio.TooSlowError
        if self._stack is None:
            return
        async with self._stack.serving():
            self._loaded.set()
            await self._ended.wait()

    def end(self) -> None:
        """No request is left: let `run` return, also if nothing was loaded yet."""
        self._ended.set()
        self._loading.cancel()


async def _end_late(patience: trio.CancelScope) -> None:
    """Cancel after LOAD_MAX_S, in steps: a pause of the process is no slow import."""
    for _ in range(round(LOAD_MAX_S)):
        await trio.sleep(1)
    patience.cancel()


def _undisturbed(load: Callable[[], Stack]) -> Stack:
    """Load with short turns of the interpreter, and without the collector."""
    interval, collects = sys.getswitchinterval(), gc.isenabled()
    sys.setswitchinterval(min(SWITCH_S, interval))
    gc.disable()
    try:
        return load()
    finally:
        gc.freeze()  # what was imported stays: the collector need not look at it again
        if collects:
            gc.enable()
        sys.setswitchinterval(interval)
