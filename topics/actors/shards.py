"""The shards as a front sees them: one link each, calls by name, errors back as errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import trio

from topics import errors
from topics.actors.arena import ArenaBlock
from topics.actors.board import Board, ShardState
from topics.actors.link import Link
from topics.actors.message_router import MessageRouter, RemoteError, RouterConfig, RpcReply, Session
from topics.actors.shard_actor import CONTRACT_ERROR
from topics.errors import Internal, NotReady, TopicsError
from topics.formats.message import Buffer, MessageFrame, PeerGone
from topics.formats.names import shard_of

_BY_CODE: dict[str, type[TopicsError]] = {
    error.code: error for error in vars(errors).values() if isinstance(error, type) and hasattr(error, "code")
}
SERVING = (ShardState.READY, ShardState.READ_ONLY)


class ShardReply:
    """A shard's answer; ``body`` may lie in shared memory until `release`."""

    __slots__ = ("_reply", "body", "result")

    def __init__(self, reply: RpcReply) -> None:
        self._reply, self.result, self.body = reply, reply.result, reply.attachment

    def release(self) -> None:
        """The body is not needed any more."""
        self.body = b""
        self._reply.release()


class ShardLink:
    """One link and the session that is open on it, if any."""

    def __init__(self, link: Link, router: MessageRouter) -> None:
        self.link, self._router = link, router
        self.session: Session | None = None

    async def run(self) -> None:
        """Carry messages until cancelled."""
        await self.link.run(self._opened, self._arrived, self._closed)

    def _opened(self) -> None:
        self.session = self._router.open_session(f"shard-{self.link.pair[1]}", self.link)

    def _arrived(self, frames: list[MessageFrame]) -> None:
        session = self.session
        assert session is not None, "messages come between open and close"
        for frame in frames:
            rest = self._router.dispatch(session, frame)
            assert rest is None, "a front has no handler that waits"

    def _closed(self) -> None:
        if self.session is not None:
            self.session.close()
            self.session = None


class Shards:
    """All shards, for one front."""

    def __init__(self, links: Sequence[Link], board: Board) -> None:
        self._board = board
        self._router = MessageRouter(RouterConfig())
        self._links = [ShardLink(link, self._router) for link in links]
        self.shards = len(links)

    async def run(self) -> None:
        """Carry messages until cancelled."""
        async with trio.open_nursery() as nursery:
            for link in self._links:
                nursery.start_soon(link.run)

    def shard_of(self, topic: str) -> int:
        """The shard that owns the topic."""
        return shard_of(topic, self.shards)

    async def call(self, shard: int, method: str, params: dict[str, Any], body: Buffer | ArenaBlock = b"") -> ShardReply:
        """Ask one shard and wait. Raises the shard's `TopicsError`; `NotReady` when it is down, recovering, or dies meanwhile."""
        link = self._links[shard]
        session = link.session
        if session is None:
            if isinstance(body, ArenaBlock):
                body.free()
            raise self._not_ready(shard)
        try:
            call = session.call_soon(method, params, body)
            link.link.flush()
            return ShardReply(await call.wait())
        except RemoteError as error:
            raise _as_ours(error) from error
        except PeerGone as error:
            raise self._not_ready(shard) from error

    def reserve(self, shard: int, length: int) -> ArenaBlock | None:
        """Shared memory for a long body. None when there is no room; raises `NotReady` when the shard is away."""
        link = self._links[shard]
        if link.session is None:
            raise self._not_ready(shard)
        return link.link.reserve(length)

    def progress(self) -> float:
        """Share of the logs that is replayed, 0.0 to 1.0."""
        words = [self._board.shard(index) for index in range(self.shards)]
        return sum(1.0 if word.state in SERVING else word.progress_ppm / 1e6 for word in words) / self.shards

    def ready(self) -> bool:
        """Whether every shard serves."""
        return all(self._board.shard(link.link.pair[1]).state in SERVING and link.session for link in self._links)

    def topics(self) -> int:
        """How many topics there are; up to a heartbeat old."""
        return sum(self._board.shard(index).topics for index in range(self.shards))

    def _not_ready(self, shard: int) -> NotReady:
        word = self._board.shard(shard)
        progress = 1.0 if word.state in SERVING else word.progress_ppm / 1e6
        return NotReady("the shard of this topic is not ready", replay_progress=progress)


def _as_ours(error: RemoteError) -> TopicsError:
    if error.code == CONTRACT_ERROR and isinstance(error.data, dict):
        return TopicsError.restore(_BY_CODE[error.data["code"]], error.message, error.data["detail"])
    return Internal(error.message)
