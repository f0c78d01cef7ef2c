"""Routers: one is made or configured, or some are removed (§6). Changes of the shard that owns all
routers, one after another.

Their frames, ROUTER_SET and ROUTERS_GONE, are replayed also where the checkpoint knows them: ids
tell which life of a name is the later one.
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
    routers_gone_frame,
)
from topics.formats.disk.frames import Frame, FrameHeader


class RouterChange(Change):
    """Base of both: a change of the shard itself."""

    __slots__ = ()

    def __init__(self, table: TopicTable, frames: list[Frame]) -> None:
        assert not table.shard_topic.pending, "routers are changed one after another"
        super().__init__(table.shard_topic, frames, True)
        self.note_pending()


class PutRouter(RouterChange):
    """A router made or configured."""

    __slots__ = ("router",)

    def __init__(self, table: TopicTable, router: Router, now: Now) -> None:
        super().__init__(table, [router_set_frame(router.packed, now.ts)])
        self.router = router

    def commit(self, table: TopicTable, /) -> None:
        """Let the graph have it."""
        self.note_settled()
        table.routers.put(self.router)


class RemoveRouters(RouterChange):
    """Routers that go."""

    __slots__ = ("router_ids",)

    def __init__(self, table: TopicTable, router_ids: Sequence[int], now: Now) -> None:
        super().__init__(table, [routers_gone_frame(router_ids, now.ts)])
        self.router_ids = router_ids

    def commit(self, table: TopicTable, /) -> None:
        """Take them out of the graph."""
        self.note_settled()
        for router_id in self.router_ids:
            table.routers.remove(router_id)


def put(table: TopicTable, router: Router, now: Now) -> PutRouter:
    """Make or configure a router (§6.1). No other change of routers is under way."""
    graph = table.routers
    assert router.id > graph.last_id or router.id in graph.by_id, "an id is not used again"
    return PutRouter(table, router, now)


def remove(table: TopicTable, router_ids: Sequence[int], now: Now) -> RemoveRouters:
    """Remove those of these routers that are there. No other change of routers is under way."""
    return RemoveRouters(table, [each for each in router_ids if each in table.routers.by_id], now)


def replay_set(replay: Replay, _header: FrameHeader, body: Buffer, _checkpointed: bool) -> None:
    """A ROUTER_SET frame."""
    replay.table.routers.put(Router.unpack(body))


def replay_gone(replay: Replay, _header: FrameHeader, body: Buffer, _checkpointed: bool) -> None:
    """A ROUTERS_GONE frame."""
    for router_id in decode_router_ids(body):
        replay.table.routers.remove(router_id)
