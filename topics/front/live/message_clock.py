"""Message clock: the time that the rest of a WebSocket message may take to come.

It is what a body of HTTP has: `body_grace_s`, and more for every byte. Only time that the socket
waits for its client counts; while publishes wait for a shard the clock stands.
"""

from __future__ import annotations

import time

from topics.front.http.connection import NEVER, Connection


class MessageClock:
    """The clock of one socket; its message is late at ``due``."""

    def __init__(self, connection: Connection) -> None:
        self._timings = connection.timings
        self._left_s = self._timings.body_grace_s
        self.due = NEVER

    def restart(self) -> None:
        """No message has begun, or another one."""
        self._left_s = self._timings.body_grace_s

    def start_waiting(self) -> None:
        """The socket waits for the client."""
        self.due = time.monotonic() + self._left_s

    def received(self, count: int) -> None:
        """So many bytes have come."""
        left_s = self.due - time.monotonic()
        earned_s = count / self._timings.body_bytes_per_s
        self._left_s = min(left_s + earned_s, self._timings.body_grace_s)
        self.due = NEVER
