"""Routers (§6): create or configure, get, list, delete.

PUT      /v0/routers/:router
GET      /v0/routers/:router
GET      /v0/routers           ?prefix ?source ?dest ?page_size ?cursor
DELETE   /v0/routers/:router

One shard owns all routers (`calls.ROUTER_OWNER`, the shard of requests without a topic). It decodes
the body, and it refuses a router of which an end is outside the key's prefixes; the guard has
checked the router's own name.
"""

from __future__ import annotations

from functools import partial

from topics.actors.rpc.session import Reply
from topics.engine.access import Scope
from topics.formats.wire import calls
from topics.front.answers import Answer, location, shard_answer
from topics.front.dispatch import Begun, Operation, Then
from topics.front.queries import Parameter, name_text
from topics.front.request import Body, Request, listed
from topics.front.route import BodyRule, Route, plain
from topics.front.routes import paging
from topics.front.routes.context import RouteContext

LIST_PREFIX = Parameter("prefix", name_text, default="")
LIST_SOURCE: Parameter[str | None] = Parameter("source", name_text, default=None)
LIST_DEST: Parameter[str | None] = Parameter("dest", name_text, default=None)
LIST_CURSOR: Parameter[str | None] = Parameter("cursor", paging.NAMES.decode, default=None)


def put(context: RouteContext, request: Request, body: Body, at: int, then: Then) -> Begun:
    """Create or configure a router."""
    params = calls.RouterParams(request.router, listed(request.principal.prefixes), at)
    answer = partial(_put_answer, request.router)
    return context.ask(request, calls.ROUTER_PUT, params, body, then, answer)


def _put_answer(router: str, reply: Reply[calls.PutResult]) -> Answer:
    return shard_answer(reply, made=location("routers", router) if reply.result.created else ())


def get(context: RouteContext, request: Request, _body: Body, at: int, then: Then) -> Begun:
    """Config and counters of a router."""
    params = calls.RouterParams(request.router, listed(request.principal.prefixes), at)
    return context.ask(request, calls.ROUTER_GET, params, b"", then)


def delete(context: RouteContext, request: Request, _body: Body, at: int, then: Then) -> Begun:
    """Remove a router."""
    params = calls.RouterParams(request.router, listed(request.principal.prefixes), at)
    return context.ask(request, calls.ROUTER_DELETE, params, b"", then)


def list_routers(
    context: RouteContext, request: Request, _body: Body, at: int, then: Then
) -> Begun:
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

    def page(reply: Reply[calls.RouterListResult]) -> Answer:
        items = [(name, bytes(item)) for name, item in reply.result.items]
        reply.release()
        return paging.answer("routers", items, size, at)

    return context.ask(request, calls.ROUTER_LIST, params, b"", then, page)


ROUTER = "/v0/routers/:router"
LISTED = (LIST_PREFIX, LIST_SOURCE, LIST_DEST, paging.SIZE, LIST_CURSOR)
ROUTES: dict[Route, Operation] = {
    plain("PUT", ROUTER, "router.put", Scope.ADMIN, body=BodyRule.REQUIRED, is_audited=True): put,
    plain("GET", ROUTER, "router.get", Scope.READ): get,
    plain("DELETE", ROUTER, "router.delete", Scope.DELETE, is_audited=True): delete,
    plain("GET", "/v0/routers", "router.list", Scope.READ, parameters=LISTED): list_routers,
}
