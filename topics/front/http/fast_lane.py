"""The fast lane: the connection's task reads and checks every request, and answers the hot ones.

      +--> head --admitted--> body --hot--> operation ---------> one write --+
      |      |                     '-cold-> Hypercorn and Quart -----^       |
      |      '--refused--> answer (and close, if its body stays unread)      |
      '----------------------------------------------------------------------+

A keep-alive client sends the same head again and again. So the outcome for a head (parsed,
authenticated, authorised) is remembered under the digest of its exact bytes; the bytes themselves
hold a token and are not kept.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from hashlib import blake2b

import trio

from topics.errors import Internal, InvalidRequest, TopicsError
from topics.formats.api.http1 import (
    CONTINUE,
    HEAD_END,
    Framing,
    Head,
    PartialHead,
    ResponseHeads,
    end_of_empty_lines,
    framing,
    parse_head,
)
from topics.front.answers import Answer, StreamAnswer
from topics.front.backend import Backend, Body
from topics.front.errors import error_answer
from topics.front.guard import Guard, HeadFields, Request, check_length
from topics.front.http.bodies import BodySink, GzipSink, too_large
from topics.front.http.cold_bridge import ColdCall, ColdLane, ask_hypercorn
from topics.front.http.connections import NEVER, Connection, Connections
from topics.front.routes.operations import Operations
from topics.front.routes.table import BodyRule, Lane

LOG = logging.getLogger("topics.front")

HEADS_MAX = 4096  # remembered heads; the oldest goes first
COPY_MAX_BYTES = (
    32 * 1024
)  # an answer up to this is copied behind its head, a larger one is sent from where it is
FILL_BYTES = 256 * 1024  # read at once into a long body: well under a millisecond
REQUESTS_PER_TURN = 8  # of those that came together; one takes 0.1 ms
SKIP_MAX_BYTES = 64 * 1024  # of a refused request's body; a longer one costs the connection


@dataclass(frozen=True, slots=True)
class AdmittedHead:
    """A head that was let through, and how its body comes. ``plain``: neither chunked, gzipped nor
    long.
    """

    request: Request
    is_hot: bool
    length: int | None
    plain: bool
    close: bool
    expects_continue: bool

    @property
    def method(self) -> str:
        return self.request.method


@dataclass(frozen=True, slots=True)
class RefusedHead:
    """A well-formed head that the guard turned down."""

    head: Head
    failure: TopicsError

    @property
    def method(self) -> str:
        return self.head.method


AnyHead = AdmittedHead | RefusedHead


@dataclass(slots=True)
class Lanes:
    """What all connections of a front share."""

    guard: Guard
    operations: Operations
    backend: Backend
    connections: Connections
    cold: ColdLane
    inline_bytes: int
    max_body_bytes: int
    use_fast_lane: bool
    heads: dict[bytes, AdmittedHead]
    responses: ResponseHeads

    def read_head(self, raw: bytes) -> AnyHead:
        """Decide about a whole head. Raises `InvalidRequest` when it is not HTTP."""
        digest = blake2b(raw, digest_size=16).digest()
        known = self.heads.get(digest)
        if known is not None:
            return known
        head = parse_head(raw)
        try:
            request = self.guard.admit(
                head.method, head.target, HeadFields(head.fields), head.length
            )
        except TopicsError as failure:
            return RefusedHead(head, failure)
        route = request.route
        is_hot = route.streams or (route.lane is Lane.HOT and self.use_fast_lane)
        is_short = head.length is not None and head.length <= self.inline_bytes
        admitted = AdmittedHead(
            request,
            is_hot=is_hot,
            length=head.length,
            plain=is_short and not request.gzip_in,
            close=head.close,
            expects_continue=head.expects_continue,
        )
        if (
            is_hot and not route.streams and request.key is None
        ):  # one with a key does not come again
            self._remember(digest, admitted)
        return admitted

    def _remember(self, digest: bytes, head: AdmittedHead) -> None:
        if len(self.heads) >= HEADS_MAX:
            del self.heads[next(iter(self.heads))]
        self.heads[digest] = head


class FastLane:
    """One connection's life. `run` returns when it is over; nothing but a cancellation escapes it."""

    def __init__(self, connection: Connection, lanes: Lanes) -> None:
        self.connection = connection
        self.lanes = lanes
        self._has_answered = True  # the current request, at least in part
        self._is_head = False  # the answer to HEAD has no body

    async def run(self) -> None:
        connection = self.connection
        try:
            with connection.scope:
                await self._serve_or_apologize()
            await connection.linger()
        except* (OSError, trio.ClosedResourceError, trio.BrokenResourceError):
            pass  # the client has gone, or was cut off: nobody is left to be told
        except* Exception:
            LOG.exception("a bug in a connection")
        finally:
            connection.sock.close()

    async def _serve_or_apologize(self) -> None:
        try:
            await self._serve()
        except* (OSError, trio.ClosedResourceError, trio.BrokenResourceError):
            raise
        except* Exception:
            LOG.exception("a bug in a connection")
            if not self._has_answered:
                self.connection.unread_body = True
                await self._send(error_answer(Internal("internal error")), close=True)

    async def _serve(self) -> None:
        connection = self.connection
        answered = 0
        while not connection.closing:
            self._has_answered = self._is_head = False
            connection.connections.heard += 1
            answered += 1
            if answered % REQUESTS_PER_TURN == 0 and connection.pos < len(connection.buffer):
                await (
                    trio.lowlevel.checkpoint()
                )  # they came together, and their answers may have waited for nothing
            try:
                head = await self._next_head()
            except InvalidRequest as failure:
                connection.unread_body = True
                await self._send(error_answer(failure), close=True)
                return
            if head is None:
                return
            self._is_head = head.method == "HEAD"
            if isinstance(head, AdmittedHead):
                await self._answer(head)
            else:
                refused = head.head
                early = refused.expects_continue
                await self._refuse(head.failure, refused.length, refused.close, sent_early=early)

    async def _next_head(self) -> AnyHead | None:
        """The next head, or None when the client has left or the server drains. Raises
        `InvalidRequest`, OSError.
        """
        connection = self.connection
        # Empty lines before a request mean nothing (RFC 9112 §2.2): they do not make the wait for
        # it longer either.
        patience_s = connection.timings.late_s if connection.is_late else connection.timings.idle_s
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
                return self.lanes.read_head(raw)
            if connection.pos < len(connection.buffer):
                raw = await self._rest_of_head()
                connection.deadline = NEVER
                if not raw.startswith(b"\r\n"):
                    return self.lanes.read_head(raw) if raw else None
                # Its first byte ended an empty line: what follows that is looked at again.
                connection.buffer = raw + connection.buffer[connection.pos :]
                connection.pos = 0
                continue
            if (
                connection.connections.draining
                and not connection.is_late
                and not connection.has_input
            ):
                return None
            connection.idle = True
            connection.deadline = idle_until
            if not await connection.receive():
                return None

    async def _rest_of_head(self) -> bytes:
        """The head that has begun, whole; empty when the client leaves. Raises `InvalidRequest`,
        OSError.
        """
        connection, part = self.connection, PartialHead()
        connection.idle = False
        connection.deadline = connection.connections.now + connection.timings.head_s
        while True:
            used = part.feed(connection.buffer[connection.pos :])
            if used is not None:
                connection.pos += used
                return part.whole()
            connection.pos = len(connection.buffer)
            if not await connection.receive():
                return b""

    async def _answer(self, head: AdmittedHead) -> None:
        connection, lanes, request = self.connection, self.lanes, head.request
        try:
            lanes.guard.enter(request)
        except TopicsError as failure:
            await self._refuse(failure, head.length, head.close, sent_early=head.expects_continue)
            return
        try:
            try:
                body = await self._body(head)
            except TopicsError as failure:
                connection.unread_body = True
                await self._send(lanes.operations.failed(failure), close=True)
                return
            at = time.monotonic_ns()
            if request.route.waits:
                connection.waits_since = connection.connections.now
            stream = None
            if head.is_hot:
                stream = await self._answer_hot(head, body, at)
            else:
                await self._answer_cold(ColdCall(request, body, at, head.close))
        finally:
            lanes.guard.leave(request)
        if stream is not None:
            await self._stream(stream)

    async def _answer_hot(self, head: AdmittedHead, body: Body, at: int) -> StreamAnswer | None:
        answer = await self.lanes.operations.run(head.request, body, at)
        self.connection.waits_since = NEVER
        if answer.stream is None:
            await self._send(answer, close=head.close)
        return answer.stream

    async def _answer_cold(self, call: ColdCall) -> None:
        connection = self.connection
        answer = await ask_hypercorn(self.lanes.cold, call)
        connection.waits_since = NEVER
        self._has_answered = True
        connection.closing = connection.closing or call.close
        await connection.send_both(b"", answer)

    async def _stream(self, stream: StreamAnswer) -> None:
        """Give the connection to a stream, until either ends. It takes no part in the limits and
        deadlines of requests.
        """
        connection = self.connection
        self._has_answered = connection.closing = True
        connection.idle = False
        fields = b"".join([b"%b: %b\r\n" % field for field in stream.headers])
        await connection.send(b"HTTP/1.1 %b\r\n%b\r\n" % (stream.status, fields))
        await stream.run(connection)

    async def _body(self, head: AdmittedHead) -> Body:
        """The request's body. Raises `TopicsError` with the rest of it unread, or OSError when the
        client leaves.
        """
        connection = self.connection
        if head.plain:
            assert head.length is not None, "a plain body has a length"
            end = connection.pos + head.length
            if end <= len(connection.buffer):
                start, connection.pos = connection.pos, end
                return connection.buffer[start:end]
        if head.expects_continue and connection.pos == len(connection.buffer):
            await connection.send(CONTINUE)
        connection.begin_body()
        if head.request.route.body is BodyRule.NONE:
            await self._drop_body(head)
            body: Body = b""
        elif head.length is None or head.request.gzip_in:
            body = await self._collected_body(head)
        else:
            body = await self._known_body(head.request.shard, head.length)
        connection.deadline = NEVER
        return body

    async def _known_body(self, shard: int, length: int) -> Body:
        """Straight from the socket to where it stays, except for what came behind the head."""
        connection, lanes = self.connection, self.lanes
        sink = BodySink(lanes.backend, shard, inline_bytes=lanes.inline_bytes, max_bytes=length)
        with sink:
            ready = connection.buffer[connection.pos : connection.pos + length]
            connection.pos += len(ready)
            await sink.write(ready)
            while sink.length < length:
                count = await connection.receive_into(await sink.room(FILL_BYTES))
                if not count:
                    raise ConnectionResetError("the client left within a body")
                connection.earned(count)
                sink.took(count)
            return sink.finish()

    async def _drop_body(self, head: AdmittedHead) -> None:
        """Read past a body that the route has no use for."""
        parts, dropped, most = framing(head.length), 0, self.lanes.max_body_bytes
        while not parts.done:
            dropped += sum(map(len, await self._pieces(parts)))
            if dropped > most:
                raise too_large(most)

    async def _collected_body(self, head: AdmittedHead) -> Body:
        """A body whose length in the end is not known beforehand: chunked, gzipped, or both."""
        request, lanes = head.request, self.lanes
        most = lanes.guard.body_max(request.route)
        with BodySink(
            lanes.backend, request.shard, inline_bytes=lanes.inline_bytes, max_bytes=most
        ) as sink:
            gzip = GzipSink(sink, most) if request.gzip_in else None
            parts = framing(head.length)
            while not parts.done:
                pieces = await self._pieces(parts)
                if pieces and request.wrong_media is not None:
                    raise request.wrong_media
                for piece in pieces:
                    await (sink if gzip is None else gzip).write(piece)
            if gzip is not None:
                gzip.check_end()
            check_length(request.route, sink.length)
            return sink.finish()

    async def _pieces(self, parts: Framing) -> list[memoryview]:
        """The next pieces of a body's payload; none when only framing came."""
        connection = self.connection
        if connection.pos == len(connection.buffer):
            if not await connection.receive():
                raise ConnectionResetError("the client left within a body")
            connection.earned(len(connection.buffer))
        else:
            await trio.lowlevel.checkpoint()
        pieces, connection.pos = parts.take(connection.buffer, connection.pos)
        return pieces

    async def _refuse(
        self, failure: TopicsError, length: int | None, close: bool, *, sent_early: bool
    ) -> None:
        """Answer without running anything. A short body is read and dropped first, so that the
        connection can go on.
        """
        connection = self.connection
        if length is None or length > SKIP_MAX_BYTES or (sent_early and length):
            connection.unread_body = close = True
        else:
            connection.begin_body()
            await connection.drop(length)
            connection.deadline = NEVER
        await self._send(self.lanes.operations.failed(failure), close=close)
        await trio.lowlevel.checkpoint()

    async def _send(self, answer: Answer, *, close: bool) -> None:
        connection = self.connection
        try:
            self._has_answered = True
            if close or connection.connections.draining:
                connection.closing = close = True
            body = answer.body
            responses = self.lanes.responses
            if self._is_head:
                head = responses.render(answer.status, len(body), answer.headers, close=close)
                await connection.send(head)
            elif len(body) > COPY_MAX_BYTES:
                answer.on_lost(connection.cut)
                await connection.send_both(
                    responses.render(answer.status, len(body), answer.headers, close=close), body
                )
            elif close or answer.headers:
                await connection.send(
                    responses.render(answer.status, len(body), answer.headers, close=close) + body
                )
            else:
                await connection.send(
                    b"%b%d\r\n\r\n" % (responses.start(answer.status), len(body)) + body
                )
        finally:
            answer.done()
