"""Router changes: create, configure or remove routers (§6). The shard that owns all routers makes
these changes, and only one is pending at a time.

Their frames, ROUTER_SET and ROUTERS_GONE, are replayed even if the checkpoint contains their
effects. This is safe because the ids specify which incarnation of a name is the later one.
"""

from __future__ import annotations

from collections.abc import Sequence

from topics.engine.changes.change import Change
from topics.engine.now import Now
from topics.engine.replay import Replay
from topics.engine.routing.graph import Router
from topics.engine.topic_table import TopicTable
from topics.formats.buffers import Buffer
from topics.formats.disk.frame_bodies import (
    decode_router_ids,
    router_set_frame,
    routers_removed_frame,
)
from topics.formats.disk.frames import Frame, FrameHeader


class RouterChange(Change):
    """Base class: a change of the shard itself."""

    __slots__ = ()

    def __init__(self, table: TopicTable, frames: list[Frame]) -> None:
        assert not table.shard_topic.pending, "only one change of routers is in progress"
        super().__init__(table.shard_topic, frames, True)
        self.count_pending()


class PutRouter(RouterChange):
    """Creates or configures a router."""

    __slots__ = ("router",)

    def __init__(self, table: TopicTable, router: Router, now: Now) -> None:
        super().__init__(table, [router_set_frame(router.packed, now.ts)])
        self.router = router

    def commit(self, table: TopicTable, /) -> None:
        """Add the router to the graph."""
        self.uncount_pending()
        table.routers.put(self.router)


class RemoveRouters(RouterChange):
    """Removes routers."""

    __slots__ = ("router_ids",)

    def __init__(self, table: TopicTable, router_ids: Sequence[int], now: Now) -> None:
        super().__init__(table, [routers_removed_frame(router_ids, now.ts)])
        self.router_ids = router_ids

    def commit(self, table: TopicTable, /) -> None:
        """Remove the routers from the graph."""
        self.uncount_pending()
        for router_id in self.router_ids:
            table.routers.remove(router_id)


def put(table: TopicTable, router: Router, now: Now) -> PutRouter:
    """Create or configure a router (§6.1). No other change of routers may be pending."""
    graph = table.routers
    assert router.id > graph.last_id or router.id in graph.by_id, "an id is never reused"
    return PutRouter(table, router, now)


def remove(table: TopicTable, router_ids: Sequence[int], now: Now) -> RemoveRouters:
    """Remove these routers, and ignore ids that do not exist. No other change of routers may be
    pending.
    """
    return RemoveRouters(table, [each for each in router_ids if each in table.routers.by_id], now)


def replay_set(replay: Replay, _header: FrameHeader, body: Buffer, _checkpointed: bool) -> None:
    """Replay a ROUTER_SET frame."""
    replay.table.routers.put(Router.unpack(body))


def replay_removed(replay: Replay, _header: FrameHeader, body: Buffer, _checkpointed: bool) -> None:
    """Replay a ROUTERS_GONE frame."""
    for router_id in decode_router_ids(body):
        replay.table.routers.remove(router_id)
