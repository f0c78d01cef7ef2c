"""A link session with one peer: its registrations, its pending calls and its end (ADR 011 §8).

    open --close()--> closing: pending calls fail, closed-listeners run
                         --> closed: session-scoped handlers are gone

A session is one connection, not one peer: a peer that comes back gets a new session, and no message
of the old one reaches it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeAlias

import structlog

from topics.actors.rpc.call import PendingCall, RemoteError, RpcReply
from topics.actors.rpc.inbound import RpcContext
from topics.actors.rpc.route_table import Plan, RouteTable, Unsubscribe
from topics.actors.rpc.subject_policy import SubjectPolicy
from topics.actors.rpc.transport import Attachment, Transport, discard
from topics.formats.wire.calls import CALL_CANCELLED, CallCancelledParams
from topics.formats.wire.envelope import (
    EVENT_PREFIX,
    RPC_PREFIX,
    Failure,
    Refusal,
    Success,
    encode_notification,
    encode_request,
)
from topics.formats.wire.message import ARENA, Message, PeerGone

log: Final = structlog.get_logger(__name__)

ClosedListener: TypeAlias = Callable[["LinkSession"], None]


class LinkSession:
    """Made by ``MessageRouter.open_session``; the owner of the transport closes it when the peer is
    gone.
    """

    def __init__(
        self,
        peer_id: str,
        transport: Transport,
        policy: SubjectPolicy,
        forget: Callable[[LinkSession], None],
    ) -> None:
        self.peer_id: Final = peer_id
        self.transport: Final = transport
        self.closed = False
        self.plans: Final[dict[str, Plan]] = {}
        """The router's: subjects that it has resolved for this session."""
        self.unanswered: Final[dict[RpcContext, float]] = {}
        """The router's: open requests and their deadlines, the earliest first."""
        self.router: Final = RouteTable(policy, self.plans.clear)
        """Session-scoped registrations: they go when the session closes."""
        self._forget = forget
        self._calls: dict[int, PendingCall] = {}
        self._given_up: dict[int, PendingCall] = {}  # of those with an `on_late`
        self._listeners: list[ClosedListener] = []

    # Sending

    def call_soon(self, method: str, params: Any, attachment: Attachment = b"") -> PendingCall:
        """Queue the request and return at once. Await ``call.wait()``, or ``call.abandon()`` it.
        Raises PeerGone.
        """
        cid = self.transport.next_message_id()
        try:
            payload = encode_request(cid, method, params)
        except Exception:
            discard(attachment)
            raise
        self.send(RPC_PREFIX + method, payload, attachment, message_id=cid)
        call = self._calls[cid] = PendingCall(cid, method, self)
        return call

    async def call(
        self,
        method: str,
        params: Any,
        attachment: Attachment = b"",
        *,
        timeout_ms: float | None = None,
    ) -> RpcReply:
        """Queue the request and wait for its answer.

        Without ``timeout_ms`` the peer's own limit ends the wait, with a RemoteError of code 1103.
        Raises RemoteError for an error answer, PeerGone when the session closes, trio.TooSlowError
        after ``timeout_ms``.
        """
        call = self.call_soon(method, params, attachment)
        return await (call.wait() if timeout_ms is None else call.wait_at_most(timeout_ms / 1000))

    def notify(self, method: str, params: Any, attachment: Attachment = b"") -> None:
        """Queue ``event/METHOD``; nobody answers. Raises PeerGone."""
        try:
            payload = encode_notification(method, params)
        except Exception:
            discard(attachment)
            raise
        self.send(EVENT_PREFIX + method, payload, attachment)

    def send(
        self,
        subject: str,
        payload: bytes,
        attachment: Attachment = b"",
        *,
        message_id: int | None = None,
    ) -> None:
        """Queue any message; without ``message_id`` under a fresh id.

        Raises PeerGone, also when the transport serves a newer session: a message of the old
        session is never sent in the new one.
        """
        if self.closed:
            discard(attachment)
            raise PeerGone(f"the link session with {self.peer_id} is closed")
        self.transport.send(subject, payload, attachment, message_id=message_id)

    # Pending calls

    def forget_call(self, cid: int) -> None:
        """Nobody waits any more. The peer is told, so that it can stop working on the answer."""
        call = self._calls.pop(cid, None)
        if call is not None:
            self._await_late(call)
            try:
                self.notify(CALL_CANCELLED.method, CallCancelledParams(cid))
            except PeerGone:
                log.debug("cancel not sent", peer_id=self.peer_id, cid=cid)

    def fail_calls(self, which: Callable[[PendingCall], bool]) -> None:
        """Fail these calls with PeerGone, as if the session had closed."""
        for call in [call for call in self._calls.values() if which(call)]:
            # A listener of an earlier one may have abandoned this one.
            if self._calls.pop(call.cid, None) is not None:
                self._await_late(call)
                call.fail(PeerGone(f"{self.peer_id} does not answer call {call.cid}"))

    def take_answer(self, message: Message, answer: Success | Failure) -> None:
        """Settle the call of an answer. Without one (cancelled, timed out), release the memory."""
        call = self._calls.pop(answer.cid, None)
        if call is not None and type(answer) is Success:
            call.succeed(RpcReply(answer.result, message, self))
            return
        if call is None and self._given_up:
            late = self._given_up.pop(answer.cid, None)
            if late is not None and type(answer) is Success:
                late.take_late(RpcReply(answer.result, message, self))
                return
        self.release(message)
        if call is not None and type(answer) is Failure:
            call.fail(RemoteError(answer.code, answer.message, answer.data))

    def take_refusal(self, error: Refusal) -> None:
        """The peer refused a message. If it was a request, its call fails: it is never answered."""
        call = self._calls.pop(error.about, None)
        if call is None:
            log.warning(
                "message refused",
                peer_id=self.peer_id,
                code=error.code,
                reason=error.message,
                about=error.about,
            )
        else:
            call.fail(RemoteError(error.code, error.message))

    def _await_late(self, call: PendingCall) -> None:
        """The peer answers the call all the same."""
        if call.on_late is not None:
            self._given_up[call.cid] = call

    def release(self, message: Message) -> None:
        """Give the attachment's memory back to the peer. Does nothing for an inline attachment, nor
        the second time.

        Due after the end of the session too: the peer does not use memory again that may be read
        here.
        """
        if message.flags & ARENA:
            self.transport.release(message)

    # The end

    def on_closed(self, listener: ClosedListener) -> Unsubscribe:
        """Call ``listener`` once when the session closes, while its registrations are still there
        (§8).
        """
        self._listeners.append(listener)
        return partial(self._drop_listener, listener)

    def close(self) -> None:
        """End the session. Later calls do nothing.

        Pending calls fail with PeerGone. Then the listeners run in registration order; when one
        raises, the error is logged and the next one runs. Then the session's handlers are cleared.
        Open requests are not timed any more; their answers are dropped.
        """
        if self.closed:
            return
        self.closed = True
        self.unanswered.clear()
        calls = list(self._calls.values())
        self._calls.clear()
        self._given_up.clear()
        for call in calls:
            # A coroutine that an earlier one has resumed may have abandoned this one.
            if not call.is_over:
                call.fail(
                    PeerGone(
                        f"the link session with {self.peer_id} closed, call {call.cid} was pending"
                    )
                )
        self._call_listeners()
        self.router.clear()
        self._forget(self)

    def _call_listeners(self) -> None:
        for listener in tuple(self._listeners):
            try:
                listener(self)
            except Exception as error:
                log.warning("closed listener failed", peer_id=self.peer_id, exc_info=error)
        self._listeners.clear()

    def _drop_listener(self, listener: ClosedListener) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)
