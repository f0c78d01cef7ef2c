"""One shard as a front sees it: the link, the link session on it, the shard's heartbeat and calls.

                  opened                     no heartbeat for STALLED_S
        AWAY -------------> ANSWERING --------------------------------------> STALLED
          ^    closed           |    <--------------------------------------     |
          '---------------------'---------------------------- closed -----------'
                                                a heartbeat

A stalled shard is asked nothing. Its pending calls fail, but not those that wait by their nature,
such as long polls and waiting claims; they go on when the shard does. One that waits for its disk
is asked for no writes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Generic, Protocol

import outcome
import structlog

from topics.actors.link.board import ShardWords
from topics.actors.link.link import Link
from topics.actors.link.pulse import STALLED_S, Pulse
from topics.actors.rpc import typed_calls
from topics.actors.rpc.call import PendingCall, RemoteError, RpcReply
from topics.actors.rpc.failures import failure_of
from topics.actors.rpc.message_router import MessageRouter
from topics.actors.rpc.session import LinkSession
from topics.actors.rpc.transport import Attachment, discard
from topics.actors.shard_client.batch import Batch
from topics.actors.shard_client.readiness import not_ready, waits_for_disk
from topics.actors.shard_client.reservations import fail_holders
from topics.errors import NotReady, TopicsError
from topics.formats.buffers import Buffer
from topics.formats.wire.calls import (
    CALLS,
    CLAIM,
    DIFF,
    UNCLAIMED,
    FeedEndedParams,
    FeedPageParams,
    UnclaimedParams,
    WorkEndedParams,
    WorkJobsParams,
)
from topics.formats.wire.contract import Call, Event, P, R
from topics.formats.wire.message import Message, PeerGone

IN_MEMORY: Final = (bytes, bytearray)
RING_BYTES_PER_MS: Final = 100_000  # about what a shard takes out of its ring
WRITES: Final = frozenset(call.method for call in CALLS if call.is_write)

log: Final = structlog.get_logger()


class ShardReply(Generic[R]):
    """A shard's answer. ``body`` may lie in shared memory until `release`."""

    __slots__ = ("_link", "_reply", "body", "result")

    def __init__(self, call: Call[Any, R], reply: RpcReply, link: Link) -> None:
        self._reply, self._link = reply, link
        # As `Call.result_of`, one call less.
        self.result: R = tuple.__new__(call.result, reply.result)
        self.body = reply.attachment

    def on_lost(self, give_up: Callable[[], object]) -> None:
        """``give_up`` is called if the memory of the body is needed; it leads to `release` soon."""
        if isinstance(self.body, memoryview):
            self._link.on_lost(self.body, give_up)

    def release(self) -> None:
        """The body is not needed any more."""
        self.body = b""
        self._reply.release()


class Listener(Protocol):
    """Is told what shards send unasked, by the loop that reads a ring: it must not wait."""

    def opened(self, shard: int) -> None:
        """The shard serves, for the first time or again."""

    def closed(self, shard: int) -> None:
        """The shard is gone, and with it all its feeds and work streams."""

    def page(self, shard: int, params: FeedPageParams, records: Buffer) -> None:
        """A page of a feed; ``records`` is valid until this returns."""

    def feed_ended(self, shard: int, params: FeedEndedParams) -> None:
        """A feed has ended in the shard."""

    def jobs(self, shard: int, params: WorkJobsParams, jobs: Buffer) -> None:
        """Jobs for a work stream; ``jobs`` is valid until this returns."""

    def work_ended(self, shard: int, params: WorkEndedParams) -> None:
        """A work stream has ended in the shard."""


class ShardLink:
    """One link and the link session that is open on it, if any. `run` carries its messages.
    ``batch``: of all links of the front.
    """

    def __init__(self, link: Link, words: ShardWords, router: MessageRouter) -> None:
        self.link, self.words, self.number = link, words, link.peer.index
        self.peer_id = link.peer.session_name
        self.session: LinkSession | None = None
        self.answering: LinkSession | None = None  # the session, unless the shard is stalled
        self.listener: Listener | None = None
        self._waits_for_disk = False
        self.batch = Batch([link])
        self._router = router
        self._pulse = Pulse()

    @property
    def is_connected(self) -> bool:
        """A link session is open, and the board has not ended it: a process that has died and is
        replaced is not taken for its successor.
        """
        return self.link.connected

    @property
    def is_stalled(self) -> bool:
        """As `ShardView.is_stalled`."""
        return self.answering is not self.session

    @property
    def delay_ms(self) -> float:
        """How long a message that is sent now waits: for the ring, then in the shard. 0 while the
        shard is away or stalled: it is asked nothing.
        """
        if self.answering is None:
            return 0.0
        return self.words.delay_ms + self.link.backlog_bytes / RING_BYTES_PER_MS

    async def run(self) -> None:
        """Carry messages until cancelled."""
        await self.link.run(self._opened, self._arrived, self._closed)

    def _opened(self) -> None:
        self.session = self.answering = self._router.open_session(self.peer_id, self.link)
        self._pulse, self._waits_for_disk = Pulse(), False
        if self.listener is not None:
            self.listener.opened(self.number)

    def _arrived(self, messages: list[Message]) -> None:
        session = self.session
        assert session is not None, "messages arrive between open and close"
        with self.batch:
            for message in messages:
                rest = self._router.dispatch(session, message)
                assert rest is None, "a front has no asynchronous handler"

    def _closed(self) -> None:
        if self.session is not None:
            session, self.session, self.answering = self.session, None, None
            session.close()
            fail_holders(self.link, not_ready(self))
            if self.listener is not None:
                self.listener.closed(self.number)

    def check(self, now: float) -> None:
        """See the shard's words on the board, twice a second, and fail the calls that hang."""
        session = self.session
        if session is None:
            return
        self._waits_for_disk = waits_for_disk(self.words)
        if self._waits_for_disk:
            session.fail_calls(lambda call: call.method in WRITES)
        stalled = self._pulse.look(self.words.heartbeat_ms, now) >= STALLED_S
        if stalled and not self.is_stalled:
            log.warning("shard stalled", shard=self.number)
            self.answering = None
            session.fail_calls(lambda call: not call.is_patient)
        elif not stalled and self.is_stalled:
            log.info("shard answers again", shard=self.number)
            self.answering = session

    def check_connected(self) -> None:
        """Raises `NotReady` when the link is down."""
        if not self.link.connected:
            raise not_ready(self)

    def check_answering(self) -> None:
        """Raises `NotReady` when the link is down or the shard is stalled."""
        if self.answering is None or not self.link.connected:
            raise not_ready(self)

    async def call(self, call: Call[P, R], params: P, body: Attachment = b"") -> ShardReply[R]:
        """Ask the shard and wait.

        Raises the shard's `TopicsError`; `NotReady` when it is down, recovering or stalled, or
        becomes so meanwhile.
        """
        try:
            pending = self._call_soon(call, params, body)
            if self.batch.is_open:
                self.link.flush_many()
            else:
                self.link.flush()
            return ShardReply(call, await pending.wait(), self.link)
        except RemoteError as error:
            raise failure_of(error) from error
        except PeerGone as error:
            raise not_ready(self) from error

    def ask(
        self,
        call: Call[P, R],
        params: P,
        body: Attachment,
        then: Callable[[ShardReply[R] | TopicsError], None],
    ) -> PendingCall | None:
        """As `call`; ``then`` gets the answer or the failure in the loop that reads the ring."""

        def answered(answer: outcome.Outcome[RpcReply]) -> None:
            if not isinstance(answer, outcome.Error):
                then(ShardReply(call, answer.unwrap(), self.link))
            elif isinstance(answer.error, RemoteError):
                then(failure_of(answer.error))
            else:
                then(not_ready(self))

        try:
            pending = self._call_soon(call, params, body)
        except NotReady as failure:
            then(failure)
            return None
        except PeerGone:
            then(not_ready(self))
            return None
        pending.then(answered)
        return pending

    def _call_soon(self, call: Call[P, R], params: P, body: Attachment) -> PendingCall:
        session = self.answering
        if session is None or (self._waits_for_disk and self._refuses(call.method)):
            discard(body)
            raise not_ready(self)
        pending = typed_calls.call_soon(session, call, params, body)
        if (call is DIFF or call is CLAIM) and isinstance(body, IN_MEMORY) and b"wait_ms" in body:
            pending.is_patient = True
        if call is CLAIM:
            pending.on_late = partial(self._give_back, params)
        return pending

    def _give_back(self, params: Any, late: RpcReply) -> None:
        """Jobs have come for a claim that nobody waits for."""
        result = CLAIM.result_of(late.result)
        if result.seqs:
            self.notify(UNCLAIMED, UnclaimedParams(params.topic, *result))
            self.link.flush()

    def _refuses(self, method: str) -> bool:
        """A write, while the disk hangs: a loop that hangs with it would take the write later."""
        return method in WRITES and waits_for_disk(self.words)

    def notify(self, event: Event[P], params: P, *, quiet: bool = False) -> None:
        """Tell the shard; nobody answers. A shard that is down hears nothing. ``quiet``: it need
        not hear of it before it hears of something else.
        """
        if self.session is not None:
            try:  # not contextlib.suppress: three calls more
                typed_calls.notify(self.session, event, params)
            except PeerGone:
                return
            if quiet:
                self.link.quieten()
