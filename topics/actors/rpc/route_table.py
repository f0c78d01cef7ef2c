"""Route table: policy for subjects, and registered handlers (`decisions/0003` §1, §3, §4)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from topics.formats.wire.envelope import EVENT_PREFIX, RPC_PREFIX

SubjectKind: TypeAlias = Literal["rpc", "event", "custom", "reserved"]
Mode: TypeAlias = Literal["exclusive", "broadcast"]
# The argument is a `topics.actors.rpc.session.InboundMessage`.
MessageHandler: TypeAlias = Callable[[Any], Awaitable[None] | None]
Unsubscribe: TypeAlias = Callable[[], None]

DEFAULT_MODES: Final[dict[SubjectKind, Mode]] = {
    "rpc": "exclusive",
    "event": "broadcast",
    "custom": "broadcast",
}
"""The default modes of registrations. No message of kind ``reserved`` is ever delivered."""


@dataclass(frozen=True, slots=True)
class SubjectPolicy:
    """Checks the prefix of a subject and determines its kind.

    A subject with a reserved prefix is refused with 1003, even if it also has an allowed prefix. A
    subject that has no allowed prefix is refused with 1002. ``classify`` returns the kind of a
    subject that passed both checks. If it is None, subjects that start with ``rpc/`` are of kind
    rpc, those that start with ``event/`` of kind event, and all others of kind custom. Messages of
    kind rpc must contain a valid envelope, regardless of their prefix.
    """

    allowed_prefixes: tuple[str, ...] = (RPC_PREFIX, EVENT_PREFIX, "stream/", "app/")
    reserved_prefixes: tuple[str, ...] = ("stream/",)
    classify: Callable[[str], SubjectKind] | None = None

    def kind_of(self, subject: str) -> SubjectKind | None:
        """Return the kind of a subject; None if it has no allowed prefix."""
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
    """A handler for a subject or a prefix.

    ``params``: the NamedTuple type of the params that the handler gets.
    """

    pattern: str
    handler: MessageHandler
    mode: Mode | None
    is_prefix: bool
    params: type[tuple[Any, ...]] | None = None
    active: bool = True

    @property
    def rank(self) -> tuple[bool, int]:
        """Sort key of matches, which run in descending order of this key. Exact matches rank above
        all prefixes, and longer prefixes rank above shorter prefixes.
        """
        return not self.is_prefix, len(self.pattern)


class Plan(NamedTuple):
    """A subject, resolved for one session: its kind, and its handlers in order.

    ``kind`` is None if the subject has no allowed prefix.
    """

    kind: SubjectKind | None
    routes: tuple[Registration, ...]


class RouteTable:
    """Handlers in registration order.

    Every change calls ``changed``, which drops resolved plans.
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
        """Call ``handler`` for exactly this subject.

        If ``mode`` is None, the subject's kind determines it (`DEFAULT_MODES`). If ``params`` is
        given, the handler gets the params of the envelope as this NamedTuple. The returned callable
        removes this registration; a second call has no effect.
        """
        return self._add(Registration(subject, handler, mode, False, params))

    def route_prefix(
        self, prefix: str, handler: MessageHandler, *, mode: Mode | None = None
    ) -> Unsubscribe:
        """Call ``handler`` for every subject that starts with ``prefix``. See `route`."""
        return self._add(Registration(prefix, handler, mode, True))

    def unroute(self, subject: str) -> None:
        """Remove all handlers of exactly this subject.

        Prefix handlers remain, because they serve other subjects too.
        """
        self._remove([route for route in self.matching(subject) if not route.is_prefix])

    def clear(self) -> None:
        """Remove all handlers."""
        self._remove([*self._registrations])

    def matching(self, subject: str) -> list[Registration]:
        """Return all registrations that match the subject, in registration order."""
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
            route.active = False  # a running dispatch skips it
            self._registrations.remove(route)
        self._changed()
