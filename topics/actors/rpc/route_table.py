"""Registrations of one scope: the ``Router`` of ADR 011 §1, and what matches a subject (§4)."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeAlias

from topics.actors.rpc.inbound import InboundMessage
from topics.actors.rpc.subject_policy import MODES, Mode, SubjectKind, SubjectPolicy

MessageHandler: TypeAlias = Callable[[InboundMessage], Awaitable[None] | None]
Unsubscribe: TypeAlias = Callable[[], None]

EXACT_RANK: Final = sys.maxsize


class Registration:
    """One handler under one subject or prefix. ``rank`` orders matches: exact above every prefix,
    longer prefixes above shorter ones.
    """

    __slots__ = ("active", "handler", "is_prefix", "mode", "pattern", "rank")

    def __init__(
        self, pattern: str, handler: MessageHandler, mode: Mode | None, *, is_prefix: bool
    ) -> None:
        self.pattern = pattern
        self.handler = handler
        self.mode = mode
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
        self, subject: str, handler: MessageHandler, *, mode: Mode | None = None
    ) -> Unsubscribe:
        """Call ``handler`` for this very subject. Without ``mode`` the subject's kind decides it.

        The returned callable takes back this registration only; calling it again does nothing.
        Raises ValueError for a subject that the policy never lets through and for an unknown mode.
        """
        return self._add(subject, handler, mode, is_prefix=False)

    def route_prefix(
        self, prefix: str, handler: MessageHandler, *, mode: Mode | None = None
    ) -> Unsubscribe:
        """Call ``handler`` for every subject that starts with ``prefix``; otherwise as `route`."""
        return self._add(prefix, handler, mode, is_prefix=True)

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

    def _add(
        self, pattern: str, handler: MessageHandler, mode: Mode | None, *, is_prefix: bool
    ) -> Unsubscribe:
        if mode is not None and mode not in MODES:
            raise ValueError(f"mode {mode!r} is not one of {', '.join(sorted(MODES))}")
        self._policy.check_reachable(pattern, is_prefix=is_prefix)
        route = Registration(pattern, handler, mode, is_prefix=is_prefix)
        self._registrations.append(route)
        self._changed()
        return lambda: self._remove([route] if route.active else [])

    def _remove(self, routes: list[Registration]) -> None:
        for route in routes:
            route.active = False  # a dispatch under way skips it
            self._registrations.remove(route)
        self._changed()
