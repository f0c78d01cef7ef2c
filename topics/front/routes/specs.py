"""Specifications: the documents that programs read of this API, as they stand beside the pages for
people. `tests.specs` makes them from the route table and the structs that validate.

GET   /v0/openapi.json     OpenAPI 3.1: all of HTTP
GET   /v0/asyncapi.json    AsyncAPI 3.1: the events of streams, the messages of a WebSocket

A copy that a client has is checked by its ETag. That of the compressed bytes is another one. No key
is needed, unless TOPICS_PROBE_AUTH is set: no data stands in them.
"""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path
from typing import Final

import topics
from topics.formats.api.request_heads import list_members
from topics.front.answers import Answer
from topics.front.dispatch import Then
from topics.front.request import Body, Request
from topics.front.route import READ_ONLY, Lane, Route
from topics.front.routes.context import RouteContext

FOLDER: Final = Path(topics.__file__).parent / "docs"
OPENAPI, ASYNCAPI = "/v0/openapi.json", "/v0/asyncapi.json"
NOT_MODIFIED: Final = 304
VARY: Final = (b"vary", b"accept-encoding")  # gzip adds it, too


def document(
    content: bytes,
    digest: bytes,
    _context: RouteContext,
    request: Request,
    _body: Body,
    _at: int,
    then: Then,
) -> None:
    """The document, or 304 for a client that has it."""
    assert request.head is not None, "the route negotiates"
    etag = b'"%b%b"' % (digest, b"-gzip" if request.gzip_out else b"")
    headers = ((b"etag", etag), (b"cache-control", b"no-cache"))
    known = {tag.removeprefix(b"w/") for tag in list_members(request.head.joined(b"if-none-match"))}
    if known & {etag, b"*"}:
        then(Answer(NOT_MODIFIED, headers=(*headers, VARY)))
    else:
        then(Answer(200, content, headers=headers if request.gzip_out else (*headers, VARY)))


def _route(path: str) -> Route:
    return Route(
        READ_ONLY,
        path,
        "spec",
        None,
        lane=Lane.HOT,
        is_plain=True,
        is_open=True,
        negotiates=True,
        answers_in_drain=True,
    )


def _operation(path: str) -> partial[None]:
    content = (FOLDER / path.rpartition("/")[2]).read_bytes()
    return partial(document, content, hashlib.sha256(content).hexdigest()[:32].encode())


ROUTES = {_route(path): _operation(path) for path in (OPENAPI, ASYNCAPI)}
