"""Which handlers a subject has: the policy for subjects (`decisions/0003` §3), the
registrations of one scope (§1), and what matches a subject (§4).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from topics.formats.wire.envelope import EVENT_PREFIX, RPC_PREFIX

SubjectKind: TypeAlias = Literal["rpc", "event", "custom", "reserved"]
Mode: TypeAlias = Literal["exclusive", "broadcast"]
# Given a `topics.actors.rpc.session.InboundMessage`.
MessageHandler: TypeAlias = Callable[[Any], Awaitable[None] | None]
Unsubscribe: TypeAlias = Callable[[], None]

DEFAULT_MODES: Final[dict[SubjectKind, Mode]] = {
    "rpc": "exclusive",
    "event": "broadcast",
    "custom": "broadcast",
}
"""The mode of a registration that names none. Nothing is ever delivered for ``reserved``."""


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
        """None: no allowed prefix."""
        if subject.startswith(self.reserved_prefixes):
            return "reserved"
        if not subject.startswith(self.allowed_prefixes):
            return None
        if self.classify is None:
            if subject.startswith(RPC_PREFIX):
                return "rpc"
            return "event" if subject.startswith(EVENT_PREFIX) else "custom"
        return self.classify(subject)


@dataclass(eq=False, slots=True)
class Registration:
    """One handler under one subject or prefix. ``params``: the NamedTuple that it is given."""

    pattern: str
    handler: MessageHandler
    mode: Mode | None
    is_prefix: bool
    params: type[tuple[Any, ...]] | None = None
    active: bool = True

    @property
    def rank(self) -> tuple[bool, int]:
        """Orders what matches a subject: exact above every prefix, the longer prefix above the
        shorter one.
        """
        return not self.is_prefix, len(self.pattern)


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

    def __init__(self, changed: Callable[[], None]) -> None:
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
        """
        return self._add(Registration(subject, handler, mode, False, params))

    def route_prefix(
        self, prefix: str, handler: MessageHandler, *, mode: Mode | None = None
    ) -> Unsubscribe:
        """Call ``handler`` for every subject that starts with ``prefix``; otherwise as `route`."""
        return self._add(Registration(prefix, handler, mode, True))

    def unroute(self, subject: str) -> None:
        """Take back all handlers of this very subject. Prefix handlers stay: they serve other
        subjects too.
        """
        self._remove([route for route in self.matching(subject) if not route.is_prefix])

    def clear(self) -> None:
        """Take back every handler of this scope."""
        self._remove([*self._registrations])

    def matching(self, subject: str) -> list[Registration]:
        """In registration order, whatever their rank."""
        return [
            route
            for route in self._registrations
            if (subject.startswith(route.pattern) if route.is_prefix else subject == route.pattern)
        ]

    def _add(self, route: Registration) -> Unsubscribe:
        self._registrations.append(route)
        self._changed()
        return lambda: self._remove([route] if route.active else [])

    def _remove(self, routes: list[Registration]) -> None:
        for route in routes:
            route.active = False  # a dispatch under way skips it
            self._registrations.remove(route)
        self._changed()
