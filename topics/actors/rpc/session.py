"""Link session: the calls to one peer, the messages from it, and the replies to both.

This module implements §2, §8 and §9 of `decisions/0003`.

    open --close()--> closing: pending calls fail, closed-listeners run
                         --> closed: session-scoped handlers are removed

A session is one connection, not one peer. A peer that reconnects gets a new session, and no message
of the old session is delivered in it.
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
from topics.formats.wire.message import ARENA, Message, PeerClosed

log = structlog.get_logger()

# A function that is called with an ArenaBlock takes ownership of it, even if the function raises.
Attachment: TypeAlias = Buffer | ArenaBlock


class RemoteError(Exception):
    """The peer replied with an error.

    ``code`` is a code of `decisions/0003` §7. Application codes start at 2000.
    """

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code
        self.message = message
        self.data = data


class Transport(Protocol):
    """Sends the messages of one link session at a time. No method blocks.

    A transport may outlive the session and serve the next one. ``message_id`` is the id of the last
    message. Code that needs the id of a new message in its payload increments ``message_id`` and
    passes the result to `send`.
    """

    message_id: int

    def send(
        self, subject: str, payload: bytes, attachment: Any = b"", *, message_id: int | None = None
    ) -> int:
        """Queue one message, by default with a new id. Raises PeerClosed.

        ``message_id``: an id that the caller has already taken from `Transport.message_id`.
        """

    def send_refusal(self, code: int, message: str, about: int) -> None:
        """Queue a refusal of the peer's message ``about``. Raises PeerClosed."""

    def release(self, message: Message) -> None:
        """Return the attachment's memory to the peer.

        Do nothing for an inline attachment, or if it has already been released.
        """

    def on_reclaim(self, view: memoryview, release: Callable[[], object]) -> None:
        """Call ``release`` if a new session waits for the memory of the attachment ``view``."""


def discard(attachment: Attachment) -> None:
    """Free an attachment that is not sent."""
    if not isinstance(attachment, Buffer):
        attachment.free()


class Reply(msgspec.Struct, Generic[R], eq=False):
    """The successful reply to a call.

    ``body`` may be in the peer's memory. It is valid until the receiver calls `release`, or the
    session ends.
    """

    result: R
    body: bytes | memoryview
    _message: Message
    _session: LinkSession

    def on_reclaim(self, reclaim: Callable[[], object]) -> None:
        """Call ``reclaim`` if the memory of the body is needed. It must call `release` soon."""
        if isinstance(self.body, memoryview):
            self._session.transport.on_reclaim(self.body, reclaim)

    def release(self) -> None:
        """Release the body, which must not be read afterwards. A second call has no effect."""
        self.body = b""
        if self._message.flags & ARENA:
            self._session.transport.release(self._message)


class PendingCall(msgspec.Struct, eq=False):
    """A call in progress.

         reply, error, PeerClosed
    WAITING --------------------> OVER  ``then`` is called, once
       |     abandon()
       +------------------------> OVER  the peer is notified; a late reply is passed to
                                        ``on_late``, if that is set, and released
    """

    cid: int
    call: Call[Any, Any]
    then: Callable[[Any], None]
    _session: LinkSession | None  # None: the call was refused locally
    is_done: bool = False
    # Set by the caller if the reply may take a long time by design, as for a long poll.
    is_long_poll: bool = False
    # Called with the reply to an abandoned call. Set if the effects of the call must be undone.
    on_late: Callable[[Reply[Any]], None] | None = None

    def abandon(self) -> None:
        """Abandon the call, and notify the peer so that it can stop processing the request.

        Do nothing if the call is already over.
        """
        session = self._session
        if self.is_done or session is None:
            return
        self.is_done = True
        if self.on_late is None:
            session.calls.pop(self.cid, None)
        try:
            session.notify(CALL_CANCELLED, CallCancelledParams(self.cid))
        except PeerClosed:
            log.debug("cancellation not sent", peer_id=session.peer_id, cid=self.cid)


class LinkSession:
    """The calls, handlers and state of one connection to a peer.

    ``MessageRouter.open_session`` creates it. The owner of the transport closes it when the link to
    the peer is closed.
    """

    def __init__(
        self,
        peer_id: str,
        transport: Transport,
        on_removed: Callable[[LinkSession], None],
        failure_of: Callable[[RemoteError | PeerClosed], Exception],
    ) -> None:
        self.peer_id: Final = peer_id
        self.transport: Final = transport
        self.closed = False
        self.calls: Final[dict[int, PendingCall]] = {}
        """Calls by cid: calls in progress, and abandoned calls whose ``on_late`` is set."""
        self.plans: Final[dict[str, Plan]] = {}
        """Subjects that the router has resolved for this session."""
        self.unanswered: Final[dict[Any, float]] = {}
        """Open requests and their deadlines, the earliest first. Managed by the router."""
        self.router: Final = RouteTable(self.plans.clear)
        """Session-scoped registrations, which are removed when the session closes."""
        self._on_removed = on_removed
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
        """Queue a request. Raises PeerClosed.

        ``then`` is called with the reply or the failure in the loop that reads the peer's messages.
        It must not raise.
        """
        transport = self.transport
        # The id of the request message is also the call id, by which the reply is matched.
        cid = transport.message_id = transport.message_id + 1
        try:
            payload = encode(Request(cid, call.method, params))
            if self.closed:
                raise self._peer_closed_error()
        except Exception:
            discard(attachment)
            raise
        transport.send(call.subject, payload, attachment, message_id=cid)
        pending = self.calls[cid] = PendingCall(cid, call, then, self)
        return pending

    def notify(self, event: Event[P], params: P, attachment: Attachment = b"") -> None:
        """Queue an event, which gets no reply. Raises PeerClosed."""
        try:
            payload = encode(Notification(event.method, params))
        except Exception:
            discard(attachment)
            raise
        self.send(event.subject, payload, attachment)

    def send(self, subject: str, payload: bytes, attachment: Attachment = b"") -> None:
        """Queue any message with a new id.

        Raises PeerClosed, even if the transport already serves a newer session: a message of the
        old session is never sent in the new one.
        """
        if self.closed:
            discard(attachment)
            raise self._peer_closed_error()
        self.transport.send(subject, payload, attachment)

    def release(self, message: Message) -> None:
        """Return the attachment's memory to the peer.

        Do nothing for an inline attachment, or if it has already been released. This is also
        required after the end of the session, because the peer does not reuse memory that this
        process may still be reading.
        """
        if message.flags & ARENA:
            self.transport.release(message)

    def _peer_closed_error(self) -> PeerClosed:
        return PeerClosed(f"the link session with {self.peer_id} is closed")

    # Replies

    def handle_reply(self, message: Message, answer: Success | Failure) -> None:
        """Complete the call to which the reply belongs, or release it if no call is waiting."""
        pending = self.calls.pop(answer.cid, None)
        if pending is not None and type(answer) is Success:
            result = tuple.__new__(pending.call.result, answer.result or ())
            reply = Reply(result, message.attachment, message, self)
            if not pending.is_done:
                pending.is_done = True
                pending.then(reply)
                return
            # The call was abandoned, and its effects may have to be undone.
            if pending.on_late is not None:
                pending.on_late(reply)
        self.release(message)
        if pending is not None and type(answer) is Failure:
            self._fail(pending, RemoteError(answer.code, answer.message, answer.data))

    def handle_refusal(self, error: Refusal) -> None:
        """Fail the call whose request the peer has refused, because it will get no reply."""
        pending = self.calls.pop(error.about, None)
        if pending is None:
            log.warning(
                "message refused",
                peer_id=self.peer_id,
                code=error.code,
                reason=error.message,
                message_id=error.about,
            )
        else:
            self._fail(pending, RemoteError(error.code, error.message))

    def fail_calls(self, is_selected: Callable[[PendingCall], bool]) -> None:
        """Fail the selected calls with PeerClosed, as if the session had closed."""
        for pending in [pending for pending in self.calls.values() if is_selected(pending)]:
            # Calls with ``on_late`` stay registered, because the peer may still reply.
            if pending.on_late is None:
                self.calls.pop(pending.cid, None)
            self._fail(pending, PeerClosed(f"{self.peer_id} does not reply to call {pending.cid}"))

    def _fail(self, pending: PendingCall, error: RemoteError | PeerClosed) -> None:
        if not pending.is_done:  # the ``then`` of a previous call may have abandoned it
            pending.is_done = True
            pending.then(self._failure_of(error))

    # The end

    def on_closed(self, listener: Callable[[LinkSession], None]) -> None:
        """Call ``listener`` once when the session closes.

        The registrations of the session still exist at that time (§8).
        """
        self._listeners.append(listener)

    def close(self) -> None:
        """Close the session. Do nothing if it is already closed.

        Pending calls fail with PeerClosed. Then the listeners run in registration order. An
        exception in a listener is logged. Finally, the session's handlers are removed. Open
        requests no longer time out, and their replies are dropped.
        """
        if self.closed:
            return
        # Set the flag first, so that callbacks that make calls get PeerClosed.
        self.closed = True
        self.unanswered.clear()
        calls = list(self.calls.values())
        reason = f"the link session with {self.peer_id} closed while call {{}} was pending"
        for pending in calls:
            self._fail(pending, PeerClosed(reason.format(pending.cid)))
        self.calls.clear()
        for listener in tuple(self._listeners):
            try:
                listener(self)
            except Exception as error:
                log.warning("close listener failed", peer_id=self.peer_id, exc_info=error)
        self._listeners.clear()
        self.router.clear()
        self._on_removed(self)


class AlreadyAnsweredError(RuntimeError):
    """A handler replied to the same request twice, which is a bug in the handler.

    Only the first reply is sent.
    """


class InboundMessage(msgspec.Struct, Generic[P, R], frozen=True, eq=False):
    """A received message in the form that is passed to handlers. Handlers must not modify it.

    ``session``: the link session on which it was received. ``frame``: the message itself
    (`decisions/0003` §2), for diagnostics and tracing. ``envelope``: its decoded payload; None for
    a custom message. ``params``: the params of the envelope, as the NamedTuple type of the
    handler's registration. ``parked_ms``: how long the message was queued.

    ``attachment`` may be in the peer's memory. It is valid until the reply. If the message gets no
    reply, it is valid until the last handler has returned. Copy data that is needed longer.

    A request has these states:

               reply(), error()
        OPEN ---------------------> ANSWERED   (again: AlreadyAnsweredError)
          |  timeout: 1103 is sent     ^
          +-----------> EXPIRED -------+       a late reply is dropped and logged

    A handler that has made an irrevocable decision calls `disable_timeout`. Otherwise a caller
    could get a timeout error although the work is done.

    If the session closes while the request is open, a reply is dropped without a log event. Replies
    are sent with the request's subject and cid, and with a message id of their own.
    """

    session: LinkSession
    frame: Message
    attachment: bytes | memoryview
    parked_ms: float
    envelope: Request | Notification | None = None
    params: P = None  # type: ignore[assignment]
    cid: int = 0  # matches the reply to the request
    is_open: bool = False  # a request that is neither answered nor timed out
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
        """The name of the sending process in its sessions, such as ``front-0`` or ``shard-1``."""
        return self.session.peer_id

    @property
    def rpc(self) -> InboundMessage[P, R] | None:
        """The message itself if it is a request. None for other messages, which have no reply."""
        return self if type(self.envelope) is Request else None

    @property
    def method(self) -> str:
        """The envelope's method."""
        assert self.envelope is not None, "a request or an event"
        return self.envelope.method

    def send(self, subject: str, data: bytes, attachment: Attachment = b"") -> None:
        """Queue a message to the peer, with a new id (§9). Raises PeerClosed."""
        self.session.send(subject, data, attachment)

    def release(self) -> None:
        """Release the attachment before the reply. It must not be read afterwards.

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
        """Reply with success.

        This releases the request's attachment, which must not be read afterwards.

        A handler must reply even if the session has closed, so that the attachment is released.
        Raises AlreadyAnsweredError if the request already has a reply. Also raises if ``result``
        cannot be encoded; in that case the request is still open.
        """
        try:
            payload = encode(result if type(result) is Failure else Success(self.cid, result))
        except Exception:
            discard(attachment)
            raise
        session = self.session
        # No reply is sent if the session is closed or the caller has received a timeout error.
        if not self.is_open or session.closed:
            discard(attachment)
            self._note_late()
        else:
            try:
                session.transport.send(self.frame.subject, payload, attachment)
            except PeerClosed:
                log.debug("reply not sent", subject=self.subject, peer_id=session.peer_id)
            session.unanswered.pop(self, None)
        force_setattr(self, "is_open", False)
        force_setattr(self, "_is_answered", True)
        if self.frame.flags & ARENA:
            session.transport.release(self.frame)

    def error(self, code: int, message: str, data: Any = None) -> None:
        """Reply with an error, in the same way as `reply`. `decisions/0003` §7 lists the codes."""
        self.reply(Failure(self.cid, int(code), message, data))

    def disable_timeout(self) -> None:
        """Disable the timeout of the request, which must not have timed out already."""
        assert self.is_open or self._is_answered, "the caller has not received a timeout"
        force_setattr(self, "is_timed", False)
        self.session.unanswered.pop(self, None)

    def expire(self) -> None:
        """Reply with error 1103, because the deadline has passed.

        The handler may continue to run, and the attachment remains valid.
        """
        assert self.is_open, "only an open request can time out"
        force_setattr(self, "is_open", False)
        log.warning(
            "rpc timed out",
            subject=self.subject,
            peer_id=self.session.peer_id,
            cid=self.cid,
        )
        payload = encode(Failure(self.cid, ErrorCode.TIMEOUT, "Handler timeout"))
        with contextlib.suppress(PeerClosed):
            self.session.transport.send(self.subject, payload)

    def _note_late(self) -> None:
        """Log a reply to a request that has timed out. Raise if the request already has a reply."""
        if self._is_answered:
            raise AlreadyAnsweredError(f"{self.subject} (cid {self.cid}) has already been answered")
        if not self.is_open:
            log.warning(
                "late reply dropped",
                subject=self.subject,
                peer_id=self.session.peer_id,
                cid=self.cid,
            )
