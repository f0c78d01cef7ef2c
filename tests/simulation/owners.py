"""The owner of running code: the simulated process of the current task or thread."""

from __future__ import annotations

import socket
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.threads import Thread


class Process:
    """A simulated process of the server. ``is_dead`` is true from the moment of its crash on."""

    def __init__(self, name: str, pid: int) -> None:
        self.name, self.pid = name, pid
        self.is_dead = False
        self.threads: list[Thread[Any]] = []
        self.sockets: list[socket.socket] = []  # client sockets and its listener
        self.eventfds: list[int] = []
        self.dies_in = 0  # disk operations until it crashes; 0: never
        self.on_sigterm: Callable[[], object] | None = None
        self.failure: BaseException | None = None  # an exception that it should not raise
        self.wait_status: int | None = None  # set when the process can be reaped
        self.ended = trio.Event()

    def thread_failed(self, error: BaseException) -> None:
        """Record that a thread has raised an exception, which terminates the process."""
        if not self.is_dead:
            self.failure = self.failure or error

    def __repr__(self) -> str:
        return f"<{self.name}, pid {self.pid}>"


_CURRENT: ContextVar[Process | None] = ContextVar("process", default=None)


def current() -> Process | None:
    """Return the process whose code runs, or None for code of the world."""
    return _CURRENT.get()


def enter(process: Process | None) -> Any:
    """Switch to this process. Return a token for `leave`."""
    return _CURRENT.set(process)


def leave(token: Any) -> None:
    """Switch back to the process before `enter`."""
    _CURRENT.reset(token)
