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
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from topics.actors.link.counters import LATENCY_BOUNDS_US
from topics.formats.api.request_heads import TraceFields
from topics.formats.api.route_names import (
    OTHER_ROUTE,
    OTHER_STATUS,
    ROUTE_NAMES,
    STATUS_INDEXES,
    STATUSES,
)
from topics.front.access_log import AccessLog, Finished, Subject
from topics.front.guard import Guard
from topics.front.http.connection import Connection
from topics.front.http.head_reader import AdmittedHead, AnyHead
from topics.front.proxies import TrustedProxies

RECEIVED: Final = len(STATUSES)
SENT: Final = RECEIVED + 1
SECONDS: Final = SENT + 1
BUCKETS: Final = SECONDS + 1
_WIDTH: Final = BUCKETS + len(LATENCY_BOUNDS_US) + 1
_BOUNDS_S: Final = [bound / 1e6 for bound in LATENCY_BOUNDS_US]
RANDOM_BYTES = 6  # of a process: its ids are unlike those of others


class RequestIds:
    """Request ids of this process: a random prefix and a number."""

    def __init__(self) -> None:
        self.prefix = secrets.token_hex(RANDOM_BYTES).encode("ascii") + b"-"
        self.numbers = count(1)

    def line(self) -> bytes:
        """A field line with the next id."""
        return b"x-request-id: %b%x\r\n" % (self.prefix, next(self.numbers))


class RequestCounts:
    """What a front counts of its requests since it started; `values`, for the board. The time is
    that of the whole request: waits of long polls and the life of a stream count, too.

    One row for each route, so that a request costs one look-up:

        0 ...            requests with each status, in the order of `STATUSES`
        RECEIVED, SENT   bytes of requests and answers, heads included
        SECONDS          the sum of the times, a float
        BUCKETS ...      requests up to each of `LATENCY_BOUNDS_US`, and those above
    """

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: list[list[float]] = [[0] * _WIDTH for _ in ROUTE_NAMES]

    def count(
        self, route_index: int, status: int, seconds: float, bytes_in: int, bytes_out: int
    ) -> None:
        """Count one request that is over.

        ``route_index`` is from `ROUTE_INDEXES`; ``status`` 0: no answer was sent.
        """
        row = self._rows[route_index]
        row[STATUS_INDEXES.get(status, OTHER_STATUS)] += 1
        row[RECEIVED] += bytes_in
        row[SENT] += bytes_out
        row[SECONDS] += seconds
        row[BUCKETS + bisect_left(_BOUNDS_S, seconds)] += 1

    def values(self) -> Mapping[str, Sequence[int]]:
        """The words of each metric, as `CounterWords.store` takes them."""
        rows = self._rows
        return {
            "topics_http_requests_total": [int(n) for row in rows for n in row[: len(STATUSES)]],
            "topics_http_received_bytes_total": [int(row[RECEIVED]) for row in rows],
            "topics_http_sent_bytes_total": [int(row[SENT]) for row in rows],
            "topics_http_request_duration_us": [n for row in rows for n in _histogram(row)],
        }


def _histogram(row: Sequence[float]) -> list[int]:
    buckets = [int(number) for number in row[BUCKETS:]]
    return [*buckets, int(row[SECONDS] * 1e6), sum(buckets)]


@dataclass(frozen=True, slots=True)
class Exchanges:
    """What the exchanges of a front share."""

    guard: Guard
    ids: RequestIds
    counts: RequestCounts
    log: AccessLog | None
    proxies: TrustedProxies

    def lines_of_unread(self) -> bytes:
        """The fields of an answer to a client of which nothing was read."""
        return self.ids.line() + self.guard.cors.lines_of_unread


class Exchange:
    """The request of one connection that is being answered. ``is_open``: its ``head`` has come, at
    first at ``at`` (monotonic ns), and it is not over. Whoever finds all of it there sets ``at``.
    """

    __slots__ = (
        "_connection",
        "_lines",
        "_numbers",
        "_peer",
        "_prefix",
        "_shared",
        "_status",
        "at",
        "head",
        "is_open",
    )

    def __init__(self, connection: Connection, shared: Exchanges) -> None:
        self._connection, self._shared = connection, shared
        self._prefix, self._numbers = shared.ids.prefix, shared.ids.numbers
        self.head: AnyHead | None = None
        self.is_open = False
        self._lines = b""
        self._status = 0
        self._peer = "" if shared.log is None else peer_of(connection.sock)
        self.at = 0

    def begin_unread(self) -> None:
        """What has come is not HTTP, or could not be read; nothing unless there is no request."""
        if not self.is_open:
            self.head, self.is_open, self.at = None, True, time.monotonic_ns()

    def fields(self, status: int) -> bytes:
        """An answer with this status is chosen: its field lines."""
        self._status = status
        head, trace = self.head, self._connection.trace
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
        if not self.is_open:
            return
        self.is_open = False
        connection = self._connection
        bytes_in = connection.received_bytes - len(connection.buffer) + connection.pos
        duration_ns = time.monotonic_ns() - self.at
        seconds = duration_ns / 1e9
        route = OTHER_ROUTE if self.head is None else self.head.route_index
        self._shared.counts.count(route, self._status, seconds, bytes_in, connection.sent_bytes)
        if self._shared.log is not None:
            ms = duration_ns // 1000 / 1000
            self._tell(self._shared.log, bytes_in, ms, cut=not whole)
        self.head = None  # of a refused request it holds the token
        self._lines, self._status = b"", 0
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
        traceparent, peer = b"", self._peer
        if trace is not None:
            traceparent = trace.traceparent or b""
            if trace.forwarded is not None:
                peer = self._shared.proxies.client_of(peer, trace.forwarded)
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
