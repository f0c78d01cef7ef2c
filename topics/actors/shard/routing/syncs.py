"""Syncs: what another shard is to name waits until this shard's log has it on the disk.

One sync serves all who wait. Another one follows after a pause: writes are slow beside a sync.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from topics.actors.shard.context import ShardContext

PAUSE_S: Final = 0.005


class Syncs:
    """Those who wait for the log of a shard."""

    def __init__(self, context: ShardContext) -> None:
        self._context = context
        self._waiting: list[tuple[int, Callable[[bool], object]]] = []
        self._is_running = False

    def is_behind(self, lsn: int) -> bool:
        """Whether the frame at ``lsn`` is not synced."""
        return lsn >= self._context.wal.synced_lsn

    def wait(self, lsn: int, then: Callable[[bool], object]) -> None:
        """Call ``then`` in a later turn, when the frame at ``lsn`` is synced or will not be."""
        self._waiting.append((lsn, then))
        if not self._is_running:
            self._is_running = True
            self._context.start(self._run)

    async def _run(self) -> None:
        context = self._context
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            context.wal.flush(sync=True, at_once=False)
            await context.commits.wait_synced(max(lsn for lsn, _ in waiting) + 1)
            context.begin_turn()
            for lsn, then in waiting:
                then(not self.is_behind(lsn))
            context.end_turn()
            await trio.sleep(PAUSE_S)
        self._is_running = False
