"""Static files: serves files of the package unchanged.

    GET, If-None-Match: the ETag that the client has --> 304, or 200 with the file

Each file has its own route. A path that a client has sent must never be used as a file path. The
ETag is derived from the content. The gzipped form has a different ETag.
"""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from topics.formats.api.request_heads import Headers, list_members
from topics.front.answers import Answer
from topics.front.data.context import RouteContext
from topics.front.dispatch import COMPRESS_MIN_BYTES, OnResult, Operation
from topics.front.request import Body, Request
from topics.front.route import Route

VARY: Final = (b"vary", b"accept-encoding")  # compression also adds it


class File(NamedTuple):
    """A file in the form in which it is served. ``headers`` are the header fields in addition to
    the ETag.
    """

    content: bytes
    digest: bytes
    media_type: bytes
    headers: Headers

    @classmethod
    def read(cls, path: Path, media_type: bytes, headers: Headers = ()) -> File:
        """Read a file. Raise `OSError`."""
        content = path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()[:32].encode("ascii")
        return cls(content, digest, media_type, ((b"cache-control", b"no-cache"), *headers))


def serve(
    file: File, _context: RouteContext, request: Request, _body: Body, _at: int, then: OnResult
) -> None:
    """Return the file, or 304 if the client already has the current version."""
    assert request.head is not None, "the route keeps the request head"
    is_packed = request.gzip_out and len(file.content) >= COMPRESS_MIN_BYTES
    etag = b'"%b%b"' % (file.digest, b"-gzip" if is_packed else b"")
    # If-None-Match uses the weak comparison, so a prefix ``W/`` is ignored (RFC 9110 §13.1.2).
    known = {tag.removeprefix(b"w/") for tag in list_members(request.head.joined(b"if-none-match"))}
    headers = ((b"etag", etag), *file.headers)
    if known & {etag, b"*"}:
        then(Answer(304, headers=(*headers, VARY), media_type=file.media_type))
    else:
        more = headers if is_packed else (*headers, VARY)
        then(Answer(200, file.content, headers=more, media_type=file.media_type))


def row(path: str, name: str, file: File, *, is_public: bool = False) -> tuple[Route, Operation]:
    """Return a row of the route table.

    ``is_public``: no key is needed, even with TOPICS_PROBE_AUTH.
    """
    route = Route(
        "GET",
        path,
        name,
        None,
        is_open=True,
        is_public=is_public,
        negotiates=True,
        answers_in_drain=True,
    )
    return route, partial(serve, file)
