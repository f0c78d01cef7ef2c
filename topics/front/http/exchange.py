"""Exchange: one request of a connection and its response, from the head to the last byte sent.

    begin --> admit --> response: send_now, send, send_remaining, send_stream --> end
       '---------------- the client disconnects ----------------------------------^

Each connection has one `Exchange`, which is reused for each request. So a request allocates no
memory for its exchange unless the access log is enabled. All responses are sent here: responses of
both planes, refusals and streams. The exchange adds the common header fields (request id,
traceparent, CORS), counts the outcome, and writes the line of the access log. Quart middleware
cannot do this, because it sees only requests of the admin plane. The log line is written at the end
of a request, so a request that hangs has no line. Metrics such as ``topics_shard_delay_ms`` report
the usual causes.
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

# Maximum length of a body that is copied into one buffer with its head; a longer body is sent
# without a copy.
COPY_MAX_BYTES = 32 * 1024
SWITCHING_PROTOCOLS = 101
NO_CONTENT = 204
EMPTY = (NO_CONTENT, 304)  # responses with these statuses have no body and no content-length


@dataclass(frozen=True, slots=True)
class HttpParts:
    """The objects that all connections of a front share.

    ``on_end`` is called when a connection has ended.
    """

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
    on_end: Callable[[], None]


class Exchange:
    """The current request of one connection.

    ``is_open`` is true from the arrival of the ``head`` until the request has ended. ``at``
    (monotonic ns) is first the time of the head; the caller sets it again when the request is
    complete. ``request`` has the current rights of its key. ``has_answered`` is true if at least a
    part of the response was sent.
    """

    __slots__ = (
        "_connection",
        "_counts_as_inflight",
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
        # Kept here because they are used for each response.
        self._prefix, self._numbers = parts.ids.prefix, parts.ids.numbers
        self.head: AnyHead | None = None
        self.request: Request | None = None
        self.is_open = self.has_answered = False
        self._is_head = False  # a HEAD request: its response has no body
        # `Guard.leave` must be called exactly once for each `Guard.enter`, or the key would lose
        # a slot.
        self._counts_as_inflight = False  # `Guard.enter` has counted the request
        self._lines = b""
        self._status = 0
        # The address is read at the start, because it is no longer available after the client has
        # disconnected. It is needed only for the log.
        self._peer = "" if parts.log is None else peer_of(connection.sock)
        self.at = 0

    # Requests

    def begin(self, head: AnyHead) -> None:
        """Start a request with its complete head."""
        self.head, self.is_open, self.at = head, True, time.monotonic_ns()
        self._is_head = head.method == "HEAD"

    def begin_unread(self) -> None:
        """Start a request without a head, because the input is not HTTP or could not be read.

        Does nothing if a request is already open.
        """
        if not self.is_open:
            self.head, self.is_open, self.at = None, True, time.monotonic_ns()

    def admit(self, request: Request) -> None:
        """Count an admitted request as in flight, until `end` or `stop_counting`. Raise
        `TopicsError`.
        """
        self.request, guard = request, self._parts.guard
        has_key = request.principal is not ANYONE
        # During the drain, requests without a key are refused here too, so `enter` is called for
        # them.
        if has_key or guard.drain.is_draining:
            guard.enter(request)
            self._counts_as_inflight = has_key  # requests without a key are not counted

    def renew(self) -> Request:
        """Return the request with the current rights of its key.

        Call this right before the operation. Raise `TopicsError` if the key was removed, or no
        longer covers the request.
        """
        assert self.request is not None, "a request is in progress"
        if self.request.principal is not ANYONE:
            self.request = self._parts.guard.renewed(self.request)
        return self.request

    def end(self, *, is_complete: bool = True) -> None:
        """Finish the request, because its response was sent or its client has disconnected.

        ``is_complete`` is false if the response was not sent completely. Safe to call twice.
        """
        if self._counts_as_inflight:
            self.stop_counting()
        if not self.is_open:
            return  # called twice, for example after an error while the response was being sent
        self.is_open = False
        connection = self._connection
        # Bytes of later requests, which are still in the buffer, do not count.
        bytes_in = connection.received_bytes - len(connection.buffer) + connection.pos
        duration_ns = time.monotonic_ns() - self.at
        seconds = duration_ns / 1e9
        route = OTHER_ROUTE if self.head is None else self.head.route_index
        self._parts.counts.count(route, self._status, seconds, bytes_in, connection.sent_bytes)
        if self._parts.log is not None:
            ms = duration_ns // 1000 / 1000
            self._log(self._parts.log, bytes_in, ms, cut=not is_complete)
        self.head = self.request = None  # the head of a refused request contains the token
        self.has_answered = self._is_head = False
        self._lines, self._status = b"", 0
        # Keep counting the bytes that belong to later requests.
        connection.received_bytes -= bytes_in
        connection.sent_bytes = 0
        connection.trace = None

    def stop_counting(self) -> None:
        """Stop counting the request as in flight for its key."""
        if self._counts_as_inflight:
            assert isinstance(self.head, AdmittedHead), "a request was admitted"
            self._counts_as_inflight = False
            self._parts.guard.leave(self.head.request)

    # Responses

    def send_now(self, answer: Answer, *, close: bool) -> tuple[Sequence[memoryview], int]:
        """Send as many bytes as the socket accepts. Return the unsent parts, and the total length.

        Raise `OSError` if the connection fails.
        """
        try:
            parts = self._rendered(answer, close)
            return self._connection.send_now(*parts), sum(map(len, parts))
        # The effects of an undelivered response must be undone, and its shared memory must be
        # released.
        except BaseException:
            answer.unsent()
            answer.done()
            raise

    async def send(self, answer: Answer, *, close: bool) -> None:
        """Send a response, in a task. Raise `OSError` if the connection fails."""
        connection = self._connection
        try:
            # Check whether the client is still reading, because the effects of an undelivered
            # response must be undone.
            if answer.on_unsent is not None:
                await connection.check_client()
            # From this call on, the memory of the answer may be reclaimed, which aborts the
            # connection.
            answer.on_reclaim(connection.abort)
            await connection.send(*self._rendered(answer, close))
        except BaseException:
            answer.unsent()
            raise
        finally:
            answer.done()

    async def send_remaining(
        self, answer: Answer, unsent: Sequence[memoryview], length: int
    ) -> None:
        """Send the parts that `send_now` has returned, in a task.

        Raise `OSError` if the connection fails.
        """
        try:
            answer.on_reclaim(self._connection.abort)
            await self._connection.send_remaining(unsent, length)
        except BaseException:
            answer.unsent()
            raise
        finally:
            answer.done()

    async def send_stream(self, answer: Answer) -> None:
        """Let a stream use the connection until either side closes the stream.

        The limits and deadlines of requests do not apply to a stream. Its body is chunked. With
        HTTP/1.0, the body ends when the connection is closed.
        """
        connection, stream, head = self._connection, answer.stream, self.head
        assert stream is not None, "the response is a stream"
        assert isinstance(head, AdmittedHead), "a request is in progress"
        # A stream does not count as a request in flight, because it may last for days.
        self.stop_counting()
        self.has_answered = connection.closing = True
        connection.idle = False
        # A stream keeps no fields of its request, and no token.
        if head.request.head is not None:
            head.request.head.clear()
        is_upgrade = answer.status == SWITCHING_PROTOCOLS
        # The bytes after the head of a handshake belong to the WebSocket. This frame must not keep
        # a reference to them, because it exists until the stream ends.
        rest = connection.buffer[connection.pos :] if is_upgrade else b""
        connection.clear()
        connection.count_unread()
        connection.buffer, rest = rest, b""
        # The header lines are computed before anything is sent, because the request id belongs to
        # the head.
        lines = self._fields(answer.status)
        try:
            headers, body, close = answer.headers, bytes(answer.body), False
            # HTTP/1.0 has no chunked coding, so its clients detect the end of the stream by the end
            # of the connection.
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
        """Return the response, or a refusal if it might have to be held in memory and the bound is
        reached.

        Only long responses to requests that require the scope READ are refused, because these
        requests have changed nothing.
        """
        request = self.request
        assert request is not None, "a request is in progress"
        # A write has already been executed, so its response must be sent. A read can be repeated.
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
        """Render a response to the parts that are written to the socket."""
        self.has_answered = True
        parts, connection, request = self._parts, self._connection, self.request
        if request is not None and request.head is not None:
            request.head.clear()  # free it now, because the client may read the response slowly
        # The connection closes after this response if the request requires it, if bytes of its body
        # are unread, or if the server is draining.
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
        # The head of a response to HEAD contains the length of the body, which is not sent.
        if self._is_head:
            return (head,)
        # Append a short body to the head, so that one buffer is sent.
        return (head, body) if len(body) > COPY_MAX_BYTES else (head + body,)

    def _fields(self, status: int) -> bytes:
        """Set the status of the response and return its common header lines."""
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
        """Return the common header lines of a request with trace fields."""
        request_id = trace.request_id or b"%b%x" % (self._prefix, next(self._numbers))
        traceparent = trace.traceparent
        more = b"" if traceparent is None else b"traceparent: %b\r\n" % traceparent
        return b"x-request-id: %b\r\n%b" % (request_id, more)

    # The access log

    def _log(self, log: AccessLog, bytes_in: int, ms: float, *, cut: bool) -> None:
        """Write the line of the access log, if the level includes this request."""
        subject = self._subject()
        # The level may exclude routine requests, for which no text is built.
        if not log.includes(subject.route, self._status):
            return
        connection, trace = self._connection, self._connection.trace
        # The client disconnected before the response. The log line still needs a request id.
        if not self._lines:  # no response was sent
            self._fields(0)
        request_id, _, _ = self._lines.removeprefix(b"x-request-id: ").partition(b"\r\n")
        traceparent, peer = b"", self._peer
        if trace is not None:
            traceparent = trace.traceparent or b""
            # Only trusted proxies may specify the client's address. Otherwise the peer is the
            # client.
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
        log.write_line(subject, finished)

    def _subject(self) -> Subject:
        """Return the `Subject` of the request for the access log."""
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
    """Remove the field Connection, because the renderer adds ``Connection: close``."""
    return tuple(header for header in headers if header[0] != b"connection")


def peer_of(sock: socket.socket) -> str:
    """Return the address and port of the other end of a connection."""
    if sock.family == socket.AF_UNIX:
        return "unix"
    try:
        host, port, *_ = sock.getpeername()
    except OSError:  # the client has disconnected
        return ""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
