"""Request heads: cut out of a connection's input, parsed, admitted, remembered.

    buffer --skip empty lines--> a whole head: the usual case, one search and one slice
                                 a part of it: PartialHead, within `head_s`
                                 nothing:      idle, within `idle_s`

    raw head --blake2b--> remembered? --yes--> AdmittedHead
          without trace fields --no--'
                     |--blake2b--> remembered? --yes--> AdmittedHead
             without its topic --no--'
                     |--blake2b--> remembered? --yes--> Guard.renamed --> AdmittedHead
                                       '--no--> parse --> Guard.admit --> AdmittedHead, RefusedHead
                                                                      '-> PreflightHead

A keep-alive client sends the same head again and again. The decision is remembered under the digest
of the exact bytes, trace fields left out: clients that send these cost a second digest, and others
nothing. A client of many topics sends heads that differ in the topic's name: the decision is
remembered without it, too (``decisions/0045``). The bytes hold a token and must not be kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

from topics.errors import TopicsError
from topics.formats.api.fields import Headers
from topics.formats.api.request_heads import (
    HEAD_END,
    Head,
    PartialHead,
    end_of_empty_lines,
    parse_head,
)
from topics.formats.api.route_names import OTHER_ROUTE, ROUTE_INDEXES
from topics.formats.api.topic_heads import cut_topic_name
from topics.formats.api.trace_fields import cut_trace_fields
from topics.front.guard import Guard
from topics.front.http.connection import NEVER, Connection
from topics.front.http.head_memory import HeadMemory
from topics.front.request import Request
from topics.front.route import Lane, Route


@dataclass(frozen=True, slots=True)
class AdmittedHead:
    """A head that the guard let through, and how its body comes. ``plain``: neither chunked,
    gzipped nor long. ``cors``: field lines of its answer. ``route_index``: of `ROUTE_NAMES`.
    """

    request: Request
    cors: bytes
    route_index: int
    is_hot: bool
    length: int | None
    plain: bool
    close: bool
    expects_continue: bool

    @property
    def method(self) -> str:
        """The request's method."""
        return self.request.method

    def of(self, request: Request) -> AdmittedHead:
        """The same head of another request."""
        return AdmittedHead(
            request,
            self.cors,
            self.route_index,
            self.is_hot,
            self.length,
            self.plain,
            self.close,
            self.expects_continue,
        )


@dataclass(frozen=True, slots=True)
class RefusedHead:
    """A well-formed head that the guard refused. ``cors`` and ``route_index``: as those of
    `AdmittedHead`.
    """

    head: Head
    cors: bytes
    route_index: int
    failure: TopicsError

    @property
    def method(self) -> str:
        """The request's method."""
        return self.head.method


@dataclass(frozen=True, slots=True)
class PreflightHead:
    """A browser asks what a page may send (`topics.front.cors`)."""

    head: Head
    cors: bytes
    route_index: int
    allowed: Headers

    @property
    def method(self) -> str:
        """The request's method."""
        return self.head.method


AnyHead = AdmittedHead | RefusedHead | PreflightHead


class HeadReader:
    """Reads the heads of all connections of a front."""

    def __init__(self, guard: Guard, *, inline_bytes: int, use_fast_lane: bool) -> None:
        self._guard = guard
        self._inline_bytes = inline_bytes
        self._use_fast_lane = use_fast_lane
        self.remembered: HeadMemory[AdmittedHead] = HeadMemory()
        self.of_topics: HeadMemory[AdmittedHead] = HeadMemory()  # each stands for those of all

    def forget(self) -> None:
        """Decide about every head anew: the keys have changed."""
        self.remembered.clear()
        self.of_topics.clear()

    async def next(self, connection: Connection) -> AnyHead | None:
        """The next head, or None when the client has left or the server drains. Raises
        `InvalidRequest` when it is not HTTP, OSError.
        """
        connection.trace = None
        # Empty lines before a request mean nothing (RFC 9112 §2.2) and do not extend the wait.
        timings = connection.timings
        patience_s = timings.late_s if connection.is_late else timings.idle_s
        idle_until = connection.connections.now + patience_s
        while True:
            if connection.buffer.startswith(b"\r\n", connection.pos):
                connection.pos = end_of_empty_lines(connection.buffer, connection.pos)
            end = connection.buffer.find(HEAD_END, connection.pos)
            if end >= 0:
                connection.idle = False
                connection.deadline = NEVER
                raw = connection.buffer[connection.pos : end + 4]
                connection.pos = end + 4
                return self._decide(connection, raw)
            if connection.pos < len(connection.buffer):
                raw = await _partial_head(connection)
                if not raw.startswith(b"\r\n"):
                    return self._decide(connection, raw) if raw else None
                # Its first byte ended an empty line: the bytes after it are searched again.
                connection.buffer = raw + connection.buffer[connection.pos :]
                connection.pos = 0
                continue
            if not _begin_idle(connection, idle_until) or not await connection.receive():
                return None

    def _decide(self, connection: Connection, raw: bytes) -> AnyHead:
        digest = _digest_of(raw)
        known = self.remembered.get(digest)
        if known is not None:
            return known
        trace, without = None, raw
        if (found := cut_trace_fields(raw)) is not None:
            without, trace = found
            digest = _digest_of(without)
            known = self.remembered.get(digest)
        judged = known or self._judge_by_topic(raw, without, digest)
        connection.trace = trace
        return judged

    def _judge_by_topic(self, raw: bytes, without: bytes, digest: bytes) -> AnyHead:
        """``without``: the head without its trace fields, ``digest``: of that."""
        cut = cut_topic_name(without)
        if cut is None:
            return self._judge(parse_head(raw), digest, None)
        nameless, topic = _digest_of(cut[0]), cut[1]
        known = self.of_topics.get(nameless)
        request = None if known is None else self._guard.renamed(known.request, topic)
        if known is None or request is None:
            return self._judge(parse_head(raw), digest, nameless)
        head = known.of(request)
        self.remembered.put(digest, head)
        return head

    def _judge(self, head: Head, digest: bytes, nameless: bytes | None) -> AnyHead:
        """Decide, and remember it under the digest of the head, and under that without a topic."""
        cors = self._guard.cors
        lines = cors.lines(head.fields)
        try:
            if cors.is_preflight(head):
                self._guard.admit_preflight(head)
                return PreflightHead(head, lines, OTHER_ROUTE, cors.allowed(head.fields))
            request = self._guard.admit(head)
        except TopicsError as failure:
            index = _index_of(self._guard.route_of(head))
            # No circle through its frames: the head is given back with the connection.
            return RefusedHead(head, lines, index, failure.with_traceback(None))
        admitted = self._admitted(head, lines, request)
        # A key belongs to one request: its head does not come again. What keeps its fields is as
        # long as they are.
        if admitted.is_hot and request.head is None and request.key is None:
            self.remembered.put(digest, admitted)
            if nameless is not None:
                self.of_topics.put(nameless, admitted)
        return admitted

    def _admitted(self, head: Head, cors: bytes, request: Request) -> AdmittedHead:
        route = request.route
        is_short = head.length is not None and head.length <= self._inline_bytes
        return AdmittedHead(
            request,
            cors,
            _index_of(route),
            is_hot=route.streams or (route.lane is Lane.HOT and self._use_fast_lane),
            length=head.length,
            plain=is_short and not request.gzip_in,
            close=head.close,
            expects_continue=head.expects_continue,
        )


def _digest_of(raw: bytes) -> bytes:
    return blake2b(raw, digest_size=16).digest()


def _index_of(route: Route | None) -> int:
    return OTHER_ROUTE if route is None else ROUTE_INDEXES[route.name]


async def _partial_head(connection: Connection) -> bytes:
    """The head that has begun, whole; empty when the client leaves."""
    part = PartialHead()
    connection.idle = False
    connection.deadline = connection.connections.now + connection.timings.head_s
    while True:
        used = part.feed(connection.buffer[connection.pos :])
        if used is not None:
            connection.pos += used
            connection.deadline = NEVER
            return part.whole()
        connection.pos = len(connection.buffer)
        if not await connection.receive():
            connection.deadline = NEVER
            return b""


def _begin_idle(connection: Connection, until: float) -> bool:
    """Wait for the first byte of a request from here on; False when none will come."""
    drains = connection.connections.draining and not connection.is_late
    if drains and not connection.has_input:
        return False
    connection.idle = True
    connection.deadline = until
    connection.buffer, connection.pos = b"", 0  # nothing in it is unread; it holds a token
    return True
