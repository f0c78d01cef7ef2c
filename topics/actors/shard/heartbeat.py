"""Heartbeat: the shard's sign of life on the board, twice a second."""

from __future__ import annotations

import time

import trio

from topics.actors.link.board import ShardWords
from topics.actors.shard.disk_watch import DiskWatch
from topics.engine.shard import ShardEngine
from topics.process import logs

HEARTBEAT_S = 0.5


class Heartbeat:
    """Tells the board that the loop lives, how many topics there are and how the disk is."""

    def __init__(self, engine: ShardEngine, disk: DiskWatch, words: ShardWords) -> None:
        self._engine, self._disk, self._words = engine, disk, words

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            self.beat()
            await trio.sleep(HEARTBEAT_S)

    def beat(self) -> None:
        """One sign of life."""
        self._words.heartbeat_ms = time.monotonic_ns() // 1_000_000
        self._words.topics = len(self._engine.topics)
        self._disk.look(trio.current_time())
        logs.tell_dropped()
