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
from typing import Protocol

STALL_MAX_S = 1.0  # without PROGRESS_MIN_BYTES: below the slowest rate of a body
PROGRESS_MIN_BYTES = 64 * 1024


class Holder(Protocol):
    """A socket that holds an incomplete message."""

    def give_up(self) -> None:
        """End, because there is no memory for the rest of the message."""


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
        self._held: dict[Holder, _Held] = {}

    @property
    def is_asked_full(self) -> bool:
        """Sockets with publishes in flight must wait for answers before they are read."""
        return 2 * self.asked >= self.most

    def hold(self, holder: Holder, length: int) -> None:
        """The holder's incomplete message has so many bytes now. Ends sockets until there is room,
        perhaps the holder.
        """
        if not length:
            self.release(holder)
            return
        now = time.monotonic()
        held = self._held.get(holder)
        if held is None or length < held.length:  # another message
            self.release(holder)
            held = self._held[holder] = _Held(now)
        self.unfinished += length - held.length
        held.length = length
        if length - held.marked >= PROGRESS_MIN_BYTES:
            held.marked, held.moved_at = length, now
        while self.unfinished + min(self.asked, self.most // 2) > self.most:
            victim = self._victim(now)
            self.release(victim)
            victim.give_up()

    def release(self, holder: Holder) -> None:
        """The holder has no incomplete message any more."""
        held = self._held.pop(holder, None)
        if held is not None:
            self.unfinished -= held.length

    def _victim(self, now: float) -> Holder:
        """The socket that ends next."""
        oldest = min(self._held, key=lambda holder: self._held[holder].moved_at)
        if now - self._held[oldest].moved_at > STALL_MAX_S:
            return oldest
        return max(self._held, key=lambda holder: self._held[holder].length)
