"""Admitted requests: the checked data of a request head."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from topics.actors.rpc.session import Attachment
from topics.engine.access import Principal
from topics.errors import UnsupportedMediaType
from topics.formats.api.request_heads import HeadFields
from topics.formats.buffers import Buffer
from topics.front.queries import Query
from topics.front.route import Route

Body: TypeAlias = Attachment  # the body of a request


def copied(body: Body) -> Buffer:
    """Return the bytes of a body. Copy a body in shared memory, and free its block."""
    if isinstance(body, Buffer):
        return body
    view = bytes(body.view)
    body.free()
    return view


def listed(prefixes: tuple[str, ...] | None) -> list[str] | None:
    """Return a key's prefixes as a list, because calls to shards contain lists."""
    return None if prefixes is None else list(prefixes)


class Request(msgspec.Struct, frozen=True):
    """A request that `Guard.admit` has admitted."""

    method: str
    route: Route
    topic: str  # "" if the route has none
    wid: str  # "" if the route has none
    router: str  # "" if the route has none
    shard: int  # the shard of the topic; 0 if the route has no topic
    principal: Principal
    query: Query
    key: str | None  # the value of Idempotency-Key
    gzip_in: bool
    gzip_out: bool
    wrong_media: UnsupportedMediaType | None  # raised only if the chunked body is not empty
    # The header fields, excluding the token, for streams and for routes that negotiate.
    head: HeadFields | None
    is_timed: bool = False  # true if the response has Server-Timing
