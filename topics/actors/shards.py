"""The shards as a front sees them: one link each, calls by name, errors back as errors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import outcome
import trio

from topics import errors
from topics.actors.arena import ArenaBlock
from topics.actors.board import Board, ShardState
from topics.actors.heads import HeadReader, Mark
from topics.actors.link import Link
from topics.actors.message_router import Attachment, Block, InboundMessage, MessageRouter, RemoteError, RouterConfig, RpcReply, Session
from topics.actors.replies import CONTRACT_ERROR
from topics.errors import Internal, NotReady, TopicsError
from topics.formats.message import Buffer, MessageFrame, PeerGone
from topics.formats.names import shard_of

_BY_CODE: dict[str, type[TopicsError]] = {
    error.code: error for error in vars(errors).values() if isinstance(error, type) and hasattr(error, "code")
}
EVENTS = ("feed.page", "feed.ended")
SERVING = (ShardState.READY, ShardState.READ_ONLY, ShardState.NO_ROOM)


@dataclass(frozen=True, slots=True)
class Readiness:
    """How far the shards are. ``progress``: share of the logs that is replayed, 0 to 1. ``topics`` is up to a heartbeat old."""

    ready: bool
    progress: float
    topics: int
    draining: bool


class ShardReply:
    """A shard's answer; ``body`` may lie in shared memory until `release`."""

    __slots__ = ("_reply", "body", "result")

    def __init__(self, reply: RpcReply) -> None:
        self._reply, self.result, self.body = reply, reply.result, reply.attachment

    def release(self) -> None:
        """The body is not needed any more."""
        self.body = b""
        self._reply.release()


class Listener(Protocol):
    """Hears of shards without having asked. Called from the loop that takes messages out of a ring: it must not wait."""

    def opened(self, shard: int) -> None:
        """The shard serves, from here on or again."""

    def closed(self, shard: int) -> None:
        """The shard has gone, and with it all that it was told."""

    def event(self, shard: int, name: str, params: dict[str, Any], body: Buffer) -> None:
        """``event/NAME``; ``body`` is valid until this returns."""


class _Deaf:
    def opened(self, shard: int) -> None: ...
    def closed(self, shard: int) -> None: ...
    def event(self, shard: int, name: str, params: dict[str, Any], body: Buffer) -> None: ...


class ShardLink:
    """One link and the session that is open on it, if any."""

    def __init__(self, link: Link, router: MessageRouter) -> None:
        self.link, self._router = link, router
        self.session: Session | None = None
        self.listener: Listener = _Deaf()

    async def run(self) -> None:
        """Carry messages until cancelled."""
        await self.link.run(self._opened, self._arrived, self._closed)

    def _opened(self) -> None:
        self.session = self._router.open_session(f"shard-{self.link.pair[1]}", self.link)
        self.listener.opened(self.link.pair[1])

    def _arrived(self, frames: list[MessageFrame]) -> None:
        session = self.session
        assert session is not None, "messages come between open and close"
        for frame in frames:
            rest = self._router.dispatch(session, frame)
            assert rest is None, "a front has no handler that waits"

    def _closed(self) -> None:
        if self.session is not None:
            session, self.session = self.session, None
            session.close()
            self.listener.closed(self.link.pair[1])


class Shards:
    """All shards, for one front."""

    def __init__(self, links: Sequence[Link], board: Board) -> None:
        self._board = board
        self._router = MessageRouter(RouterConfig())
        self._links = [ShardLink(link, self._router) for link in links]
        self._heads = [HeadReader(board.heads(link.pair[1])) for link in links]
        self.shards = len(links)
        self._shard_of_session = {f"shard-{link.pair[1]}": link.pair[1] for link in links}

    def listen(self, listener: Listener) -> None:
        """From now on ``listener`` hears of the shards. Once, before `run`."""
        for link in self._links:
            link.listener = listener

        def heard(message: InboundMessage) -> None:
            assert message.notification is not None, "event/ subjects come with a notification"
            shard = self._shard_of_session[message.peer_id]
            listener.event(shard, message.subject.removeprefix("event/"), message.notification.params, message.attachment)
            message.release()

        for name in EVENTS:
            self._router.route(f"event/{name}", heard)

    async def run(self) -> None:
        """Carry messages until cancelled."""
        async with trio.open_nursery() as nursery:
            for link in self._links:
                nursery.start_soon(link.run)

    def shard_of(self, topic: str) -> int:
        """The shard that owns the topic."""
        return shard_of(topic, self.shards)

    async def call(self, shard: int, method: str, params: dict[str, Any], body: Attachment = b"") -> ShardReply:
        """Ask one shard and wait. Raises the shard's `TopicsError`; `NotReady` when it is down, recovering, or dies meanwhile."""
        link = self._links[shard]
        session = link.session
        if session is None:
            if isinstance(body, Block):
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

    def ask(
        self, shard: int, method: str, params: dict[str, Any], body: Attachment, then: Callable[[ShardReply | TopicsError], None]
    ) -> None:
        """As `call`, and ``then`` gets the answer or the failure from the loop that takes it out of the ring; `flush` sends it off."""
        session = self._links[shard].session
        if session is None:
            if isinstance(body, Block):
                body.free()
            then(self._not_ready(shard))
            return

        def answered(answer: outcome.Outcome[RpcReply]) -> None:
            if isinstance(answer, outcome.Error):
                error = answer.error
                then(_as_ours(error) if isinstance(error, RemoteError) else self._not_ready(shard))
            else:
                then(ShardReply(answer.unwrap()))

        try:
            session.call_soon(method, params, body).then(answered)
        except PeerGone:
            then(self._not_ready(shard))

    def notify(self, shard: int, name: str, params: dict[str, Any]) -> None:
        """Tell one shard; nobody answers, and one that is down hears nothing. `flush` sends it off."""
        session = self._links[shard].session
        if session is not None:
            with contextlib.suppress(PeerGone):
                session.notify(name, params)

    def flush(self, shard: int) -> None:
        """Send off what was asked and told."""
        self._links[shard].link.flush()

    def reserve(self, shard: int, length: int) -> ArenaBlock | None:
        """Shared memory for a long body. None when there is no room; raises `NotReady` when the shard is away."""
        link = self._links[shard]
        if link.session is None:
            raise self._not_ready(shard)
        return link.link.reserve(length)

    def head(self, shard: int, mark: Mark) -> int | None:
        """As `HeadReader.head`."""
        return self._heads[shard].head(mark)

    def readiness(self) -> Readiness:
        """Of all shards together."""
        ready = all(self._serves(shard) for shard in range(self.shards))
        progress = sum(map(self._progress, range(self.shards))) / self.shards
        topics = sum(self._board.shard(shard).topics for shard in range(self.shards))
        return Readiness(ready, progress, topics, self._board.draining)

    def _serves(self, shard: int) -> bool:
        return self._links[shard].session is not None and self._board.shard(shard).state in SERVING

    def _progress(self, shard: int) -> float:
        return 1.0 if self._serves(shard) else self._board.shard(shard).progress_ppm / 1e6

    def _not_ready(self, shard: int) -> NotReady:
        return NotReady("the shard of this topic is not ready", replay_progress=self._progress(shard))


def _as_ours(error: RemoteError) -> TopicsError:
    if error.code == CONTRACT_ERROR and isinstance(error.data, dict):
        return TopicsError.restore(_BY_CODE[error.data["code"]], error.message, error.data["detail"])
    return Internal(error.message)
