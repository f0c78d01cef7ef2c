"""Which handlers a subject has: the policy for subjects (ADR 011 §3), the registrations of one
scope (the ``Router`` of §1), and what matches a subject (§4).
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

from topics.formats.wire.envelope import EVENT_PREFIX, RPC_PREFIX

SubjectKind: TypeAlias = Literal["rpc", "event", "custom", "reserved"]
Mode: TypeAlias = Literal["exclusive", "broadcast"]
# Given a `topics.actors.rpc.inbound.InboundMessage`.
MessageHandler: TypeAlias = Callable[[Any], Awaitable[None] | None]
Unsubscribe: TypeAlias = Callable[[], None]

KINDS: Final = frozenset(get_args(SubjectKind))
MODES: Final = frozenset(get_args(Mode))

DEFAULT_MODES: Final[dict[SubjectKind, Mode]] = {
    "rpc": "exclusive",
    "event": "broadcast",
    "custom": "broadcast",
}
"""The mode of a registration that names none. Nothing is ever delivered for ``reserved``."""

EXACT_RANK: Final = sys.maxsize


@dataclass(frozen=True, slots=True)
class SubjectPolicy:
    """Checks a subject's prefix: reserved first, then allowed; then ``classify`` gives the kind.

    A subject under a reserved prefix is refused with 1003 even when an allowed prefix covers it
    too, one under no allowed prefix with 1002. ``classify`` sees only subjects that passed both.
    Without it ``rpc/`` is rpc, ``event/`` is event and everything else custom. Messages of kind rpc
    must carry a valid envelope, whatever their prefix.
    """

    allowed_prefixes: tuple[str, ...] = (RPC_PREFIX, EVENT_PREFIX, "stream/", "app/")
    reserved_prefixes: tuple[str, ...] = ("stream/",)
    classify: Callable[[str], SubjectKind] | None = None

    def kind_of(self, subject: str) -> SubjectKind | None:
        """None: no allowed prefix. Raises ValueError when ``classify`` returns no kind."""
        if subject.startswith(self.reserved_prefixes):
            return "reserved"
        if not subject.startswith(self.allowed_prefixes):
            return None
        if self.classify is None:
            if subject.startswith(RPC_PREFIX):
                return "rpc"
            return "event" if subject.startswith(EVENT_PREFIX) else "custom"
        kind = self.classify(subject)
        if kind not in KINDS:
            raise ValueError(
                f"classify({subject!r}) gave {kind!r}, not one of {', '.join(sorted(KINDS))}"
            )
        return kind

    def check_reachable(self, pattern: str, *, is_prefix: bool) -> None:
        """Raises ValueError for a registration that no message can ever reach."""
        if pattern.startswith(self.reserved_prefixes):
            raise ValueError(f"{pattern!r} is reserved: no message will ever reach this handler")
        covers_allowed = is_prefix and any(
            prefix.startswith(pattern) for prefix in self.allowed_prefixes
        )
        if not pattern.startswith(self.allowed_prefixes) and not covers_allowed:
            raise ValueError(
                f"{pattern!r} is under no allowed prefix: no message will ever reach this handler"
            )


class Registration:
    """One handler under one subject or prefix. ``rank`` orders matches: exact above every prefix,
    longer prefixes above shorter ones. ``params``: the NamedTuple that the handler is given.
    """

    __slots__ = ("active", "handler", "is_prefix", "mode", "params", "pattern", "rank")

    def __init__(
        self,
        pattern: str,
        handler: MessageHandler,
        mode: Mode | None,
        params: type[tuple[Any, ...]] | None = None,
        *,
        is_prefix: bool,
    ) -> None:
        self.pattern = pattern
        self.handler = handler
        self.mode = mode
        self.params = params
        self.is_prefix = is_prefix
        self.rank = len(pattern) if is_prefix else EXACT_RANK
        self.active = True

    def matches(self, subject: str) -> bool:
        """Whether messages under ``subject`` are for this handler."""
        return subject.startswith(self.pattern) if self.is_prefix else subject == self.pattern


class Plan(NamedTuple):
    """A subject, resolved for one session: its kind and its handlers in order. ``kind`` None: no
    allowed prefix.
    """

    kind: SubjectKind | None
    routes: tuple[Registration, ...]


class RouteTable:
    """Handlers in registration order. Every change calls ``changed``, which drops the resolved
    plans.
    """

    def __init__(self, policy: SubjectPolicy, changed: Callable[[], None]) -> None:
        self._policy = policy
        self._changed = changed
        self._registrations: list[Registration] = []

    def route(
        self,
        subject: str,
        handler: MessageHandler,
        *,
        mode: Mode | None = None,
        params: type[tuple[Any, ...]] | None = None,
    ) -> Unsubscribe:
        """Call ``handler`` for this very subject. Without ``mode`` the subject's kind decides it.
        With ``params`` it gets the params of the envelope as this NamedTuple.

        The returned callable takes back this registration only; calling it again does nothing.
        Raises ValueError for a subject that the policy never lets through and for an unknown mode.
        """
        return self._add(Registration(subject, handler, mode, params, is_prefix=False))

    def route_prefix(
        self, prefix: str, handler: MessageHandler, *, mode: Mode | None = None
    ) -> Unsubscribe:
        """Call ``handler`` for every subject that starts with ``prefix``; otherwise as `route`."""
        return self._add(Registration(prefix, handler, mode, is_prefix=True))

    def unroute(self, subject: str) -> None:
        """Take back all handlers of this very subject. Prefix handlers stay: they serve other
        subjects too.
        """
        self._remove(
            [
                route
                for route in self._registrations
                if not route.is_prefix and route.pattern == subject
            ]
        )

    def clear(self) -> None:
        """Take back every handler of this scope."""
        self._remove(list(self._registrations))

    def matching(self, subject: str) -> list[Registration]:
        """In registration order, whatever their rank."""
        return [route for route in self._registrations if route.matches(subject)]

    def _add(self, route: Registration) -> Unsubscribe:
        if route.mode is not None and route.mode not in MODES:
            raise ValueError(f"mode {route.mode!r} is not one of {', '.join(sorted(MODES))}")
        self._policy.check_reachable(route.pattern, is_prefix=route.is_prefix)
        self._registrations.append(route)
        self._changed()
        return lambda: self._remove([route] if route.active else [])

    def _remove(self, routes: list[Registration]) -> None:
        for route in routes:
            route.active = False  # a dispatch under way skips it
            self._registrations.remove(route)
        self._changed()
