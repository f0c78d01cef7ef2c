"""Console: serves the files of the web page for operators.

    GET   /console, /console/FILE    If-None-Match

The page requests all data from `/v0`, with the key of its user. The files contain no data, so they
need no key, even with TOPICS_PROBE_AUTH: a browser has no key before the page is loaded. With
TOPICS_CONSOLE=off, requests for these paths return 404.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import topics
from topics.errors import NotFound
from topics.formats.api.request_heads import Headers
from topics.front.data.context import RouteContext
from topics.front.data.files import File, row
from topics.front.dispatch import OnResult, Operation
from topics.front.request import Body, Request
from topics.front.route import Route

TOPICS: Final = Path(topics.__file__).parent
MEDIA_TYPES: Final = {
    ".html": b"text/html; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}
# The policy permits only the scripts of these files, no content of other origins, and no conversion
# of text to scripts. Only lit-html, with its single policy, creates HTML, from its own templates.
POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    b" img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
    b" require-trusted-types-for 'script'; trusted-types lit-html"
)
HEADERS: Final[Headers] = (
    (b"content-security-policy", POLICY),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)


def _if_on(
    operation: Operation,
    context: RouteContext,
    request: Request,
    body: Body,
    at: int,
    then: OnResult,
) -> None:
    """Serve the file if the console is enabled. Raise `NotFound` otherwise."""
    if not context.settings.console:
        raise NotFound("no such path")
    operation(context, request, body, at, then)


def _rows() -> Iterator[tuple[Route, Operation]]:
    """Yield the routes of all files. The files are read once, at import."""
    paths = {f"/console/{path.name}": path for path in (TOPICS / "front/console").iterdir()}
    # The JavaScript client is served with the files of the console.
    paths["/console/topics.js"] = TOPICS / "client/js/topics.js"
    paths["/console"] = paths.pop("/console/index.html")
    for path, source in paths.items():
        if source.suffix in MEDIA_TYPES:
            file = File.read(source, MEDIA_TYPES[source.suffix], HEADERS)
            route, operation = row(path, "console", file, is_public=True)
            yield route, partial(_if_on, operation)


ROUTES: Final = dict(_rows())
