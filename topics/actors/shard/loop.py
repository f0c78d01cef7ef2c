"""Shard loop: take messages, decide, make durable, answer.

Messages come in batches from the links; every handler decides at once and puts its frames into the
group under way; after the batch the group goes to the log's writer. When the log reports how far it
is, what waited is committed and answered. No `await` stands between a decision and its frames, so
the log holds decisions in the order in which they were taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import trio

from topics.actors.link.board import Board
from topics.actors.link.heads import HeadWriter
from topics.actors.link.link import Link
from topics.actors.rpc.message_router import MessageRouter, RouterConfig
from topics.actors.rpc.replies import map_error
from topics.actors.rpc.session import LinkSession
from topics.actors.shard.appends import Appends
from topics.actors.shard.context import ShardContext
from topics.actors.shard.deletes import Deletes
from topics.actors.shard.feeds import Feeds
from topics.actors.shard.heartbeat import Heartbeat
from topics.actors.shard.reads import Reads
from topics.actors.shard.sealing import Sealing
from topics.actors.shard.topics import TopicCalls
from topics.engine.changes.append import Append
from topics.engine.changes.change import Change
from topics.engine.changes.delete_topic import DeleteTopic
from topics.formats.api.requests import Limits
from topics.formats.wire.message import MessageFrame
from topics.storage.recovery import Shard

# A long poll takes up to 30 s (§3); the router's own limit must not cut it short. A change that
# waits for its topic longer than this is not done; one that is decided is answered when the log has
# spoken.
RPC_TIMEOUT_MS = 45_000


class ShardLoop:
    """Serves the topics of one shard to all fronts."""

    def __init__(self, shard: Shard, index: int, board: Board, limits: Limits) -> None:
        words = board.shard(index)
        self.context = context = ShardContext(shard, limits, words)
        context.end_turn = self.end_turn
        self.commits = context.commits
        self.commits.on_commit = self._committed
        self.router = MessageRouter(
            RouterConfig(rpc_timeout_ms=RPC_TIMEOUT_MS, error_mapper=map_error)
        )
        self.sealing = Sealing(shard, self.commits)
        self.heartbeat = Heartbeat(context.engine, context.disk, words)
        self.appends = Appends(context)
        self.deletes = Deletes(context)
        self.reads = Reads(context, HeadWriter(board.heads(index)))
        self.feeds = Feeds(context)
        for service in (
            self.appends,
            TopicCalls(context),
            self.deletes,
            self.reads,
            self.feeds,
        ):
            service.register(self.router)
        self._links: Sequence[Link] = ()
        self._pumping = False

    async def run(self, links: Sequence[Link], stop: trio.Event) -> None:
        """Serve until ``stop``; then finish what waits for the log and return."""
        self._links = links
        async with trio.open_nursery() as nursery:
            self.context.nursery = nursery
            for link in links:
                nursery.start_soon(self._serve, link)
            nursery.start_soon(self.follow_log)
            nursery.start_soon(self.router.expire_overdue)
            nursery.start_soon(self.heartbeat.run)
            nursery.start_soon(self.sealing.run)
            nursery.start_soon(self.context.room.run)
            self.context.room.show()
            await stop.wait()
            await self._settle_all()
            nursery.cancel_scope.cancel()

    async def _serve(self, link: Link) -> None:
        session: LinkSession | None = None

        def opened() -> None:
            nonlocal session
            session = self.router.open_session(f"front-{link.pair[0]}", link)

        def arrived(frames: list[MessageFrame]) -> None:
            assert session is not None, "messages come between open and close"
            self.context.begin_turn()
            for frame in frames:
                rest = self.router.dispatch(session, frame)
                if rest is not None:
                    self.context.start(_finish, rest)
            self.end_turn()

        def closed() -> None:
            if session is not None:
                self.reads.abandon(session)
                session.close()

        await link.run(opened, arrived, closed)

    async def follow_log(self) -> None:
        """Commit and answer what the log has reached, whenever it reports progress."""
        while True:
            await trio.lowlevel.wait_readable(self.context.wal.progress_fd)
            self.context.room.show(self.commits.advance())
            self.context.begin_turn()
            self.deletes.repeat()
            self.end_turn()

    def end_turn(self) -> None:
        """What was decided goes to the log; what there is for feeds becomes messages, and all
        messages go to the fronts.
        """
        self.commits.flush()
        if self.feeds.pump() and not self._pumping:
            self._pumping = True
            self.context.start(self._pump_on)
        self.commits.flush()
        for link in self._links:
            link.flush()

    async def _pump_on(self) -> None:
        await trio.lowlevel.checkpoint()
        self._pumping = False
        self.context.begin_turn()
        self.end_turn()

    async def _settle_all(self) -> None:
        self.commits.flush()
        while len(self.commits) and self.context.room.broken is None:
            await trio.lowlevel.checkpoint()
            await trio.sleep(0.001)

    def _committed(self, change: Change) -> None:
        self.reads.committed(change)
        if isinstance(change, Append | DeleteTopic):
            self.feeds.committed(change)


async def _finish(rest: Any) -> None:
    await rest
