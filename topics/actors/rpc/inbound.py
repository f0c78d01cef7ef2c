"""Inbound messages: what a handler is given (ADR 011 §2, §9).

An `InboundMessage` stands for every message that has handlers; a request has an `RpcContext` as
well, through which it is answered. Both see the link session as a `PeerSession`, so this module
knows nothing of calls, registrations and the router.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Final, Protocol

import msgspec
import structlog

from topics.actors.rpc.transport import Attachment, Transport, discard
from topics.formats.wire.envelope import (
    ErrorCode,
    Notification,
    Request,
    encode_failure,
    encode_success,
)
from topics.formats.wire.message import ARENA, Message, PeerGone

log: Final = structlog.get_logger(__name__)


class AlreadyAnsweredError(RuntimeError):
    """A handler answered the same request a second time: an error of the handler. The first answer
    stands.
    """


class PeerSession(Protocol):
    """A link session, as handlers see it. Equal only to itself."""

    @property
    def peer_id(self) -> str:
        """The name of the peer."""

    @property
    def transport(self) -> Transport:
        """What the session sends through."""

    @property
    def closed(self) -> bool:
        """The peer is gone; nothing is sent any more."""

    @property
    def unanswered(self) -> dict[RpcContext, float]:
        """The router's: open requests and their deadlines, the earliest first."""

    def notify(self, method: str, params: Any, attachment: Attachment = b"") -> None:
        """Queue an event. Raises PeerGone."""

    def send(self, subject: str, payload: bytes, attachment: Attachment = b"") -> None:
        """Queue any message. Raises PeerGone."""

    def release(self, message: Message) -> None:
        """Give the attachment's memory back to the peer."""

    def on_closed(self, listener: Callable[[PeerSession], None]) -> Callable[[], None]:
        """Call ``listener`` once when the session closes; the returned callable takes that back."""

    def close(self) -> None:
        """End the session."""


class _State(Enum):
    OPEN = auto()
    EXPIRED = auto()
    ANSWERED = auto()


_OPEN: Final = _State.OPEN  # a module global is one look-up, the member of a class two


class RpcContext(msgspec.Struct, eq=False):
    """The exchange that a request opens.

               reply(), error()
        OPEN ---------------------> ANSWERED   (again: AlreadyAnsweredError)
          |  timeout: 1103 is sent     ^
          +-----------> EXPIRED -------+       a late answer is dropped and logged

    A handler that has decided what cannot be taken back calls `outlast`: then no caller is told of
    a time-out and finds the work done.

    When the session closes while the request is open, an answer is dropped without a log event.
    Answers are sent under the request's subject and cid and under a message id of their own.
    """

    _session: PeerSession
    _message: Message
    request: Request
    _state: _State = _OPEN
    timed: bool = True

    @property
    def method(self) -> str:
        """The envelope's method."""
        return self.request.method

    @property
    def params(self) -> Any:
        """The envelope's params."""
        return self.request.params

    @property
    def cid(self) -> int:
        """The id that joins the answer to the request."""
        return self.request.cid

    @property
    def open(self) -> bool:
        """Neither answered nor timed out."""
        return self._state is _OPEN

    def reply(self, result: Any = None, attachment: Attachment = b"") -> None:
        """Answer with success. This releases the request's attachment: do not read it afterwards.

        A handler answers also when the session has closed, so that the attachment is released.
        Raises AlreadyAnsweredError the second time, and cbor2's error for a ``result`` without a
        CBOR form; the request is still open then.
        """
        try:
            payload = encode_success(self.request.cid, result)
        except Exception:
            discard(attachment)
            raise
        self._answer(payload, attachment)

    def error(self, code: int, message: str, data: Any = None) -> None:
        """Answer with an error, otherwise as `reply`. Codes as in ADR 011 §7."""
        self._answer(encode_failure(self.request.cid, code, message, data), b"")

    def outlast(self) -> None:
        """Never time the request out. Only for one that has not timed out."""
        assert self._state is not _State.EXPIRED, "the caller has been told of a time-out"
        self.timed = False
        self._session.unanswered.pop(self, None)

    def expire(self) -> None:
        """The deadline has passed: answer 1103. The handler may go on and keeps the attachment."""
        assert self._state is _OPEN, "only an open request can time out"
        self._state = _State.EXPIRED
        log.warning(
            "rpc timed out",
            subject=self._message.subject,
            peer_id=self._session.peer_id,
            cid=self.request.cid,
        )
        self._send(encode_failure(self.request.cid, ErrorCode.TIMEOUT, "Handler timeout"), b"")

    def _answer(self, payload: bytes, attachment: Attachment) -> None:
        session = self._session
        if self._state is not _OPEN:
            discard(attachment)
            self._note_second_answer()
        elif session.closed:
            discard(attachment)
        else:
            try:  # as `_send`, one call less for each answer
                session.transport.send(self._message.subject, payload, attachment)
            except PeerGone:
                self._note_unsent()
            session.unanswered.pop(self, None)
        self._state = _State.ANSWERED
        if self._message.flags & ARENA:
            session.release(self._message)

    def _send(self, payload: bytes, attachment: Attachment) -> None:
        try:
            self._session.transport.send(self._message.subject, payload, attachment)
        except PeerGone:
            self._note_unsent()

    def _note_unsent(self) -> None:
        subject, peer_id = self._message.subject, self._session.peer_id
        log.debug("answer not sent", subject=subject, peer_id=peer_id)

    def _note_second_answer(self) -> None:
        subject, cid = self._message.subject, self.request.cid
        if self._state is _State.ANSWERED:
            raise AlreadyAnsweredError(f"{subject} (cid {cid}) has been answered already")
        log.warning("late answer dropped", subject=subject, peer_id=self._session.peer_id, cid=cid)


class InboundMessage(msgspec.Struct, frozen=True, eq=False):
    """A message on its way through the handlers; nothing of it can be set.

    ``session``: the link session that it came on. ``frame``: the message itself (ADR 011 §2), for
    diagnostics and tracing. ``rpc``: the exchange that a request opens. ``notification``: the
    decoded envelope of an event.

    ``attachment`` may lie in the peer's memory. It is valid until the request is answered or, for a
    message without an answer, until the last handler has returned. Copy what is needed longer.
    """

    session: PeerSession
    frame: Message
    rpc: RpcContext | None = None
    notification: Notification | None = None

    @property
    def subject(self) -> str:
        """The message's subject."""
        return self.frame.subject

    @property
    def payload(self) -> bytes | memoryview:
        """The message's payload, not decoded."""
        return self.frame.payload

    @property
    def attachment(self) -> bytes | memoryview:
        """The message's raw bytes."""
        return self.frame.attachment

    @property
    def peer_id(self) -> str:
        """The name of the sender."""
        return self.session.peer_id

    def send(self, subject: str, data: bytes, attachment: Attachment = b"") -> None:
        """Queue a message to the peer, always under an id of its own (§9). Raises PeerGone."""
        self.session.send(subject, data, attachment)

    def release(self) -> None:
        """Release the attachment before the answer. Does nothing the second time."""
        self.session.release(self.frame)
