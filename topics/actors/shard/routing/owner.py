"""Router owner: the shard that creates, configures, removes and shows all routers (§6).

    PUT      check or create both ends -> log the router -> push it to the shards of both ends
             -> reply
    DELETE   log the removal -> push it to the available shards of the ends -> reply
    CASCADE  like DELETE, for all routers of a topic, before this topic is deleted

An end of a router is its source or its dest. Mutations that share a name run sequentially
(`mutations.py`). A mutation checks the graph, and the result of the check must remain valid until
the change is in the log. So only one mutation at a time checks and logs, and in between it makes no
request to another shard. The graph is changed after the log has the change, and then the shards are
notified (`pushes.py`). After a crash between two steps, there may be topics whose router was not
created, or a router that the shards receive only when they connect.

Configs in replies are read from the graph. Counters are requested from the shards of the sources
for each reply. If a shard does not know a router, the reply waits for the router's pending
mutations, because after them all available shards know it.

A router whose source or dest changes gets a new incarnation with a new id. The new incarnation is
logged before the shards of the old ends are notified. Until then the old incarnation continues
unchanged. A second frame stores where the old incarnation stopped, and its final total. Then the
shards of the new ends are notified.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

import trio

from topics.actors.rpc.message_router import MessageRouter
from topics.actors.rpc.replies import answer_error, reply_json
from topics.actors.rpc.session import InboundMessage
from topics.actors.shard.context import ShardContext
from topics.actors.shard.disk_space import unwritable
from topics.actors.shard.held_topics import Request
from topics.actors.shard.routing.mutations import CALL_MAX_S, Mutations, call_shard
from topics.actors.shard.routing.pushes import Pushes
from topics.actors.shard.service import Service
from topics.engine.changes import router_changes
from topics.engine.changes.router_changes import RouterChange
from topics.engine.routing.graph import Router
from topics.errors import (
    Forbidden,
    Internal,
    NotReady,
    RouterCycle,
    Throttled,
    TopicNotFound,
    TopicsError,
)
from topics.formats.api import router_json
from topics.formats.api.decoding import ignored_in
from topics.formats.api.router_json import RouterConfig, RouterPatch, decode_router, merge
from topics.formats.names import covered
from topics.formats.wire.calls import (
    NO_RESULT,
    ROUTER_CASCADE,
    ROUTER_DELETE,
    ROUTER_ENDPOINT,
    ROUTER_GET,
    ROUTER_LIST,
    ROUTER_OWNER,
    ROUTER_PUT,
    ROUTER_STATS,
    CascadeParams,
    CascadeResult,
    EndpointParams,
    EndpointResult,
    NoResult,
    PutResult,
    RouterListParams,
    RouterListResult,
    RouterParams,
    RouterStatsParams,
)
from topics.storage.wal.log_file import NoSpace

ATTEMPTS: Final = 3  # attempts to create a router if its ends are deleted at the same time
# How long a slot stays reserved for a new end. The reservation expires before the reply is overdue.
RESERVATION_MS: Final = int(CALL_MAX_S * 1000) - 1000

PutCall: TypeAlias = InboundMessage[RouterParams, PutResult]
DeleteCall: TypeAlias = InboundMessage[RouterParams, NoResult]
GetCall: TypeAlias = InboundMessage[RouterParams, NoResult]
ListCall: TypeAlias = InboundMessage[RouterListParams, RouterListResult]
CascadeCall: TypeAlias = InboundMessage[CascadeParams, CascadeResult]


class RouterCounters(NamedTuple):
    """Counters of one router. ``total``: records forwarded by all its incarnations."""

    total: int
    lag_records: int
    lag_ms: int


class RoutersChanging(NotReady):
    """The shards of the sources do not know some routers yet, because a change is in progress."""

    def __init__(self, routers: list[str]) -> None:
        super().__init__("a router is being changed")
        self.routers = routers


class RouterOwner(Service):
    """Handles router requests from clients, and the deletion of topics that are ends of routers."""

    def __init__(self, context: ShardContext) -> None:
        self._context, self._commits, self._engine = context, context.commits, context.engine
        self._graph, self._peers = context.engine.routers, context.peers
        # `_mutations` runs mutations that share a name one after another. `_changing` is held for a
        # shorter time, and applies to all mutations.
        self._mutations = Mutations(context)
        self._pushes = Pushes(context, self._note_orphans)
        self._changing = trio.Lock()  # held while the graph is checked and changed
        # Only shard 0 owns the graph. It sends each shard its routers whenever their link opens,
        # so a shard that has missed a notification is up to date after it reconnects.
        if context.engine.table.shard == ROUTER_OWNER:
            context.peers.on_open.append(self._pushes.push_all)

    def register(self, router: MessageRouter) -> None:
        """Register the handlers for all sessions of ``router``."""
        router.serve(ROUTER_PUT, self._put)
        router.serve(ROUTER_DELETE, self._delete)
        router.serve(ROUTER_CASCADE, self._cascade)
        router.serve(ROUTER_GET, self._get)
        router.serve(ROUTER_LIST, self._list)

    # Requests

    def _put(self, request: PutCall) -> None:
        self._check_owner()
        patch = decode_router(request.attachment, self._context.limits)
        ignored = ignored_in(request.attachment, RouterPatch)
        request.release()
        name = request.params.router
        # A mutation waits for all mutations that use one of its names: the router, its current
        # ends and the ends that the patch specifies.
        names = {name, *self._ends_of(name), *filter(None, (patch.source, patch.dest))}
        self._mutations.add(names, partial(self._configure, request, patch, ignored), request)

    def _delete(self, request: DeleteCall) -> None:
        self._check_owner()
        name = request.params.router
        self._mutations.add(
            (name, *self._ends_of(name)), partial(self._remove_router, request), request
        )

    def _cascade(self, request: CascadeCall) -> None:
        self._check_owner()
        topic = request.params.topic
        names = {topic, *(router.name for router in self._graph.of_topic(topic))}
        self._mutations.add(names, partial(self._remove_topic_routers, request), request)

    def _note_orphans(self, router_ids: Sequence[int]) -> None:
        # An orphan is a router whose source or dest has been deleted. Skip routers that were
        # removed after the shard reported them.
        by_id = self._graph.by_id
        names = {by_id[router_id].name for router_id in router_ids if router_id in by_id}
        self._mutations.add(names, partial(self._remove_orphans, router_ids))

    def _ends_of(self, name: str) -> tuple[str, ...]:
        router = self._graph.by_name.get(name)
        return () if router is None else (router.source, router.dest)

    # Create or configure a router

    async def _configure(self, request: PutCall, patch: RouterPatch, ignored: bytes) -> None:
        params = request.params
        # Read the router now and not in `_put`, because earlier mutations of this name have run
        # since.
        before = self._graph.by_name.get(params.router)
        config = merge(before.config if before else None, patch)
        _check_covered(params.router, config, params.prefixes)
        # A key must not change a router that it may not see, even if the new ends are permitted.
        if before is not None:
            _check_covered(params.router, before.config, params.prefixes)
        # Push an unchanged router again only if the shard of its source or dest does not have it.
        if before is None or before.config != config or not self._is_known(before):
            try:
                await self._make(params.router, config, create_dest=patch.create_dest)
            except RouterCycle as error:
                raise _redacted(error, params.prefixes) from None
        is_new = before is None
        body = router_json.configured(params.router, config, created=is_new) + ignored
        with self._context.iteration():
            reply_json(request, PutResult(is_new), body, params.at)

    def _is_known(self, router: Router) -> bool:
        """Return whether the shards of the router's ends have stored it."""
        shards = map(self._peers.shard_of, (router.source, router.dest))
        return all(map(self._pushes.is_up_to_date, shards))

    async def _make(self, name: str, config: RouterConfig, *, create_dest: bool) -> None:
        """Create or configure the router, and wait until the shards of its ends have it."""
        total = 0  # records forwarded by the incarnations that this call has ended
        # An end may be deleted between the look-up and the push. The shards then report the
        # router as an orphan. It is removed, and the next attempt looks up its ends again.
        for _ in range(ATTEMPTS):
            self._context.check_writable(grows=True)
            source, dest = await self._ends(name, config, create_dest=create_dest)
            before = self._graph.by_name.get(name)
            # A new source or dest requires a new incarnation.
            if before is not None and not _has_ends(before, config, source, dest):
                counted = await self._counted(before)
                # The new incarnation is logged before the old one stops. A crash in between
                # leaves one incarnation.
                router = self._next(name, config, source, dest, before.base_total + counted)
                router, others = await self._put_router(router)
                router = await self._stop_replaced(before, router, counted)
            else:
                router = self._next(name, config, source, dest, total)
                others = []
                if before != router:
                    router, others = await self._put_router(router)
            # The shards must have the router before the reply, so that records that a client
            # appends after the reply are forwarded.
            pushes = await self._pushes.push_each([router, *others], [])
            if not any(router.id in push.result.orphans for push in pushes.values()):
                return
            # An end was deleted, or deleted and created again, after it was looked up.
            total = router.base_total
            await self._remove([router])
        raise NotReady("the source or the dest of the router is being deleted", router=name)

    async def _put_router(self, router: Router) -> tuple[Router, list[Router]]:
        """Log the router. Return it with its id, and the routers that a change of cycles affects.

        These are routers that are now on a cycle and were not before, or the reverse. Raises the
        errors of `RouterGraph.check`.
        """
        # Check the router, assign its id and log it in one step, before any other mutation. Two
        # concurrent PUTs that were checked separately could close a cycle together.
        async with self._changing:
            self._check_limits(router.name, router.config)
            if not router.id:
                router = replace(router, id=self._graph.last_id + 1)
            # The commit changes the graph. Store which routers are on a cycle before, to find the
            # differences.
            cyclic = set(self._graph.cyclic)
            await self._log(
                lambda: router_changes.put(self._engine.table, router, self._context.now)
            )
        return router, self._cycle_changes(cyclic, router.id)

    def _cycle_changes(self, cyclic: Set[int], exclude: int = 0) -> list[Router]:
        """Return routers that are now on a cycle and were not before, or the reverse."""
        by_id = self._graph.by_id
        changed = (cyclic ^ self._graph.cyclic) - {exclude}
        return [by_id[router_id] for router_id in changed if router_id in by_id]

    def _check_limits(self, name: str, config: RouterConfig) -> None:
        """Raise the errors of `RouterGraph.check`, or `Throttled` if there are too many routers."""
        self._graph.check(name, config)
        most = self._context.limits.routers
        if most and name not in self._graph.by_name and len(self._graph) >= most:
            raise Throttled(
                f"the server has the maximum of {most} routers", limit="max_routers", max=most
            )

    async def _ends(
        self, name: str, config: RouterConfig, *, create_dest: bool
    ) -> tuple[EndpointResult, EndpointResult]:
        """Return source and dest, creating missing topics. A refused router creates no topics."""
        source = await self._end(config.source)
        # First look up both ends without creating any, so that a refused router leaves no new
        # topics.
        dest = await self._end(config.dest)
        if not dest.id and not create_dest:
            raise TopicNotFound(config.dest)
        self._check_limits(name, config)
        # Reserve the slots for both ends before one is created. Otherwise the second end could
        # exceed the topic limit, and the first end would remain without a router.
        with self._reserve_topics(int(not source.id) + int(not dest.id)) as release:
            if not source.id:
                source = await self._end(config.source, create=True)
                release()
            if not dest.id:
                dest = await self._end(config.dest, create=True)
                release()
        return source, dest

    @contextmanager
    def _reserve_topics(self, count: int) -> Iterator[Callable[[], None]]:
        """Reserve ``count`` topics of the server's cap, for ends that will be created (§11).

        The yielded function releases one reservation. Call it for each created end, because the end
        then counts as a topic itself. Raises `Throttled` or `NotReady`; in that case no end is
        created.
        """
        cap = self._engine.table.topic_cap
        if cap is None or not count:
            yield lambda: None
            return
        # Raises if the limit is reached. Until the ends are created, the slots belong to this
        # mutation.
        cap.take(count)
        used = count

        def release() -> None:
            nonlocal used
            used -= 1
            cap.release()

        try:
            yield release
        # Release the remaining slots, also after an error. The slots of created ends are already
        # released.
        finally:
            cap.release(used)

    async def _end(self, topic: str, *, create: bool = False) -> EndpointResult:
        # The reservation expires before this call does, so that the shard never uses a slot that
        # this mutation has already released.
        place_until_ms = self._context.clock().ms + RESERVATION_MS if create else 0
        shard, params = self._peers.shard_of(topic), EndpointParams(topic, create, place_until_ms)
        return await call_shard(self._context, shard, ROUTER_ENDPOINT, params)

    def _next(
        self,
        name: str,
        config: RouterConfig,
        source: EndpointResult,
        dest: EndpointResult,
        total: int,
    ) -> Router:
        """Return the router to be logged.

        This is the current incarnation with the new config, or a new incarnation with id 0.
        """
        before = self._graph.by_name.get(name)
        if before is not None and _has_ends(before, config, source, dest):
            return replace(before, config=config)
        return Router(
            id=0,
            name=name,
            config=config,
            source_id=source.id,
            source_epoch=source.epoch,
            dest_id=dest.id,
            start_seq=source.head_seq,
            base_total=total,
        )

    async def _counted(self, router: Router) -> int:
        """Return the number of records that this incarnation of the router has forwarded."""
        shard = self._peers.shard_of(router.source)
        stats = await call_shard(self._context, shard, ROUTER_STATS, RouterStatsParams([router.id]))
        return sum(row[1] for row in stats.stats)

    async def _stop_replaced(self, before: Router, router: Router, counted: int) -> Router:
        """Stop the old incarnation of a router, after the new incarnation is in the log.

        Return the new incarnation with the final total, beginning where the old one stopped.
        """
        # An error from now on has only a small effect: a few records are missing from the total, or
        # are forwarded to both dests.
        with suppress(TopicsError):
            # The shards of the old source and dest stop the router when they are notified.
            # `push_each` waits for forwards in flight.
            pushes = await self._pushes.push_each([], [before])
            # The shard of the old source reports the final total when no forward is in flight.
            shard = self._peers.shard_of(before.source)
            counted = dict(pushes[shard].result.totals).get(before.id, counted)
            # The head may have grown since the new incarnation was logged. Begin after the
            # records that the old one may have forwarded.
            source = await self._end(router.source)
            if source.id != router.source_id:
                return router  # the source has been deleted, which its shard will report
            total = before.base_total + counted
            last = replace(router, start_seq=source.head_seq, base_total=total)
            if last != router:
                return (await self._put_router(last))[0]
        return router

    # Remove routers

    async def _remove_router(self, request: DeleteCall) -> None:
        params = request.params
        router = self._graph.by_name.get(params.router)
        if router is not None:
            _check_covered(params.router, router.config, params.prefixes)
            await self._remove([router])
        body = router_json.deleted(params.router, existed=router is not None)
        with self._context.iteration():
            reply_json(request, NO_RESULT, body, params.at)

    async def _remove_topic_routers(self, request: CascadeCall) -> None:
        routers = self._graph.of_topic(request.params.topic)
        if routers:
            await self._remove(routers)
        result = CascadeResult([router.name for router in routers])
        with self._context.iteration():
            request.reply(result)

    async def _remove_orphans(self, router_ids: Sequence[int]) -> None:
        by_id = self._graph.by_id
        routers = [by_id[router_id] for router_id in router_ids if router_id in by_id]
        if routers:
            await self._remove(routers)

    async def _remove(self, routers: Sequence[Router]) -> None:
        """Remove routers. Unavailable shards are notified when they reconnect."""
        router_ids = [router.id for router in routers]
        self._context.check_writable()
        async with self._changing:
            # A removal may break a cycle. The other routers of the cycle then stop limiting the
            # hops of records.
            cyclic = set(self._graph.cyclic)
            await self._log(
                lambda: router_changes.remove(self._engine.table, router_ids, self._context.now)
            )
        # The removal is durable, so the reply need not wait for a shard that is down.
        await self._pushes.push_each(self._cycle_changes(cyclic), routers)

    # Show routers

    def _get(self, request: GetCall) -> None:
        self._check_owner()
        self._context.start(self._show, partial(self._show_router, request), request)

    def _list(self, request: ListCall) -> None:
        self._check_owner()
        self._context.start(self._show, partial(self._show_routers, request), request)

    async def _show(self, show: Callable[[], Awaitable[None]], request: Request) -> None:
        try:
            await show()
        except RoutersChanging as error:
            # The shard of a source does not know a router. A mutation of the router may be pending,
            # so the request is handled again after the pending mutations of these routers.
            self._mutations.add(error.routers, show, request)
        except Exception as error:
            with self._context.iteration():
                answer_error(request, error)

    async def _show_router(self, request: GetCall) -> None:
        params = request.params
        router = self._graph.router(params.router)
        _check_covered(router.name, router.config, params.prefixes)
        (counters,) = await self._count([router])
        body = router_json.state(
            router.name,
            router.config,
            forwarded_total=counters.total,
            lag_records=counters.lag_records,
            lag_ms=counters.lag_ms,
        )
        with self._context.iteration():
            reply_json(request, NO_RESULT, body, params.at)

    async def _show_routers(self, request: ListCall) -> None:
        routers = self._page(request.params)
        counted = zip(routers, await self._count(routers), strict=True)
        items = [
            (
                router.name,
                router_json.item(router.name, router.config, forwarded_total=counters.total),
            )
            for router, counters in counted
        ]
        with self._context.iteration():
            request.reply(RouterListResult(items))

    def _page(self, params: RouterListParams) -> list[Router]:
        prefixes = params.prefixes
        found = self._graph.select(params.prefix, params.after, params.source, params.dest)
        visible = (
            router
            for router in found
            if all(covered(text, prefixes) for text in (router.name, router.source, router.dest))
        )
        return [*islice(visible, params.limit)]

    async def _count(self, routers: Sequence[Router]) -> list[RouterCounters]:
        """Return the counters of these routers.

        Raises `NotReady` if a shard of a source is unavailable.
        """
        # Make one request to each shard.
        by_shard: defaultdict[int, list[int]] = defaultdict(list)
        for router in routers:
            by_shard[self._context.peers.shard_of(router.source)].append(router.id)
        found: dict[int, Sequence[int]] = {}
        for shard, router_ids in by_shard.items():
            answer = await call_shard(
                self._context, shard, ROUTER_STATS, RouterStatsParams(router_ids)
            )
            found.update((row[0], row[1:]) for row in answer.stats)
        unknown = [router.name for router in routers if router.id not in found]
        if unknown:
            # A missing router must not be shown with zero counters, because a client would read a
            # total that decreases.
            raise RoutersChanging(unknown)
        return [
            RouterCounters(router.base_total + total, lag_records, lag_ms)
            for router in routers
            for total, lag_records, lag_ms in (found[router.id],)
        ]

    # Common steps

    def _check_owner(self) -> None:
        """Raise `Internal` if this shard does not own the routers."""
        if self._engine.table.shard != ROUTER_OWNER:
            raise Internal("another shard owns the routers")

    async def _log(self, decide: Callable[[], RouterChange]) -> None:
        """Make a change durable. If this raises `NotReady`, nothing is changed."""
        self._context.begin_iteration()
        result = await self._commits.submit_and_wait(decide())
        if isinstance(result, NoSpace):
            # A group that contains an append may not use the log's reserve. Retry in a new group,
            # because a removal may use the reserve.
            self._context.begin_iteration()
            result = await self._commits.submit_and_wait(decide())
        if isinstance(result, OSError):
            raise unwritable(result)


def _has_ends(
    router: Router, config: RouterConfig, source: EndpointResult, dest: EndpointResult
) -> bool:
    """Return whether this incarnation of a router has the given ends."""
    return (router.source, router.dest, router.source_id, router.dest_id) == (
        *(config.source, config.dest, source.id, dest.id),
    )


def _check_covered(name: str, config: RouterConfig, prefixes: list[str] | None) -> None:
    """Raise `Forbidden` if the router or one of its ends is outside the key's prefixes."""
    for what, text in (("router", name), ("source", config.source), ("dest", config.dest)):
        if not covered(text, prefixes):
            raise Forbidden(f"{what} is outside the key's prefixes", field=what)


def _redacted(error: RouterCycle, prefixes: list[str] | None) -> RouterCycle:
    """Return the error, with None in place of each name that the key may not see."""
    cycle: list[str] = error.detail["cycle"]
    return RouterCycle([name if covered(name, prefixes) else None for name in cycle])
