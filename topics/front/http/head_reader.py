"""Request heads: cut out of a connection's input, parsed, admitted, remembered.

    buffer --skip empty lines--> a whole head: the usual case, one search and one slice
                                 a part of it: PartialHead, within `head_s`
                                 nothing:      idle, within `idle_s`

    raw head --blake2b--> remembered? --yes--> AdmittedHead
                              '--no--> parse --> Guard.admit --> AdmittedHead or RefusedHead

A keep-alive client sends the same head again and again. The decision is remembered under the digest
of the exact bytes. The bytes hold a token and must not be kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

from topics.errors import TopicsError
from topics.formats.api.request_heads import (
    HEAD_END,
    Head,
    PartialHead,
    end_of_empty_lines,
    parse_head,
)
from topics.front.guard import Guard
from topics.front.http.connection import NEVER, Connection
from topics.front.request import Request
from topics.front.route import Lane

REMEMBERED_MAX = 4096  # the oldest head goes first


@dataclass(frozen=True, slots=True)
class AdmittedHead:
    """A head that the guard let through, and how its body comes. ``plain``: neither chunked,
    gzipped nor long.
    """

    request: Request
    is_hot: bool
    length: int | None
    plain: bool
    close: bool
    expects_continue: bool

    @property
    def method(self) -> str:
        """The request's method."""
        return self.request.method


@dataclass(frozen=True, slots=True)
class RefusedHead:
    """A well-formed head that the guard refused."""

    head: Head
    failure: TopicsError

    @property
    def method(self) -> str:
        """The request's method."""
        return self.head.method


AnyHead = AdmittedHead | RefusedHead


class HeadReader:
    """Reads the heads of all connections of a front."""

    def __init__(self, guard: Guard, *, inline_bytes: int, use_fast_lane: bool) -> None:
        self._guard = guard
        self._inline_bytes = inline_bytes
        self._use_fast_lane = use_fast_lane
        self.remembered: dict[bytes, AdmittedHead] = {}

    async def next(self, connection: Connection) -> AnyHead | None:
        """The next head, or None when the client has left or the server drains. Raises
        `InvalidRequest` when it is not HTTP, OSError.
        """
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
                return self._decide(raw)
            if connection.pos < len(connection.buffer):
                raw = await _partial_head(connection)
                if not raw.startswith(b"\r\n"):
                    return self._decide(raw) if raw else None
                # Its first byte ended an empty line: the bytes after it are searched again.
                connection.buffer = raw + connection.buffer[connection.pos :]
                connection.pos = 0
                continue
            if not _begin_idle(connection, idle_until) or not await connection.receive():
                return None

    def _decide(self, raw: bytes) -> AnyHead:
        digest = blake2b(raw, digest_size=16).digest()
        known = self.remembered.get(digest)
        if known is not None:
            return known
        head = parse_head(raw)
        try:
            request = self._guard.admit(head)
        except TopicsError as failure:
            return RefusedHead(head, failure)
        admitted = self._admitted(head, request)
        # A key belongs to one request: its head does not come again.
        if admitted.is_hot and not request.route.streams and request.key is None:
            self._remember(digest, admitted)
        return admitted

    def _admitted(self, head: Head, request: Request) -> AdmittedHead:
        route = request.route
        is_short = head.length is not None and head.length <= self._inline_bytes
        return AdmittedHead(
            request,
            is_hot=route.streams or (route.lane is Lane.HOT and self._use_fast_lane),
            length=head.length,
            plain=is_short and not request.gzip_in,
            close=head.close,
            expects_continue=head.expects_continue,
        )

    def _remember(self, digest: bytes, head: AdmittedHead) -> None:
        if len(self.remembered) >= REMEMBERED_MAX:
            del self.remembered[next(iter(self.remembered))]
        self.remembered[digest] = head


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
    return True
