"""Request tasks: what a request of a connection does in a task, and how a connection ends.

    body       long, chunked, or not there after `SHORT_MAX_BYTES`     body_reader
    cold       Hypercorn and Quart                                      cold_lane
    stream     until either side ends it
    answer     compressed, or longer than what the socket takes at once
    the end    of a connection with unread input

`topics.front.http.fast_lane` does everything else, and goes on when a task is over.
"""

from __future__ import annotations

import errno
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import trio

from topics.actors.link.event_loop import EventLoop
from topics.engine.access import Scope
from topics.errors import Internal, TopicsError
from topics.formats.api.request_heads import Headers
from topics.formats.api.response_heads import CHUNKED, ResponseHeads, chunk_of
from topics.front.answers import Answer
from topics.front.dispatch import Dispatcher
from topics.front.errors import error_answer
from topics.front.guard import Guard
from topics.front.http.body_reader import BodyReader
from topics.front.http.cold_loader import ColdCall, ColdLoader
from topics.front.http.connection import GONE, HALF_CLOSED, Connection, Connections
from topics.front.http.exchange import Exchange, Exchanges
from topics.front.http.head_reader import AdmittedHead, HeadReader
from topics.front.request import Request

LOG = logging.getLogger("topics.front")

COPY_MAX_BYTES = 32 * 1024  # of an answer that is appended to its head; above, nothing is copied
SWITCHING_PROTOCOLS = 101
NO_CONTENT = 204
UNKNOWN_PER_PASS = 64  # clients without a key in a pass of the loop; each takes about 0.05 ms
EMPTY = (NO_CONTENT, 304)  # have no body, nor its length
CLIENT_GONE = (OSError, trio.ClosedResourceError, trio.BrokenResourceError)


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
    LINGERING = auto()  # for the end of the input, after the last answer
    OVER = auto()


class Poller:
    """Watches the sockets of all clients, and starts the tasks that they need in ``nursery``.
    ``connections`` end when `run` does.

    A socket stays in the epoll of the event loop, level-triggered: waiting for a request costs no
    system call. One whose input nobody reads now leaves it until it is read again; while its
    connection waits for a call it stays, and only a hang-up is watched for.
    """

    def __init__(self, nursery: trio.Nursery, connections: Connections) -> None:
        self._nursery, self._connections = nursery, connections
        self._loop = EventLoop.of_this_run()
        self._is_over = False
        self._pass_began = 0.0  # start of the current pass of the loop
        self._next_ticket = self._served_until = 0  # of clients without a key

    def watch(self, lane: RequestTasks, events: int) -> None:
        """Call its `ready` when one of the ``events`` of epoll happens, or the client is gone, from
        now on. Raises OSError.
        """
        if self._is_over:
            raise OSError(errno.ECANCELED, "the server is over")
        if lane.watched is None:
            self._loop.watch(lane.fd, events, lane.ready)
        else:
            self._loop.change(lane.fd, events)
        lane.watched = events

    def serves_unknown(self, lane: RequestTasks) -> bool:
        """Return whether this pass of the loop serves a client that has shown no key.

        The limit applies only if the server has keys. The input of further clients stays in their
        sockets. A client gets a ticket when it has input, and each pass serves the next tickets.
        The order of epoll would not be fair: a client that is served and has input again by the
        next pass keeps its position before all clients that were not served.
        """
        if not self._connections.has_keys:
            return True
        if self._pass_began != self._loop.lag.pass_began:
            self._pass_began = self._loop.lag.pass_began
            self._served_until = min(self._served_until, self._next_ticket) + UNKNOWN_PER_PASS
        if lane.ticket is None:
            lane.ticket = self._next_ticket
            self._next_ticket += 1
        if lane.ticket >= self._served_until:
            return False
        lane.ticket = None
        return True

    def leave(self, lane: RequestTasks) -> None:
        """Stop calling its `ready`."""
        lane.watched = None
        self._loop.leave(lane.fd)

    def start(self, task: Callable[..., Awaitable[None]], *args: Any) -> bool:
        """Start a task; False when the server is over."""
        if not self._is_over:
            self._nursery.start_soon(task, *args)
        return not self._is_over

    async def run(self) -> None:
        """Sleep until cancelled; then end all connections."""
        try:
            await trio.sleep_forever()
        finally:
            self._is_over = True
            for connection in [*self._connections]:
                connection.end_idle()


class RequestTasks(ABC):
    """One connection. ``watched`` is the poller's: the events that it watches for, None while it
    does not.
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
        "_poller",
        "_request",
        "_result",
        "_scope",
        "_state",
        "_unused_bytes",
        "connection",
        "exchange",
        "fd",
        "ticket",
        "watched",
    )

    def __init__(self, connection: Connection, lanes: Lanes, poller: Poller) -> None:
        self.connection, self._lanes, self._poller = connection, lanes, poller
        self.fd = connection.fd
        self.watched: int | None = None
        self.ticket: int | None = None  # see `Poller.serves_unknown`
        self.exchange = Exchange(connection, lanes.exchanges)
        self._state = State.SERVING
        self._is_serving = False
        self._scope: trio.CancelScope | None = None  # of its task
        # Of the current request
        self._head: AdmittedHead | None = None
        self._request: Request | None = None  # with the rights that its key has now
        self._call: Any = None  # what is asked of a shard, if it may be abandoned
        self._result: Answer | TopicsError | None = None  # came before the operation returned
        self._is_entered = False  # `Guard.enter` has let it in
        self._is_head = False  # a HEAD: its answer has no body
        self._has_answered = False  # at least in part
        self._unused_bytes = 0  # of the last request's body, not received yet
        connection.lane = self

    @abstractmethod
    def ready(self, events: int) -> None:
        """The socket has input, or the client has hung up."""

    @abstractmethod
    def serve(self) -> None:
        """Answer requests until one has to wait, or there is none."""

    def _note_hang_up(self, events: int) -> None:
        connection = self.connection
        if not connection.waits:
            self._poller.leave(self)
        elif events & GONE:
            self._poller.leave(self)
            connection.cut()
        elif events & HALF_CLOSED:
            self._watch(0)
            connection.probe()
        else:
            self._watch(HALF_CLOSED)

    def watch_hang_up(self) -> None:
        """See `topics.front.http.connection.Owner`."""
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
            self._poller.leave(self)

    def _watch(self, events: int) -> None:
        try:
            self._poller.watch(self, events)
        except OSError:  # no memory for it
            self.connection.end_idle()

    def _start(self, function: Callable[..., Awaitable[None]], *args: Any) -> None:
        """Go on in a task."""
        self._state = State.IN_TASK
        if not self._poller.start(self._run, function, *args):
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
                running = function(*args)
                del args  # they may include a body, and the task may last as long as a stream
                await self._attempt(running)
        except BaseException:
            self._over()
            raise
        self._scope = None
        if self.connection.is_ended:
            self._over()
        elif self._state is not State.OVER:
            self.serve()

    async def _attempt(self, running: Awaitable[None]) -> None:
        try:
            await running
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

    def _leave_guard(self) -> None:
        assert self._head is not None, "a request was let in"
        self._is_entered = False
        self._lanes.guard.leave(self._head.request)

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

    # Requests

    async def _read_and_answer(self, head: AdmittedHead) -> None:
        """Serve a request whose body has not arrived or is long."""
        try:
            # No variable of this frame refers to the body, because the frame lasts as long as the
            # request.
            answering = self._answer_in_task(
                head, await self._lanes.bodies.read(self.connection, head)
            )
        except TopicsError as failure:
            self.connection.unread_body = True
            await self._deliver(self._lanes.dispatcher.failed(failure), close=True)
        else:
            await answering

    async def _answer_in_task(self, head: AdmittedHead, body: Any) -> None:
        connection, lanes = self.connection, self._lanes
        self.exchange.at = at = time.monotonic_ns()
        call = ColdCall(head.request, body, at)
        del body  # an operation may wait for a long time after it has sent the body
        try:
            if not head.is_hot:
                await lanes.cold.loaded()
            self._request = call.request = request = lanes.guard.renewed(head.request)
        except TopicsError as failure:
            call.drop_body()
            await self._deliver(lanes.dispatcher.failed(failure), head.close)
            return
        except BaseException:
            call.drop_body()
            raise
        if request.route.waits:
            connection.begin_waiting()
        if head.is_hot:
            answer = await lanes.dispatcher.run(request, call.take_body(), at)
        else:
            answer = await lanes.cold.ask(call)
        connection.waits = False
        if answer.stream is not None:
            await self._send_stream(answer)
            return
        await self._deliver(self._with_room(request, answer), head.close)

    async def _send_stream(self, answer: Answer) -> None:
        """Let a stream use the connection until either side ends the stream.

        The limits and deadlines of requests do not apply to a stream. Its body is chunked. With
        HTTP/1.0, the body ends when the connection is closed.
        """
        connection, stream, head = self.connection, answer.stream, self._head
        assert stream is not None, "only a stream comes here"
        assert head is not None, "a request is under way"
        if self._is_entered:
            self._leave_guard()
        self._has_answered = connection.closing = True
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
        lines = self.exchange.fields(answer.status)
        try:
            headers, body, close = answer.headers, bytes(answer.body), False
            if not is_upgrade:
                connection.is_chunked, close = head.is_1_1, not head.is_1_1
            if connection.is_chunked:
                headers, body = (*headers, CHUNKED), chunk_of(body)
            elif close:
                headers = _without_connection(headers)
            responses = self._lanes.responses
            begun = responses.render_bare(answer.status, headers, lines=lines, close=close)
            await connection.send(begun + body)
        except BaseException:
            answer.unsent()
            raise
        await stream(connection)
        self.exchange.end()

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

    # Answers

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

    def _rendered(self, answer: Answer, close: bool) -> tuple[bytes | memoryview, ...]:
        self._has_answered = True
        lanes, connection, admitted = self._lanes, self.connection, self._head
        if admitted is not None and admitted.request.head is not None:
            admitted.request.head.forget()  # free it now: the client may read the answer slowly
        if close or connection.unread_body or lanes.connections.draining:
            connection.closing = close = True
        body, status, lines = answer.body, answer.status, self.exchange.fields(answer.status)
        if status in EMPTY:
            return (lanes.responses.render_bare(status, answer.headers, lines=lines, close=close),)
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


def _without_connection(headers: Headers) -> Headers:
    return tuple(header for header in headers if header[0] != b"connection")
