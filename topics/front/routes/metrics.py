"""Metrics (§8.3): the text that Prometheus reads, or the same values as JSON.

GET   /v0/metrics, /metrics    Accept: application/json

Answered whatever the state of the shards, and while the server drains.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import chain
from typing import Final

import msgspec
import trio

from topics.actors.link import counters
from topics.engine.access import Scope
from topics.formats.api.metrics_text import MEDIA_TYPE, Family, json_pieces, text_pieces
from topics.front.answers import Answer, elapsed_ms
from topics.front.backend import Body, listed
from topics.front.media import prefers_json
from topics.front.metric_rows import row_families
from topics.front.request import Request
from topics.front.route import READ_ONLY, Lane, Route
from topics.front.routes.context import RouteContext
from topics.front.server_families import server_families

STEP_NS: Final = 1_000_000  # then others have their turn


async def metrics(context: RouteContext, request: Request, _body: Body, at: int) -> Answer:
    """Everything that the key may see: aggregates of all, and rows within its prefixes. Raises
    `Unauthorized`.
    """
    assert request.head is not None, "the route negotiates"
    prefixes, most = listed(request.principal.prefixes), context.settings.metrics_topics
    rows = await row_families(context.backend, prefixes, most, context.metric_reads)
    context.live.keys.check(request.principal)  # it may have changed while this waited
    families = chain(_aggregates(context), rows)
    if prefers_json(request.head.joined(b"accept")):
        tail = msgspec.json.encode({"performance": {"server_total_ms": elapsed_ms(at)}})[1:]
        return Answer(200, await _joined(json_pieces(families, tail)))
    text = await _joined(piece.encode() for piece in text_pieces(families))
    return Answer(200, text, media_type=MEDIA_TYPE)


def _aggregates(context: RouteContext) -> Iterator[Family]:
    yield from server_families(
        context.board,
        context.backend.readiness(),
        context.live.slots,
        context.settings,
        draining=context.drain.is_draining,
    )
    yield from counters.families(context.board)


async def _joined(pieces: Iterator[bytes]) -> bytes:
    """All pieces, made a millisecond at a time."""
    made, until = [], time.monotonic_ns() + STEP_NS
    for piece in pieces:
        made.append(piece)
        if time.monotonic_ns() >= until:
            await trio.lowlevel.checkpoint()
            until = time.monotonic_ns() + STEP_NS
    return b"".join(made)


def _route(path: str) -> Route:
    return Route(
        READ_ONLY,
        path,
        "metrics",
        Scope.READ,
        lane=Lane.HOT,
        negotiates=True,
        answers_in_drain=True,
    )


ROUTES = {_route("/v0/metrics"): metrics, _route("/metrics"): metrics}
