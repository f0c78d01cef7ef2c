"""What a handler is given (ADR 011 §2, §9)."""

from __future__ import annotations

from enum import Enum, auto
from typing import Any, Final

import structlog

from topics.actors.rpc.session import Attachment, LinkSession, discard
from topics.formats.wire.envelope import (
    ErrorCode,
    Notification,
    Request,
    encode_failure,
    encode_success,
)
from topics.formats.wire.message import ARENA, MessageFrame, PeerGone

log: Final = structlog.get_logger(__name__)


class AlreadyAnsweredError(RuntimeError):
    """A handler answered the same request a second time: a bug in the handler. The first answer
    stands.
    """


class _State(Enum):
    OPEN = auto()
    EXPIRED = auto()
    ANSWERED = auto()


_OPEN: Final = _State.OPEN  # a module global is one look-up, the member of a class two


class RpcContext:
    """The exchange that a request opens.

               reply(), error()
        OPEN ---------------------> ANSWERED   (again: AlreadyAnsweredError)
          |  timeout: 1103 goes out    ^
          +-----------> EXPIRED -------+       a late answer is dropped and logged, once

    A handler that has decided what cannot be taken back calls ``outlast()``: nobody is told of a
    time-out and finds it done.

    When the session closes while it is open, an answer is dropped without a word: nobody is there
    to hear it. Answers go out under the request's subject and cid and under a frame id of their
    own.
    """

    __slots__ = ("_frame", "_request", "_session", "_state", "timed")

    def __init__(self, session: LinkSession, frame: MessageFrame, request: Request) -> None:
        self._session = session
        self._frame = frame
        self._request = request
        self._state = _OPEN
        self.timed = True

    @property
    def method(self) -> str:
        return self._request.method

    @property
    def params(self) -> Any:
        return self._request.params

    @property
    def cid(self) -> int:
        return self._request.cid

    @property
    def open(self) -> bool:
        """Neither answered nor timed out."""
        return self._state is _OPEN

    def reply(self, result: Any = None, attachment: Attachment = b"") -> None:
        """Answer with success. The request's attachment is given back: it must not be read
        afterwards.

        A handler answers also when the session has closed, so that the attachment goes back. Raises
        AlreadyAnsweredError the second time, and what cbor2 raises for a ``result`` without a CBOR
        form; the request is still open then.
        """
        try:
            payload = encode_success(self._request.cid, result)
        except Exception:
            discard(attachment)
            raise
        self._answer(payload, attachment)

    def error(self, code: int, message: str, data: Any = None) -> None:
        """Answer with an error; otherwise like ``reply``. Codes from 2000 on are the application's
        (§7).
        """
        self._answer(encode_failure(self._request.cid, code, message, data), b"")

    def outlast(self) -> None:
        """The answer comes however long it takes. Only for an open request."""
        assert self._state is _OPEN or self._state is _State.ANSWERED, (
            "its caller has not been told of a time-out"
        )
        self.timed = False
        self._session.unanswered.pop(self, None)

    def expire(self) -> None:
        """The time is over: answer 1103 for the handler, which may still be at work and keeps the
        attachment for it.
        """
        assert self._state is _OPEN, "only an open request can time out"
        self._state = _State.EXPIRED
        log.warning(
            "rpc_timeout",
            subject=self._frame.subject,
            peer_id=self._session.peer_id,
            cid=self._request.cid,
        )
        self._send(encode_failure(self._request.cid, ErrorCode.TIMEOUT, "Handler timeout"), b"")

    def _answer(self, payload: bytes, attachment: Attachment) -> None:
        session = self._session
        if self._state is not _OPEN:
            discard(attachment)
            self._note_second_answer()
        elif session.closed:
            discard(attachment)
        else:
            self._send(payload, attachment)
            session.unanswered.pop(self, None)
        self._state = _State.ANSWERED
        if self._frame.flags & ARENA:
            session.release(self._frame)

    def _send(self, payload: bytes, attachment: Attachment) -> None:
        try:
            self._session.transport.send(self._frame.subject, payload, attachment)
        except PeerGone:
            log.debug("answer_not_sent", subject=self._frame.subject, peer_id=self._session.peer_id)

    def _note_second_answer(self) -> None:
        subject, cid = self._frame.subject, self._request.cid
        if self._state is _State.ANSWERED:
            raise AlreadyAnsweredError(f"{subject} (cid {cid}) has been answered already")
        log.warning("late_answer_dropped", subject=subject, peer_id=self._session.peer_id, cid=cid)


class InboundMessage:
    """A message on its way through the handlers; nothing of it can be set.

    ``attachment`` may lie in the peer's memory: it is valid until the request is answered, or,
    where there is nothing to answer, until the last handler has returned. What is needed longer
    must be copied.
    """

    __slots__ = ("_frame", "_notification", "_rpc", "_session")

    def __init__(
        self,
        session: LinkSession,
        frame: MessageFrame,
        rpc: RpcContext | None = None,
        notification: Notification | None = None,
    ) -> None:
        self._session = session
        self._frame = frame
        self._rpc = rpc
        self._notification = notification

    @property
    def subject(self) -> str:
        return self._frame.subject

    @property
    def payload(self) -> bytes | memoryview:
        return self._frame.payload

    @property
    def attachment(self) -> bytes | memoryview:
        return self._frame.attachment

    @property
    def peer_id(self) -> str:
        return self._session.peer_id

    @property
    def session(self) -> LinkSession:
        return self._session

    @property
    def frame(self) -> MessageFrame:
        """For diagnostics and tracing only; immutable."""
        return self._frame

    @property
    def rpc(self) -> RpcContext | None:
        """Only for a request: there is something to answer."""
        return self._rpc

    @property
    def notification(self) -> Notification | None:
        """Only for an event: its decoded envelope."""
        return self._notification

    def send(self, subject: str, data: bytes, attachment: Attachment = b"") -> None:
        """Queue a message to the peer, always under a frame id of its own (§9). Raises PeerGone."""
        self._session.send(subject, data, attachment)

    def release(self) -> None:
        """Give the attachment's memory back before the answer; calling it again does nothing."""
        self._session.release(self._frame)
