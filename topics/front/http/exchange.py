"""Exchange: one request and its answer on one connection, from its head to the last byte sent.

    begin --> fields (the answer is chosen) --> end
       '----------- the client is gone ----------^

Every answer has the header fields of its exchange: the request id, the traceparent, those of CORS.
What came of it is counted, and goes into the access log. A connection has one `Exchange`, which is
used again for each request: without the log it costs a request no memory. Both lanes, refusals and
streams send through it, which middleware of Quart would not see. A line of the log is written at
the end alone: a request that hangs is seen in the metrics.
"""

from __future__ import annotations

import secrets
import socket
import time
from dataclasses import dataclass
from itertools import count

from topics.formats.api.request_heads import TraceFields
from topics.formats.api.route_names import OTHER_ROUTE
from topics.front.access_log import AccessLog, Finished, Subject
from topics.front.guard import Guard
from topics.front.http.connection import Connection
from topics.front.http.head_reader import AdmittedHead, AnyHead
from topics.front.request_counts import RequestCounts

RANDOM_BYTES = 6  # of a process: its ids are unlike those of others


class RequestIds:
    """Request ids of this process: a random prefix and a number."""

    def __init__(self) -> None:
        self.prefix = secrets.token_hex(RANDOM_BYTES).encode("ascii") + b"-"
        self.numbers = count(1)

    def line(self) -> bytes:
        """A field line with the next id."""
        return b"x-request-id: %b%x\r\n" % (self.prefix, next(self.numbers))


@dataclass(frozen=True, slots=True)
class Exchanges:
    """What the exchanges of a front share."""

    guard: Guard
    ids: RequestIds
    counts: RequestCounts
    log: AccessLog | None

    def lines_of_unread(self) -> bytes:
        """The fields of an answer to a client of which nothing was read."""
        return self.ids.line() + self.guard.cors.lines_of_unread


class Exchange:
    """The request of one connection that is being answered. ``at``: monotonic ns when all of it was
    there.
    """

    __slots__ = (
        "_connection",
        "_head",
        "_is_open",
        "_lines",
        "_numbers",
        "_peer",
        "_prefix",
        "_shared",
        "_status",
        "at",
    )

    def __init__(self, connection: Connection, shared: Exchanges) -> None:
        self._connection, self._shared = connection, shared
        self._prefix, self._numbers = shared.ids.prefix, shared.ids.numbers
        self._head: AnyHead | None = None
        self._is_open = False
        self._lines = b""
        self._status = 0
        self._peer = "" if shared.log is None else peer_of(connection.sock)
        self.at = 0

    def begin_unread(self) -> None:
        """What has come is not HTTP, or could not be read; nothing unless there is no request."""
        if not self._is_open:
            self.begin(None)

    def begin(self, head: AnyHead | None) -> None:
        """A head has come."""
        self._head = head
        self._is_open = True
        self._lines = b""
        self._status = 0
        self.at = time.monotonic_ns()

    def fields(self, status: int) -> bytes:
        """An answer with this status is chosen: its field lines."""
        self._status = status
        head, trace = self._head, self._connection.trace
        cors = self._shared.guard.cors.lines_of_unread if head is None else head.cors
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

    def end(self, *, whole: bool = True) -> None:
        """The answer was sent, or its client is gone. Safe to call twice."""
        if not self._is_open:
            return
        self._is_open = False
        connection = self._connection
        bytes_in = connection.received_bytes - len(connection.buffer) + connection.pos
        duration_ns = time.monotonic_ns() - self.at
        route = OTHER_ROUTE if self._head is None else self._head.route_index
        sent_bytes = connection.sent_bytes
        self._shared.counts.count(route, self._status, duration_ns / 1e9, bytes_in, sent_bytes)
        if self._shared.log is not None:
            ms = duration_ns // 1000 / 1000
            self._tell(self._shared.log, bytes_in, ms, cut=not whole)
        self._head = None  # of a refused request it holds the token
        connection.received_bytes -= bytes_in
        connection.sent_bytes = 0

    def _tell(self, log: AccessLog, bytes_in: int, ms: float, *, cut: bool) -> None:
        subject = self._subject()
        if not log.wants(subject.route, self._status):
            return
        connection, trace = self._connection, self._connection.trace
        if not self._lines:  # there was no answer
            self.fields(0)
        request_id, _, _ = self._lines.removeprefix(b"x-request-id: ").partition(b"\r\n")
        traceparent = b"" if trace is None else trace.traceparent or b""
        finished = Finished(
            request_id=request_id.decode("ascii"),
            trace=traceparent.decode("ascii"),
            status=self._status,
            cut=cut,
            bytes_in=bytes_in,
            bytes_out=connection.sent_bytes,
            ms=ms,
            peer=self._peer,
        )
        log.tell(subject, finished)

    def _subject(self) -> Subject:
        head = self._head
        if head is None:
            return Subject()
        if isinstance(head, AdmittedHead):
            request = head.request
            return Subject(
                request.method, request.route, request.topic, request.router, request.principal
            )
        return self._shared.guard.subject_of(head.head)


def peer_of(sock: socket.socket) -> str:
    """The address at the other end, and its port."""
    if sock.family == socket.AF_UNIX:
        return "unix"
    try:
        host, port, *_ = sock.getpeername()
    except OSError:  # the client has gone
        return ""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
