"""Arena reader: the consumer's end of an arena, which keeps account of the views it reads from.

A received block is held until the reader releases it. A holder that may take long leaves a
callback; it is called when a session waits for the half of the block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from topics.actors.link.arena_memory import ArenaMemory

_Held: TypeAlias = tuple[memoryview, int, int]  # view, offset, length


class ArenaReader:
    """The blocks that were received and not yet released."""

    __slots__ = ("_held", "_memory", "_on_lost", "_view", "session")

    def __init__(self, memory: ArenaMemory) -> None:
        self._memory = memory
        self._view = memory.view.toreadonly()
        # By half, then by id of the view, which cannot be another's while it is kept here.
        self._held: tuple[dict[int, _Held], dict[int, _Held]] = ({}, {})
        self._on_lost: dict[int, Callable[[], object]] = {}  # by id of the view, too
        self.session = 0

    def is_used(self, session: int) -> bool:
        """Somebody here still reads a block in the half that ``session`` would use."""
        return bool(self._held[session & 1])

    def begin(self, session: int) -> None:
        """Go on with ``session``. Not while ``is_used(session)``. The half of the session that is
        over goes back to the system if nobody reads it.
        """
        assert not self.is_used(session), "nobody reads in a half that is written anew"
        self.session = session
        if not self.is_used(session + 1):
            self._give_back(session + 1)

    @property
    def held(self) -> int:
        """Blocks that were received and not yet released, of the session before too."""
        return len(self._held[0]) + len(self._held[1])

    def open(self, offset: int, length: int) -> memoryview | None:
        """The block of a received message, read-only; held until ``release``. None when it lies
        outside the session's half.
        """
        start = self._memory.base(self.session)
        if offset < start or offset + length > start + self._memory.half_bytes:
            return None
        view = self._view[offset : offset + length]
        self._held[self.session & 1][id(view)] = (view, offset, length)
        return view

    def on_lost(self, view: memoryview, release: Callable[[], object]) -> None:
        """``release`` is called, once, when a session waits for the memory of ``view``."""
        if any(id(view) in half for half in self._held):
            self._on_lost[id(view)] = release

    def reclaim(self, session: int) -> None:
        """Ask those who hold up ``session`` and can be asked to release their blocks."""
        for view in [*self._held[session & 1]]:
            if (release := self._on_lost.pop(view, None)) is not None:
                release()

    def release(self, view: memoryview) -> tuple[int, int] | None:
        """Nobody here reads from ``view`` any more.

        Returns its offset and length for the RELEASE message; None when its session is over, or it
        was released before.
        """
        half = self.session & 1
        self._on_lost.pop(id(view), None)
        if (block := self._held[half].pop(id(view), None)) is not None:
            return block[1:]
        left = self._held[1 - half]
        if left.pop(id(view), None) is not None and not left:
            self._give_back(half + 1)
        return None

    def _give_back(self, session: int) -> None:
        # The session of that half is over, and the next one there waits for this end: no process
        # writes in it now.
        self._memory.give_back(self._memory.base(session), self._memory.half_bytes)
