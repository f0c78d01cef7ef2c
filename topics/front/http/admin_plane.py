"""The admin plane as connections see it: a request is handed over, its answer comes back.

    waiting --first request--> loading --> serving --> ended

The application (`topics.front.admin.application`) is imported in a thread with the first request
of the admin plane, beside a front that serves already. Requests that come earlier wait; none is
refused. A front of which nobody asks one never pays for the import: a third of the CPU of a start,
and 14 MiB. The import is all Python, so the thread and the loop take turns in the interpreter, and
other requests lose a third of their speed meanwhile. While it loads, the switch interval is
SWITCH_S, which bounds how long the loop waits for the interpreter whenever it wakes up, and the
collector is off: imports make no garbage, and a full collection, which looks at all modules, would
hold up the loop.

A thread that is still importing when the front ends is abandoned; it dies with the process.
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
from topics.imports import frozen

SWITCH_S = 0.0005


@dataclass(slots=True)
class AdminCall:
    """An admitted request, for its view. ``at``: monotonic ns. ``response``: that of Quart."""

    request: Request
    body: Body | None
    at: int
    response: Any = None

    def take_body(self) -> Body:
        """The body changes hands here; once."""
        assert self.body is not None, "the body is taken once"
        body, self.body = self.body, None
        return body

    def drop_body(self) -> None:
        """Free a body that was not taken."""
        if self.body is not None:
            discard(self.take_body())


class Application(Protocol):
    """What is loaded: `topics.front.admin.application.Application`."""

    async def ask(self, call: AdminCall) -> Answer:
        """The answer, which holds no shared memory."""

    def serving(self) -> AbstractAsyncContextManager[None]:
        """The time in which it may be asked."""


class AdminPlane:
    """Loads the application, and hands it requests."""

    def __init__(self, load: Callable[[], Application]) -> None:
        """``load`` imports and builds; it runs in a thread, once."""
        self._load = load
        self._application: Application | None = None
        self._wanted, self._loaded, self._ended = trio.Event(), trio.Event(), trio.Event()
        self._loading = trio.CancelScope()

    async def loaded(self) -> None:
        """Wait until the application is loaded. The first call starts loading it."""
        if not self._loaded.is_set():
            self._wanted.set()
            await self._loaded.wait()

    async def ask(self, call: AdminCall) -> Answer:
        """Return the answer to a call. Call this after `loaded`. It never waits for the client."""
        assert self._application is not None, "it is loaded"
        try:
            return await self._application.ask(call)
        finally:
            call.drop_body()

    async def run(self) -> None:
        """Load, then serve until `end`."""
        with self._loading:
            await self._wanted.wait()
            self._application = await trio.to_thread.run_sync(
                _undisturbed, self._load, abandon_on_cancel=True
            )
        if self._application is None:
            return
        async with self._application.serving():
            self._loaded.set()
            await self._ended.wait()

    def end(self) -> None:
        """No request is left: let `run` return, also if nothing was loaded yet."""
        self._ended.set()
        self._loading.cancel()


def _undisturbed(load: Callable[[], Application]) -> Application:
    """Load with short turns of the interpreter, and without the collector."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(min(SWITCH_S, interval))
    try:
        with frozen():
            return load()
    finally:
        sys.setswitchinterval(interval)
