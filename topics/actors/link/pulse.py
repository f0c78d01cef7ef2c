"""Pulse: for how long a process, or a disk, has shown no sign of life.

A sign is any value that changes, such as a heartbeat. It is compared with the one seen last, never
with the clock: after a suspended machine, or a stop of all processes (Ctrl-Z), every heartbeat is
old, and no process is to blame. So one look counts for LOOK_MAX_S at most, however long ago the
last one was.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

STALLED_S: Final = 3.0  # heartbeats come twice a second; without one for so long it is stalled
# Reasons in answers to clients.
STALLED, DISK_STALLED, DAMAGED = "stalled", "disk_stalled", "damaged"
DIRECTORY_LOST = "directory_lost"
DISK_STALLED_S: Final = 10.0  # a busy disk may take seconds for a sync
LOOK_MAX_S: Final = 1.5  # the longest silence that one look adds


class Pulse:
    """The pulse of one process, or of what it waits for. ``silent_s``: without a sign of life."""

    def __init__(self) -> None:
        self.silent_s = 0.0
        self._sign: Hashable = None
        self._looked_at = 0.0

    def look(self, sign: Hashable, now: float) -> float:
        """Note the sign of now; for how many seconds it has not changed."""
        if sign != self._sign:
            self._sign, self.silent_s = sign, 0.0
        else:
            self.silent_s += min(now - self._looked_at, LOOK_MAX_S)
        self._looked_at = now
        return self.silent_s
