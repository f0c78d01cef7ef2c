"""Limits of one client among others (§11): requests in flight, streams and connections.

    what          cap in all                    cap for each key                    taken by
    requests      -                             TOPICS_MAX_INFLIGHT_PER_KEY         the guard
    streams       TOPICS_MAX_SSE_CONNECTIONS    TOPICS_MAX_SSE_CONNECTIONS_PER_KEY  live
    sessions      TOPICS_MAX_WATCH_SESSIONS     TOPICS_MAX_WATCH_SESSIONS_PER_KEY   watches
    connections   descriptors of this process   -                                   the acceptor

All of them take and release slots through one interface, `Slots`. The numbers are `Count`s.
`make_slots` chooses where they are stored: in this process, or in the limits ledger
(`topics.actors.link.ledger`), through which several fronts share a cap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

from topics.actors.link.ledger import KeyLimit, Limit, LimitsLedger
from topics.config import Settings
from topics.engine.access import ANYONE, Principal
from topics.errors import Throttled
from topics.front.errors import RETRY_AFTER_MS


class Count(Protocol):
    """One number. ``most`` 0 means no cap."""

    def take(self, most: int, amount: int = 1) -> bool:
        """Count ``amount`` more; False, and nothing is counted, when the sum would exceed
        ``most``.
        """

    def give_back(self, amount: int = 1) -> None:
        """Count ``amount`` less."""

    def total(self) -> int:
        """The sum over all processes that share the number."""


class OwnCount:
    """A number that no other process shares."""

    __slots__ = ("_value",)

    def __init__(self) -> None:
        self._value = 0

    def take(self, most: int, amount: int = 1) -> bool:
        """As `Count.take`."""
        if most and self._value + amount > most:
            return False
        self._value += amount
        return True

    def give_back(self, amount: int = 1) -> None:
        """As `Count.give_back`."""
        assert self._value >= amount, "only what was taken is given back"
        self._value -= amount

    def total(self) -> int:
        """As `Count.total`."""
        return self._value


class Cap(NamedTuple):
    """A cap and the name that clients and operators know it by; ``most`` 0: no cap."""

    name: str
    most: int


class Slots:
    """Slots for one kind of thing, in all and for each key. `ANYONE` has no cap of its own."""

    def __init__(
        self,
        message: str,
        *,
        in_all: Cap | None = None,
        per_key: Cap | None = None,
        retry_after_ms: int | None = RETRY_AFTER_MS,
        count: Count | None = None,
        count_of_key: Callable[[int], Count] | None = None,
    ) -> None:
        """``message`` names what is too many; ``retry_after_ms`` None: not in the detail."""
        self.in_all, self.per_key = in_all, per_key
        self._message, self._retry_after_ms = message, retry_after_ms
        self._count = OwnCount() if count is None else count
        self._count_of_key = count_of_key or _own_count
        self._by_slot: dict[int, Count] = {}

    @property
    def used(self) -> int:
        """How many slots are taken; counted only where there is a cap ``in_all``."""
        return self._count.total()

    def used_by(self, principal: Principal) -> int:
        """How many slots a key has taken; counted only where there is a cap ``per_key``."""
        return self._of_key(principal).total()

    def acquire(self, principal: Principal = ANYONE) -> None:
        """Take a slot; pair it with `release`. Raises `Throttled` when there is none."""
        in_all, per_key = self.in_all, self.per_key
        if in_all is not None and not self._count.take(in_all.most):
            raise self._throttled(in_all)
        if per_key is None or principal is ANYONE or self._of_key(principal).take(per_key.most):
            return
        if in_all is not None:
            self._count.give_back()
        raise self._throttled(per_key)

    def check(self, principal: Principal = ANYONE, *, leaving: int = 0) -> None:
        """Raises `Throttled` when there is no slot even after ``leaving`` of the key's are
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
        """Take a slot that `check` has just found."""
        if self.in_all is not None:
            self._count.take(0)
        if self.per_key is not None and principal is not ANYONE:
            self._of_key(principal).take(0)

    def release(self, principal: Principal = ANYONE) -> None:
        """Give a slot back."""
        if self.in_all is not None:
            self._count.give_back()
        if self.per_key is not None and principal is not ANYONE:
            self._of_key(principal).give_back()

    def failure(self) -> Throttled:
        """The failure of a thing that finds no slot in all."""
        assert self.in_all is not None, "without a cap there is always a slot"
        return self._throttled(self.in_all)

    def _of_key(self, principal: Principal) -> Count:
        count = self._by_slot.get(principal.slot)
        if count is None:
            count = self._by_slot[principal.slot] = self._count_of_key(principal.slot)
        return count

    def _throttled(self, cap: Cap) -> Throttled:
        retry = {} if self._retry_after_ms is None else {"retry_after_ms": self._retry_after_ms}
        return Throttled(self._message, limit=cap.name, max=cap.most, **retry)


@dataclass(frozen=True, slots=True)
class FrontSlots:
    """The slots of one front."""

    requests: Slots
    streams: Slots
    watch_sessions: Slots
    connections: Slots


def make_slots(
    settings: Settings, connections_max: int, ledger: LimitsLedger | None = None
) -> FrontSlots:
    """Slots with the caps of the settings. Fronts with one ledger share the caps; without a ledger
    a front counts alone.
    """

    def in_all(limit: Limit) -> Count:
        return OwnCount() if ledger is None else ledger.of_server(limit)

    def of_key(limit: KeyLimit) -> Callable[[int], Count]:
        return _own_count if ledger is None else partial(ledger.of_key, limit)

    return FrontSlots(
        requests=Slots(
            "this key has too many requests in flight",
            per_key=Cap("max_inflight_per_key", settings.max_inflight_per_key),
            count_of_key=of_key(KeyLimit.REQUESTS_IN_FLIGHT),
            retry_after_ms=None,
        ),
        streams=Slots(
            "there are too many streams and sockets",
            in_all=Cap("max_sse_connections", settings.max_sse_connections),
            count=in_all(Limit.SSE_CONNECTIONS),
            per_key=Cap("max_sse_connections_per_key", settings.max_sse_connections_per_key),
            count_of_key=of_key(KeyLimit.SSE_CONNECTIONS),
        ),
        watch_sessions=Slots(
            "there are too many watch sessions",
            in_all=Cap("max_watch_sessions", settings.max_watch_sessions),
            count=in_all(Limit.WATCH_SESSIONS),
            per_key=Cap("max_watch_sessions_per_key", settings.max_watch_sessions_per_key),
            count_of_key=of_key(KeyLimit.WATCH_SESSIONS),
        ),
        connections=Slots(
            "there are too many connections", in_all=Cap("max_connections", connections_max)
        ),
    )


def _own_count(_slot: int) -> Count:
    return OwnCount()
