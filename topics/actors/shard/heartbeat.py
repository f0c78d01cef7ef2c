"""Heartbeat: the shard's sign of life on the board, twice a second."""

from __future__ import annotations

import time

import trio

from topics.actors.shard.context import ShardContext
from topics.actors.shard.service import Service
from topics.process import logs

HEARTBEAT_S = 0.5


class Heartbeat(Service):
    """Tells the board that the loop lives, how many topics there are and how the disk is. Each beat
    sweeps idempotency keys that are over.
    """

    def __init__(self, context: ShardContext) -> None:
        self._context = context

    async def run(self) -> None:
        """Beat from now on."""
        self._context.deadlines.call_every(HEARTBEAT_S, self.beat)

    def beat(self) -> None:
        """One sign of life."""
        words = self._context.words
        words.heartbeat_ms = time.monotonic_ns() // 1_000_000
        words.topics = len(self._context.engine.topics)
        self._context.disk.look(trio.current_time())
        for topic in self._context.engine.sweep_keys(self._context.now):
            self._context.note_changed(topic)
        logs.tell_dropped()
