"""Whose code runs: the simulated process of the running task or thread."""

from __future__ import annotations

import socket
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.threads import Thread


class Process:
    """A process of the server under test; ``is_dead`` from the moment of its death on."""

    def __init__(self, name: str, pid: int) -> None:
        self.name, self.pid = name, pid
        self.is_dead = False
        self.threads: list[Thread[Any]] = []
        self.sockets: list[socket.socket] = []  # clients, and its listener
        self.eventfds: list[int] = []
        self.dies_in = 0  # operations of the disk; 0: not by one
        self.on_sigterm: Callable[[], object] | None = None
        self.failure: BaseException | None = None  # what it must not raise
        self.wait_status: int | None = None  # once it can be reaped
        self.ended = trio.Event()

    def thread_failed(self, error: BaseException) -> None:
        """One of its threads has raised, which ends the process."""
        if not self.is_dead:
            self.failure = self.failure or error

    def __repr__(self) -> str:
        return f"<{self.name}, pid {self.pid}>"


_CURRENT: ContextVar[Process | None] = ContextVar("process", default=None)


def current() -> Process | None:
    """The process whose code runs; None: the world's."""
    return _CURRENT.get()


def enter(process: Process | None) -> Any:
    """From now on code of this process runs; what `leave` takes."""
    return _CURRENT.set(process)


def leave(token: Any) -> None:
    """Whoever ran before `enter` goes on."""
    _CURRENT.reset(token)
