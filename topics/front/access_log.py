"""Access log: one line for each request, written when its answer has been sent (TOPICS_ACCESS_LOG).

    off      nothing
    audit    changes of topics, routers and records (`Route.is_audited`), topics that an append
             makes (201), backups, refusals 401 and 403, and WebSockets
    all      every request

A stream or WebSocket has one line, when it ends; commands on a WebSocket have none.

    event        request
    request_id   as in the answer; trace: the request's traceparent, where it had one
    key          the first 8 hex digits of SHA-256 of the key's digest: it names a key and helps
                 nobody to guess it; absent without keys and for clients without a valid one
    method       and route (its name), topic or router; a name that is not valid is left out
    status       of the answer, absent when the client was gone before there was one
    cut          true when the client did not take the whole answer
    bytes_in     of the wire, heads included; bytes_out likewise
    ms           from the whole request to the last byte of its answer, or to the end of the stream
    peer         the client's address: that of the other end of the connection and its port, or,
                 behind a proxy of TOPICS_TRUSTED_PROXIES, the one that this proxy names

No line holds a token, a query string, a path as it was sent, or the id of a watch session.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from topics.engine.access import ANYONE, Principal
from topics.formats.names import valid_router_name, valid_topic_name
from topics.front.route import Route

ALWAYS_AUDITED = (201, 401, 403)
METHOD_MAX_CHARS = 32  # of one that is none of ours

Write = Callable[[Mapping[str, Any]], None]
Level = Literal["off", "audit", "all"]


class Subject(NamedTuple):
    """What a request was about, as far as it is known."""

    method: str = ""
    route: Route | None = None
    topic: str = ""
    router: str = ""
    principal: Principal = ANYONE


class Finished(NamedTuple):
    """What came of a request. ``status`` 0: there was no answer."""

    request_id: str
    trace: str
    status: int
    cut: bool
    bytes_in: int
    bytes_out: int
    ms: float
    peer: str


class AccessLog:
    """The log of one front. ``write`` neither waits nor raises."""

    def __init__(self, level: Level, write: Write) -> None:
        self._has_all, self._write = level == "all", write

    def wants(self, route: Route | None, status: int) -> bool:
        """Whether such a request is logged."""
        return self._has_all or status in ALWAYS_AUDITED or (route is not None and route.is_audited)

    def tell(self, subject: Subject, finished: Finished) -> None:
        """Write the line."""
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
