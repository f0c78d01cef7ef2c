"""Moves: operations of a shard that affect several topics, or that change routers.

    enter --> in flight --> leave
    hold: new moves wait; `then` is called when no move is in flight --> release: they begin

A backup cuts the logs of all shards while no move is in flight in any shard. So the backup contains
a moved record exactly once, in the source or in the target (``decisions/0067``). Writes from
clients continue.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import trio

from topics.actors.shard.deadlines import Deadlines


class Moves:
    """The moves of one shard: router forwards, dead letters, redrives and router changes."""

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self.is_held = False
        self._in_flight = 0
        self._waiting: dict[Callable[[], object], None] = {}
        self._then: Callable[[], object] | None = None

    def defer_if_held(self, begin: Callable[[], object]) -> bool:
        """Return whether moves are held. If they are, call ``begin`` later, in an iteration."""
        if self.is_held:
            self._waiting[begin] = None
        return self.is_held

    async def wait_free(self) -> None:
        """Wait until a move may begin.

        The caller must call `enter` before it waits for anything else.
        """
        while self.is_held:
            freed = trio.Event()
            self.defer_if_held(freed.set)
            await freed.wait()

    def enter(self) -> None:
        """Count a move that begins. Each call needs a matching `leave`."""
        self._in_flight += 1

    def leave(self) -> None:
        """Count a move as ended. All its changes must have been submitted to the log."""
        self._in_flight -= 1
        self._notify_if_idle()

    def hold(self, then: Callable[[], object]) -> None:
        """Stop new moves until `release`.

        ``then`` is called in an iteration when no move is in flight.
        """
        self.is_held, self._then = True, then
        self._notify_if_idle()

    def release(self) -> None:
        """Allow moves, and begin the waiting moves."""
        self.is_held, self._then = False, None
        waiting, self._waiting = self._waiting, {}
        for begin in waiting:
            self._deadlines.call_at(-math.inf, begin)

    def _notify_if_idle(self) -> None:
        if self._then is not None and not self._in_flight:
            self._deadlines.call_at(-math.inf, self._then)
            self._then = None
