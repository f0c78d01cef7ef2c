"""Registry: the routers that have an end in this shard, as sent by the owner of the graph.

    router.sync      new, changed or removed routers; all routers when the link session opens
    router.stats     counters of routers whose source is in this shard
    router.endpoint  a topic of this shard that is to become an end of a router (§6.1)

While the owner is unavailable, the shard continues with the routers that it last received.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final, TypeAlias

import trio

from topics.actors.rpc.message_router import MessageRouter
from topics.actors.rpc.replies import answer_error
from topics.actors.rpc.session import InboundMessage
from topics.actors.shard.context import ShardContext
from topics.actors.shard.disk_space import unwritable
from topics.actors.shard.routing.router_worker import WorkerState
from topics.actors.shard.routing.workers import RouterWorkers
from topics.actors.shard.service import Service
from topics.engine.changes import put_topic
from topics.engine.routing.derivations import drop_other_derivations
from topics.engine.topic import Topic
from topics.formats.api.topic_config import TopicConfigPatch
from topics.formats.wire.calls import (
    ROUTER_ENDPOINT,
    ROUTER_OWNER,
    ROUTER_STATS,
    ROUTER_SYNC,
    EndpointParams,
    EndpointResult,
    RouterRow,
    RouterStats,
    RouterStatsParams,
    RouterSyncParams,
    RouterSyncResult,
)
from topics.storage.wal.log_progress import LogProgress

StatsCall: TypeAlias = InboundMessage[RouterStatsParams, RouterStats]
EndpointCall: TypeAlias = InboundMessage[EndpointParams, EndpointResult]
SyncCall: TypeAlias = InboundMessage[RouterSyncParams, RouterSyncResult]

SETTLE_S: Final = 0.5  # maximum time that a reply with counters waits for forwards in flight
SETTLE_POLL_S: Final = 0.005  # interval at which the end of these forwards is checked


class RouterRegistry(Service):
    """Stores the routers of this shard. ``workers`` run those whose source is in this shard."""

    def __init__(self, context: ShardContext, workers: RouterWorkers) -> None:
        self._context, self._engine, self._workers = context, context.engine, workers
        # Keyed by router id. `_by_source` and `by_dest` contain only the rows that have their
        # source or their dest in this shard.
        self._rows: dict[int, RouterRow] = {}
        self._by_source: dict[str, dict[int, RouterRow]] = {}
        # Routers whose dest is a topic of this shard, by the name of the dest.
        self.by_dest: dict[str, dict[int, RouterRow]] = {}
        context.routers_of = self.has_routers
        # False until the owner has sent its complete list once. Until then, no router counts as
        # unknown.
        self.has_owner_list = False
        self._removed_dests: set[str] = set()  # dests of routers that the last message removed

    def register(self, router: MessageRouter) -> None:
        """Register the handlers for all sessions of ``router``."""
        router.serve(ROUTER_SYNC, self._sync)
        router.serve(ROUTER_STATS, self._stats)
        router.serve(ROUTER_ENDPOINT, self._endpoint)

    # Queries

    def has_routers(self, topic: str) -> bool:
        """Return whether a topic of this shard may be an end of a router.

        Until the owner has sent its list, return whether the owner is available, because the caller
        then calls the owner. If an end of a router is deleted while the owner is unavailable, the
        owner removes the router later.
        """
        if not self.has_owner_list:
            return self._context.peers.is_connected(ROUTER_OWNER)
        return topic in self._by_source or topic in self.by_dest

    def may_feed(self, topic: str, router: int) -> bool:
        """Return whether the router feeds the topic; True until the owner has sent its list."""
        return not self.has_owner_list or router in self.by_dest.get(topic, ())

    def _is_local(self, topic: str) -> bool:
        return self._context.peers.shard_of(topic) == self._context.wal.shard

    def _end(self, name: str, topic_id: int) -> Topic | None:
        """Return an end of a router, or None if the topic has been deleted or created again."""
        topic = self._engine.topics.get(name)
        return topic if topic is not None and topic.id == topic_id else None

    # Messages from the owner

    def _sync(self, request: SyncCall) -> None:
        params = request.params
        rows = [RouterRow._make(fields) for fields in params.routers]
        # A complete list replaces all routers. Routers that it does not contain were removed
        # while the shard was not connected.
        removed = set(params.removed)
        if params.is_all:
            removed |= self._rows.keys() - {row.id for row in rows}
        orphans = [row.id for row in rows if not self._set(row)]
        totals: list[tuple[int, int]] = []
        # The removed routers whose workers are here. The reply follows when all of them have
        # stopped.
        waiting = removed.intersection(self._workers.known())

        def stopped(router: int, total: int) -> None:
            waiting.discard(router)
            totals.append((router, total))
            if not waiting:
                request.reply(RouterSyncResult(orphans, totals))

        # The reply waits for the totals of removed routers that have forwards in flight.
        is_waiting = bool(waiting)
        # The dests of the routers that the previous message removed. These routers cannot have a
        # forward in flight now.
        removed_dests, self._removed_dests = self._removed_dests, set()
        for router in removed:
            self._drop(router)
            self._workers.remove(router, partial(stopped, router))
        if params.is_all:
            self._drop_derivations(self._engine.topics)
            self.has_owner_list = True
        else:
            self._drop_derivations(removed_dests)
        if not is_waiting:
            request.reply(RouterSyncResult(orphans, totals))

    def _drop_derivations(self, dests: Iterable[str]) -> None:
        """Remove the cursors of routers that no longer feed these topics.

        This happens one message later than the removal of the router. Until then a forward may be
        in flight, and a router whose change fails may be sent again and continue.
        """
        for name in dests:
            topic = self._engine.topics.get(name)
            if topic is not None and topic.derivations is not None:
                drop_other_derivations(topic, self.by_dest.get(name, ()))

    def _set(self, row: RouterRow) -> bool:
        """Store a new or changed router. Return False if an end is missing in this shard."""
        source, dest = self._end(row.source, row.source_id), self._end(row.dest, row.dest_id)
        # A router with a missing end is not stored. The reply reports it as an orphan.
        if (self._is_local(row.source) and source is None) or (
            self._is_local(row.dest) and dest is None
        ):
            return False
        self._rows[row.id] = row
        if dest is not None:
            self.by_dest.setdefault(row.dest, {})[row.id] = row
        if source is not None:
            self._by_source.setdefault(row.source, {})[row.id] = row
            self._workers.set(row, source)
        return True

    def _drop(self, router: int) -> None:
        row = self._rows.pop(router, None)
        if row is None:
            return
        for table, name in ((self._by_source, row.source), (self.by_dest, row.dest)):
            rows = table.get(name, {})
            rows.pop(router, None)
            if not rows:
                table.pop(name, None)
        self._removed_dests.add(row.dest)

    # Counters

    def _stats(self, request: StatsCall) -> None:
        request.disable_timeout()
        self._answer_stats(request, trio.current_time() + SETTLE_S)

    def _answer_stats(self, request: StatsCall, until: float) -> None:
        """Reply when no forward of these routers is in flight, or at ``until`` at the latest.

        While no forward is in flight, the counters agree with the records that readers of the dests
        see.
        """
        routers, now = request.params.routers, trio.current_time()
        if now < until and not all(map(self._is_settled, routers)):
            again = partial(self._answer_stats, request, until)
            # Poll instead of waiting for an event: the counters are requested rarely, and
            # forwards are frequent.
            self._context.deadlines.call_at(now + SETTLE_POLL_S, again)
        elif request.is_open and not request.session.closed:
            found = [self._workers.stats(router) for router in routers]
            request.reply(RouterStats([stats for stats in found if stats is not None]))

    def _is_settled(self, router: int) -> bool:
        """Return whether the counters of a router are known and no forward is in flight."""
        known = self._workers.worker(router)
        # Until the owner has sent its list, the router may still arrive.
        if known is None:
            return self.has_owner_list
        return known[1].is_known and known[1].state is not WorkerState.IN_FLIGHT

    # Ends of routers

    def _endpoint(self, request: EndpointCall) -> None:
        # Do not wait for a held topic. If it is held for its deletion, the deletion waits for the
        # owner of the routers, which may wait for this reply.
        params = request.params
        topic = self._engine.topics.get(params.topic)
        if topic is None and not params.create:
            return request.reply(EndpointResult(0, 0, 0))
        # The topic exists and is durable. A new router begins at its head.
        if topic is not None and not topic.pending_sync:
            return request.reply(_end_of(topic))
        if topic is None:
            self._context.check_writable(grows=True)
        # Create the topic. If it exists but is not durable, this change has no effect, and the
        # reply waits until the topic is synced.
        table, now = self._engine.table, self._context.now
        has_slot = now.ms <= params.place_until_ms
        change = put_topic.decide(table, params.topic, TopicConfigPatch(), now, has_slot=has_slot)
        request.disable_timeout()

        def settle(result: LogProgress | OSError) -> None:
            if isinstance(result, OSError):
                return answer_error(request, unwritable(result))
            return request.reply(_end_of(change.topic))

        return self._context.commits.submit(change, settle)


def _end_of(topic: Topic) -> EndpointResult:
    return EndpointResult(topic.id, topic.epoch, topic.head_seq)
