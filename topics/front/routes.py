"""The one table of the HTTP surface, and the one matcher for it.

A path is split at ``/`` after percent-decoding, so an encoded slash separates segments like a plain one, in both lanes.
"""

from __future__ import annotations

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
    """One row. ``scope`` None: open, unless probes need a key. ``pattern`` has at most one ``:topic``."""

    methods: tuple[str, ...]
    pattern: str
    name: str
    scope: Scope | None
    lane: Lane = Lane.COLD
    body: BodyRule = BodyRule.NONE
    waits: bool = False  # may wait for records: a client that hangs up ends the call


READ_ONLY = ("GET", "HEAD")
ROUTES = (
    Route(("POST",), "/v0/topics/:topic", "append", Scope.WRITE, Lane.HOT, BodyRule.REQUIRED),
    Route(("POST",), "/v0/topics/:topic/diff", "diff", Scope.READ, Lane.HOT, BodyRule.OPTIONAL, waits=True),
    Route(("POST",), "/v0/topics/:topic/delete", "topic.delete_records", Scope.DELETE, Lane.HOT, BodyRule.REQUIRED),
    Route(("PUT",), "/v0/topics/:topic", "topic.put", Scope.ADMIN, body=BodyRule.OPTIONAL),
    Route(("GET",), "/v0/topics/:topic", "topic.get", Scope.READ),
    Route(("DELETE",), "/v0/topics/:topic", "topic.delete", Scope.DELETE),
    Route(("GET",), "/v0/topics", "topic.list", Scope.READ),
    Route(READ_ONLY, "/v0/health", "health", None),
    Route(READ_ONLY, "/healthz", "health", None),
    Route(READ_ONLY, "/v0/ready", "ready", None),
    Route(READ_ONLY, "/readyz", "ready", None),
    Route(READ_ONLY, "/", "hello", None),
)


def _segments(pattern: str) -> tuple[str, ...]:
    return tuple(pattern.split("/")[1:])


TOPIC = ":topic"
PATTERNS = {_segments(route.pattern) for route in ROUTES}
BY_PATTERN = {pattern: {m: r for r in ROUTES if _segments(r.pattern) == pattern for m in r.methods} for pattern in PATTERNS}
TOPIC_PATTERNS = [pattern for pattern in PATTERNS if TOPIC in pattern]


@dataclass(frozen=True, slots=True)
class Match:
    """Where a request goes: the row and the topic's name, None where the row has none. The name is not checked yet."""

    route: Route
    topic: str | None
    query: bytes


def match(method: str, target: bytes) -> Match:
    """Find the row. Raises `NotFound`, or `MethodNotAllowed` with ``detail.allow``."""
    path, _, query = _origin_form(target).partition(b"?")
    text = unquote_to_bytes(path).decode("utf-8", "replace") if b"%" in path else path.decode("latin-1")
    rows, topic = _find(tuple(text.split("/")[1:])) if text.startswith("/") else (None, None)
    if rows is None:
        raise NotFound("no such path")
    route = rows.get(method)
    if route is None:
        raise MethodNotAllowed(f"{method[:32]} is not a method of this path", allow=sorted(rows))
    return Match(route, topic, query)


def _find(segments: tuple[str, ...]) -> tuple[dict[str, Route] | None, str | None]:
    rows = BY_PATTERN.get(segments)
    if rows is not None and TOPIC not in segments:
        return rows, None
    for pattern in TOPIC_PATTERNS:
        if len(pattern) == len(segments):
            at = pattern.index(TOPIC)
            if segments[:at] == pattern[:at] and segments[at + 1 :] == pattern[at + 1 :]:
                return BY_PATTERN[pattern], segments[at]
    return None, None


def _origin_form(target: bytes) -> bytes:
    """``http://host/path`` means ``/path`` (RFC 9112 §3.2.2)."""
    if target[:7].lower() == b"http://":
        slash = target.find(b"/", 7)
        return target[slash:] if slash >= 0 else b"/"
    return target
