"""Inbound messages: what a handler is given (ADR 011 §2, §9)."""

from __future__ import annotations

import contextlib
from typing import Any, Final, Generic, TypeAlias

import msgspec
import structlog
from msgspec.structs import force_setattr

from topics.actors.rpc.session import Attachment, LinkSession, discard
from topics.formats.wire.contract import P, R
from topics.formats.wire.envelope import (
    ErrorCode,
    Failure,
    Notification,
    Request,
    Success,
    encode,
)
from topics.formats.wire.message import ARENA, Message, PeerGone

log: Final = structlog.get_logger(__name__)


class AlreadyAnsweredError(RuntimeError):
    """A handler answered the same request a second time: an error of the handler. The first answer
    stands.
    """


class InboundMessage(msgspec.Struct, Generic[P, R], frozen=True, eq=False):
    """A message on its way through the handlers, which cannot set anything of it.

    ``session``: the link session that it came on. ``frame``: the message itself (ADR 011 §2), for
    diagnostics and tracing. ``envelope``: what its payload says; None of a custom message.
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
        """Release the attachment before the answer. Does nothing the second time."""
        if self.frame.flags & ARENA:
            self.session.transport.release(self.frame)

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
        """Answer with an error, otherwise as `reply`. Codes as in ADR 011 §7."""
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


InboundEvent: TypeAlias = InboundMessage[P, Any]
