"""Drain: the stop of a server, in phases that never go back.

    RUNNING ──stop──▶ FRONT   draining is set, SIGTERM to the front
                        │     it has ended, or 8/10 of drain_ms have passed
                        ▼
                      SHARDS  SIGTERM to the shards
                        │     all ended ─▶ over; drain_ms have passed:
                        ▼
                      KILL    SIGKILL to those that are left ─▶ over

Shards go last, because the front answers what was asked before the stop.
"""

from __future__ import annotations

import math
import signal
import time
from enum import IntEnum

import structlog

from topics.process.family import Family, Shared

FRONT_SHARE = 0.8  # of drain_ms; the rest belongs to the shards
# What a stop may take beyond drain_ms, for the kernel to clear away what was killed.
STOP_EXTENSION_MS = 5_000

log = structlog.get_logger()


class Phase(IntEnum):
    """See the picture above."""

    RUNNING = 0
    FRONT = 1
    SHARDS = 2
    KILL = 3


class Drain:
    """The phase of a server, and what comes next."""

    def __init__(self, family: Family, shared: Shared, drain_ms: int) -> None:
        self.phase = Phase.RUNNING
        self._family = family
        self._shared = shared
        self._drain_ms = drain_ms
        self._began_at = math.inf

    @property
    def is_over(self) -> bool:
        """The stop has come to its end: no child is left."""
        return self.phase >= Phase.SHARDS and not self._family.alive()

    @property
    def next_at(self) -> float:
        """When the phase ends by itself, in seconds of the monotonic clock; infinite if never."""
        if self.phase in (Phase.RUNNING, Phase.KILL):
            return math.inf
        share = FRONT_SHARE if self.phase is Phase.FRONT else 1.0
        return self._began_at + share * self._drain_ms / 1000

    def begin(self) -> None:
        """Stop the server; one that is stopping already goes on."""
        if self.phase is not Phase.RUNNING:
            return
        self.phase = Phase.FRONT
        self._began_at = time.monotonic()
        self._shared.board.draining = True
        notifier = self._shared.notifier
        notifier.stopping()
        notifier.extend_timeout(self._drain_ms + STOP_EXTENSION_MS)
        notifier.status("draining")
        # No front starts any more: when this one has ended, connections are refused.
        self._shared.listener.close()
        self._family.send(signal.SIGTERM, [self._family.front])

    def kill(self) -> None:
        """End everything now."""
        self.phase = Phase.KILL
        self._family.kill_all()

    def advance(self) -> None:
        """Enter the next phase when this one is done, or its time is up."""
        if self.phase is Phase.FRONT and (not self._family.front.pid or self._is_due()):
            self.phase = Phase.SHARDS
            self._family.send(signal.SIGTERM, self._family.shards)
        if self.phase is Phase.SHARDS and self._is_due():
            self.phase = Phase.KILL
            if left := [child.name for child in self._family.alive()]:
                log.error("drain time over, killing", children=left, drain_ms=self._drain_ms)
            self._family.send(signal.SIGKILL, self._family)

    def _is_due(self) -> bool:
        return time.monotonic() >= self.next_at
