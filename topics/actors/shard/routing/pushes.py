"""Pushes: notify each shard of the routers that have an end there.

    a session with the shard opens --all routers--> shard
    a router is created, changed or removed --that router--> shard, if it is available
                                            '-- refused --> all routers again, after a pause

A message contains the current state of the graph when it is sent, and messages of one session
arrive in order. So an older list never arrives after a newer change. An unavailable shard gets all
routers when it reconnects.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, TypeAlias

import structlog
import trio

from topics.actors.rpc.session import Reply
from topics.actors.shard.context import ShardContext
from topics.actors.shard.peers import PEER_UNAVAILABLE, PeerCall
from topics.engine.routing.graph import Router
from topics.errors import TopicsError
from topics.formats.wire.calls import (
    ROUTER_SYNC,
    RouterRow,
    RouterSyncParams,
    RouterSyncResult,
)

REPLY_MAX_S: Final = 5.0  # a shard that takes longer to reply is treated as unavailable
RETRY_S: Final = 1.0
log = structlog.get_logger()


Push: TypeAlias = PeerCall[RouterSyncResult]


class Pushes:
    """Sends the routers to all shards.

    ``on_orphans`` is called with the ids of routers whose source or dest does not exist.
    """

    def __init__(
        self, context: ShardContext, on_orphans: Callable[[Sequence[int]], object]
    ) -> None:
        self._context, self._on_orphans = context, on_orphans
        self._graph = context.engine.routers
        self._complete: set[int] = set()  # shards that have stored a complete list
        self._unanswered: Counter[int] = Counter()  # number of messages without a reply, by shard
        self._retries: set[int] = set()  # shards to which all routers are sent again soon

    def is_up_to_date(self, shard: int) -> bool:
        """Return whether the shard has stored all routers that were sent to it in this session."""
        has_owner_list = shard in self._complete and not self._unanswered[shard]
        return has_owner_list and self._context.peers.is_connected(shard)

    def push_all(self, shard: int) -> None:
        """Send all routers to the shard.

        Call this when its session opens, or within an iteration.
        """
        self._complete.discard(shard)
        shard_of = self._context.peers.shard_of
        rows = [
            self._row_of(router)
            for router in self._graph.by_id.values()
            if shard in (shard_of(router.source), shard_of(router.dest))
        ]
        self._send(shard, RouterSyncParams(rows, [], is_all=True))

    def push(self, shard: int, put: Iterable[Router], removed: Iterable[Router]) -> Push:
        """Send changes to the shard. Call this only within an iteration."""
        rows, gone = [self._row_of(router) for router in put], [router.id for router in removed]
        return self._send(shard, RouterSyncParams(rows, gone, is_all=False))

    async def push_each(self, put: Sequence[Router], removed: Sequence[Router]) -> dict[int, Push]:
        """Send changes to the shards of the routers' ends.

        Wait at most `REPLY_MAX_S` for the replies.
        """
        shard_of = self._context.peers.shard_of
        changed: defaultdict[int, list[Router]] = defaultdict(list)
        gone: defaultdict[int, list[Router]] = defaultdict(list)
        for routers, by_shard in ((put, changed), (removed, gone)):
            for router in routers:
                for shard in {shard_of(router.source), shard_of(router.dest)}:
                    by_shard[shard].append(router)
        with self._context.iteration():
            pushes = {
                shard: self.push(shard, changed[shard], gone[shard])
                for shard in sorted({*changed, *gone})
            }
        with trio.move_on_after(REPLY_MAX_S):
            for push in pushes.values():
                await push.wait()
        return pushes

    def _send(self, shard: int, params: RouterSyncParams) -> Push:
        push = Push(shard)
        self._unanswered[shard] += 1
        then = partial(self._answered, shard, push, is_all=params.is_all)
        self._context.peers.call(shard, ROUTER_SYNC, params, b"", then)
        return push

    def _answered(
        self,
        shard: int,
        push: Push,
        answer: Reply[RouterSyncResult] | TopicsError,
        *,
        is_all: bool,
    ) -> None:
        self._unanswered[shard] -= 1
        push.then(answer)
        if isinstance(answer, TopicsError):
            self._retry(shard, answer)
            return
        if is_all:
            self._complete.add(shard)
        if answer.result.orphans:
            self._on_orphans(answer.result.orphans)

    def _retry(self, shard: int, failure: TopicsError) -> None:
        if failure.detail.get("reason") == PEER_UNAVAILABLE or shard in self._retries:
            return  # the next session or the scheduled retry sends a complete list
        self._complete.discard(shard)
        log.warning(
            "routers not transferred", shard=shard, reason=failure.message, retry_in_s=RETRY_S
        )
        self._retries.add(shard)
        self._context.deadlines.call_at(
            trio.current_time() + RETRY_S, partial(self._push_again, shard)
        )

    def _push_again(self, shard: int) -> None:
        self._retries.discard(shard)
        if self._context.peers.is_connected(shard):
            self.push_all(shard)

    def _row_of(self, router: Router) -> RouterRow:
        return row_of(router, is_cyclic=router.id in self._graph.cyclic)


def row_of(router: Router, *, is_cyclic: bool) -> RouterRow:
    """Return the router in the form in which the shards of its ends store it."""
    config = router.config
    return RouterRow(
        id=router.id,
        name=router.name,
        source=config.source,
        source_id=router.source_id,
        epoch=router.source_epoch,
        dest=config.dest,
        dest_id=router.dest_id,
        start_seq=router.start_seq,
        preserve_node=config.preserve_node,
        preserve_tag=config.preserve_tag,
        filter=config.filter,
        exactly_once=config.guarantee == "exactly_once",
        is_cyclic=is_cyclic,
        base_total=router.base_total,
    )
