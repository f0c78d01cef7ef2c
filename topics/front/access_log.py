"""Access log: one line per request, written after its response was sent (TOPICS_ACCESS_LOG).

    off      nothing
    audit    changes to topics, routers and records (`Route.is_audited`), appends that create a
             topic (201), backups, responses with status 401 or 403, and WebSockets
    all      every request

A stream or WebSocket has one line, written when it ends. Commands on a WebSocket have no lines.

    event        request
    request_id   as in the response
    trace        the request's traceparent, if it has one
    key          the first 8 hex digits of the SHA-256 of the key's digest, which identify a key
                 without helping to guess it; absent if the client has no valid key
    method       the request's method
    route        the name of the route; topic or router is also present if its name is valid
    status       the response's status; absent if the client disconnected before the response
    cut          true if the response was not sent completely
    bytes_in     received bytes, heads included
    bytes_out    sent bytes, heads included
    ms           from the complete request to the last byte of its response or of the stream
    peer         the client's address and port; for a proxy in TOPICS_TRUSTED_PROXIES, the
                 address that the proxy reports

No line may contain a token, a query string, a path as it was sent, or the id of a watch session.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from topics.engine.access import ANYONE, Principal
from topics.formats.names import valid_router_name, valid_topic_name
from topics.front.route import Route

ALWAYS_AUDITED = (201, 401, 403)
METHOD_MAX_CHARS = 32  # a longer method name, which no known method has, is truncated

Write = Callable[[Mapping[str, Any]], None]
Level = Literal["off", "audit", "all"]


class Subject(NamedTuple):
    """The method, route, object and key of a request, if known."""

    method: str = ""
    route: Route | None = None
    topic: str = ""
    router: str = ""
    principal: Principal = ANYONE


class Finished(NamedTuple):
    """The outcome of a request. ``status`` is 0 if no response was sent."""

    request_id: str
    trace: str
    status: int
    cut: bool
    bytes_in: int
    bytes_out: int
    ms: float
    peer: str


class AccessLog:
    """The access log of one front. ``write`` must neither wait nor raise."""

    def __init__(self, level: Level, write: Write) -> None:
        self._has_all, self._write = level == "all", write

    def includes(self, route: Route | None, status: int) -> bool:
        """Return whether a request with this route and status is logged."""
        return self._has_all or status in ALWAYS_AUDITED or (route is not None and route.is_audited)

    def write_line(self, subject: Subject, finished: Finished) -> None:
        """Write the line of a request."""
        route, topic, router = subject.route, subject.topic, subject.router
        members = {
            "request_id": finished.request_id,
            "trace": finished.trace,
            "key": subject.principal.alias,
            "method": subject.method[:METHOD_MAX_CHARS],
            "route": "" if route is None else route.name,
            "topic": topic if valid_topic_name(topic) else "",
            "router": router if valid_router_name(router) else "",
            "status": finished.status,
            "cut": finished.cut,
        }
        numbers = {
            "bytes_in": finished.bytes_in,
            "bytes_out": finished.bytes_out,
            "ms": finished.ms,
        }
        known = {name: value for name, value in members.items() if value}
        self._write({**known, **numbers, "peer": finished.peer})
