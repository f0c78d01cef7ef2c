"""Stepping: a coroutine that runs without a trio task, except while it needs one.

    driver --send--> coroutine --a command--> driver
                        READ      resume it when its socket is readable
                        ANSWER    resume it with the answer of its call (`Driver.answered`)
                        TASK      resume it in a trio task, where all of trio works
                        STEPS     the task is not needed any more: the driver goes on

A task costs more than most requests: it is made, scheduled and told of each event. A coroutine that
only waits for its socket and for answers of shards is resumed by the code that sees these come.

A stepped coroutine must call `in_task` before it waits for trio or enters a scope of trio's: both
would take hold of the task that happens to resume it. In a task of its own `in_task` does nothing.
"""

from __future__ import annotations

import types
from collections.abc import Generator
from enum import Enum, auto
from typing import Any, Final, Protocol

import trio


class Command(Enum):
    """What a coroutine asks of its driver."""

    READ = auto()
    ANSWER = auto()
    TASK = auto()
    STEPS = auto()


class Driver(Protocol):
    """Who resumes a coroutine."""

    def answered(self, answer: Any) -> None:
        """The answer of its call has come: resume the coroutine with it."""

    def failed(self, error: Exception) -> None:
        """Its call has failed: raise the error in the coroutine."""


class Stepping:
    """``driver``: of the coroutine that is being stepped now; None inside a task."""

    __slots__ = ("driver",)

    def __init__(self) -> None:
        self.driver: Driver | None = None


NOW: Final = Stepping()


@types.coroutine
def command(which: Command) -> Generator[Command, Any, Any]:
    """Stop here; returns what the driver resumes the coroutine with."""
    return (yield which)


async def in_task() -> None:
    """Go on in a trio task, until `in_steps`."""
    if NOW.driver is not None:
        await command(Command.TASK)


async def in_steps() -> None:
    """Go on without a task. Only for a coroutine that has a driver, outside of trio's scopes."""
    if NOW.driver is None:
        await command(Command.STEPS)


async def wait_readable(fd: int) -> None:
    """Wait for input, or for the end of it; ``fd`` is the socket that the driver watches."""
    if NOW.driver is None:
        await trio.lowlevel.wait_readable(fd)
    else:
        await command(Command.READ)
