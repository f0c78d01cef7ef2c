"""Message budget: memory for WebSocket messages, one bound over all sockets of a front.

    what                            bound                     above it
    incomplete messages             `most`, less what is in   the one that has stalled longest ends,
                                    flight; at least half     else the longest one
    publishes in flight, unanswered half of `most`            sockets with publishes in flight are
                                                              not read (web_socket_publish.py)

No socket waits for memory while it holds some, so there is no deadlock. A message that stalls ends
before one that moves, so clients that never complete a message keep nobody out. A message that
comes in one read is not counted.
"""

from __future__ import annotations

import time

from topics.front.live.streams import Stream

STALL_MAX_S = 1.0  # without PROGRESS_MIN_BYTES: below the slowest rate of a body
PROGRESS_MIN_BYTES = 64 * 1024
NO_ROOM = "there is no room for the rest of this message; try again later"


class _Held:
    """An incomplete message; its length was ``marked`` when it made progress at ``moved_at``."""

    __slots__ = ("length", "marked", "moved_at")

    def __init__(self, now: float) -> None:
        self.length = self.marked = 0
        self.moved_at = now


class MessageBudget:
    """Which socket holds how many bytes."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.unfinished = 0  # bytes of incomplete messages
        self.asked = 0  # bytes of publishes in flight
        self._held: dict[Stream, _Held] = {}

    @property
    def is_asked_full(self) -> bool:
        """Sockets with publishes in flight must wait for answers before they are read."""
        return 2 * self.asked >= self.most

    def hold(self, stream: Stream, length: int) -> None:
        """The socket's incomplete message has so many bytes now. Ends sockets until there is room,
        perhaps this one.
        """
        if not length:
            self.release(stream)
            return
        now = time.monotonic()
        held = self._held.get(stream)
        if held is None or length < held.length:  # another message
            self.release(stream)
            held = self._held[stream] = _Held(now)
        self.unfinished += length - held.length
        held.length = length
        if length - held.marked >= PROGRESS_MIN_BYTES:
            held.marked, held.moved_at = length, now
        while self.unfinished + min(self.asked, self.most // 2) > self.most:
            victim = self._victim(now)
            self.release(victim)
            victim.fail(429, NO_ROOM)

    def release(self, stream: Stream) -> None:
        """The socket has no incomplete message any more."""
        held = self._held.pop(stream, None)
        if held is not None:
            self.unfinished -= held.length

    def _victim(self, now: float) -> Stream:
        """The socket that ends next."""
        oldest = min(self._held, key=lambda stream: self._held[stream].moved_at)
        if now - self._held[oldest].moved_at > STALL_MAX_S:
            return oldest
        return max(self._held, key=lambda stream: self._held[stream].length)
