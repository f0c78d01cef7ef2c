"""The shards as a front sees them: one link each, calls by name, errors back as errors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import outcome
import structlog
import trio

from topics import errors
from topics.actors.link.arena import ArenaBlock, Holder
from topics.actors.link.board import Board, ShardState, ShardWords
from topics.actors.link.heads import HeadMark, HeadReader
from topics.actors.link.link import Link
from topics.actors.link.pulse import (
    DAMAGED,
    DISK_STALLED,
    DISK_STALLED_S,
    STALLED,
    STALLED_S,
    Pulse,
)
from topics.actors.rpc.message_router import (
    Attachment,
    Block,
    ErrorCode,
    InboundMessage,
    LinkSession,
    MessageRouter,
    RemoteError,
    RouterConfig,
    RpcReply,
)
from topics.actors.rpc.replies import CONTRACT_ERROR
from topics.errors import Internal, NotReady, Throttled, TopicsError
from topics.formats.names import shard_of
from topics.formats.wire.message import Buffer, MessageFrame, PeerGone

_BY_CODE: dict[str, type[TopicsError]] = {
    error.code: error
    for error in vars(errors).values()
    if isinstance(error, type) and hasattr(error, "code")
}
log: Final = structlog.get_logger()
WRITES = ("append", "append.many", "topic.put", "topic.delete", "topic.delete_records")
IN_MEMORY = (bytes, bytearray)
LOOK_S = 0.5  # between two looks at the heartbeats
EVENTS = ("feed.page", "feed.ended")
TURNOVER_MAX_S = 10.0  # a body that takes longer to bring what it holds may have to make room
LIMITED = (ShardState.READ_ONLY, ShardState.NO_ROOM)
SERVING = (ShardState.READY, *LIMITED)


@dataclass(frozen=True, slots=True)
class Readiness:
    """How far the shards are.

    ``progress``: share of the logs that is replayed, 0 to 1. ``topics`` is up to a heartbeat old.
    ``unwell``: shards that do not serve as they should, each with its trouble in a word.
    ``limited``: shards that serve readers, and writers not or not all, each with its state.
    """

    ready: bool
    progress: float
    topics: int
    draining: bool
    unwell: tuple[tuple[int, str], ...] = ()
    limited: tuple[tuple[int, str], ...] = ()


class ShardReply:
    """A shard's answer; ``body`` may lie in shared memory until `release`."""

    __slots__ = ("_link", "_reply", "body", "result")

    def __init__(self, reply: RpcReply, link: Link) -> None:
        self._reply, self._link = reply, link
        self.result, self.body = reply.result, reply.attachment

    def on_lost(self, let_go: Callable[[], object]) -> None:
        """``let_go`` is called if the memory of the body is needed; it leads to `release` soon."""
        if isinstance(self.body, memoryview):
            self._link.on_lost(self.body, let_go)

    def release(self) -> None:
        """The body is not needed any more."""
        self.body = b""
        self._reply.release()


class Listener(Protocol):
    """Hears of shards without having asked. Called from the loop that takes messages out of a ring:
    it must not wait.
    """

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
    """One link and the session that is open on it, if any.

                  opened                     no sign of life for STALLED_S
        AWAY -------------> ANSWERING --------------------------------------> STALLED
          ^    closed           |    <--------------------------------------     |
          '---------------------'---------------------------- closed -----------'
                                             a sign of life

    A stalled shard is asked nothing; what it was asked ends, but for calls that wait by their
    nature, and its streams go on when it does.
    """

    def __init__(self, link: Link, router: MessageRouter, gone: Callable[[], NotReady]) -> None:
        self.link, self._router, self._gone = link, router, gone
        self.session: LinkSession | None = None
        self.answering: LinkSession | None = None  # the session, unless the shard is stalled
        self.listener: Listener = _Deaf()
        self._pulse = Pulse()

    async def run(self) -> None:
        """Carry messages until cancelled."""
        await self.link.run(self._opened, self._arrived, self._closed)

    def _opened(self) -> None:
        self.session = self.answering = self._router.open_session(
            self.link.peer.session_name, self.link
        )
        self._pulse = Pulse()
        self.listener.opened(self.link.peer.index)

    def _arrived(self, frames: list[MessageFrame]) -> None:
        session = self.session
        assert session is not None, "messages come between open and close"
        for frame in frames:
            rest = self._router.dispatch(session, frame)
            assert rest is None, "a front has no handler that waits"

    def _closed(self) -> None:
        if self.session is not None:
            session, self.session, self.answering = self.session, None, None
            session.close()
            for block in self.link.filling:  # nobody will take them
                if block.holder is not None:
                    block.holder.give_up(self._gone())
            self.listener.closed(self.link.peer.index)

    @property
    def is_stalled(self) -> bool:
        return self.answering is not self.session

    def look(self, words: ShardWords, now: float) -> None:
        """See the shard's heartbeat, twice a second."""
        session, shard = self.session, self.link.peer.index
        if session is None:
            return
        if words.disk_silent_ms >= DISK_STALLED_S * 1000:  # the shard refuses new ones itself
            session.fail_calls(lambda call: call.method in WRITES)
        stalled = self._pulse.look(words.heartbeat_ms, now) >= STALLED_S
        if stalled and not self.is_stalled:
            log.warning("shard stalled", shard=shard)
            self.answering = None
            session.fail_calls(lambda call: not call.patient)
        elif not stalled and self.is_stalled:
            log.info("shard answers again", shard=shard)
            self.answering = session


class Shards:
    """All shards, for one front."""

    def __init__(self, links: Sequence[Link], board: Board) -> None:
        self._board = board
        self._router = MessageRouter(RouterConfig())
        self._links = [self._shard_link(link) for link in links]
        self._heads = [HeadReader(board.heads(link.peer.index)) for link in links]
        self.shards = len(links)
        self._shard_of_session = {link.peer.session_name: link.peer.index for link in links}

    def _shard_link(self, link: Link) -> ShardLink:
        return ShardLink(link, self._router, partial(self._not_ready, link.peer.index))

    def listen(self, listener: Listener) -> None:
        """From now on ``listener`` hears of the shards. Once, before `run`."""
        for link in self._links:
            link.listener = listener

        def heard(message: InboundMessage) -> None:
            assert message.notification is not None, "event/ subjects come with a notification"
            shard = self._shard_of_session[message.peer_id]
            listener.event(
                shard,
                message.subject.removeprefix("event/"),
                message.notification.params,
                message.attachment,
            )
            message.release()

        for name in EVENTS:
            self._router.route(f"event/{name}", heard)

    async def run(self) -> None:
        """Carry messages until cancelled."""
        async with trio.open_nursery() as nursery:
            for link in self._links:
                nursery.start_soon(link.run)
            while True:
                await trio.sleep(LOOK_S)
                self.look(trio.current_time())

    def look(self, now: float) -> None:
        """Whether the shards show signs of life."""
        for link in self._links:
            link.look(self._board.shard(link.link.peer.index), now)

    def shard_of(self, topic: str) -> int:
        """The shard that owns the topic."""
        return shard_of(topic, self.shards)

    async def call(
        self, shard: int, method: str, params: dict[str, Any], body: Attachment = b""
    ) -> ShardReply:
        """Ask one shard and wait.

        Raises the shard's `TopicsError`; `NotReady` when it is down, recovering or stalled, or
        becomes so meanwhile.
        """
        link = self._links[shard]
        session = link.answering
        if session is None:
            if isinstance(body, Block):
                body.free()
            raise self._not_ready(shard)
        try:
            call = session.call_soon(method, params, body)
            call.patient = method == "diff" and isinstance(body, IN_MEMORY) and b"wait_ms" in body
            link.link.flush()
            return ShardReply(await call.wait(), link.link)
        except RemoteError as error:
            raise _as_ours(error) from error
        except PeerGone as error:
            raise self._not_ready(shard) from error

    def ask(
        self,
        shard: int,
        method: str,
        params: dict[str, Any],
        body: Attachment,
        then: Callable[[ShardReply | TopicsError], None],
    ) -> None:
        """As `call`, and ``then`` gets the answer or the failure from the loop that takes it out of
        the ring; `flush` sends it off.
        """
        link = self._links[shard].link
        session = self._links[shard].answering
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
                then(ShardReply(answer.unwrap(), link))

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

    def reserve(self, shard: int, length: int, holder: Holder | None) -> ArenaBlock | None:
        """Shared memory for a long body that ``holder`` fills; None when there is no room.

        Raises `NotReady` when the shard is away. The holder is told to give up when the shard goes,
        or when others need the room more. None: the block is filled and sent at once.
        """
        link = self._links[shard].link
        if not link.connected or self._links[shard].answering is None:
            raise self._not_ready(shard)
        block = link.reserve(length)
        if block is not None:
            block.holder = holder
        return block

    def make_room(self, shard: int, holder: Holder, now: float) -> bool:
        """Tell the slowest body to give up, unless it is ``holder``'s or none is slow.

        Returns whether one will do so when other tasks run. Raises `NotReady` when the shard is
        away. So, while there is no room, a body keeps its memory as long as it brings a tenth of it
        a second, and nobody is kept out for less.
        """
        link = self._links[shard].link
        if not link.connected:
            raise self._not_ready(shard)
        holders = {block.holder: None for block in link.filling if block.holder is not None}
        slowest = max(holders, key=lambda one: one.turnover_s(now), default=holder)
        bound = max(TURNOVER_MAX_S, holder.turnover_s(now))
        if slowest is holder or slowest.turnover_s(now) < bound:
            return False
        reason = "no memory for a large body that arrives this slowly"
        slowest.give_up(Throttled(reason, retry_after_ms=1000))
        return True

    def head(self, shard: int, mark: HeadMark) -> int | None:
        """As `HeadReader.head`."""
        return self._heads[shard].head(mark)

    def readiness(self) -> Readiness:
        """Of all shards together."""
        unwell = tuple(
            (shard, trouble) for shard in range(self.shards) if (trouble := self._trouble(shard))
        )
        progress = sum(map(self._progress, range(self.shards))) / self.shards
        topics = sum(self._board.shard(shard).topics for shard in range(self.shards))
        states = {shard: self._board.shard(shard).state for shard in range(self.shards)}
        limited = tuple(
            (shard, state.name.lower()) for shard, state in states.items() if state in LIMITED
        )
        return Readiness(not unwell, progress, topics, self._board.draining, unwell, limited)

    def _trouble(self, shard: int) -> str:
        """Why it does not serve, in a word; none when it does."""
        link, state = self._links[shard], self._board.shard(shard).state
        if link.is_stalled:
            return STALLED
        if state in SERVING:
            if link.session is None:
                return "connecting"
            return DISK_STALLED if self._waits_for_disk(shard) else ""
        return state.name.lower()

    def _waits_for_disk(self, shard: int) -> bool:
        return self._board.shard(shard).disk_silent_ms >= DISK_STALLED_S * 1000

    def _progress(self, shard: int) -> float:
        serves = (
            self._links[shard].session is not None and self._board.shard(shard).state in SERVING
        )
        return 1.0 if serves else self._board.shard(shard).progress_ppm / 1e6

    def _not_ready(self, shard: int) -> NotReady:
        progress = self._progress(shard)
        if self._links[shard].is_stalled:
            return NotReady(
                "the shard of this topic does not answer", reason=STALLED, replay_progress=progress
            )
        if self._board.shard(shard).state is ShardState.DAMAGED:
            return NotReady(
                "the data of this topic's shard is damaged",
                reason=DAMAGED,
                replay_progress=progress,
            )
        if self._links[shard].session is not None and self._waits_for_disk(shard):
            return NotReady(
                "the disk of this topic's shard does not answer",
                reason=DISK_STALLED,
                replay_progress=progress,
            )
        return NotReady("the shard of this topic is not ready", replay_progress=progress)


def _as_ours(error: RemoteError) -> TopicsError:
    if error.code == CONTRACT_ERROR and isinstance(error.data, dict):
        return TopicsError.restore(
            _BY_CODE[error.data["code"]], error.message, error.data["detail"]
        )
    if error.code == ErrorCode.TIMEOUT:  # a shard answers so only what it has not begun to change
        return NotReady(
            "the shard was too busy to begin in time; nothing was done", reason="timeout"
        )
    return Internal(error.message)
