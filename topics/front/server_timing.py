"""Server-Timing: the member ``performance`` (§0.9) as a header field, for browser developer tools.

    ?server_timing=true    a parameter of every route

    member              metric      milliseconds
    server_total_ms     total
    wal_append_ms       wal
    fsync_ms            fsync
    throttle_wait_ms    throttle

A response that lacks this member, such as a stream, has only ``total``.
"""

from __future__ import annotations

import re
from typing import Any

from topics.formats.api.request_heads import Headers
from topics.front.answers import Answer, elapsed_ms
from topics.front.queries import Parameter, Query, boolean
from topics.front.route import Route

SERVER_TIMING = Parameter("server_timing", boolean, default=False)
METRICS = {
    b"server_total_ms": b"total",
    b"wal_append_ms": b"wal",
    b"fsync_ms": b"fsync",
    b"throttle_wait_ms": b"throttle",
}
TAIL_BYTES = 512  # length of the end of a response body that contains the last member
_PERFORMANCE = re.compile(rb'"performance":\{([^{}]*)\}\}\s*\Z')
_MEMBER = re.compile(rb'"(\w+)":([0-9.]+)')


def parameters_of(route: Route, query: bytes) -> tuple[Parameter[Any], ...]:
    """Return the parameters of a route, and `SERVER_TIMING` if the query may contain it."""
    return (*route.parameters, SERVER_TIMING) if b"server_timing" in query else route.parameters


def is_requested(query: Query) -> bool:
    """Return whether the client has requested the field."""
    return query[SERVER_TIMING]


def server_timing(answer: Answer, at: int) -> Headers:
    """Return the header field for a response that is not compressed yet.

    ``at`` is the start of the request in monotonic ns.
    """
    found = _PERFORMANCE.search(bytes(answer.body[-TAIL_BYTES:]))
    members = _MEMBER.findall(found[1]) if found else []
    metrics = [(METRICS[name], value) for name, value in members if name in METRICS]
    if not metrics:
        metrics = [(b"total", b"%.3f" % elapsed_ms(at))]
    return ((b"server-timing", b", ".join([b"%b;dur=%b" % metric for metric in metrics])),)
