"""Peers: how a shard asks the shards of its server, itself among them, with the calls of the calls
table.

    ask --> link session with the peer --ring--> its inbox --> its services, as for a front
        `-> loopback, of the own shard --------> own inbox --> own services
            answer --> own inbox --> then(reply)
            no session, or its end before the answer --> then(NotReady)

`then` is called once, in a turn of the own loop and never from inside of `ask`, so what it decides
goes to the log with that turn. It must not raise. When the shard stops, what is under way is
forgotten, as by a kill: a caller must be able to begin again from its log.

Nothing here bounds what is under way: what a ring does not take waits in memory. The caller bounds
its calls and their bytes, and waits before it repeats one that failed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Generic, TypeAlias

import trio

from topics.actors.rpc.replies import failure_of
from topics.actors.rpc.session import LinkSession, RemoteError, Reply
from topics.actors.shard.inbox import Inbox
from topics.actors.shard.service import Service
from topics.errors import NotReady, TopicsError
from topics.formats.buffers import Buffer
from topics.formats.names import shard_of
from topics.formats.wire.contract import Call, P, R
from topics.formats.wire.envelope import Refusal, encode
from topics.formats.wire.message import ERROR, Message, PeerGone

PEER_AWAY: Final = "shard_away"
Failed: TypeAlias = Callable[[TopicsError], None]


class Peers(Service):
    """The shards of the server that a shard can ask now, by their numbers."""

    def __init__(self, shards: int, wake: Callable[[], None]) -> None:
        """``wake`` makes another turn of the loop begin soon."""
        self.shards, self._wake = shards, wake
        self._sessions: dict[int, LinkSession] = {}
        self.open: set[LinkSession] = set()  # with a shard at the other end
        self._failed: list[tuple[Failed, TopicsError]] = []  # told of in the next turn
        # Called when a shard can be asked, the own one too, and again on each new session. What
        # they ask it comes before all that is asked later.
        self.on_open: list[Callable[[int], None]] = []

    def shard_of(self, topic: str) -> int:
        """The shard that owns the topic."""
        return shard_of(topic, self.shards)

    def add(self, shard: int, session: LinkSession) -> None:
        """``shard`` can be asked until ``session`` closes."""
        self._sessions[shard] = session
        self.open.add(session)
        session.on_closed(partial(self._remove, shard))
        for on_open in self.on_open:
            on_open(shard)

    def _remove(self, shard: int, session: LinkSession) -> None:
        self.open.discard(session)
        if self._sessions.get(shard) is session:
            del self._sessions[shard]

    def is_there(self, shard: int) -> bool:
        """Whether ``shard`` can be asked now."""
        return shard in self._sessions

    def ask(
        self,
        shard: int,
        call: Call[P, R],
        params: P,
        body: Buffer,
        then: Callable[[Reply[R] | TopicsError], None],
    ) -> None:
        """Ask ``shard``; ``then`` gets its reply or the failure, in a later turn.

        The failure is `NotReady` when the shard is away, or goes before it has answered: then it
        may have done what it was asked. Only inside of a turn, which sends the request at its end.
        """

        def answered(answer: Reply[R] | Exception) -> None:
            if isinstance(answer, RemoteError):
                then(failure_of(answer))
            elif isinstance(answer, Exception):
                self._fail_later(then, shard)
            else:
                then(answer)

        session = self._sessions.get(shard)
        if session is None:
            self._fail_later(then, shard)
            return
        try:
            session.call(call, params, body, answered)
        except PeerGone:
            self._fail_later(then, shard)

    def _fail_later(self, then: Failed, shard: int) -> None:
        failure = NotReady(f"shard {shard} is not ready", reason=PEER_AWAY)
        self._failed.append((then, failure))
        self.is_due = True
        self._wake()

    def on_due(self) -> None:
        """Tell of the calls that have failed since the last turn."""
        failed, self._failed = self._failed, []
        for then, failure in failed:
            then(failure)


class Asked(Generic[R]):
    """One call to a shard, and its outcome."""

    def __init__(self, shard: int) -> None:
        self._answer: R | TopicsError = NotReady(f"shard {shard} does not answer", reason=PEER_AWAY)
        self._came = trio.Event()

    def then(self, answer: Reply[R] | TopicsError) -> None:
        """Take the answer."""
        if isinstance(answer, TopicsError):
            self._answer = answer
        else:
            self._answer = answer.result
            answer.release()
        self._came.set()

    async def wait(self) -> None:
        """Wait for the answer."""
        await self._came.wait()

    @property
    def result(self) -> R:
        """The shard's result. Raises `TopicsError`; `NotReady` also when it has not answered: it
        may still execute the call.
        """
        if isinstance(self._answer, TopicsError):
            raise self._answer
        return self._answer


class Loopback:
    """Transport of a shard's session with itself: what is sent there arrives in its own inbox.

    The session is both ends: it is the caller of each request, and what the request came on. A
    message is handled in a turn after the one in which it is sent. It ends with the process.
    """

    session: LinkSession  # set before the first message

    def __init__(self, inbox: Inbox, wake: Callable[[], None]) -> None:
        self._inbox, self._wake = inbox, wake
        self.message_id = 0

    def send(
        self, subject: str, payload: bytes, attachment: Any = b"", *, message_id: int | None = None
    ) -> int:
        """As `Transport.send`; the attachment is copied."""
        if message_id is None:
            self.message_id = message_id = self.message_id + 1
        self._put(Message(message_id, 0, subject, payload, bytes(attachment)))
        return message_id

    def send_refusal(self, code: int, message: str, about: int) -> None:
        """As `Transport.send_refusal`."""
        payload = encode(Refusal(int(code), message, about))
        self.message_id += 1
        self._put(Message(self.message_id, ERROR, "", payload, b""))

    def release(self, message: Message) -> None:
        """Nothing to give back: no message is in shared memory."""

    def on_lost(self, view: memoryview, release: Callable[[], object]) -> None:
        """Never called: no message is in shared memory."""

    def _put(self, message: Message) -> None:
        self._inbox.put(self.session, [message])
        self._wake()
