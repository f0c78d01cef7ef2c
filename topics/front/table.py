"""Route table: all rows of the HTTP surface, and the only function that matches them.

To add a resource to the data plane, write a module with `ROUTES` and add a line to `OPERATIONS`. To
add a resource to the admin plane, add its rows to `topics.front.admin.rows` and write a module with
`VIEWS`. Appends and diffs are methods of separate objects and get no `RouteContext`, to save time.

A path is split at ``/`` after percent-decoding, so an encoded slash separates segments like a plain
one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from urllib.parse import unquote_to_bytes

from topics.errors import MethodNotAllowed, NotFound
from topics.formats.api.request_heads import origin_form
from topics.front.admin import rows
from topics.front.data import (
    backup,
    console,
    health,
    queues,
    read_ahead,
    records,
    specs,
    topics,
    watch,
    web_socket,
)
from topics.front.data.context import RouteContext
from topics.front.dispatch import Operation
from topics.front.route import NAMES, Route, RouteMatch

Segments = tuple[str, ...]

OPERATIONS: Mapping[Route, Operation] = {
    **records.ROUTES,
    **queues.ROUTES,
    **topics.ROUTES,
    **watch.ROUTES,
    **web_socket.ROUTES,
    **health.ROUTES,
    **console.ROUTES,
    **specs.ROUTES,
    **backup.ROUTES,
}
ROUTES = (records.APPEND_ROUTE, read_ahead.DIFF_ROUTE, *OPERATIONS, *rows.ROWS)


def operations_for(context: RouteContext) -> dict[Route, Operation]:
    """Return the operation for each route of the data plane, bound to the parts of a front."""
    return {
        records.APPEND_ROUTE: records.AppendGroups(context.shards, context.pressure).append,
        read_ahead.DIFF_ROUTE: read_ahead.ReadAhead(context.shards, context.drain).diff,
        **{route: partial(operation, context) for route, operation in OPERATIONS.items()},
    }


def _segments(path: str) -> Segments:
    """Return the segments of a path."""
    return tuple(path.split("/")[1:])


PATH_MAX_BYTES = 8 * 1024  # several times the length of the longest valid path
# All paths, the routes of each path by method, and the paths with a placeholder.
PATHS = {_segments(route.path) for route in ROUTES}
ROUTES_AT: dict[Segments, dict[str, Route]] = {
    path: {m: r for r in ROUTES if _segments(r.path) == path for m in r.methods} for path in PATHS
}
NAMED_PATHS = [path for path in PATHS if not set(NAMES).isdisjoint(path)]


def match(method: str, target: bytes) -> RouteMatch:
    """Return the route of a method and target.

    Raise `NotFound`, or `MethodNotAllowed` with ``detail.allow``.
    """
    path, _, query = origin_form(target).partition(b"?")
    if len(path) > PATH_MAX_BYTES:
        raise NotFound("no such path")
    text = _decoded(path)
    pattern, name = _find(_segments(text)) if text.startswith("/") else (None, None)
    if pattern is None:
        raise NotFound("no such path")
    methods = ROUTES_AT[pattern]
    route = methods.get(method)
    if route is None:
        raise MethodNotAllowed(f"the path does not support {method[:32]}", allow=sorted(methods))
    topic, wid, router = (name if part in pattern else None for part in NAMES)
    return RouteMatch(route, topic, wid, router, query)


def _decoded(path: bytes) -> str:
    """Return a path with its percent-escapes decoded."""
    if b"%" in path:
        return unquote_to_bytes(path).decode("utf-8", "replace")
    return path.decode("latin-1")


def _find(segments: Segments) -> tuple[Segments | None, str | None]:
    """Return the matching path of the table and the name at its placeholder. Each may be None."""
    # Paths without a placeholder are found by a look-up, and have precedence.
    if segments in PATHS and segments not in NAMED_PATHS:
        return segments, None
    for pattern in NAMED_PATHS:
        if len(pattern) == len(segments):
            at = next(index for index, segment in enumerate(pattern) if segment in NAMES)
            if segments[:at] == pattern[:at] and segments[at + 1 :] == pattern[at + 1 :]:
                return pattern, segments[at]
    return None, None
