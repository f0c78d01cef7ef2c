"""Pulse: measures for how long a process, or a disk, has shown no sign of life.

A sign is any value that changes, such as a heartbeat. It is compared with the last sign, never with
the clock. After the machine or all processes were suspended (Ctrl-Z), every heartbeat is old,
although no process is stalled. So one check adds at most LOOK_MAX_S to the silence, regardless of
the time since the previous check.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

# Heartbeats occur twice a second. A process without one for this time is stalled.
STALLED_S: Final = 3.0
# Reasons in error responses to clients.
STALLED, DISK_STALLED, DAMAGED = "stalled", "disk_stalled", "damaged"
DIRECTORY_LOST = "directory_lost"
DISK_STALLED_S: Final = 10.0  # a busy disk may take seconds for a sync
STEP_MAX_S: Final = 1.5  # the longest silence that one check adds


class Liveness:
    """The pulse of one process or disk. ``silent_s``: seconds without a sign of life."""

    def __init__(self) -> None:
        self.silent_s = 0.0
        self._value: Hashable = None
        self._observed_at = 0.0

    def observe(self, value: Hashable, now: float) -> float:
        """Store the current sign. Return the number of seconds without a change."""
        if value != self._value:
            self._value, self.silent_s = value, 0.0
        else:
            self.silent_s += min(now - self._observed_at, STEP_MAX_S)
        self._observed_at = now
        return self.silent_s
