"""Liveness: measures how long a process or a disk has shown no sign of life.

A sign of life is a change of a value, such as a heartbeat. The value is compared with the previous
value, never with the clock. After the machine or all processes were suspended (Ctrl-Z), every
heartbeat is old, although no process is stalled. So one check adds at most STEP_MAX_S to the
silence, regardless of the time since the previous check.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

# Heartbeats occur twice a second. A process that has had no heartbeat for this time has stalled.
STALLED_S: Final = 3.0
# Reasons in error responses to clients.
STALLED, DISK_STALLED, DAMAGED = "stalled", "disk_stalled", "damaged"
DIRECTORY_LOST = "directory_lost"
DISK_STALLED_S: Final = 10.0  # a busy disk may take seconds for a sync
STEP_MAX_S: Final = 1.5  # maximum time that one check adds to the silence


class Liveness:
    """The liveness of one process or disk. ``silent_s``: seconds since its last sign of life."""

    def __init__(self) -> None:
        self.silent_s = 0.0
        self._value: Hashable = None
        self._observed_at = 0.0

    def observe(self, value: Hashable, now: float) -> float:
        """Store the current value. Return the number of seconds since the value last changed."""
        if value != self._value:
            self._value, self.silent_s = value, 0.0
        else:
            self.silent_s += min(now - self._observed_at, STEP_MAX_S)
        self._observed_at = now
        return self.silent_s
