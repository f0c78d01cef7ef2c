"""The console: a page for people, whose files a browser gets here. They ask `/v0` for all data,
with the key of who uses them.

GET   /console, /console/FILE    If-None-Match

Each file is a row of its own, found when this module is imported: no path of a client reaches the
file system. The files hold no data, so they need no key, also with TOPICS_PROBE_AUTH: a browser has
none before its page is there. TOPICS_CONSOLE=off: there are none.
"""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from topics.errors import NotFound
from topics.formats.api.request_heads import Headers, list_members
from topics.front.answers import Answer
from topics.front.dispatch import Operation
from topics.front.request import Body, Request
from topics.front.route import READ_ONLY, Route
from topics.front.routes.context import RouteContext

TOPICS: Final = Path(__file__).parents[2]
MEDIA_TYPES: Final = {
    ".html": b"text/html; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}
# No script but these files, nothing from elsewhere, and no text that becomes a script: lit-html has
# the one policy by which HTML is made, of its own templates.
POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    b" img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
    b" require-trusted-types-for 'script'; trusted-types lit-html"
)
HEADERS: Final[Headers] = (
    (b"cache-control", b"no-cache"),  # ask whether it has changed
    (b"content-security-policy", POLICY),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)


class File(NamedTuple):
    """What is served of a file. ``etag``: the field value, of the content alone."""

    body: bytes
    media_type: bytes
    etag: bytes

    @classmethod
    def read(cls, path: Path) -> File:
        """Read it. Raises `OSError`."""
        body = path.read_bytes()
        etag = b'"%b"' % hashlib.sha256(body).hexdigest()[:32].encode("ascii")
        return cls(body, MEDIA_TYPES[path.suffix], etag)


async def serve(
    file: File, context: RouteContext, request: Request, _body: Body, _at: int
) -> Answer:
    """The file, or 304 for a client that has it. Raises `NotFound`."""
    if not context.settings.console:
        raise NotFound("no such path")
    assert request.head is not None, "the route negotiates"
    headers = ((b"etag", file.etag), *HEADERS)
    known = list_members(request.head.joined(b"if-none-match"))
    if any(each.removeprefix(b"w/") in (file.etag, b"*") for each in known):
        return Answer(304, headers=headers, media_type=file.media_type)
    return Answer(200, file.body, headers=headers, media_type=file.media_type)


def _route(path: str) -> Route:
    return Route(
        READ_ONLY,
        path,
        "console",
        None,
        is_open=True,
        is_public=True,
        negotiates=True,
        answers_in_drain=True,
    )


def _rows() -> dict[Route, Operation]:
    paths = [each for each in (TOPICS / "front/console").iterdir() if each.suffix in MEDIA_TYPES]
    files = {f"/console/{path.name}": File.read(path) for path in paths}
    files["/console/topics.js"] = File.read(TOPICS / "client/topics.js")
    files["/console"] = files.pop("/console/index.html")
    return {_route(path): partial(serve, file) for path, file in files.items()}


ROUTES = _rows()
