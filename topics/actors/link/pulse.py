"""Signs of life, by the clock of a watcher who may have stood still himself.

Heartbeats are compared with what the watcher saw last, never with his clock: after a suspended
machine, or a stop of all processes with Ctrl-Z, every heartbeat is old, and nobody is to blame. So
a look counts for little, however long ago the last one was.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

STALLED_S: Final = 3.0  # heartbeats come twice a second; who shows none for so long is stalled
# Reasons that a client is told.
STALLED, DISK_STALLED, DAMAGED = "stalled", "disk_stalled", "damaged"
DISK_STALLED_S: Final = 10.0  # a busy disk may take seconds for a sync
LOOK_MAX_S: Final = 1.5  # what one look counts for at most


class Pulse:
    """Of one process, or of what it waits for.

    ``silent_s``: how long it has shown no sign of life.
    """

    def __init__(self) -> None:
        self.silent_s = 0.0
        self._sign: Hashable = None
        self._looked_at = 0.0

    def look(self, sign: Hashable, now: float) -> float:
        """See a sign; for how many seconds there has been none that differs from the one before."""
        if sign != self._sign:
            self._sign, self.silent_s = sign, 0.0
        else:
            self.silent_s += min(now - self._looked_at, LOOK_MAX_S)
        self._looked_at = now
        return self.silent_s
