"""A session with one peer: its registrations, the calls that wait for it, and its end (ADR 011 §8).

    open --close()--> closing: waiting calls fail, closed-listeners run --> closed: session-scoped
    handlers are gone

A session is one connection, not one peer: a peer that comes back gets a new session, and nothing of
the old one reaches it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, runtime_checkable

import structlog

from topics.actors.rpc.call import Call, RemoteError, RpcReply
from topics.actors.rpc.route_table import RouteTable, Unsubscribe
from topics.actors.rpc.subject_policy import SubjectPolicy
from topics.formats.buffers import Buffer
from topics.formats.wire.envelope import (
    ErrorFrame,
    Failure,
    Success,
    encode_notification,
    encode_request,
)
from topics.formats.wire.message import ARENA, MessageFrame, PeerGone

if TYPE_CHECKING:
    from topics.actors.rpc.inbound import RpcContext
    from topics.actors.rpc.message_router import Plan

log: Final = structlog.get_logger(__name__)


@runtime_checkable
class Block(Protocol):
    """Shared memory that was reserved for an attachment. Whoever takes an attachment takes it over,
    also when it raises.
    """

    def free(self) -> None: ...


Attachment: TypeAlias = Buffer | Block
ClosedListener: TypeAlias = Callable[["LinkSession"], None]


class Transport(Protocol):
    """What a session sends through. Nothing here blocks. It may outlive the session and serve the
    next one.
    """

    def send(
        self, subject: str, payload: bytes, attachment: Any = b"", *, frame_id: int | None = None
    ) -> int:
        """Queue one message under a fresh frame id, or under one of ``next_frame_id()``. Raises
        PeerGone.
        """

    def next_frame_id(self) -> int: ...

    def send_error(self, code: int, message: str, about: int) -> None:
        """Queue an ErrorFrame about the peer's message ``about``. Raises PeerGone."""

    def release(self, frame: MessageFrame) -> None:
        """Nobody here reads the attachment of ``frame`` any more. Nothing happens the second time,
        or for an inline one.
        """


def discard(attachment: Attachment) -> None:
    """Free what will not be sent."""
    if isinstance(attachment, Block):
        attachment.free()


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
        """The router's: requests that wait for a handler's answer, and their deadlines, the
        earliest first.
        """
        self.router: Final = RouteTable(policy, self.plans.clear)
        """Session-scoped registrations: they go when the session closes."""
        self._forget = forget
        self._calls: dict[int, Call] = {}
        self._listeners: list[ClosedListener] = []

    # --- the caller's side
    # -------------------------------------------------------------------------------------------

    def call_soon(self, method: str, params: Any, attachment: Attachment = b"") -> Call:
        """Queue the request and return at once. Await ``call.wait()``, or ``call.abandon()`` it.
        Raises PeerGone.
        """
        cid = self.transport.next_frame_id()
        try:
            payload = encode_request(cid, method, params)
        except Exception:
            discard(attachment)
            raise
        self.send("rpc/" + method, payload, attachment, frame_id=cid)
        call = self._calls[cid] = Call(cid, method, self)
        return call

    async def call(
        self,
        method: str,
        params: Any,
        attachment: Attachment = b"",
        *,
        timeout_ms: float | None = None,
    ) -> RpcReply:
        """Ask and wait.

        Without ``timeout_ms`` it waits as long as the peer does, whose own limit ends in a
        RemoteError with code 1103. Raises RemoteError for an error answer, PeerGone when the
        session closes, trio.TooSlowError after ``timeout_ms``.
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
        self.send("event/" + method, payload, attachment)

    def send(
        self,
        subject: str,
        payload: bytes,
        attachment: Attachment = b"",
        *,
        frame_id: int | None = None,
    ) -> None:
        """Queue any message; without ``frame_id`` under a fresh one.

        Raises PeerGone, also when the transport has gone on to a newer session: what was meant for
        the old one stays out.
        """
        if self.closed:
            discard(attachment)
            raise PeerGone(f"the session with {self.peer_id} is over")
        self.transport.send(subject, payload, attachment, frame_id=frame_id)

    def forget_call(self, cid: int) -> None:
        """The caller has gone. The peer hears of it, so that it can stop working on the answer."""
        if self._calls.pop(cid, None) is not None:
            try:
                self.notify("call.cancelled", {"cid": cid})
            except PeerGone:
                log.debug("cancel_not_sent", peer_id=self.peer_id, cid=cid)

    def fail_calls(self, which: Callable[[Call], bool]) -> None:
        """These get PeerGone, as if the session had closed. It goes on; late answers are dropped."""
        for call in [call for call in self._calls.values() if which(call)]:
            if (
                self._calls.pop(call.cid, None) is not None
            ):  # a listener of one before may have given it up
                call.fail(PeerGone(f"{self.peer_id} does not answer call {call.cid}"))

    # --- what the router hands in
    # ------------------------------------------------------------------------------------

    def take_answer(self, frame: MessageFrame, answer: Success | Failure) -> None:
        """Wake the task that waits for it. Nobody may wait any more (cancelled, timed out): then
        its memory goes back.
        """
        call = self._calls.pop(answer.cid, None)
        if call is not None and type(answer) is Success:
            call.succeed(RpcReply(answer.result, frame, self))
            return
        self.release(frame)
        if call is not None and type(answer) is Failure:
            call.fail(RemoteError(answer.code, answer.message, answer.data))

    def take_error_frame(self, error: ErrorFrame) -> None:
        """The peer refused a message. A call fails by it; it cannot have been answered and never
        will be.
        """
        call = self._calls.pop(error.about, None)
        if call is None:
            log.warning(
                "message_refused",
                peer_id=self.peer_id,
                code=error.code,
                reason=error.message,
                about=error.about,
            )
        else:
            call.fail(RemoteError(error.code, error.message))

    def release(self, frame: MessageFrame) -> None:
        """Give the memory of the attachment back. Nothing happens for an inline one, nor the second
        time.

        Due after the end of the session too: the memory is not used again while somebody may read
        it.
        """
        if frame.flags & ARENA:
            self.transport.release(frame)

    # --- the end
    # -----------------------------------------------------------------------------------------------------

    def on_closed(self, listener: ClosedListener) -> Unsubscribe:
        """Call ``listener`` once when the session closes, while its registrations can still be seen
        (§8).
        """
        self._listeners.append(listener)
        return partial(self._drop_listener, listener)

    def close(self) -> None:
        """End the session. Later calls do nothing.

        Waiting calls get PeerGone, then the listeners run in registration order (one that raises is
        logged and the next one runs), and only then the session's handlers are cleared. Requests
        that still wait for a handler's answer are not timed any more; what the handler answers goes
        nowhere.
        """
        if self.closed:
            return
        self.closed = True
        self.unanswered.clear()
        calls = list(self._calls.values())
        self._calls.clear()
        for call in calls:
            call.fail(
                PeerGone(
                    f"the session with {self.peer_id} closed before call {call.cid} was answered"
                )
            )
        self._emit_closed()
        self.router.clear()
        self._forget(self)

    def _emit_closed(self) -> None:
        for listener in tuple(self._listeners):
            try:
                listener(self)
            except Exception as error:
                log.warning("closed_listener_failed", peer_id=self.peer_id, exc_info=error)
        self._listeners.clear()

    def _drop_listener(self, listener: ClosedListener) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)
