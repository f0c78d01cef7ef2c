"""Limits on clients (§11): requests in flight, streams, watch sessions and connections.

    kind          total cap                     cap per key                         acquired by
    requests      -                             TOPICS_MAX_INFLIGHT_PER_KEY         Guard
    streams       TOPICS_MAX_SSE_CONNECTIONS    TOPICS_MAX_SSE_CONNECTIONS_PER_KEY  Live
    sessions      TOPICS_MAX_WATCH_SESSIONS     TOPICS_MAX_WATCH_SESSIONS_PER_KEY   Watches
    connections   file descriptor limit         -                                   Acceptor

Each row is an instance of `Slots`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from topics.config import Settings
from topics.engine.access import ANYONE, Principal
from topics.errors import Throttled
from topics.front.error_answers import RETRY_AFTER_MS


class Cap(NamedTuple):
    """A cap, with its name in error responses. If ``most`` is 0, there is no cap."""

    name: str
    most: int


class Slots:
    """The slots of one kind, with a total cap and a cap for each key.

    `ANYONE` has no cap of its own.
    """

    def __init__(
        self,
        message: str,
        *,
        in_all: Cap | None = None,
        per_key: Cap | None = None,
        retry_after_ms: int | None = RETRY_AFTER_MS,
    ) -> None:
        """``message`` is the text of the error.

        If ``retry_after_ms`` is None, it is not a member of the error's detail.
        """
        self.in_all, self.per_key = in_all, per_key
        self._message, self._retry_after_ms = message, retry_after_ms
        self.used = 0  # slots used by all principals, including ANYONE
        self._by_key: dict[bytes, int] = {}  # number of used slots, by key digest

    def used_by(self, principal: Principal) -> int:
        """Return the number of slots that a key uses."""
        return self._by_key.get(principal.digest, 0)

    @property
    def is_full(self) -> bool:
        """Whether the total cap is reached."""
        return self.in_all is not None and 0 < self.in_all.most <= self.used

    def acquire(self, principal: Principal = ANYONE) -> None:
        """Acquire a slot.

        The caller must call `release` afterwards. Raise `Throttled` if none is free.
        """
        self.check(principal)
        self.add(principal)

    def check(self, principal: Principal = ANYONE, *, leaving: int = 0) -> None:
        """Raise `Throttled` if no slot is free even after ``leaving`` slots of the key are
        released.
        """
        in_all, per_key = self.in_all, self.per_key
        if in_all is not None and 0 < in_all.most <= self.used - leaving:
            raise self._throttled(in_all)
        if per_key is None or principal is ANYONE:
            return
        if 0 < per_key.most <= self.used_by(principal) - leaving:
            raise self._throttled(per_key)

    def add(self, principal: Principal) -> None:
        """Acquire a slot that `check` has just found free."""
        self.used += 1
        if principal is not ANYONE:
            self._by_key[principal.digest] = self.used_by(principal) + 1

    def release(self, principal: Principal = ANYONE) -> None:
        """Release a slot."""
        assert self.used, "only used slots are released"
        self.used -= 1
        if principal is not ANYONE:
            left = self._by_key.pop(principal.digest) - 1
            if left:
                self._by_key[principal.digest] = left

    def failure(self) -> Throttled:
        """Return the error for the total cap."""
        assert self.in_all is not None, "without a cap there is always a slot"
        return self._throttled(self.in_all)

    def _throttled(self, cap: Cap) -> Throttled:
        retry = {} if self._retry_after_ms is None else {"retry_after_ms": self._retry_after_ms}
        return Throttled(self._message, limit=cap.name, max=cap.most, **retry)


@dataclass(frozen=True, slots=True)
class FrontSlots:
    """One `Slots` for each row of the table above."""

    requests: Slots
    streams: Slots
    watch_sessions: Slots
    connections: Slots


def make_slots(settings: Settings, connections_max: int) -> FrontSlots:
    """Return slots with the caps from the settings."""
    return FrontSlots(
        requests=Slots(
            "this key has too many requests in flight",
            per_key=Cap("max_inflight_per_key", settings.max_inflight_per_key),
            retry_after_ms=None,
        ),
        streams=Slots(
            "there are too many streams and sockets",
            in_all=Cap("max_sse_connections", settings.max_sse_connections),
            per_key=Cap("max_sse_connections_per_key", settings.max_sse_connections_per_key),
        ),
        watch_sessions=Slots(
            "there are too many watch sessions",
            in_all=Cap("max_watch_sessions", settings.max_watch_sessions),
            per_key=Cap("max_watch_sessions_per_key", settings.max_watch_sessions_per_key),
        ),
        connections=Slots(
            "there are too many connections", in_all=Cap("max_connections", connections_max)
        ),
    )
