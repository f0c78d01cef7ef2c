"""Views of routers: one router, and the list of them, with counters (§6.2, §6.3).

The config comes from the graph, the counters from the shards of the sources, which are asked once
for each answer. One that does not know a router is asked again after the mutations of the router
that are under way: then all shards that are there know it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple, TypeAlias

from topics.actors.rpc.message_router import MessageRouter
from topics.actors.rpc.replies import answer_error, reply_json
from topics.actors.rpc.session import InboundMessage
from topics.actors.shard.context import ShardContext
from topics.actors.shard.held_topics import Request
from topics.actors.shard.routing.mutations import Mutations, ask
from topics.actors.shard.routing.owner import check_covered, check_owner
from topics.actors.shard.service import Service
from topics.engine.routing.graph import Router
from topics.errors import NotReady
from topics.formats.api import routers as router_json
from topics.formats.names import covered
from topics.formats.wire.calls import (
    NO_RESULT,
    ROUTER_GET,
    ROUTER_LIST,
    ROUTER_STATS,
    NoResult,
    RouterListParams,
    RouterListResult,
    RouterParams,
    RouterStatsParams,
)

GetCall: TypeAlias = InboundMessage[RouterParams, NoResult]
ListCall: TypeAlias = InboundMessage[RouterListParams, RouterListResult]


class Counters(NamedTuple):
    """Of one router. ``total``: of all its lives."""

    total: int
    lag_records: int
    lag_ms: int


class Uncounted(Exception):
    """The shard of its source does not know a router: it is being changed. ``args``: names."""


class RouterViews(Service):
    """Handles `router.get` and `router.list`."""

    def __init__(self, context: ShardContext, mutations: Mutations) -> None:
        self._context, self._mutations = context, mutations
        self._graph = context.engine.routers

    def register(self, router: MessageRouter) -> None:
        """Serve all sessions of ``router``."""
        router.serve(ROUTER_GET, self._get)
        router.serve(ROUTER_LIST, self._list)

    def _get(self, request: GetCall) -> None:
        check_owner(self._context)
        self._context.start(self._show, partial(self._show_one, request), request)

    def _list(self, request: ListCall) -> None:
        check_owner(self._context)
        self._context.start(self._show, partial(self._show_some, request), request)

    async def _show(self, show: Callable[[], Awaitable[None]], request: Request) -> None:
        try:
            await show()
        except Uncounted as error:
            self._mutations.add(error.args, partial(self._show_again, show), request)
        except Exception as error:
            self._context.begin_turn()
            answer_error(request, error)
            self._context.end_turn()

    async def _show_again(self, show: Callable[[], Awaitable[None]]) -> None:
        try:
            await show()
        except Uncounted as error:
            raise NotReady("a router is being changed") from error

    async def _show_one(self, request: GetCall) -> None:
        params = request.params
        router = self._graph.router(params.router)
        check_covered(router.name, router.config, params.prefixes)
        (counters,) = await self._count([router])
        body = router_json.state(
            router.name,
            router.config,
            forwarded_total=counters.total,
            lag_records=counters.lag_records,
            lag_ms=counters.lag_ms,
        )
        self._context.begin_turn()
        reply_json(request, NO_RESULT, body, params.at)
        self._context.end_turn()

    async def _show_some(self, request: ListCall) -> None:
        routers = self._page(request.params)
        counted = zip(routers, await self._count(routers), strict=True)
        items = [
            (
                router.name,
                router_json.item(router.name, router.config, forwarded_total=counters.total),
            )
            for router, counters in counted
        ]
        self._context.begin_turn()
        request.reply(RouterListResult(items))
        self._context.end_turn()

    def _page(self, params: RouterListParams) -> list[Router]:
        prefixes = params.prefixes
        found = self._graph.select(params.prefix, params.after, params.source, params.dest)
        visible = (
            router
            for router in found
            if all(covered(text, prefixes) for text in (router.name, router.source, router.dest))
        )
        return [*islice(visible, params.limit)]

    async def _count(self, routers: Sequence[Router]) -> list[Counters]:
        """Counters of each of these. Raises `NotReady` when a shard that knows them is away."""
        by_shard: defaultdict[int, list[int]] = defaultdict(list)
        for router in routers:
            by_shard[self._context.peers.shard_of(router.source)].append(router.id)
        found: dict[int, Sequence[int]] = {}
        for shard, router_ids in by_shard.items():
            answer = await ask(self._context, shard, ROUTER_STATS, RouterStatsParams(router_ids))
            found.update((row[0], row[1:]) for row in answer.stats)
        unknown = [router.name for router in routers if router.id not in found]
        if unknown:
            raise Uncounted(*unknown)
        return [
            Counters(router.base_total + total, lag_records, lag_ms)
            for router in routers
            for total, lag_records, lag_ms in (found[router.id],)
        ]
