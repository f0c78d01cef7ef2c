"""Pushes: tells each shard of the routers that have an end there.

    a session with the shard opens --all of them--> shard
    a router is made, changed or removed --that one--> shard, if it is there
                                            '-- not taken --> all of them again, after a while

A message says what the graph is when it is sent, and messages of one session arrive in their order:
no older list overtakes a newer change. A shard that is away gets all when it is back.
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
from topics.actors.shard.peers import PEER_AWAY, Asked
from topics.engine.routing.graph import Router
from topics.errors import TopicsError
from topics.formats.wire.calls import (
    ROUTER_SYNC,
    RouterRow,
    RouterSyncParams,
    RouterSyncResult,
)

ANSWER_MAX_S: Final = 5.0  # a shard that takes longer counts as one that is away
RETRY_S: Final = 1.0
log = structlog.get_logger()


Push: TypeAlias = Asked[RouterSyncResult]


class Pushes:
    """What the owner of the routers tells all shards. ``on_orphans``: told of ids of routers that
    lack an end.
    """

    def __init__(
        self, context: ShardContext, on_orphans: Callable[[Sequence[int]], object]
    ) -> None:
        self._context, self._on_orphans = context, on_orphans
        self._graph = context.engine.routers
        self._told: set[int] = set()  # shards that have taken a list of all
        self._unanswered: Counter[int] = Counter()  # messages to each shard
        self._retries: set[int] = set()  # shards that are told again soon

    def knows_all(self, shard: int) -> bool:
        """Whether the shard has taken everything that it was told in this session."""
        is_told = shard in self._told and not self._unanswered[shard]
        return is_told and self._context.peers.is_there(shard)

    def push_all(self, shard: int) -> None:
        """Tell the shard all. When its session opens, or inside of a turn."""
        self._told.discard(shard)
        shard_of = self._context.peers.shard_of
        rows = [
            self._row_of(router)
            for router in self._graph.by_id.values()
            if shard in (shard_of(router.source), shard_of(router.dest))
        ]
        self._send(shard, RouterSyncParams(rows, [], is_all=True))

    def push(self, shard: int, put: Iterable[Router], removed: Iterable[Router]) -> Push:
        """Tell the shard of changes. Only inside of a turn."""
        rows, gone = [self._row_of(router) for router in put], [router.id for router in removed]
        return self._send(shard, RouterSyncParams(rows, gone, is_all=False))

    async def push_each(self, put: Sequence[Router], removed: Sequence[Router]) -> dict[int, Push]:
        """Tell the shards of their ends of changes, and wait for answers for a while."""
        shard_of = self._context.peers.shard_of
        changed: defaultdict[int, list[Router]] = defaultdict(list)
        gone: defaultdict[int, list[Router]] = defaultdict(list)
        for routers, by_shard in ((put, changed), (removed, gone)):
            for router in routers:
                for shard in {shard_of(router.source), shard_of(router.dest)}:
                    by_shard[shard].append(router)
        with self._context.turn():
            pushes = {
                shard: self.push(shard, changed[shard], gone[shard])
                for shard in sorted({*changed, *gone})
            }
        with trio.move_on_after(ANSWER_MAX_S):
            for push in pushes.values():
                await push.wait()
        return pushes

    def _send(self, shard: int, params: RouterSyncParams) -> Push:
        push = Push(shard)
        self._unanswered[shard] += 1
        then = partial(self._answered, shard, push, is_all=params.is_all)
        self._context.peers.ask(shard, ROUTER_SYNC, params, b"", then)
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
            self._told.add(shard)
        if answer.result.orphans:
            self._on_orphans(answer.result.orphans)

    def _retry(self, shard: int, failure: TopicsError) -> None:
        if failure.detail.get("reason") == PEER_AWAY or shard in self._retries:
            return  # the next session begins with all
        self._told.discard(shard)
        log.warning("routers not taken", shard=shard, error=failure.message, again_s=RETRY_S)
        self._retries.add(shard)
        self._context.deadlines.call_at(
            trio.current_time() + RETRY_S, partial(self._push_again, shard)
        )

    def _push_again(self, shard: int) -> None:
        self._retries.discard(shard)
        if self._context.peers.is_there(shard):
            self.push_all(shard)

    def _row_of(self, router: Router) -> RouterRow:
        return row_of(router, is_cyclic=router.id in self._graph.cyclic)


def row_of(router: Router, *, is_cyclic: bool) -> RouterRow:
    """The router as the shards of its ends know it."""
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
