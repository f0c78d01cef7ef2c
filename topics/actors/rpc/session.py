"""Link session: the calls to one peer and their answers, the messages from it and their answers,
and its end (`decisions/0003` §2, §8, §9).

    open --close()--> closing: calls under way fail, closed-listeners run
                         --> closed: session-scoped handlers are gone

A session is one connection, not one peer: a peer that comes back gets a new session, and no message
of the old one reaches it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final, Generic, Protocol, TypeAlias

import msgspec
import structlog
from msgspec.structs import force_setattr

from topics.actors.link.arena import ArenaBlock
from topics.actors.rpc.route_table import Plan, RouteTable
from topics.formats.buffers import Buffer
from topics.formats.wire.calls import CALL_CANCELLED, CallCancelledParams
from topics.formats.wire.contract import Call, Event, P, R
from topics.formats.wire.envelope import (
    ErrorCode,
    Failure,
    Notification,
    Refusal,
    Request,
    Success,
    encode,
)
from topics.formats.wire.message import ARENA, Message, PeerGone

log: Final = structlog.get_logger(__name__)

# Whoever takes a block owns it from then on, also when the call raises.
Attachment: TypeAlias = Buffer | ArenaBlock


class RemoteError(Exception):
    """The peer replied with an error. The ranges of ``code`` are in `decisions/0003` §7."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code
        self.message = message
        self.data = data


class Transport(Protocol):
    """Sends the messages of one link session at a time. It may outlive the session and serve the
    next one. Nothing here blocks. ``message_id``: of the last message; a message that must name
    itself in its payload counts it up.
    """

    message_id: int

    def send(
        self, subject: str, payload: bytes, attachment: Any = b"", *, message_id: int | None = None
    ) -> int:
        """Queue one message, by default under a fresh id. Raises PeerGone.

        ``message_id``: one that its sender has taken.
        """

    def send_refusal(self, code: int, message: str, about: int) -> None:
        """Queue a refusal about the peer's message ``about``. Raises PeerGone."""

    def release(self, message: Message) -> None:
        """Give the attachment's memory back to the peer. Does nothing for an inline attachment, nor
        the second time.
        """

    def on_lost(self, view: memoryview, release: Callable[[], object]) -> None:
        """``release`` is called if a session waits for the memory of the attachment ``view``."""


def discard(attachment: Attachment) -> None:
    """Free an attachment that is not sent."""
    if not isinstance(attachment, Buffer):
        attachment.free()


class Reply(msgspec.Struct, Generic[R], eq=False):
    """The answer to a call that went well. ``body`` may lie in the peer's memory: it is valid until
    `release`, which its receiver calls, or the end of the session.
    """

    result: R
    body: bytes | memoryview
    _message: Message
    _session: LinkSession

    def on_lost(self, give_up: Callable[[], object]) -> None:
        """``give_up`` is called if the memory of the body is needed; it leads to `release` soon."""
        if isinstance(self.body, memoryview):
            self._session.transport.on_lost(self.body, give_up)

    def release(self) -> None:
        """The body is not needed any more. Does nothing the second time."""
        self.body = b""
        if self._message.flags & ARENA:
            self._session.transport.release(self._message)


class PendingCall(msgspec.Struct, eq=False):
    """A call under way.

         answer, error, PeerGone
    WAITING --------------------> OVER  ``then`` is called, once
       |     abandon()
       +------------------------> OVER  the peer is told; a late answer goes to ``on_late``, if
                                        there is one, and is released
    """

    cid: int
    call: Call[Any, Any]
    then: Callable[[Any], None]
    _session: LinkSession | None  # None: it was refused here
    is_over: bool = False
    # The answer may take long by its nature; the caller says so.
    is_patient: bool = False
    # Called with an answer that nobody waits for any more, and that takes effect all the same.
    on_late: Callable[[Reply[Any]], None] | None = None

    def abandon(self) -> None:
        """Forget the call and tell the peer, so that it can stop working on the answer. Does
        nothing when it is over.
        """
        session = self._session
        if self.is_over or session is None:
            return
        self.is_over = True
        if self.on_late is None:
            session.calls.pop(self.cid, None)
        try:
            session.notify(CALL_CANCELLED, CallCancelledParams(self.cid))
        except PeerGone:
            log.debug("cancel not sent", peer_id=session.peer_id, cid=self.cid)


class LinkSession:
    """Made by ``MessageRouter.open_session``; the owner of the transport closes it when the peer is
    gone.
    """

    def __init__(
        self,
        peer_id: str,
        transport: Transport,
        forget: Callable[[LinkSession], None],
        failure_of: Callable[[RemoteError | PeerGone], Exception],
    ) -> None:
        self.peer_id: Final = peer_id
        self.transport: Final = transport
        self.closed = False
        self.calls: Final[dict[int, PendingCall]] = {}
        """By cid: those under way, and abandoned ones with an ``on_late``."""
        self.plans: Final[dict[str, Plan]] = {}
        """The router's: subjects that it has resolved for this session."""
        self.unanswered: Final[dict[Any, float]] = {}
        """The router's: open requests and their deadlines, the earliest first."""
        self.router: Final = RouteTable(self.plans.clear)
        """Session-scoped registrations: they go when the session closes."""
        self._forget = forget
        self._failure_of = failure_of
        self._listeners: list[Callable[[LinkSession], None]] = []

    # Sending

    def call(
        self,
        call: Call[P, R],
        params: P,
        attachment: Attachment,
        then: Callable[[Reply[R] | Exception], None],
    ) -> PendingCall:
        """Queue the request. ``then`` gets the answer or the failure in the loop that takes the
        peer's messages; it must not raise. Raises PeerGone.
        """
        transport = self.transport
        cid = transport.message_id = transport.message_id + 1
        try:
            payload = encode(Request(cid, call.method, params))
            if self.closed:
                raise self._gone()
        except Exception:
            discard(attachment)
            raise
        transport.send(call.subject, payload, attachment, message_id=cid)
        pending = self.calls[cid] = PendingCall(cid, call, then, self)
        return pending

    def notify(self, event: Event[P], params: P, attachment: Attachment = b"") -> None:
        """Queue an event; nobody answers. Raises PeerGone."""
        try:
            payload = encode(Notification(event.method, params))
        except Exception:
            discard(attachment)
            raise
        self.send(event.subject, payload, attachment)

    def send(self, subject: str, payload: bytes, attachment: Attachment = b"") -> None:
        """Queue any message, under a fresh id.

        Raises PeerGone, also when the transport serves a newer session: a message of the old
        session is never sent in the new one.
        """
        if self.closed:
            discard(attachment)
            raise self._gone()
        self.transport.send(subject, payload, attachment)

    def release(self, message: Message) -> None:
        """Give the attachment's memory back to the peer. Does nothing for an inline attachment, nor
        the second time.

        Due after the end of the session too: the peer does not use memory again that may be read
        here.
        """
        if message.flags & ARENA:
            self.transport.release(message)

    def _gone(self) -> PeerGone:
        return PeerGone(f"the link session with {self.peer_id} is closed")

    # Answers

    def take_answer(self, message: Message, answer: Success | Failure) -> None:
        """Settle the call of an answer. Without one (cancelled, timed out), release the memory."""
        pending = self.calls.pop(answer.cid, None)
        if pending is not None and type(answer) is Success:
            result = tuple.__new__(pending.call.result, answer.result or ())
            reply = Reply(result, message.attachment, message, self)
            if not pending.is_over:
                pending.is_over = True
                pending.then(reply)
                return
            if pending.on_late is not None:
                pending.on_late(reply)
        self.release(message)
        if pending is not None and type(answer) is Failure:
            self._fail(pending, RemoteError(answer.code, answer.message, answer.data))

    def take_refusal(self, error: Refusal) -> None:
        """The peer refused a message. If it was a request, its call fails: it is never answered."""
        pending = self.calls.pop(error.about, None)
        if pending is None:
            log.warning(
                "message refused",
                peer_id=self.peer_id,
                code=error.code,
                reason=error.message,
                about=error.about,
            )
        else:
            self._fail(pending, RemoteError(error.code, error.message))

    def fail_calls(self, which: Callable[[PendingCall], bool]) -> None:
        """Fail these calls with PeerGone, as if the session had closed."""
        for pending in [pending for pending in self.calls.values() if which(pending)]:
            if pending.on_late is None:  # the peer answers the others all the same
                self.calls.pop(pending.cid, None)
            self._fail(pending, PeerGone(f"{self.peer_id} does not answer call {pending.cid}"))

    def _fail(self, pending: PendingCall, error: RemoteError | PeerGone) -> None:
        if not pending.is_over:  # an earlier one that failed may have abandoned it
            pending.is_over = True
            pending.then(self._failure_of(error))

    # The end

    def on_closed(self, listener: Callable[[LinkSession], None]) -> None:
        """Call ``listener`` once when the session closes, while its registrations are still there
        (§8).
        """
        self._listeners.append(listener)

    def close(self) -> None:
        """End the session. Later calls do nothing.

        Calls under way fail with PeerGone. Then the listeners run in registration order; when one
        raises, the error is logged and the next one runs. Then the session's handlers are cleared.
        Open requests are not timed any more; their answers are dropped.
        """
        if self.closed:
            return
        self.closed = True
        self.unanswered.clear()
        calls = list(self.calls.values())
        reason = f"the link session with {self.peer_id} closed, call {{}} was pending"
        for pending in calls:
            self._fail(pending, PeerGone(reason.format(pending.cid)))
        self.calls.clear()
        for listener in tuple(self._listeners):
            try:
                listener(self)
            except Exception as error:
                log.warning("closed listener failed", peer_id=self.peer_id, exc_info=error)
        self._listeners.clear()
        self.router.clear()
        self._forget(self)


class AlreadyAnsweredError(RuntimeError):
    """A handler answered the same request a second time: an error of the handler. The first answer
    stands.
    """


class InboundMessage(msgspec.Struct, Generic[P, R], frozen=True, eq=False):
    """A message on its way through the handlers, which cannot set anything of it.

    ``session``: the link session that it came on. ``frame``: the message itself, for diagnostics
    and tracing (`decisions/0003` §2). ``envelope``: its payload; None of a custom message.
    ``params``: those of the envelope, as the NamedTuple that the handler is registered with.
    ``parked_ms``: for how long it waited behind others.

    ``attachment`` may lie in the peer's memory. It is valid until the request is answered or, for a
    message without an answer, until the last handler has returned. Copy what is needed longer.

    A request is the exchange that its answer ends:

               reply(), error()
        OPEN ---------------------> ANSWERED   (again: AlreadyAnsweredError)
          |  timeout: 1103 is sent     ^
          +-----------> EXPIRED -------+       a late answer is dropped and logged

    A handler that has decided what cannot be taken back calls `outlast`: then no caller is told of
    a time-out and finds the work done.

    When the session closes while the request is open, an answer is dropped without a log event.
    Answers are sent under the request's subject and cid and under a message id of their own.
    """

    session: LinkSession
    frame: Message
    attachment: bytes | memoryview
    parked_ms: float
    envelope: Request | Notification | None = None
    params: P = None  # type: ignore[assignment]
    cid: int = 0  # joins the answer to the request
    is_open: bool = False  # a request, neither answered nor timed out
    is_timed: bool = True
    _is_answered: bool = False

    @property
    def subject(self) -> str:
        """The message's subject."""
        return self.frame.subject

    @property
    def payload(self) -> bytes | memoryview:
        """The message's payload, not decoded."""
        return self.frame.payload

    @property
    def peer_id(self) -> str:
        """The process that has sent it, as its sessions name it: ``front-0``, ``shard-1``."""
        return self.session.peer_id

    @property
    def rpc(self) -> InboundMessage[P, R] | None:
        """This, of a request; None of any other message, which cannot be answered."""
        return self if type(self.envelope) is Request else None

    @property
    def method(self) -> str:
        """The envelope's method."""
        assert self.envelope is not None, "a request or an event"
        return self.envelope.method

    def send(self, subject: str, data: bytes, attachment: Attachment = b"") -> None:
        """Queue a message to the peer, always under an id of its own (§9). Raises PeerGone."""
        self.session.send(subject, data, attachment)

    def release(self) -> None:
        """Release the attachment before the reply. It cannot be read afterwards.

        A second call has no effect.
        """
        if self.frame.flags & ARENA:
            self.session.transport.release(self.frame)
        else:
            # The request may wait for a long time, so free the memory now. The payload is already
            # decoded, and may be a view of the same memory as the attachment.
            for name in ("payload", "attachment"):
                force_setattr(self.frame, name, b"")
            force_setattr(self, "attachment", b"")

    def reply(self, result: R | Failure | None = None, attachment: Attachment = b"") -> None:
        """Answer with success. This releases the request's attachment: do not read it afterwards.

        A handler answers also when the session has closed, so that the attachment is released.
        Raises AlreadyAnsweredError the second time, and an error for a ``result`` that cannot be
        encoded; the request is still open then.
        """
        try:
            payload = encode(result if type(result) is Failure else Success(self.cid, result))
        except Exception:
            discard(attachment)
            raise
        session = self.session
        if not self.is_open or session.closed:
            discard(attachment)
            self._note_late()
        else:
            try:
                session.transport.send(self.frame.subject, payload, attachment)
            except PeerGone:
                log.debug("answer not sent", subject=self.subject, peer_id=session.peer_id)
            session.unanswered.pop(self, None)
        force_setattr(self, "is_open", False)
        force_setattr(self, "_is_answered", True)
        if self.frame.flags & ARENA:
            session.transport.release(self.frame)

    def error(self, code: int, message: str, data: Any = None) -> None:
        """Answer with an error, otherwise as `reply`. Codes as in `decisions/0003` §7."""
        self.reply(Failure(self.cid, int(code), message, data))

    def outlast(self) -> None:
        """Never time the request out. Only for one that has not timed out."""
        assert self.is_open or self._is_answered, "the caller has been told of a time-out"
        force_setattr(self, "is_timed", False)
        self.session.unanswered.pop(self, None)

    def expire(self) -> None:
        """The deadline has passed: answer 1103. The handler may go on and keeps the attachment."""
        assert self.is_open, "only an open request can time out"
        force_setattr(self, "is_open", False)
        log.warning(
            "rpc timed out",
            subject=self.subject,
            peer_id=self.session.peer_id,
            cid=self.cid,
        )
        payload = encode(Failure(self.cid, ErrorCode.TIMEOUT, "Handler timeout"))
        with contextlib.suppress(PeerGone):
            self.session.transport.send(self.subject, payload)

    def _note_late(self) -> None:
        """An answer that is not sent. It is no surprise when the session has closed."""
        if self._is_answered:
            raise AlreadyAnsweredError(f"{self.subject} (cid {self.cid}) has been answered already")
        if not self.is_open:
            log.warning(
                "late answer dropped",
                subject=self.subject,
                peer_id=self.session.peer_id,
                cid=self.cid,
            )
