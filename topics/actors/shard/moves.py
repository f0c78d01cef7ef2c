"""Moves: what a shard has begun that crosses from topic to topic, or changes routers.

    enter --> under way --> leave
    hold: what would begin waits; told when nothing is under way --> release: it begins

A backup cuts the logs of all shards while no move is under way in any. So no copy is in it whose
source's end is not, and no record twice or not at all that was on its way (``decisions/0067``).
Writes of clients go on.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import trio

from topics.actors.shard.deadlines import Deadlines


class Moves:
    """The moves of one shard: forwards of routers, dead letters, redrives, changes of routers."""

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self.is_held = False
        self._under_way = 0
        self._waiting: dict[Callable[[], object], None] = {}
        self._then: Callable[[], object] | None = None

    def defer_if_held(self, begin: Callable[[], object]) -> bool:
        """Whether no move may begin: then ``begin`` is called when it may, in a turn."""
        if self.is_held:
            self._waiting[begin] = None
        return self.is_held

    async def wait_free(self) -> None:
        """Wait until a move may begin. The caller enters before it waits for anything else."""
        while self.is_held:
            freed = trio.Event()
            self.defer_if_held(freed.set)
            await freed.wait()

    def enter(self) -> None:
        """A move begins; pair it with `leave`."""
        self._under_way += 1

    def leave(self) -> None:
        """A move is over: the log has been given all of it."""
        self._under_way -= 1
        self._tell_if_quiet()

    def hold(self, then: Callable[[], object]) -> None:
        """Let no move begin before `release`; ``then`` is told in a turn when none is under way."""
        self.is_held, self._then = True, then
        self._tell_if_quiet()

    def release(self) -> None:
        """Moves may begin."""
        self.is_held, self._then = False, None
        waiting, self._waiting = self._waiting, {}
        for begin in waiting:
            self._deadlines.call_at(-math.inf, begin)

    def _tell_if_quiet(self) -> None:
        if self._then is not None and not self._under_way:
            self._deadlines.call_at(-math.inf, self._then)
            self._then = None
