"""Exchange: one request of a connection and its answer, from the head to the last byte sent.

    begin --> admit --> answer: send_now, send, send_rest, send_stream --> end
       '-------------------- the client is gone ---------------------------^

A connection has one `Exchange`, which is used again for each request: without the access log it
costs a request no memory. Every answer has the header fields of its exchange: the request id, the
traceparent, those of CORS. What came of it is counted, and goes into the access log. Answers of
both planes, refusals and streams are sent here, which middleware of Quart would not see. A line of
the log is written at the end alone: a request that hangs is seen in the metrics.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from topics.engine.access import ANYONE, Scope
from topics.formats.api.request_heads import Headers, TraceFields
from topics.formats.api.response_heads import CHUNKED, ResponseHeads, chunk_of
from topics.formats.api.route_names import OTHER_ROUTE
from topics.front.access_log import AccessLog, Finished, Subject
from topics.front.answers import Answer
from topics.front.dispatch import Dispatcher
from topics.front.guard import Guard
from topics.front.http.admin_plane import AdminPlane
from topics.front.http.body_reader import BodyReader
from topics.front.http.connection import Connection, Connections
from topics.front.http.head_reader import AdmittedHead, AnyHead, HeadReader
from topics.front.http.request_counts import RequestCounts, RequestIds
from topics.front.proxies import TrustedProxies
from topics.front.request import Request

COPY_MAX_BYTES = 32 * 1024  # of an answer that is appended to its head; above, nothing is copied
SWITCHING_PROTOCOLS = 101
NO_CONTENT = 204
EMPTY = (NO_CONTENT, 304)  # have no body, nor its length


@dataclass(frozen=True, slots=True)
class HttpParts:
    """What all connections of a front share. ``left``: a connection has ended."""

    guard: Guard
    heads: HeadReader
    bodies: BodyReader
    dispatcher: Dispatcher
    admin: AdminPlane
    connections: Connections
    responses: ResponseHeads
    ids: RequestIds
    counts: RequestCounts
    log: AccessLog | None
    proxies: TrustedProxies
    left: Callable[[], None]


class Exchange:
    """The request of one connection that is being answered.

    ``is_open``: its ``head`` has come, at first at ``at`` (monotonic ns), and it is not over.
    Whoever finds all of the request there sets ``at``. ``request`` has the rights that its key has
    now. ``has_answered``: at least a part of the answer was sent.
    """

    __slots__ = (
        "_connection",
        "_is_entered",
        "_is_head",
        "_lines",
        "_numbers",
        "_parts",
        "_peer",
        "_prefix",
        "_status",
        "at",
        "has_answered",
        "head",
        "is_open",
        "request",
    )

    def __init__(self, connection: Connection, parts: HttpParts) -> None:
        self._connection, self._parts = connection, parts
        self._prefix, self._numbers = parts.ids.prefix, parts.ids.numbers
        self.head: AnyHead | None = None
        self.request: Request | None = None
        self.is_open = self.has_answered = False
        self._is_head = False  # a HEAD: its answer has no body
        self._is_entered = False  # `Guard.enter` has let the request in
        self._lines = b""
        self._status = 0
        self._peer = "" if parts.log is None else peer_of(connection.sock)
        self.at = 0

    # Requests

    def begin(self, head: AnyHead) -> None:
        """A whole head has come."""
        self.head, self.is_open, self.at = head, True, time.monotonic_ns()
        self._is_head = head.method == "HEAD"

    def begin_unread(self) -> None:
        """What has come is not HTTP, or could not be read; nothing unless there is no request."""
        if not self.is_open:
            self.head, self.is_open, self.at = None, True, time.monotonic_ns()

    def admit(self, request: Request) -> None:
        """Let an admitted request in, as `end` lets it out. Raises `TopicsError`."""
        self.request, guard = request, self._parts.guard
        has_key = request.principal is not ANYONE
        if has_key or guard.drain.is_draining:
            guard.enter(request)
            self._is_entered = has_key  # requests without a key are not counted

    def renew(self) -> Request:
        """Give the request the current rights of its key, right before the operation.

        Raises `TopicsError` if the key was removed, or no longer covers the request.
        """
        assert self.request is not None, "a request is under way"
        if self.request.principal is not ANYONE:
            self.request = self._parts.guard.renewed(self.request)
        return self.request

    def end(self, *, whole: bool = True) -> None:
        """The answer was sent, or its client is gone. Safe to call twice."""
        if self._is_entered:
            self.let_out()
        if not self.is_open:
            return
        self.is_open = False
        connection = self._connection
        bytes_in = connection.received_bytes - len(connection.buffer) + connection.pos
        duration_ns = time.monotonic_ns() - self.at
        seconds = duration_ns / 1e9
        route = OTHER_ROUTE if self.head is None else self.head.route_index
        self._parts.counts.count(route, self._status, seconds, bytes_in, connection.sent_bytes)
        if self._parts.log is not None:
            ms = duration_ns // 1000 / 1000
            self._log(self._parts.log, bytes_in, ms, cut=not whole)
        self.head = self.request = None  # of a refused request it holds the token
        self.has_answered = self._is_head = False
        self._lines, self._status = b"", 0
        connection.received_bytes -= bytes_in
        connection.sent_bytes = 0
        connection.trace = None

    def let_out(self) -> None:
        """The request does not count for its key any more."""
        if self._is_entered:
            assert isinstance(self.head, AdmittedHead), "a request was let in"
            self._is_entered = False
            self._parts.guard.leave(self.head.request)

    # Answers

    def send_now(self, answer: Answer, *, close: bool) -> tuple[Sequence[memoryview], int]:
        """Send what the socket takes. Return what is left, and the length of all.

        Raise `OSError`.
        """
        try:
            parts = self._rendered(answer, close)
            return self._connection.send_now(*parts), sum(map(len, parts))
        except BaseException:
            answer.unsent()
            answer.done()
            raise

    async def send(self, answer: Answer, *, close: bool) -> None:
        """Send an answer, in a task. Raises OSError."""
        connection = self._connection
        try:
            if answer.on_unsent is not None:
                await connection.check_client()
            answer.on_lost(connection.cut)
            await connection.send(*self._rendered(answer, close))
        except BaseException:
            answer.unsent()
            raise
        finally:
            answer.done()

    async def send_rest(self, answer: Answer, unsent: Sequence[memoryview], length: int) -> None:
        """Send what `send_now` has left, in a task. Raises OSError."""
        try:
            answer.on_lost(self._connection.cut)
            await self._connection.send_rest(unsent, length)
        except BaseException:
            answer.unsent()
            raise
        finally:
            answer.done()

    async def send_stream(self, answer: Answer) -> None:
        """Let a stream use the connection until either side ends the stream.

        The limits and deadlines of requests do not apply to a stream. Its body is chunked. With
        HTTP/1.0, the body ends when the connection is closed.
        """
        connection, stream, head = self._connection, answer.stream, self.head
        assert stream is not None, "only a stream comes here"
        assert isinstance(head, AdmittedHead), "a request is under way"
        self.let_out()
        self.has_answered = connection.closing = True
        connection.idle = False
        if head.request.head is not None:
            head.request.head.forget()
        is_upgrade = answer.status == SWITCHING_PROTOCOLS
        # The bytes after the head of a handshake belong to the WebSocket. This frame must not keep
        # a reference to them.
        rest = connection.buffer[connection.pos :] if is_upgrade else b""
        connection.clear()
        connection.count_unread()
        connection.buffer, rest = rest, b""
        lines = self._fields(answer.status)
        try:
            headers, body, close = answer.headers, bytes(answer.body), False
            if not is_upgrade:
                connection.is_chunked, close = head.is_1_1, not head.is_1_1
            if connection.is_chunked:
                headers, body = (*headers, CHUNKED), chunk_of(body)
            elif close:
                headers = _without_connection(headers)
            responses = self._parts.responses
            begun = responses.render_bare(answer.status, headers, lines=lines, close=close)
            await connection.send(begun + body)
        except BaseException:
            answer.unsent()
            raise
        await stream(connection)

    def within_limits(self, answer: Answer) -> Answer:
        """The long answer of a request that has changed nothing; a refusal if it might have to be
        held, and there is no memory for that.
        """
        request = self.request
        assert request is not None, "a request is under way"
        if len(answer.body) <= COPY_MAX_BYTES or request.route.scope is not Scope.READ:
            return answer
        held = self._parts.connections.held
        failure = held.refusal(request.principal.digest, len(answer.body))
        if failure is None:
            return answer
        answer.unsent()
        answer.done()
        return self._parts.dispatcher.failed(failure)

    def _rendered(self, answer: Answer, close: bool) -> tuple[bytes | memoryview, ...]:
        self.has_answered = True
        parts, connection, request = self._parts, self._connection, self.request
        if request is not None and request.head is not None:
            request.head.forget()  # free it now: the client may read the answer slowly
        if close or connection.unread_body or parts.connections.draining:
            connection.closing = close = True
        body, status, lines = answer.body, answer.status, self._fields(answer.status)
        if status in EMPTY:
            return (parts.responses.render_bare(status, answer.headers, lines=lines, close=close),)
        head = parts.responses.render(
            status,
            len(body),
            answer.headers,
            lines=lines,
            media_type=answer.media_type,
            close=close,
        )
        if self._is_head:
            return (head,)
        return (head, body) if len(body) > COPY_MAX_BYTES else (head + body,)

    def _fields(self, status: int) -> bytes:
        """An answer with this status is chosen: its field lines."""
        self._status = status
        head, trace = self.head, self._connection.trace
        cors = self._parts.guard.cors.lines_of_unread if head is None else head.cors
        if trace is None:
            lines = b"x-request-id: %b%x\r\n%b" % (self._prefix, next(self._numbers), cors)
        else:
            lines = self._traced(trace) + cors
        self._lines = lines
        return lines

    def _traced(self, trace: TraceFields) -> bytes:
        request_id = trace.request_id or b"%b%x" % (self._prefix, next(self._numbers))
        traceparent = trace.traceparent
        more = b"" if traceparent is None else b"traceparent: %b\r\n" % traceparent
        return b"x-request-id: %b\r\n%b" % (request_id, more)

    # The access log

    def _log(self, log: AccessLog, bytes_in: int, ms: float, *, cut: bool) -> None:
        subject = self._subject()
        if not log.wants(subject.route, self._status):
            return
        connection, trace = self._connection, self._connection.trace
        if not self._lines:  # there was no answer
            self._fields(0)
        request_id, _, _ = self._lines.removeprefix(b"x-request-id: ").partition(b"\r\n")
        traceparent, peer = b"", self._peer
        if trace is not None:
            traceparent = trace.traceparent or b""
            if trace.forwarded is not None:
                peer = self._parts.proxies.client_of(peer, trace.forwarded)
        finished = Finished(
            request_id=request_id.decode("ascii"),
            trace=traceparent.decode("ascii"),
            status=self._status,
            cut=cut,
            bytes_in=bytes_in,
            bytes_out=connection.sent_bytes,
            ms=ms,
            peer=peer,
        )
        log.tell(subject, finished)

    def _subject(self) -> Subject:
        head = self.head
        if head is None:
            return Subject()
        if isinstance(head, AdmittedHead):
            request = head.request
            return Subject(
                request.method, request.route, request.topic, request.router, request.principal
            )
        return self._parts.guard.subject_of(head.head)


def _without_connection(headers: Headers) -> Headers:
    return tuple(header for header in headers if header[0] != b"connection")


def peer_of(sock: socket.socket) -> str:
    """The address at the other end, and its port."""
    if sock.family == socket.AF_UNIX:
        return "unix"
    try:
        host, port, *_ = sock.getpeername()
    except OSError:  # the client has gone
        return ""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
