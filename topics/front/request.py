"""Admitted requests: what the guard found in a request head, checked."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from topics.actors.rpc.session import Attachment
from topics.engine.access import Principal
from topics.errors import UnsupportedMediaType
from topics.formats.api.request_heads import HeadFields
from topics.front.queries import Query
from topics.front.route import Route

Body: TypeAlias = Attachment  # of a request


def listed(prefixes: tuple[str, ...] | None) -> list[str] | None:
    """A key's prefixes as the calls table has them."""
    return None if prefixes is None else list(prefixes)


class Request(msgspec.Struct, frozen=True):
    """A request that `Guard.admit` let through."""

    method: str
    route: Route
    topic: str  # "" where the route has none
    wid: str  # likewise
    router: str  # likewise
    shard: int  # of the topic, 0 where there is none
    principal: Principal
    query: Query
    key: str | None  # Idempotency-Key
    gzip_in: bool
    gzip_out: bool
    wrong_media: UnsupportedMediaType | None  # raised only if the chunked body is not empty
    # Without the token; of a request for a stream, or of one that negotiates.
    head: HeadFields | None
    is_timed: bool = False  # the answer has Server-Timing
