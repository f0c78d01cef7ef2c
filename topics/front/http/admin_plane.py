"""Loader and entry point of the admin plane: imports the application and passes requests to it.

    waiting --first request--> loading --> serving --> ended

The first request of the admin plane imports the application (`topics.front.admin.application`) in a
thread, while the front continues to serve the data plane. Requests that arrive during the import
wait; none is refused. A front that receives no such request saves the import: a third of the CPU
time of its startup, and 14 MiB.

The import runs Python code, so the thread and the loop take turns holding the interpreter lock.
Other requests are served a third more slowly during this time. Two measures limit the effect on the
loop:

- The switch interval is `SWITCH_S`. It bounds the time that the loop waits for the interpreter when
  it wakes up.
- The garbage collector is disabled. Imports create no garbage, and a full collection, which
  traverses all modules, would block the loop.

If the front ends while the thread imports, the thread is abandoned and ends with the process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import trio

from topics.actors.rpc.session import discard
from topics.front.answers import Answer
from topics.front.request import Body, Request
from topics.imports import gc_frozen

# Seconds between two switches of threads during the import.
SWITCH_S = 0.0005


@dataclass(slots=True)
class AdminCall:
    """An admitted request for a view of the admin plane.

    ``at`` is the time of the request in monotonic ns. ``response`` is set to Quart's response.
    """

    request: Request
    body: Body | None
    at: int
    response: Any = None

    def take_body(self) -> Body:
        """Return the body and transfer its ownership to the caller. Call this at most once."""
        assert self.body is not None, "the body is taken once"
        body, self.body = self.body, None
        return body

    def drop_body(self) -> None:
        """Free the body if it was not taken."""
        if self.body is not None:
            discard(self.take_body())


class AdminApplication(Protocol):
    """The interface of the imported application
    (`topics.front.admin.application.AdminApplication`).
    """

    async def call(self, call: AdminCall) -> Answer:
        """Return the response to a call. The response uses no shared memory."""

    def serving(self) -> AbstractAsyncContextManager[None]:
        """Return a context manager. Within its block, `call` may be called."""


class AdminPlane:
    """Imports the application on demand and passes requests to it."""

    def __init__(self, load: Callable[[], AdminApplication]) -> None:
        """``load`` imports and builds the application. It runs once, in a thread."""
        self._load = load
        self._application: AdminApplication | None = None
        self._wanted, self._loaded, self._ended = trio.Event(), trio.Event(), trio.Event()
        self._loading = trio.CancelScope()

    async def loaded(self) -> None:
        """Wait until the application is loaded. The first call starts loading it."""
        if not self._loaded.is_set():
            self._wanted.set()
            await self._loaded.wait()

    async def call(self, call: AdminCall) -> Answer:
        """Return the response to a call, without waiting for the client. Call `loaded` first."""
        assert self._application is not None, "the application is loaded"
        try:
            return await self._application.call(call)
        finally:
            call.drop_body()

    async def run(self) -> None:
        """Load the application on the first request, then serve until `end` is called."""
        with self._loading:
            await self._wanted.wait()
            self._application = await trio.to_thread.run_sync(
                _without_pauses, self._load, abandon_on_cancel=True
            )
        if self._application is None:
            return
        async with self._application.serving():
            self._loaded.set()
            await self._ended.wait()

    def end(self) -> None:
        """Let `run` return, even before or during the import.

        Call this when no request is in flight.
        """
        self._ended.set()
        self._loading.cancel()


def _without_pauses(load: Callable[[], AdminApplication]) -> AdminApplication:
    """Load with a short switch interval, and with the garbage collector disabled."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(min(SWITCH_S, interval))
    try:
        with gc_frozen():
            return load()
    finally:
        sys.setswitchinterval(interval)
