"""The fast lane: hot requests are read, checked and answered inside the connection's task.

      +--> head --hot--> body --> operation --> one write --+
      |      |--refused--> answer (and close, if its body stays unread)
      |      '--cold--> Hypercorn, until its answer is out -+
      '-----------------------------------------------------+

A keep-alive client sends the same head again and again. So the outcome for a head (parsed, authenticated, authorised) is
remembered under the digest of its exact bytes; the bytes themselves hold a token and are not kept.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from hashlib import blake2b

import trio

from topics.errors import Internal, InvalidRequest, TopicsError
from topics.front.answers import Answer, StreamAnswer
from topics.front.backend import Backend, Body
from topics.front.bodies import BodySink, GzipSink, reserve
from topics.front.cold_bridge import Bridge, ColdLane
from topics.front.connections import NEVER, Connection, Connections
from topics.front.errors import error_answer
from topics.front.guard import Guard, HeadFields, Request, check_length
from topics.front.http1 import (
    CONTINUE,
    H2_PREFACE,
    HEAD_END,
    Framing,
    Head,
    ResponseHeads,
    check_partial_head,
    framing,
    parse_head,
)
from topics.front.operations import Operations
from topics.front.routes import Lane, match

LOG = logging.getLogger("topics.front")

HEADS_MAX = 4096  # remembered heads; the oldest goes first
COPY_MAX_BYTES = 32 * 1024  # an answer up to this is copied behind its head, a larger one is sent from where it is
FILL_BYTES = 256 * 1024  # read at once into a long body: well under a millisecond
SKIP_MAX_BYTES = 64 * 1024  # of a refused request's body; a longer one costs the connection
METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"))


@dataclass(frozen=True, slots=True)
class HotHead:
    """A head that was let through, and how its body comes. ``plain``: neither chunked, gzipped nor long."""

    request: Request
    length: int | None
    plain: bool
    close: bool
    expects_continue: bool


@dataclass(frozen=True, slots=True)
class ColdHead:
    """A head for Hypercorn, as it came, and how its body comes."""

    raw: bytes
    length: int | None


@dataclass(frozen=True, slots=True)
class RefusedHead:
    """A well-formed head that the guard turned down."""

    head: Head
    failure: TopicsError


AnyHead = HotHead | ColdHead | RefusedHead


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
    heads: dict[bytes, HotHead]
    responses: ResponseHeads

    def read_head(self, raw: bytes) -> AnyHead:
        """Decide about a whole head. Raises `InvalidRequest` when it is not HTTP."""
        digest = blake2b(raw, digest_size=16).digest()
        known = self.heads.get(digest)
        if known is not None:
            return known
        if raw == H2_PREFACE:
            return ColdHead(raw, 0)
        head = parse_head(raw)
        if head.method in METHODS and not (self.use_fast_lane and _is_hot(head)):
            return ColdHead(raw, head.length)
        try:
            request = self.guard.admit(head.method, head.target, HeadFields(head.fields), head.length)
        except TopicsError as failure:
            return RefusedHead(head, failure)
        plain = head.length is not None and head.length <= self.inline_bytes and not request.gzip_in
        hot = HotHead(request, head.length, plain, head.close, head.expects_continue)
        if request.key is None and not request.route.streams:  # a head with an idempotency key does not come again
            self._remember(digest, hot)
        return hot

    def _remember(self, digest: bytes, head: HotHead) -> None:
        if len(self.heads) >= HEADS_MAX:
            del self.heads[next(iter(self.heads))]
        self.heads[digest] = head


def _is_hot(head: Head) -> bool:
    try:
        return match(head.method, head.target).route.lane is Lane.HOT
    except TopicsError:
        return False


class FastLane:
    """One connection's life. `run` returns when it is over; nothing but a cancellation escapes it."""

    def __init__(self, connection: Connection, lanes: Lanes) -> None:
        self.connection = connection
        self.lanes = lanes
        self._has_answered = True  # the current request, at least in part

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
        while not connection.closing:
            self._has_answered = False
            try:
                head = await self._next_head()
            except InvalidRequest as failure:
                connection.unread_body = True
                await self._send(error_answer(failure), close=True)
                return
            if head is None:
                return
            if isinstance(head, HotHead):
                await self._answer(head)
            elif isinstance(head, RefusedHead):
                await self._refuse(head.failure, head.head.length, head.head.close, sent_early=head.head.expects_continue)
            else:
                await self._hand_over(head)

    async def _next_head(self) -> AnyHead | None:
        """The next head, or None when the client has left or the server drains. Raises `InvalidRequest`, OSError."""
        connection = self.connection
        started = False
        while True:
            if connection.buffer.startswith(b"\r\n", connection.pos):
                connection.pos += 2  # an empty line before a request means nothing (RFC 9112 §2.2)
                continue
            end = connection.buffer.find(HEAD_END, connection.pos)
            if end >= 0:
                connection.idle = False
                connection.deadline = NEVER
                raw = connection.buffer[connection.pos : end + 4]
                connection.pos = end + 4
                return self.lanes.read_head(raw)
            if connection.pos < len(connection.buffer):
                check_partial_head(connection.buffer[connection.pos :])
                if not started:
                    started = True
                    connection.idle = False
                    connection.deadline = connection.connections.now + connection.timings.head_s
            elif connection.connections.draining and not connection.is_late:
                return None
            else:
                connection.idle = True
                patience_s = connection.timings.late_s if connection.is_late else connection.timings.idle_s
                connection.deadline = connection.connections.now + patience_s
            if not await connection.receive():
                return None

    async def _answer(self, head: HotHead) -> None:
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
            answer = await lanes.operations.run(request, body, at)
            connection.waits_since = NEVER
            if answer.stream is None:
                await self._send(answer, close=head.close)
        finally:
            lanes.guard.leave(request)
        if answer.stream is not None:
            await self._stream(answer.stream)

    async def _stream(self, stream: StreamAnswer) -> None:
        """Give the connection to a stream, until either ends. It takes no part in the limits and deadlines of requests."""
        connection = self.connection
        self._has_answered = connection.closing = True
        connection.idle = False
        fields = b"".join([b"%b: %b\r\n" % field for field in stream.headers])
        await connection.send(b"HTTP/1.1 %b\r\n%b\r\n" % (stream.status, fields))
        await stream.run(connection)

    async def _body(self, head: HotHead) -> Body:
        """The request's body. Raises `TopicsError` with the rest of it unread, or OSError when the client leaves."""
        connection = self.connection
        if head.plain:
            assert head.length is not None, "a plain body has a length"
            end = connection.pos + head.length
            if end <= len(connection.buffer):
                body = connection.buffer[connection.pos : end]
                connection.pos = end
                return body
        if head.expects_continue and connection.pos == len(connection.buffer):
            await connection.send(CONTINUE)
        connection.begin_body()
        if head.length is None or head.request.gzip_in:
            body_or_block = await self._collected_body(head)
        elif head.plain:
            body_or_block = bytearray(head.length)
            await self._fill(memoryview(body_or_block))
        else:
            body_or_block = await self._long_body(head.request.shard, head.length)
        connection.deadline = NEVER
        return body_or_block

    async def _long_body(self, shard: int, length: int) -> Body:
        """Straight from the socket into shared memory."""
        block = reserve(self.lanes.backend, shard, length)
        try:
            await self._fill(block.view[:length])
        except BaseException:
            block.free()
            raise
        return block

    async def _fill(self, view: memoryview) -> None:
        connection = self.connection
        ready = connection.buffer[connection.pos : connection.pos + len(view)]
        connection.pos += len(ready)
        view[: len(ready)] = ready
        filled = len(ready)
        while filled < len(view):
            count = await connection.receive_into(view[filled : filled + FILL_BYTES])
            if not count:
                raise ConnectionResetError("the client left within a body")
            connection.earned(count)
            filled += count

    async def _collected_body(self, head: HotHead) -> Body:
        """A body whose length in the end is not known beforehand: chunked, gzipped, or both."""
        request, lanes = head.request, self.lanes
        with BodySink(lanes.backend, request.shard, inline_bytes=lanes.inline_bytes, max_bytes=lanes.max_body_bytes) as sink:
            gzip = GzipSink(sink, lanes.max_body_bytes) if request.gzip_in else None
            parts = framing(head.length)
            while not parts.done:
                pieces = await self._pieces(parts)
                if pieces and request.wrong_media is not None:
                    raise request.wrong_media
                for piece in pieces:
                    await gzip.write(piece) if gzip is not None else sink.write(piece)
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

    async def _refuse(self, failure: TopicsError, length: int | None, close: bool, *, sent_early: bool) -> None:
        """Answer without running anything. A short body is read and dropped first, so that the connection can go on."""
        connection = self.connection
        if length is None or length > SKIP_MAX_BYTES or (sent_early and length):
            connection.unread_body = close = True
        else:
            connection.begin_body()
            await self._fill(memoryview(bytearray(length)))
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
            if len(body) > COPY_MAX_BYTES:
                await connection.send_both(responses.render(answer.status, len(body), answer.headers, close=close), body)
            elif close or answer.headers:
                await connection.send(responses.render(answer.status, len(body), answer.headers, close=close) + body)
            else:
                await connection.send(b"%b%d\r\n\r\n" % (responses.start(answer.status), len(body)) + body)
        finally:
            answer.done()

    async def _hand_over(self, head: ColdHead) -> None:
        """Let Hypercorn answer one request, or have the connection when it changes the protocol."""
        self._has_answered = True  # from here on Hypercorn speaks
        bridge = Bridge(self.connection, self.lanes.cold)
        try:
            await bridge.run(head.raw, framing(head.length))
        except* InvalidRequest as broken:
            self.connection.closing = self.connection.unread_body = True
            failure = broken.exceptions[0]
            if isinstance(failure, InvalidRequest) and not bridge.has_answered:
                await self._send(error_answer(failure), close=True)
