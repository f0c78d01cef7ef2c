"""The one table of the HTTP surface, and the one matcher for it.

A path is split at ``/`` after percent-decoding, so an encoded slash separates segments like a plain
one, in both lanes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from urllib.parse import unquote_to_bytes

from topics.engine.access import Scope
from topics.errors import MethodNotAllowed, NotFound


class Lane(Enum):
    """Who answers: the connection task itself, or Hypercorn and Quart."""

    HOT = "hot"
    COLD = "cold"


class BodyRule(Enum):
    """Whether a request carries a body. One that comes with a NONE route is read and dropped."""

    REQUIRED = "required"
    OPTIONAL = "optional"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Route:
    """One row. ``scope`` None: any key will do, or none if it is ``open``. ``pattern`` has at most
    one ``:topic`` or ``:wid``.
    """

    methods: tuple[str, ...]
    pattern: str
    name: str
    scope: Scope | None
    lane: Lane = Lane.COLD
    body: BodyRule = BodyRule.NONE
    long_body: bool = False  # it is read piece by piece, so it may be as long as the settings say
    waits: bool = False  # may wait for records: a client that hangs up ends the call
    open: bool = False  # needs no key, unless probes do
    streams: bool = False  # the answer has no end, and the connection nothing else after it
    no_preflight: bool = (
        False  # a browser opens it for a page of any site, and lets that page read and write
    )

    def path(self, topic: str) -> str:
        """The pattern with a topic's name in its place."""
        return self.pattern.replace(TOPIC, topic)


TOPIC, WID = ":topic", ":wid"
ABSOLUTE = re.compile(rb"https?://([^/?#]+)(.*)", re.IGNORECASE | re.DOTALL)
READ_ONLY = ("GET", "HEAD")
ROUTES = (
    Route(
        ("POST",),
        "/v0/topics/:topic",
        "append",
        Scope.WRITE,
        Lane.HOT,
        BodyRule.REQUIRED,
        long_body=True,
    ),
    Route(
        ("POST",),
        "/v0/topics/:topic/diff",
        "diff",
        Scope.READ,
        Lane.HOT,
        BodyRule.OPTIONAL,
        waits=True,
    ),
    Route(
        ("POST",),
        "/v0/topics/:topic/delete",
        "topic.delete_records",
        Scope.DELETE,
        Lane.HOT,
        BodyRule.REQUIRED,
    ),
    Route(("PUT",), "/v0/topics/:topic", "topic.put", Scope.ADMIN, body=BodyRule.OPTIONAL),
    Route(("GET",), "/v0/topics/:topic", "topic.get", Scope.READ),
    Route(("DELETE",), "/v0/topics/:topic", "topic.delete", Scope.DELETE),
    Route(("GET",), "/v0/topics", "topic.list", Scope.READ),
    Route(("POST",), "/v0/watch", "watch", Scope.READ, body=BodyRule.REQUIRED),
    Route(
        ("GET",), "/v0/watch/:wid", "watch.open", None, Lane.HOT, streams=True
    ),  # the session knows whose it is
    Route(("GET",), "/v0/ws", "ws", None, Lane.HOT, streams=True, no_preflight=True),
    Route(READ_ONLY, "/v0/health", "health", None, Lane.HOT, open=True),
    Route(READ_ONLY, "/healthz", "health", None, Lane.HOT, open=True),
    Route(READ_ONLY, "/v0/ready", "ready", None, Lane.HOT, open=True),
    Route(READ_ONLY, "/readyz", "ready", None, Lane.HOT, open=True),
    Route(READ_ONLY, "/", "hello", None, open=True),
)


def _segments(pattern: str) -> tuple[str, ...]:
    return tuple(pattern.split("/")[1:])


PATH_MAX_BYTES = (
    8 * 1024
)  # many times the longest path that leads anywhere: a name that is too long is told so
PATTERNS = {_segments(route.pattern) for route in ROUTES}
BY_PATTERN = {
    pattern: {m: r for r in ROUTES if _segments(r.pattern) == pattern for m in r.methods}
    for pattern in PATTERNS
}
NAMED_PATTERNS = [pattern for pattern in PATTERNS if TOPIC in pattern or WID in pattern]


@dataclass(frozen=True, slots=True)
class RouteMatch:
    """Where a request goes: the row, and the name of the topic or session, None where the row has
    none. It is not checked yet.
    """

    route: Route
    topic: str | None
    wid: str | None
    query: bytes


def match(method: str, target: bytes) -> RouteMatch:
    """Find the row. Raises `NotFound`, or `MethodNotAllowed` with ``detail.allow``."""
    path, _, query = _origin_form(target).partition(b"?")
    if len(path) > PATH_MAX_BYTES:
        raise NotFound("no such path")
    text = (
        unquote_to_bytes(path).decode("utf-8", "replace")
        if b"%" in path
        else path.decode("latin-1")
    )
    pattern, name = _find(tuple(text.split("/")[1:])) if text.startswith("/") else (None, None)
    if pattern is None:
        raise NotFound("no such path")
    rows = BY_PATTERN[pattern]
    route = rows.get(method)
    if route is None:
        raise MethodNotAllowed(f"{method[:32]} is not a method of this path", allow=sorted(rows))
    return RouteMatch(
        route, name if TOPIC in pattern else None, name if WID in pattern else None, query
    )


def _find(segments: tuple[str, ...]) -> tuple[tuple[str, ...] | None, str | None]:
    if segments in BY_PATTERN and segments not in NAMED_PATTERNS:
        return segments, None
    for pattern in NAMED_PATTERNS:
        if len(pattern) == len(segments):
            at = next(index for index, segment in enumerate(pattern) if segment in (TOPIC, WID))
            if segments[:at] == pattern[:at] and segments[at + 1 :] == pattern[at + 1 :]:
                return pattern, segments[at]
    return None, None


def authority_of(target: bytes) -> tuple[bytes, ...]:
    """The ``host:port`` of a target in absolute form, if it is one."""
    absolute = ABSOLUTE.fullmatch(target)
    return (absolute[1],) if absolute else ()


def _origin_form(target: bytes) -> bytes:
    """``http://host/path?query`` as ``/path?query``, ``http://host?query`` as ``/?query``.

    RFC 9112 §3.2.2.
    """
    absolute = ABSOLUTE.fullmatch(target)
    if absolute is None:
        return target
    rest: bytes = absolute[2]
    return rest if rest.startswith(b"/") else b"/" + rest
