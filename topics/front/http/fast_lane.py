"""The fast lane: one coroutine per connection reads, admits and answers its requests in order.

      +--> head --admitted--> body --hot--> operation ---------> one write --+
      |      |                     '-cold-> Hypercorn and Quart -----^       |
      |      '--refused--> answer (and close, if its body stays unread)      |
      '----------------------------------------------------------------------+

    head   head_reader    body   body_reader    operation   dispatch    cold   cold_bridge

Both lanes accept exactly the same bytes: heads and bodies are read here, whatever the lane.

The coroutine has a task only from `in_task` to the end of a request (`topics.front.http.driver`).
The usual request needs none: a short body that came with its head, for an operation that waits for
shards only.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

import trio

from topics.actors.rpc.stepping import in_steps, in_task
from topics.engine.access import Scope
from topics.errors import Internal, InvalidRequest, TopicsError
from topics.formats.api.response_heads import ResponseHeads, stream_head, with_lines
from topics.front.answers import Answer
from topics.front.dispatch import Dispatcher
from topics.front.errors import error_answer
from topics.front.guard import Guard
from topics.front.http.body_reader import BodyReader
from topics.front.http.cold_call import ColdCall
from topics.front.http.cold_loader import ColdLoader
from topics.front.http.connection import NEVER, Connection
from topics.front.http.connections import Connections
from topics.front.http.exchange import Exchange, Exchanges
from topics.front.http.head_reader import AdmittedHead, HeadReader, PreflightHead, RefusedHead
from topics.front.request import Request

LOG = logging.getLogger("topics.front")

COPY_MAX_BYTES = 32 * 1024  # of an answer that is appended to its head; above, nothing is copied
REQUESTS_PER_TURN = 8  # of one connection, if they came together; one takes 0.1 ms
SKIP_MAX_BYTES = 64 * 1024  # of a refused body that is read; a longer one costs the connection
NO_CONTENT = 204
CLIENT_GONE = (OSError, trio.ClosedResourceError, trio.BrokenResourceError)


@dataclass(frozen=True, slots=True)
class Lanes:
    """What all connections of a front share."""

    guard: Guard
    heads: HeadReader
    bodies: BodyReader
    dispatcher: Dispatcher
    connections: Connections
    cold: ColdLoader
    responses: ResponseHeads
    exchanges: Exchanges


class FastLane:
    """One connection's life. `run` returns when it is over; only a cancellation escapes it, or
    `GeneratorExit` when it has no task.
    """

    def __init__(self, connection: Connection, lanes: Lanes) -> None:
        self.connection = connection
        self.lanes = lanes
        self.exchange = Exchange(connection, lanes.exchanges)
        self._has_answered = True  # the current request, at least in part
        self._is_head = False  # the current request is a HEAD: its answer has no body

    async def run(self) -> None:
        """Serve until either side ends the connection."""
        connection = self.connection
        try:
            await self._serve_or_apologize()
            await connection.linger()
        except* CLIENT_GONE:
            pass  # no client is left to answer
        except* Exception:
            LOG.exception("unexpected server error: connection")
        finally:
            connection.close()
            self.exchange.end(whole=False)

    async def _serve_or_apologize(self) -> None:
        try:
            await self._serve()
        except* CLIENT_GONE:
            raise
        except* Exception:
            LOG.exception("unexpected server error: connection")
            if not self._has_answered:
                self.exchange.begin_unread()
                self.connection.unread_body = True
                await self._send(error_answer(Internal("internal error")), close=True)

    async def _serve(self) -> None:
        connection, lanes = self.connection, self.lanes
        answered = 0
        while not connection.closing:
            self._has_answered = self._is_head = False
            lanes.connections.request_count += 1
            connection.quiet_since = connection.connections.now
            answered += 1
            if answered % REQUESTS_PER_TURN == 0 and connection.pos < len(connection.buffer):
                await in_task()
                await trio.lowlevel.checkpoint()  # pipelined requests may be answered without one
            else:
                await in_steps()
            try:
                head = await lanes.heads.next(connection)
            except InvalidRequest as failure:
                self.exchange.begin_unread()
                connection.unread_body = True
                await self._send(error_answer(failure), close=True)
                return
            if head is None:
                return
            self.exchange.begin(head)
            self._is_head = head.method == "HEAD"
            if isinstance(head, AdmittedHead):
                await self._answer(head)
            elif isinstance(head, RefusedHead):
                await self._refuse_head(head)
            else:
                await self._answer_preflight(head)
            del head  # it may hold a token, and the client may be idle for long

    async def _answer(self, head: AdmittedHead) -> None:
        guard, request, connection = self.lanes.guard, head.request, self.connection
        connection.quiet_since, connection.principal = NEVER, request.principal
        try:
            guard.enter(request)
        except TopicsError as failure:
            await self._refuse(failure, head.length, head.close, sent_early=head.expects_continue)
            return
        try:
            stream = await self._answer_entered(head)
        finally:
            guard.leave(request)
        if stream is not None:
            if request.head is not None:
                request.head.forget()
            await self._send_stream(stream)

    async def _answer_entered(self, head: AdmittedHead) -> Answer | None:
        """Answer a request that `Guard.enter` let in; the answer if it is a stream."""
        connection, lanes, request = self.connection, self.lanes, head.request
        try:
            body = await lanes.bodies.read(connection, head)
        except TopicsError as failure:
            connection.unread_body = True
            await self._send(lanes.dispatcher.failed(failure), close=True)
            return None
        request = lanes.guard.renewed(request)
        self.exchange.at = at = time.monotonic_ns()
        if request.route.waits:
            connection.begin_waiting()
        if not (head.is_hot and request.route.is_stepped):
            await in_task()
        if not head.is_hot:
            await self._answer_cold(ColdCall(request, body, at, head.close))
            return None
        answer = await lanes.dispatcher.run(request, body, at)
        connection.waits = False
        if answer.stream is not None:
            return answer
        if len(answer.body) > COPY_MAX_BYTES and request.route.scope is Scope.READ:
            answer = self._with_room(request, answer)
        await self._send(answer, close=head.close)
        return None

    def _with_room(self, request: Request, answer: Answer) -> Answer:
        """The long answer of a request that has changed nothing; a refusal if it might have to be
        held, and there is no memory for that.
        """
        held = self.connection.connections.held
        failure = held.refusal(request.principal.digest, len(answer.body))
        if failure is None:
            return answer
        answer.unsent()
        answer.done()
        return self.lanes.dispatcher.failed(failure)

    async def _answer_cold(self, call: ColdCall) -> None:
        connection = self.connection
        try:
            answer = await self.lanes.cold.ask(call)
            connection.waits = False
            self._has_answered = True
            connection.closing = connection.closing or call.close
            if call.on_unsent is not None:
                await connection.check_client()
            await connection.send_both(*with_lines(answer, self.exchange.fields(call.status)))
            self.exchange.end()
        except BaseException:
            if call.on_unsent is not None:
                call.on_unsent()
            raise

    async def _send_stream(self, answer: Answer) -> None:
        """Give the connection to a stream until either side ends it. The limits and deadlines of
        requests do not apply to it.
        """
        connection, stream = self.connection, answer.stream
        assert stream is not None, "only a stream comes here"
        self._has_answered = connection.closing = True
        connection.idle = False
        # What the client said behind the head belongs to the stream; the head holds a token.
        connection.buffer, connection.pos = connection.buffer[connection.pos :], 0
        lines = self.exchange.fields(answer.status)
        try:
            await connection.send(stream_head(answer.status, answer.headers, lines))
        except BaseException:
            answer.unsent()
            raise
        await stream(connection)
        self.exchange.end()

    async def _answer_preflight(self, asked: PreflightHead) -> None:
        head, connection = asked.head, self.connection
        close = await self._skip_body(head.length, head.close, sent_early=head.expects_continue)
        connection.closing = close = close or connection.connections.draining
        self._has_answered = True
        lines = self.exchange.fields(NO_CONTENT)
        empty = self.lanes.responses.render_empty
        await connection.send(empty(NO_CONTENT, asked.allowed, lines=lines, close=close))
        self.exchange.end()

    async def _refuse_head(self, refused: RefusedHead) -> None:
        head = refused.head
        early = head.expects_continue
        await self._refuse(refused.failure, head.length, head.close, sent_early=early)

    async def _refuse(
        self, failure: TopicsError, length: int | None, close: bool, *, sent_early: bool
    ) -> None:
        """Answer without running anything."""
        close = await self._skip_body(length, close, sent_early=sent_early)
        await self._send(self.lanes.dispatcher.failed(failure), close=close)

    async def _skip_body(self, length: int | None, close: bool, *, sent_early: bool) -> bool:
        """Read and drop a short body, so that the connection can go on; whether it must close."""
        connection = self.connection
        if length is None or length > SKIP_MAX_BYTES or (sent_early and length):
            connection.unread_body = True
            return True
        connection.begin_body()
        await connection.drop(length)
        connection.deadline = NEVER
        return close

    async def _send(self, answer: Answer, *, close: bool) -> None:
        connection = self.connection
        try:
            self._has_answered = True
            if close or self.lanes.connections.draining:
                connection.closing = close = True
            if answer.on_unsent is not None:
                await connection.check_client()
            body = answer.body
            head = self.lanes.responses.render(
                answer.status,
                len(body),
                answer.headers,
                lines=self.exchange.fields(answer.status),
                media_type=answer.media_type,
                close=close,
            )
            if self._is_head:
                await connection.send(head)
            elif len(body) > COPY_MAX_BYTES:
                answer.on_lost(connection.cut)
                await connection.send_both(head, body)
            else:
                await connection.send(head + body)
        except BaseException:
            answer.unsent()
            raise
        finally:
            answer.done()
        self.exchange.end()
