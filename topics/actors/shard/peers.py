"""Peers: calls from a shard to any shard of its server, including itself.

    call --> link session with the peer --ring--> its inbox --> its services, as for a front
         `-> loopback, to this shard -----------> own inbox --> own services
             reply --> own inbox --> then(reply)
             no session, or its end before the reply --> then(NotReady)

The calls are defined in ``formats/wire/calls.py``. `then` is called once, in an iteration of the
caller's loop and never from inside `call`, so its changes are logged with that iteration. It must
not raise. When the shard stops, pending calls are dropped, as after a kill. The caller must be able
to resume its work from the log.

This module does not bound the number of pending calls: messages that do not fit in a ring wait in
memory. The caller bounds its calls and their bytes, and pauses before it repeats a failed call.
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
from topics.formats.wire.message import ERROR, Message, PeerClosed

PEER_UNAVAILABLE: Final = "shard_away"
Failed: TypeAlias = Callable[[TopicsError], None]


class Peers(Service):
    """The shards of the server that this shard can call now, by number."""

    def __init__(self, shards: int, wake: Callable[[], None]) -> None:
        """Create the object without sessions. ``wake`` requests another loop iteration."""
        self.shards, self._wake = shards, wake
        self._sessions: dict[int, LinkSession] = {}
        self.open: set[LinkSession] = set()  # sessions with other shards and with this one
        self._failed: list[tuple[Failed, TopicsError]] = []  # reported in the next iteration
        # Called when a session with a shard opens, including the session with this shard. Calls
        # that these functions make are sent before all later calls in the session.
        self.on_open: list[Callable[[int], None]] = []

    def shard_of(self, topic: str) -> int:
        """Return the shard that owns the topic."""
        return shard_of(topic, self.shards)

    def add(self, shard: int, session: LinkSession) -> None:
        """Register a session with ``shard``, until it closes."""
        self._sessions[shard] = session
        self.open.add(session)
        session.on_closed(partial(self._remove, shard))
        for on_open in self.on_open:
            on_open(shard)

    def _remove(self, shard: int, session: LinkSession) -> None:
        self.open.discard(session)
        if self._sessions.get(shard) is session:
            del self._sessions[shard]

    def is_connected(self, shard: int) -> bool:
        """Return whether ``shard`` can be called now."""
        return shard in self._sessions

    def call(
        self,
        shard: int,
        call: Call[P, R],
        params: P,
        body: Buffer,
        then: Callable[[Reply[R] | TopicsError], None],
    ) -> None:
        """Call ``shard``. ``then`` gets its reply or the failure, in a later iteration.

        The failure is `NotReady` if the shard is unavailable or stops before it replies. In the
        latter case it may have executed the call. This method must be called within an iteration,
        because the request is sent at the end of the iteration.
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
        except PeerClosed:
            self._fail_later(then, shard)

    def _fail_later(self, then: Failed, shard: int) -> None:
        failure = NotReady(f"shard {shard} is not ready", reason=PEER_UNAVAILABLE)
        self._failed.append((then, failure))
        self.is_due = True
        self._wake()

    def on_due(self) -> None:
        """Report the calls that have failed since the last iteration."""
        failed, self._failed = self._failed, []
        for then, failure in failed:
            then(failure)


class PeerCall(Generic[R]):
    """One call to a shard, and its outcome."""

    def __init__(self, shard: int) -> None:
        self._answer: R | TopicsError = NotReady(
            f"shard {shard} does not respond", reason=PEER_UNAVAILABLE
        )
        self._arrived = trio.Event()

    def then(self, answer: Reply[R] | TopicsError) -> None:
        """Store the outcome of the call."""
        if isinstance(answer, TopicsError):
            self._answer = answer
        else:
            self._answer = answer.result
            answer.release()
        self._arrived.set()

    async def wait(self) -> None:
        """Wait for the outcome."""
        await self._arrived.wait()

    @property
    def result(self) -> R:
        """The shard's result. Raises `TopicsError` if the call has failed.

        Raises `NotReady` if the shard has not replied yet. It may still execute the call.
        """
        if isinstance(self._answer, TopicsError):
            raise self._answer
        return self._answer


class Loopback:
    """Transport of a shard's session with itself: sent messages arrive in the shard's own inbox.

    A single session is used for both ends: it makes the calls, and the requests arrive on it. A
    message is handled in a later iteration than the one in which it is sent. The session lasts as
    long as the process.
    """

    session: LinkSession  # set before the first message

    def __init__(self, inbox: Inbox, wake: Callable[[], None]) -> None:
        self._inbox, self._wake = inbox, wake
        self.message_id = 0

    def send(
        self, subject: str, payload: bytes, attachment: Any = b"", *, message_id: int | None = None
    ) -> int:
        """See `Transport.send`. The attachment is copied."""
        if message_id is None:
            self.message_id = message_id = self.message_id + 1
        self._put(Message(message_id, 0, subject, payload, bytes(attachment)))
        return message_id

    def send_refusal(self, code: int, message: str, about: int) -> None:
        """See `Transport.send_refusal`."""
        payload = encode(Refusal(int(code), message, about))
        self.message_id += 1
        self._put(Message(self.message_id, ERROR, "", payload, b""))

    def release(self, message: Message) -> None:
        """Do nothing: no message is in shared memory."""

    def on_reclaim(self, view: memoryview, release: Callable[[], object]) -> None:
        """Do nothing: no message is in shared memory."""

    def _put(self, message: Message) -> None:
        self._inbox.put(self.session, [message])
        self._wake()
