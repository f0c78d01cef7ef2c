"""Routes: the rows of the route table, excluding the operations that serve them.

The modules of `topics.front.data`, and `topics.front.admin.rows`, declare the rows. The package
that declares a row serves it.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from enum import Enum
from typing import Any

from topics.engine.access import Scope
from topics.errors import InvalidRequest
from topics.front.queries import Parameter

TOPIC, WID, ROUTER = ":topic", ":wid", ":router"
NAMES = (TOPIC, WID, ROUTER)  # placeholders for a path segment


class BodyRule(Enum):
    """Whether a request has a body.

    A NONE route ignores a body and responds before the body arrives.
    """

    REQUIRED = "required"
    OPTIONAL = "optional"
    NONE = "none"


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """One row. ``path`` has at most one of `NAMES`."""

    method: str
    path: str
    name: str
    scope: Scope | None  # None: any key, or no key if `is_open`
    _: KW_ONLY
    body: BodyRule = BodyRule.NONE
    parameters: tuple[Parameter[Any], ...] = ()  # of the query, checked in this order
    long_body: bool = False  # decoded in fragments, so the only bound is TOPICS_MAX_BODY_BYTES
    waits: bool = False  # may wait for records; the call ends if the client hangs up
    is_open: bool = False  # needs no key, unless TOPICS_PROBE_AUTH is set
    is_public: bool = False  # needs no key even if TOPICS_PROBE_AUTH is set: has no private data
    streams: bool = False  # the response has no end and is the last of its connection
    query_token: bool = False  # accepts ``?token=``, because an EventSource can send no header
    negotiates: bool = False  # the operation reads header fields, such as Accept
    answers_in_drain: bool = False  # also serves requests that arrive during the drain
    is_audited: bool = False  # may change existing topics, routers or records
    is_chunked: bool = False  # the response has no known length and needs HTTP/1.1 chunks

    @property
    def is_document(self) -> bool:
        """Whether the route only returns a document.

        Every other route writes, leases jobs or opens a stream. The guard refuses requests for such
        routes from pages of other sites.
        """
        return self.method == "GET" and not self.streams

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods of the row.

        HEAD is accepted with a GET that returns a document (RFC 9110 §9.1).
        """
        return ("GET", "HEAD") if self.is_document else (self.method,)

    def path_of(self, name: str) -> str:
        """Return the path with the name of a topic or a router inserted."""
        return self.path.replace(ROUTER if ROUTER in self.path else TOPIC, name)

    def check_length(self, length: int) -> None:
        """Raise `InvalidRequest` for an empty body if a body is required.

        An empty optional body means ``{}``.
        """
        if length == 0 and self.body is BodyRule.REQUIRED:
            raise InvalidRequest("a JSON body is required")


@dataclass(frozen=True, slots=True)
class RouteMatch:
    """The route of a request, and the unchecked name of its topic, watch session or router.

    A name is None if the route has no such name.
    """

    route: Route
    topic: str | None
    wid: str | None
    router: str | None
    query: bytes
