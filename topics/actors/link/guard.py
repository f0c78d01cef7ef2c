"""Link guard: one timer for all links of a process.

The fences of `topics.actors.link.ring` make lost wake-ups impossible. The guard proves that: each
GUARD_S it visits every link, mends what it finds, and the link counts it (`late_bells`).
"""

from __future__ import annotations

from typing import Final, Protocol

import trio

GUARD_S: Final = 0.050


class Guarded(Protocol):
    """What the guard visits."""

    def check(self) -> None:
        """Flush what nobody flushed; wake a sleeper whose bell was lost."""

    def trim(self) -> bool:
        """Give a portion of unused memory back to the system; whether there is more."""


class Guard:
    """The timer of one trio run."""

    def __init__(self) -> None:
        self.links: set[Guarded] = set()

    @classmethod
    def of_this_run(cls) -> Guard:
        """The guard of the running trio loop; started with its first link."""
        try:
            return _GUARD.get()
        except LookupError:
            guard = cls()
            _GUARD.set(guard)
            trio.lowlevel.spawn_system_task(guard.run)
            return guard

    async def run(self) -> None:
        """Visit every link each GUARD_S. Other tasks run between two portions of memory."""
        while True:
            await trio.sleep(GUARD_S)
            for link in tuple(self.links):
                link.check()
                while link.trim():
                    await trio.lowlevel.checkpoint()


_GUARD: trio.lowlevel.RunVar[Guard] = trio.lowlevel.RunVar("topics link guard")
