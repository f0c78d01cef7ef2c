"""Memory for WebSocket messages: one bound over all sockets of a front.

    what                          bound                 above it
    messages that are not whole   `most`, less what is  the one that stands still longest ends, else the longest one
                                  asked; at least half
    asked and not answered        half of `most`        sockets that have asked read nothing more (web_socket.py)

Nobody waits for room while holding some, so there is no deadlock; and whoever stalls goes before
whoever moves, so the rest of a message that never comes keeps nobody else out. A message that comes
in one read takes no room.
"""

from __future__ import annotations

import time
from typing import Protocol

STALLED_S = 1.0  # without PROGRESS_BYTES: the slowest rate that a body is given time for
PROGRESS_BYTES = 64 * 1024


class Holder(Protocol):
    """A socket."""

    def give_up(self) -> None:
        """End, because there is no room for the message that has begun."""


class _Held:
    __slots__ = ("length", "marked", "moved_at")

    def __init__(self, now: float) -> None:
        self.length = self.marked = 0  # of the message; when it last moved
        self.moved_at = now


class MessageBudget:
    """Who holds how much. Bytes and seconds."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.unfinished = 0
        self.asked = 0
        self._held: dict[Holder, _Held] = {}

    @property
    def is_asked_full(self) -> bool:
        """Whoever has asked something waits for an answer before it is heard again."""
        return 2 * self.asked >= self.most

    def hold(self, holder: Holder, length: int) -> None:
        """The holder's unfinished message has so many bytes now. Ends those that there is no room
        for, perhaps itself.
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
        if length - held.marked >= PROGRESS_BYTES:
            held.marked, held.moved_at = length, now
        while self.unfinished + min(self.asked, self.most // 2) > self.most:
            victim = self._victim(now)
            self.release(victim)
            victim.give_up()

    def release(self, holder: Holder) -> None:
        """The holder has no unfinished message any more."""
        held = self._held.pop(holder, None)
        if held is not None:
            self.unfinished -= held.length

    def _victim(self, now: float) -> Holder:
        oldest = min(self._held, key=lambda holder: self._held[holder].moved_at)
        if now - self._held[oldest].moved_at > STALLED_S:
            return oldest
        return max(self._held, key=lambda holder: self._held[holder].length)
