"""Routes: one row of the HTTP surface each, without the operation that answers it.

The modules of `topics.front.data` and `topics.front.admin.rows` declare the rows. The package that
declares a row answers it.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from enum import Enum
from typing import Any

from topics.engine.access import Scope
from topics.errors import InvalidRequest
from topics.front.queries import Parameter

TOPIC, WID, ROUTER = ":topic", ":wid", ":router"
NAMES = (TOPIC, WID, ROUTER)  # what a segment of a path may stand for


class BodyRule(Enum):
    """Whether a request has a body. A NONE route ignores a body, and answers before it arrives."""

    REQUIRED = "required"
    OPTIONAL = "optional"
    NONE = "none"


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """One row. ``path`` has at most one of `NAMES`."""

    method: str
    path: str
    name: str
    scope: Scope | None  # None: any key, and no key at all if `is_open`
    _: KW_ONLY
    body: BodyRule = BodyRule.NONE
    parameters: tuple[Parameter[Any], ...] = ()  # of the query, checked in this order
    long_body: bool = False  # decoded piece by piece, so its only bound is TOPICS_MAX_BODY_BYTES
    waits: bool = False  # may wait for records: the call ends when the client hangs up
    is_open: bool = False  # needs no key, unless TOPICS_PROBE_AUTH is set
    is_public: bool = False  # ... which does not count for it: it tells nothing of the server
    streams: bool = False  # the answer has no end and is the last of its connection
    query_token: bool = False  # ``?token=`` counts, for an EventSource, which sends no header
    negotiates: bool = False  # the operation reads fields of the head, as Accept
    answers_in_drain: bool = False  # as long as the server has connections
    is_audited: bool = False  # it may change topics, routers or records that are there
    is_chunked: bool = False  # the answer's end is told by the framing of HTTP/1.1 alone

    @property
    def is_document(self) -> bool:
        """Whether the route only returns a document.

        Every other route writes, leases jobs or opens a stream. The guard refuses those to pages of
        other sites.
        """
        return self.method == "GET" and not self.streams

    @property
    def methods(self) -> tuple[str, ...]:
        """HEAD stands beside a GET that answers a document (RFC 9110 §9.1)."""
        return ("GET", "HEAD") if self.is_document else (self.method,)

    def path_of(self, name: str) -> str:
        """The path with the name of a topic or a router filled in."""
        return self.path.replace(ROUTER if ROUTER in self.path else TOPIC, name)

    def check_length(self, length: int) -> None:
        """Raises `InvalidRequest` for an empty body where a body is required. An empty optional
        body means ``{}``.
        """
        if length == 0 and self.body is BodyRule.REQUIRED:
            raise InvalidRequest("a JSON body is required")


@dataclass(frozen=True, slots=True)
class RouteMatch:
    """Where a request goes: the row, and the unchecked name of the topic, watch session or
    router, None where the row has none.
    """

    route: Route
    topic: str | None
    wid: str | None
    router: str | None
    query: bytes
