"""Routers (§6): create or configure, get, list, delete.

    PUT      /v0/routers/:router
    GET      /v0/routers/:router
    GET      /v0/routers           ?prefix ?source ?dest ?page_size ?cursor
    DELETE   /v0/routers/:router

One shard owns all routers (`calls.ROUTER_OWNER`, which is also the shard for requests without a
topic). It decodes the body, and refuses a router whose source or dest is outside the key's
prefixes. The guard has checked the router's own name.
"""

from __future__ import annotations

from quart import Response

from topics.formats.wire import calls
from topics.front.admin import paging, rows
from topics.front.admin.views import View, admitted, call_shard, copied, response
from topics.front.answers import location, shard_answer
from topics.front.request import listed
from topics.front.route import Route


def _params(router: str) -> calls.RouterParams:
    call = admitted()
    return calls.RouterParams(router, listed(call.request.principal.prefixes), call.at)


async def put(router: str) -> Response:
    """Create or configure a router."""
    reply = await call_shard(calls.ROUTER_PUT, _params(router), has_body=True)
    made = location("routers", router) if reply.result.created else ()
    return response(shard_answer(reply, made=made))


async def get(router: str) -> Response:
    """Return the config and counters of a router."""
    return response(shard_answer(await call_shard(calls.ROUTER_GET, _params(router))))


async def delete(router: str) -> Response:
    """Delete a router."""
    return response(shard_answer(await call_shard(calls.ROUTER_DELETE, _params(router))))


async def list_routers() -> Response:
    """Return a page of routers, ordered by name.

    The shard returns one router more than the page has, so that the response has a cursor only if
    there is a next page.
    """
    call = admitted()
    query, size = call.request.query, call.request.query[paging.SIZE]
    params = calls.RouterListParams(
        prefix=query[rows.PREFIX],
        source=query[rows.SOURCE],
        dest=query[rows.DEST],
        after=query[rows.NAME_CURSOR],
        limit=size + 1,
        prefixes=listed(call.request.principal.prefixes),
    )
    items = copied(await call_shard(calls.ROUTER_LIST, params), paging.named_items)
    return response(paging.answer("routers", items, size, call.at))


VIEWS: dict[Route, View] = {
    rows.ROUTER_PUT: put,
    rows.ROUTER_GET: get,
    rows.ROUTER_DELETE: delete,
    rows.ROUTER_LIST: list_routers,
}
