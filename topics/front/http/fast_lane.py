"""The fast lane: reads, admits and answers the requests of one connection, in their order.

                 .--------------------- answered <-------------------.
                 v                                                    |
    READING --> SERVING --> head --> body --> operation --> CALLING --+--> sent
       ^           |                            '--------> IN_TASK ---'
       '- no input-'

    head   head_reader    body   request_stream, body_reader    operation   dispatch

What a request usually needs is a plain function: a short body, an operation that asks a shard, an
answer that the socket takes at once. All else is a task: bodies that are long, cold requests
(cold_bridge), streams, slow clients, the end of a connection with unread input. Both lanes accept
exactly the same bytes: heads and bodies are read here, whatever the lane.

A client that hangs up while its connection ``waits`` is noticed in every state. At the end of the
connection a call under way is abandoned and a task cancelled. Nothing but a cancellation escapes.
"""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from types import CoroutineType
from typing import Any, Protocol

import trio

from topics.engine.access import ANYONE, Scope
from topics.errors import Internal, InvalidRequest, TopicsError
from topics.formats.api.response_heads import ResponseHeads, stream_head, with_lines
from topics.front.answers import Answer
from topics.front.compression import COMPRESS_MIN_BYTES
from topics.front.dispatch import Dispatcher
from topics.front.errors import error_answer
from topics.front.guard import Guard
from topics.front.http.body_reader import BodyReader
from topics.front.http.cold_call import ColdCall
from topics.front.http.cold_loader import ColdLoader
from topics.front.http.connection import GONE, HALF_CLOSED, NEVER, RECV_BYTES, Connection
from topics.front.http.connections import Connections
from topics.front.http.exchange import Exchange, Exchanges
from topics.front.http.head_reader import AdmittedHead, HeadReader, PreflightHead, RefusedHead
from topics.front.request import Request

LOG = logging.getLogger("topics.front")

COPY_MAX_BYTES = 32 * 1024  # of an answer that is appended to its head; above, nothing is copied
REQUESTS_PER_TURN = 8  # of one connection, if they came together; one takes 0.1 ms
SHORT_MAX_BYTES = RECV_BYTES  # of a body that is waited for without a task
SKIP_MAX_BYTES = 64 * 1024  # of a refused body that is read; a longer one costs the connection
NO_CONTENT = 204
CLIENT_GONE = (OSError, trio.ClosedResourceError, trio.BrokenResourceError)
INPUT = select.EPOLLIN | HALF_CLOSED


@dataclass(frozen=True, slots=True)
class Lanes:
    """What all connections of a front share. ``left``: a connection has ended."""

    guard: Guard
    heads: HeadReader
    bodies: BodyReader
    dispatcher: Dispatcher
    connections: Connections
    cold: ColdLoader
    responses: ResponseHeads
    exchanges: Exchanges
    left: Callable[[], None]


class State(Enum):
    """What the connection waits for."""

    READING = auto()  # input: the poller watches the socket
    SERVING = auto()  # nothing: it is being served
    CALLING = auto()  # a shard
    IN_TASK = auto()
    OVER = auto()


class Watcher(Protocol):
    """Tells lanes that their sockets have input (`topics.front.http.poller`)."""

    def watch(self, lane: FastLane, events: int) -> None:
        """Call `FastLane.ready` when one of the ``events`` of epoll happens, or the client is gone,
        from now on. Raises OSError.
        """

    def leave(self, lane: FastLane) -> None:
        """Stop calling `FastLane.ready`."""

    def start(self, task: Callable[..., Awaitable[None]], *args: Any) -> bool:
        """Start a task; False when the server is over."""


class FastLane:
    """One connection's requests. ``watched`` is the watcher's: the events that it watches for, None
    while it does not.
    """

    __slots__ = (
        "__weakref__",
        "_call",
        "_has_answered",
        "_head",
        "_is_entered",
        "_is_head",
        "_is_serving",
        "_lanes",
        "_refusal",
        "_request",
        "_result",
        "_scope",
        "_state",
        "_watcher",
        "connection",
        "exchange",
        "fd",
        "watched",
    )

    def __init__(self, connection: Connection, lanes: Lanes, watcher: Watcher) -> None:
        self.connection, self._lanes, self._watcher = connection, lanes, watcher
        self.fd = connection.fd
        self.watched: int | None = None
        self.exchange = Exchange(connection, lanes.exchanges)
        self._state = State.SERVING
        self._is_serving = False
        self._scope: trio.CancelScope | None = None  # of its task
        # Of the current request
        self._head: AdmittedHead | None = None
        self._request: Request | None = None  # with the rights that its key has now
        self._refusal: tuple[Answer, bool, int] | None = None  # and how much of its body is to come
        self._call: Any = None  # what is asked of a shard, if it may be abandoned
        self._result: Answer | TopicsError | None = None  # came before the operation returned
        self._is_entered = False  # `Guard.enter` has let it in
        self._is_head = False  # a HEAD: its answer has no body
        self._has_answered = False  # at least in part
        connection.lane = self

    # What happens

    def begin(self) -> None:
        """The client was accepted."""
        self._lanes.connections.request_count += 1
        self.serve()

    def ready(self, events: int) -> None:
        """The socket has input, or the client has hung up. What would be reported again and again
        is not watched for any more.
        """
        connection = self.connection
        if self._state is State.READING:
            self._receive()
        elif not connection.waits:
            self._watcher.leave(self)
        elif events & GONE:
            self._watcher.leave(self)
            connection.cut()
        elif events & HALF_CLOSED:
            self._watch(0)
            connection.probe()
        else:
            self._watch(HALF_CLOSED)

    def _receive(self) -> None:
        connection = self.connection
        try:
            data = connection.sock.recv(RECV_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._over()
            return
        connection.received_bytes += len(data)
        connection.receive(data)
        if self._head is not None or self._refusal is not None:  # of a body
            connection.earned(len(data))
        self.serve()

    def watch_hang_up(self) -> None:
        """See `topics.front.http.connection.Owner`."""
        if self.watched is None or not self.watched & HALF_CLOSED:
            self._watch(HALF_CLOSED)

    def end(self) -> None:
        """See `topics.front.http.connection.Owner`."""
        if self._state is State.IN_TASK:
            if self._scope is not None:
                self._scope.cancel()
        elif not self._is_serving:
            self._over()

    def leave(self) -> None:
        """The socket is about to be closed: the next one may get its descriptor at once."""
        if self.watched is not None:
            self._watcher.leave(self)

    def _watch(self, events: int) -> None:
        try:
            self._watcher.watch(self, events)
        except OSError:  # no memory for it
            self.connection.end_idle()

    # Requests

    def serve(self) -> None:
        """Answer requests until one has to wait, or there is none."""
        self._state, self._is_serving = State.SERVING, True
        connection = self.connection
        try:
            for _ in range(REQUESTS_PER_TURN):
                if connection.closing:
                    self._end_after_answer()
                    break
                if not self._next():
                    break
            else:
                self._start(trio.lowlevel.checkpoint)  # others first
        except CLIENT_GONE:
            self._over()
        except Exception:
            self._apologize()
        finally:
            self._is_serving = False
        if connection.is_ended and self._state is not State.IN_TASK:
            self._over()

    def _end_after_answer(self) -> None:
        if self.connection.must_linger:
            self._start(self._linger)
        else:
            self._over()

    def _next(self) -> bool:
        """Answer the next request; False when that has to wait."""
        head = self._head
        if head is None:
            if self._refusal is not None:
                return self._refuse_later(*self._refusal)
            connection = self.connection
            try:
                raw = connection.next_head()
                if raw is None:
                    self._wait_for_head()
                    return False
                connection.idle, connection.deadline = False, NEVER
                found, connection.trace = self._lanes.heads.decide(raw)
            except InvalidRequest as failure:
                self.exchange.begin_unread()
                connection.unread_body = True
                return self._send(error_answer(failure), close=True)
            self.exchange.begin(found)
            if not isinstance(found, AdmittedHead):
                return self._answer_unadmitted(found)
            request, head = found.request, found
            self._is_head = request.method == "HEAD"
            connection.quiet_since, connection.principal = NEVER, request.principal
            try:
                self._lanes.guard.enter(request)
            except TopicsError as failure:
                answer = self._lanes.dispatcher.failed(failure)
                return self._refuse(answer, head.length, head.close, head.expects_continue)
            self._head, self._request = head, request
            self._is_entered = request.principal is not ANYONE  # who is not counted
        if head.plain and (length := head.length) is not None and length <= SHORT_MAX_BYTES:
            body = self.connection.take(length)
            if body is None:
                return self._wait_for_body(head)
            return self._answer(head, body)
        self._start(self._read_and_answer, head)
        return False

    def _wait_for_head(self) -> None:
        connection = self.connection
        connections = connection.connections
        if not connection.is_idle:
            if connection.idle or connection.deadline == NEVER:
                connection.deadline = connections.now + connection.timings.head_s
            connection.idle = False
        elif connections.draining and not connection.is_late and not connection.has_input:
            self._over()
            return
        else:
            connection.buffer, connection.pos = b"", 0  # it holds a token
            timings = connection.timings
            patience_s = timings.late_s if connection.is_late else timings.idle_s
            connection.idle, connection.deadline = True, connection.quiet_since + patience_s
        self._read()

    def _wait_for_body(self, head: AdmittedHead) -> bool:
        connection = self.connection
        if connection.deadline == NEVER:  # from here on it is waited for
            if head.expects_continue:
                self._start(self._read_and_answer, head)
                return False
            connection.begin_body()
        self._read()
        return False

    def _read(self) -> None:
        self._state = State.READING
        if self.watched != INPUT:
            self._watch(INPUT)

    def _answer(self, head: AdmittedHead, body: bytes) -> bool:
        """A request with its body, which is short."""
        connection, lanes, request = self.connection, self._lanes, head.request
        if connection.deadline != NEVER:  # the body was waited for
            connection.deadline = NEVER
            try:
                lanes.guard.check_key(request)
            except TopicsError as failure:
                connection.unread_body = True
                return self._send(lanes.dispatcher.failed(failure), close=True)
        if not (head.is_hot and request.route.is_plain):
            self._start(self._answer_in_task, head, body)
            return False
        if request.principal is not ANYONE:
            self._request = request = lanes.guard.renewed(request)
        self.exchange.at = at = time.monotonic_ns()
        self._state = State.CALLING
        if request.route.waits:
            connection.begin_waiting()
        call = lanes.dispatcher.begin(request, body, at, self._answered)
        result, self._result = self._result, None
        if result is not None:
            self._state, connection.waits = State.SERVING, False
            return self._finish(head, request, result)
        if type(call) is CoroutineType:
            self._start(self._await_answer, call)
        else:
            self._call = call
        return False

    def _answered(self, result: Answer | TopicsError) -> None:
        """The operation is over, perhaps before it returned."""
        if self._is_serving:
            self._result = result
            return
        head, request = self._head, self._request
        if self._state is not State.CALLING or head is None or request is None:
            if isinstance(result, Answer):  # the connection is over
                result.unsent()
                result.done()
            return
        self._call, self.connection.waits = None, False
        self._state, self._is_serving = State.SERVING, True
        try:
            is_sent = self._finish(head, request, result)
        except CLIENT_GONE:
            self._over()
        except Exception:
            self._apologize()
        else:
            connection = self.connection
            if is_sent:
                if connection.closing or connection.pos < len(connection.buffer):
                    self.serve()
                else:
                    self._wait_for_head()
        finally:
            self._is_serving = False
        if self.connection.is_ended and self._state is not State.IN_TASK:
            self._over()

    def _finish(self, head: AdmittedHead, request: Request, result: Answer | TopicsError) -> bool:
        """Send the answer of a plain operation; whether it was sent."""
        dispatcher = self._lanes.dispatcher
        if request.is_timed or request.gzip_out or not isinstance(result, Answer):
            answer = dispatcher.finished(request, result, self.exchange.at)
            if request.gzip_out and len(answer.body) >= COMPRESS_MIN_BYTES:
                self._start(self._compress_and_send, answer)
                return False
        else:
            answer = result
        if len(answer.body) > COPY_MAX_BYTES:
            answer = self._with_room(request, answer)
        return self._send(answer, close=head.close)

    def _with_room(self, request: Request, answer: Answer) -> Answer:
        """The long answer of a request that has changed nothing; a refusal if it might have to be
        held, and there is no memory for that.
        """
        if len(answer.body) <= COPY_MAX_BYTES or request.route.scope is not Scope.READ:
            return answer
        held = self.connection.connections.held
        failure = held.refusal(request.principal.digest, len(answer.body))
        if failure is None:
            return answer
        answer.unsent()
        answer.done()
        return self._lanes.dispatcher.failed(failure)

    # Requests that run nothing

    def _answer_unadmitted(self, found: RefusedHead | PreflightHead) -> bool:
        head = found.head
        self._is_head = head.method == "HEAD"
        if isinstance(found, RefusedHead):
            answer = self._lanes.dispatcher.failed(found.failure)
        else:
            answer = Answer(NO_CONTENT, headers=found.allowed)
        return self._refuse(answer, head.length, head.close, head.expects_continue)

    def _refuse(
        self, answer: Answer, length: int | None, close: bool, expects_continue: bool
    ) -> bool:
        """Answer, and pass over the body if it is short, so that the connection can go on."""
        connection = self.connection
        if length is None or length > SKIP_MAX_BYTES or (expects_continue and length):
            connection.unread_body = close = True
        elif left := connection.skip(length):
            self._refusal = (answer, close, left)
            connection.begin_body()
            self._read()
            return False
        return self._send(answer, close=close)

    def _refuse_later(self, answer: Answer, close: bool, left: int) -> bool:
        """More of the body has come, of which so much was left."""
        connection = self.connection
        left = connection.skip(left)
        if left:
            self._refusal = (answer, close, left)
            self._read()
            return False
        self._refusal, connection.deadline = None, NEVER
        return self._send(answer, close=close)

    # Answers

    def _send(self, answer: Answer, *, close: bool) -> bool:
        """Send an answer; whether the socket has taken it."""
        connection = self.connection
        if answer.on_unsent is not None and not connection.is_there:
            self._start(self._deliver, answer, close)
            return False
        try:
            parts = self._rendered(answer, close)
            unsent = connection.send_now(*parts)
        except BaseException:
            answer.unsent()
            answer.done()
            raise
        if unsent:
            self._start(self._send_rest, answer, unsent, sum(map(len, parts)))
            return False
        if answer.reply is not None:
            answer.done()
        self._sent()
        return True

    def _rendered(self, answer: Answer, close: bool) -> tuple[bytes | memoryview, ...]:
        self._has_answered = True
        lanes, connection = self._lanes, self.connection
        if close or lanes.connections.draining:
            connection.closing = close = True
        body, status, lines = answer.body, answer.status, self.exchange.fields(answer.status)
        if status == NO_CONTENT:
            return (lanes.responses.render_empty(status, answer.headers, lines=lines, close=close),)
        head = lanes.responses.render(
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

    def _sent(self) -> None:
        """The current request is over."""
        self.exchange.end()
        if self._is_entered:
            self._leave_guard()
        connection, connections = self.connection, self._lanes.connections
        self._head = self._request = connection.trace = None  # the client may be idle for long
        self._has_answered = self._is_head = False
        connections.request_count += 1
        connection.quiet_since = connections.now

    def _leave_guard(self) -> None:
        assert self._head is not None, "a request was let in"
        self._is_entered = False
        self._lanes.guard.leave(self._head.request)

    def _apologize(self) -> None:
        """After an unexpected error, which is being handled."""
        LOG.exception("unexpected server error: connection")
        if self._has_answered:
            self._over()
            return
        self.exchange.begin_unread()
        self.connection.unread_body = True
        try:
            if self._send(error_answer(Internal("internal error")), close=True):
                self._start(self._linger)
        except CLIENT_GONE:
            self._over()

    def _over(self) -> None:
        """The connection is over. Safe to call twice."""
        if self._state is State.OVER:
            return
        self._state = State.OVER
        call, self._call = self._call, None
        if call is not None:
            call.abandon()
        if self._is_entered:
            self._leave_guard()
        self.connection.close()
        self.exchange.end(whole=False)
        self._lanes.connections.remove(self.connection)
        self._lanes.left()

    # Tasks

    def _start(self, function: Callable[..., Awaitable[None]], *args: Any) -> None:
        """Go on in a task."""
        self._state = State.IN_TASK
        if not self._watcher.start(self._run, function, *args):
            self._state = State.SERVING
            for arg in args:
                if isinstance(arg, Answer):
                    arg.unsent()
                    arg.done()
                elif isinstance(arg, Coroutine):
                    arg.close()
            self._over()

    async def _run(self, function: Callable[..., Awaitable[None]], *args: Any) -> None:
        try:
            with trio.CancelScope() as self._scope:
                if self.connection.is_ended:
                    self._scope.cancel()
                await self._attempt(function, *args)
        except BaseException:
            self._over()
            raise
        self._scope = None
        if self.connection.is_ended:
            self._over()
        elif self._state is not State.OVER:
            self.serve()

    async def _attempt(self, function: Callable[..., Awaitable[None]], *args: Any) -> None:
        try:
            await function(*args)
        except* CLIENT_GONE:
            self._over()
        except* Exception:
            LOG.exception("unexpected server error: connection")
            if self._has_answered:
                self._over()
            else:
                self.exchange.begin_unread()
                self.connection.unread_body = True
                await self._apologize_in_task()

    async def _apologize_in_task(self) -> None:
        try:
            await self._deliver(error_answer(Internal("internal error")), close=True)
        except CLIENT_GONE:
            self._over()

    async def _linger(self) -> None:
        await self.connection.linger()
        self._over()

    async def _read_and_answer(self, head: AdmittedHead) -> None:
        """A request whose body has not come, or is long."""
        try:
            body = await self._lanes.bodies.read(self.connection, head)
        except TopicsError as failure:
            self.connection.unread_body = True
            await self._deliver(self._lanes.dispatcher.failed(failure), close=True)
        else:
            await self._answer_in_task(head, body)

    async def _answer_in_task(self, head: AdmittedHead, body: Any) -> None:
        connection, lanes = self.connection, self._lanes
        self._request = request = lanes.guard.renewed(head.request)
        self.exchange.at = at = time.monotonic_ns()
        if request.route.waits:
            connection.begin_waiting()
        if not head.is_hot:
            await self._answer_cold(ColdCall(request, body, at, head.close))
            return
        answer = await lanes.dispatcher.run(request, body, at)
        connection.waits = False
        if answer.stream is not None:
            await self._send_stream(answer)
            return
        await self._deliver(self._with_room(request, answer), head.close)

    async def _await_answer(self, call: Coroutine[Any, Any, Answer]) -> None:
        """An operation that needs time."""
        head, request = self._head, self._request
        assert head is not None, "a request is under way"
        assert request is not None, "a request is under way"
        answer = await self._lanes.dispatcher.awaited(request, call, self.exchange.at)
        self.connection.waits = False
        await self._deliver(self._with_room(request, answer), head.close)

    async def _compress_and_send(self, answer: Answer) -> None:
        head, request = self._head, self._request
        assert head is not None, "a request is under way"
        assert request is not None, "a request is under way"
        packed = await self._lanes.dispatcher.compressed(request, answer, self.exchange.at)
        await self._deliver(self._with_room(request, packed), head.close)

    async def _deliver(self, answer: Answer, close: bool) -> None:
        """As `_send`, in a task."""
        connection = self.connection
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
        self._sent()

    async def _send_rest(self, answer: Answer, unsent: Sequence[memoryview], length: int) -> None:
        try:
            answer.on_lost(self.connection.cut)
            await self.connection.send_rest(unsent, length)
        except BaseException:
            answer.unsent()
            raise
        finally:
            answer.done()
        self._sent()

    async def _answer_cold(self, call: ColdCall) -> None:
        connection = self.connection
        try:
            answer = await self._lanes.cold.ask(call)
            connection.waits = False
            self._has_answered = True
            connection.closing = connection.closing or call.close
            if call.on_unsent is not None:
                await connection.check_client()
            await connection.send(*with_lines(answer, self.exchange.fields(call.status)))
        except BaseException:
            if call.on_unsent is not None:
                call.on_unsent()
            raise
        self._sent()

    async def _send_stream(self, answer: Answer) -> None:
        """Give the connection to a stream until either side ends it. The limits and deadlines of
        requests do not apply to it.
        """
        connection, stream, head = self.connection, answer.stream, self._head
        assert stream is not None, "only a stream comes here"
        if self._is_entered:
            self._leave_guard()
        if head is not None and head.request.head is not None:
            head.request.head.forget()
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
