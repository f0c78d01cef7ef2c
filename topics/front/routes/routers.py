"""Routers (§6): create or configure, get, list, delete.

PUT      /v0/routers/:router
GET      /v0/routers/:router
GET      /v0/routers           ?prefix ?source ?dest ?page_size ?cursor
DELETE   /v0/routers/:router

One shard owns all routers (`calls.ROUTER_OWNER`). It decodes the body, and it refuses a router of
which an end is outside the key's prefixes; the guard has checked the router's own name.
"""

from __future__ import annotations

from topics.actors.rpc.session import Reply
from topics.engine.access import Scope
from topics.formats.wire import calls
from topics.formats.wire.contract import Call, P, R
from topics.front.answers import Answer, location, shard_answer
from topics.front.queries import Parameter, text
from topics.front.request import Body, Request, listed
from topics.front.route import BodyRule, Route
from topics.front.routes import paging
from topics.front.routes.context import RouteContext

LIST_PREFIX = Parameter("prefix", text, default="")
LIST_SOURCE: Parameter[str | None] = Parameter("source", text, default=None)
LIST_DEST: Parameter[str | None] = Parameter("dest", text, default=None)
LIST_CURSOR: Parameter[str | None] = Parameter("cursor", paging.NAMES.decode, default=None)


async def put(context: RouteContext, request: Request, body: Body, at: int) -> Answer:
    """Create or configure a router."""
    params = calls.RouterParams(request.router, listed(request.principal.prefixes), at)
    reply = await _ask(context, calls.ROUTER_PUT, params, body)
    made = location("routers", request.router) if reply.result.created else ()
    return shard_answer(reply, made=made)


async def get(context: RouteContext, request: Request, _body: Body, at: int) -> Answer:
    """Config and counters of a router."""
    params = calls.RouterParams(request.router, listed(request.principal.prefixes), at)
    return shard_answer(await _ask(context, calls.ROUTER_GET, params))


async def delete(context: RouteContext, request: Request, _body: Body, at: int) -> Answer:
    """Remove a router."""
    params = calls.RouterParams(request.router, listed(request.principal.prefixes), at)
    return shard_answer(await _ask(context, calls.ROUTER_DELETE, params))


async def list_routers(context: RouteContext, request: Request, _body: Body, at: int) -> Answer:
    """A page of routers by name. One more than the page tells whether another page follows."""
    query = request.query
    size = query[paging.SIZE]
    params = calls.RouterListParams(
        prefix=query[LIST_PREFIX],
        source=query[LIST_SOURCE],
        dest=query[LIST_DEST],
        after=query[LIST_CURSOR],
        limit=size + 1,
        prefixes=listed(request.principal.prefixes),
    )
    reply = await _ask(context, calls.ROUTER_LIST, params)
    try:
        items = [(name, bytes(item)) for name, item in reply.result.items]
    finally:
        reply.release()
    return paging.answer("routers", items, size, at)


async def _ask(context: RouteContext, call: Call[P, R], params: P, body: Body = b"") -> Reply[R]:
    return await context.shards.answer(calls.ROUTER_OWNER, call, params, body)


ROUTER = "/v0/routers/:router"
LISTED = (LIST_PREFIX, LIST_SOURCE, LIST_DEST, paging.SIZE, LIST_CURSOR)
ROUTES = {
    Route("PUT", ROUTER, "router.put", Scope.ADMIN, body=BodyRule.REQUIRED, is_audited=True): put,
    Route("GET", ROUTER, "router.get", Scope.READ): get,
    Route("DELETE", ROUTER, "router.delete", Scope.DELETE, is_audited=True): delete,
    Route("GET", "/v0/routers", "router.list", Scope.READ, parameters=LISTED): list_routers,
}
