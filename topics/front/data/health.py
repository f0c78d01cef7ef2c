"""Health, readiness (§8) and the root. No key is needed, unless TOPICS_PROBE_AUTH is set.

GET   /v0/health, /healthz    §8.1
GET   /v0/ready, /readyz      §8.2
GET   /, /v0                  name, version, links, location of the documentation
"""

from __future__ import annotations

import time
from typing import Final

from topics import __version__
from topics.actors.shard_client.readiness import unavailable_error
from topics.front.answers import json_answer
from topics.front.data.context import RouteContext
from topics.front.data.specs import ASYNCAPI, OPENAPI
from topics.front.dispatch import OnResult, Operation
from topics.front.drain import shutting_down
from topics.front.request import Body, Request
from topics.front.route import Route


def health(context: RouteContext, _request: Request, _body: Body, at: int, then: OnResult) -> None:
    """Return 200 while this process can respond (§8.1)."""
    uptime_ms = (time.monotonic_ns() - context.started_ns) // 1_000_000
    then(json_answer({"status": "ok", "version": __version__, "uptime_ms": uptime_ms}, at))


def ready(context: RouteContext, _request: Request, _body: Body, at: int, then: OnResult) -> None:
    """Return 200 if the server is ready (§8.2).

    The server is also ready if some shards serve only reads; the response lists these shards. Raise
    `ShuttingDown` during the drain, or the error that `unavailable_error` returns.
    """
    readiness = context.shards.readiness()
    if readiness.draining or context.drain.is_draining:
        raise shutting_down()
    if not readiness.ready:
        raise unavailable_error(readiness)
    answer = {"status": "ready", "wal_replay_complete": True, "topics": readiness.topics}
    if readiness.limited:
        answer["shards"] = [{"shard": shard, "state": state} for shard, state in readiness.limited]
    then(json_answer(answer, at))


LINKS: Final = {
    "health": "/v0/health",
    "ready": "/v0/ready",
    "metrics": "/v0/metrics",
    "openapi": OPENAPI,
    "asyncapi": ASYNCAPI,
}
DOCS: Final = "README.md and topics/docs/*.md of the distribution topics-engine"


def root(context: RouteContext, _request: Request, _body: Body, at: int, then: OnResult) -> None:
    """Return the server's name, its version, links, and the location of its documentation."""
    links = LINKS | {"console": "/console"} if context.settings.console else LINKS
    answer = {"name": "topics", "version": __version__, "links": links, "docs": DOCS}
    found = json_answer(answer, at)
    found.headers = ((b"link", b'<%b>; rel="service-desc"' % OPENAPI.encode()),)
    then(found)


def _probe(path: str, name: str) -> Route:
    return Route("GET", path, name, None, is_open=True, answers_in_drain=True)


ROUTES: dict[Route, Operation] = {
    _probe("/v0/health", "health"): health,
    _probe("/healthz", "health"): health,
    _probe("/v0/ready", "ready"): ready,
    _probe("/readyz", "ready"): ready,
    _probe("/", "root"): root,
    _probe("/v0", "root"): root,
}
