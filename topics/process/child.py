"""A child process as the supervisor sees it: signs of life, and when it is started again.

               fork                serves            30 s of service
    WAITING ──────────▶ STARTED ─────────────▶ UP ───────────────────▶ UP, clean record
       ▲                   │                    │                          │
       └── back-off ◀──────┴──────── death ◀────┴──────────────────────────┘

The first restart comes at once, the next after 0.1 s, doubling up to 5 s, until a child has served
for HEALTHY_S. A child that is damaged is never due again.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from topics.actors.link.board import Board, ShardWords
from topics.actors.link.process_id import ProcessId
from topics.actors.link.pulse import Pulse

HEALTHY_S = 30.0  # a child that has served so long starts again with a clean record
BACKOFF_FIRST_S = 0.1
BACKOFF_MAX_S = 5.0
FAILURES_MAX = 16  # counted in a row; the back-off is at its maximum long before
UP_STATES = frozenset({"READY", "READ_ONLY", "NO_ROOM", "SERVING"})


class Child:
    """One process id; processes come and go under it. Times are seconds of the monotonic clock."""

    def __init__(self, id: ProcessId, board: Board, main: Callable[[], None]) -> None:
        self.id = id
        self.name = str(id)
        self.words = board.process(id)
        self.main = main
        self.pid = 0
        self.due = 0.0  # when to fork it, if it is not there
        self.failures = 0  # deaths in a row
        self.spawned_at = 0.0
        self.up_at = math.inf  # when it was first seen to serve
        self.pulse = Pulse()
        self._heartbeat_ms_before = 0  # of its predecessor
        self.is_stalled = False  # and that has been logged
        self.is_condemned = False  # it was killed for it and is still there
        self.is_damaged = False  # it found data that cannot be trusted, and is not started again

    @property
    def is_up(self) -> bool:
        """A shard that answers, if only reads, or the front, when it serves."""
        return self.words.state.name in UP_STATES

    @property
    def has_beaten(self) -> bool:
        """Its heart has beaten since the fork; before, it imports."""
        return self.words.heartbeat_ms != self._heartbeat_ms_before

    def begin(self, now: float) -> None:
        """It is forked now."""
        self.spawned_at, self.up_at = now, math.inf
        self._heartbeat_ms_before = self.words.heartbeat_ms
        self.is_stalled = self.is_condemned = False
        self.words.spawns += 1

    def watch(self, now: float) -> float:
        """Look for a heartbeat or progress of the replay; for how many seconds there was none."""
        words = self.words
        if self.is_up:
            self.up_at = min(self.up_at, now)
        sign = [words.spawns, words.heartbeat_ms, words.state]
        if isinstance(words, ShardWords):
            # The second, because it grows while the loop itself hangs in the disk.
            sign += words.progress_ppm, words.disk_silent_ms
        return self.pulse.look(tuple(sign), now)

    def schedule(self, now: float) -> float:
        """Plan the restart after a death; the delay in seconds."""
        if now - self.up_at >= HEALTHY_S:
            self.failures = 0
        delay = 0.0
        if self.failures:
            delay = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2.0 ** (self.failures - 1))
        self.failures = min(self.failures + 1, FAILURES_MAX)
        self.due = now + delay
        return delay
