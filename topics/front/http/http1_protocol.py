"""HTTP/1.1 protocol: the state machine of one connection, which serves its requests in order.

                 .--------------------- answered <-------------------.
                 v                                                    |
    READING --> SERVING --> head --> body --> operation --> CALLING --+--> sent
       ^           |                            '--------> IN_TASK ---'
       '- no input-'

    head   head_reader    body   request_stream, body_reader    operation   dispatch

Plain functions serve a typical request: a short body, an operation that calls a shard, a response
that the socket accepts immediately. All other cases run in a task:

    body       chunked, gzipped, or longer than `SHORT_MAX_BYTES`    body_reader
    admin      all requests of the admin plane                       admin_plane
    stream     until either side closes it
    response   compressed, or longer than the socket accepts immediately

After a task has ended, `serve` continues with the next request. The last response of a connection
with unread input is followed by LINGERING.

In every state, the protocol notices a client that hangs up while `Connection.waits` is true. When
the connection ends (state CLOSED), a call in flight is abandoned and a task is cancelled. Except
for a cancellation, no exception leaves this module.
"""

from __future__ import annotations

import select
import time
from collections.abc import Awaitable, Callable, Coroutine
from enum import Enum, auto
from types import CoroutineType
from typing import Any

import structlog
import trio

from topics.actors.rpc.session import discard
from topics.engine.access import ANYONE
from topics.errors import Internal, InvalidRequest, TopicsError
from topics.front.answers import Answer
from topics.front.dispatch import COMPRESS_MIN_BYTES
from topics.front.error_answers import error_answer
from topics.front.http.admin_plane import AdminCall
from topics.front.http.connection import HALF_CLOSED, HANG_UP, NEVER, RECV_BYTES, Connection
from topics.front.http.exchange import COPY_MAX_BYTES, NO_CONTENT, Exchange, HttpParts
from topics.front.http.head_reader import AdmittedHead, PreflightHead, RefusedHead
from topics.front.http.poller import Poller
from topics.front.request import Request

log = structlog.get_logger()

REQUESTS_PER_ITERATION = 8  # pipelined requests of one connection; each takes 0.1 ms
SHORT_MAX_BYTES = RECV_BYTES  # maximum length of a body that is received without a task
# Maximum length of an unused body that is read and discarded; after a longer one, the connection
# closes.
SKIP_MAX_BYTES = 64 * 1024
INPUT = select.EPOLLIN | HALF_CLOSED
CONNECTION_ERRORS = (OSError, trio.ClosedResourceError, trio.BrokenResourceError)


class State(Enum):
    """The state of a connection."""

    READING = auto()  # waiting for input: the poller watches the socket
    SERVING = auto()  # serving requests
    CALLING = auto()  # waiting for a shard
    IN_TASK = auto()  # a task is serving the current request
    LINGERING = auto()  # waiting for the end of the input, after the last response
    CLOSED = auto()  # the connection has ended


class Http1Protocol:
    """The protocol of one connection. ``watched`` and ``ticket`` belong to the poller."""

    __slots__ = (
        "__weakref__",
        "_call",
        "_head",
        "_is_serving",
        "_parts",
        "_poller",
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

    def __init__(self, connection: Connection, parts: HttpParts, poller: Poller) -> None:
        self.connection, self._parts, self._poller = connection, parts, poller
        self.fd = connection.fd
        # The events that the poller watches for this socket, or None if it watches none. Only the
        # poller writes it.
        self.watched: int | None = None
        self.ticket: int | None = None
        self.exchange = Exchange(connection, parts)
        # A connection begins in SERVING, because its first bytes may have arrived already.
        self._state = State.SERVING
        # True while `serve` or `_answered` is on the stack. If a result or the end of the
        # connection arrives during this time, that caller handles it, so that no request is served
        # recursively.
        self._is_serving = False
        self._scope: trio.CancelScope | None = None  # the cancel scope of the connection's task
        # The current request. `_head` is set from the admission of a head until its response is
        # sent. In the state READING, a head means that the connection waits for its body.
        self._head: AdmittedHead | None = None
        self._call: Any = None  # the call in flight to a shard, if it can be abandoned
        # A result that arrived before the operation returned.
        self._result: Answer | TopicsError | None = None
        # Bytes of the last request's body that have not been received. If the number is above 0,
        # the next input belongs to this body and must not be parsed as a head.
        self._unused_bytes = 0
        connection.owner = self

    # Events

    def begin(self) -> None:
        """Start to serve an accepted client."""
        self._parts.connections.request_count += 1
        self.serve()

    def ready(self, events: int) -> None:
        """Handle input or a hang-up of the client.

        Events that the poller would report repeatedly without any effect are no longer watched.
        """
        connection = self.connection
        # In the other states, input stays in the socket, so that TCP flow control slows down a
        # client that sends too fast.
        if self._state is not State.READING:
            if self._state is State.LINGERING:
                self._drop_input()
            else:
                self._note_hang_up(events)
            return
        # The poller may postpone clients without a key (`decisions/0077`).
        if connection.principal is ANYONE and not self._poller.serves_keyless(self):
            return
        try:
            # The end of the input and a socket error have the same effect: nothing can be served.
            data = connection.sock.recv(RECV_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close()
            return
        connection.received_bytes += len(data)
        connection.receive(data)
        # The received bytes extend the deadline of an incomplete body. A slow client can meet the
        # deadline, but a client that sends nothing cannot.
        if self._head is not None or self._unused_bytes:  # the data is part of a body
            connection.extend_body_deadline(len(data))
        self.serve()

    def _note_hang_up(self, events: int) -> None:
        """Handle an event while no input is read, in the states CALLING and IN_TASK."""
        connection = self.connection
        if not connection.waits:
            # Input of later requests stays in the socket until the current response was sent.
            self._poller.unwatch(self)
        elif events & HANG_UP:
            self._poller.unwatch(self)
            connection.abort()
        elif events & HALF_CLOSED:
            # The reaction of the client's kernel to the probe is reported even if no events are
            # watched.
            self._watch(0)
            connection.probe()
        else:
            # There is only unread input, which epoll would report repeatedly.
            self._watch(HALF_CLOSED)

    def watch_hang_up(self) -> None:
        """Implement `topics.front.http.connection.Owner`."""
        self._watch(HALF_CLOSED)

    def end(self) -> None:
        """Implement `topics.front.http.connection.Owner`."""
        # A task owns the connection, and closes it when it is cancelled. Otherwise close here,
        # unless a caller on the stack does it.
        if self._state is State.IN_TASK:
            if self._scope is not None:
                self._scope.cancel()
        elif not self._is_serving:
            self._close()

    def unwatch(self) -> None:
        """Stop watching the socket before it is closed, because a new socket may reuse its
        descriptor immediately.
        """
        if self.watched is not None:
            self._poller.unwatch(self)

    def _watch(self, events: int) -> None:
        """Watch the socket for ``events``. Close the connection if that fails."""
        try:
            self._poller.watch(self, events)
        except OSError:  # no memory for the epoll entry
            self.connection.end_idle()

    # Requests

    def serve(self) -> None:
        """Serve buffered requests until one must wait or the buffer has no complete request."""
        self._state, self._is_serving = State.SERVING, True
        connection = self.connection
        try:
            # Serve a bounded number of pipelined requests, so that one client cannot use the
            # entire iteration.
            for _ in range(REQUESTS_PER_ITERATION):
                if connection.closing:
                    self._end_after_answer()
                    break
                if not self._next():
                    break
            else:
                self._start(trio.lowlevel.checkpoint)  # let other connections run first
        except CONNECTION_ERRORS:
            self._close()
        except Exception:
            self._send_internal_error()
        finally:
            self._is_serving = False
        self._wait_or_close()

    def _wait_or_close(self) -> None:
        """Wait for input or close, because no further request can be served now."""
        connection = self.connection
        # The connection was closed by a request, or its end was requested while it was being
        # served.
        if connection.is_ended and self._state is not State.IN_TASK:
            self._close()
        elif connection.buffer or connection.part is not None or connection.is_counted:
            connection.count_unread()

    def _next(self) -> bool:
        """Serve the next request. Return False if it must wait."""
        # The head was read before, and the request has waited for its body.
        if self._head is not None:
            return self._with_body(self._head)
        # The last request had a body that its route did not use. The buffer begins with the bytes
        # of this body.
        if self._unused_bytes and not self._discard_body():
            return False
        connection = self.connection
        try:
            raw = connection.next_head()
            if raw is None:
                self._wait_for_head()
                return False
            # The head is complete. From now on the connection is not idle and has no deadline.
            connection.idle, connection.deadline = False, NEVER
            found, connection.trace = self._parts.heads.decide(raw)
        except InvalidRequest as failure:
            # The end of this request cannot be determined, so the connection closes after the
            # response.
            self.exchange.begin_unread()
            connection.unread_body = True
            return self._send(error_answer(failure), close=True)
        self.exchange.begin(found)
        if isinstance(found, AdmittedHead):
            return self._begin_request(found)
        return self._answer_unadmitted(found)

    def _begin_request(self, head: AdmittedHead) -> bool:
        """Start a request whose head was admitted. Return whether its response was sent."""
        request, connection = head.request, self.connection
        if request.principal is not ANYONE or not request.route.is_open:
            connection.inactive_since, connection.principal = NEVER, request.principal
        try:
            # Count the request in flight for its key. The decision about the head, which may be
            # cached, does not include this.
            self.exchange.admit(request)
        except TopicsError as failure:
            answer = self._parts.dispatcher.failed(failure)
            return self._refuse(answer, head.length, head.close, head.expects_continue)
        self._head = head
        if head.uses_body:
            return self._with_body(head)
        # The route ignores the body. Respond immediately, and skip the bytes of the body
        # afterwards.
        if head.length != 0:
            self._skip_unused_body(head.length, head.expects_continue)
        return self._answer(head, b"")

    def _with_body(self, head: AdmittedHead) -> bool:
        """Serve a request whose route uses the body. Return whether its response was sent."""
        # A short body with a length is taken from the buffer. All others need a task.
        if head.plain and (length := head.length) is not None and length <= SHORT_MAX_BYTES:
            body = self.connection.take(length) if length else b""
            if body is None:
                return self._wait_for_body(head)
            return self._answer(head, body)
        self._start(self._read_and_answer, head)
        return False

    def _wait_for_head(self) -> None:
        """Wait for the next head, or for the rest of an incomplete head.

        Set the deadline: `Timings.head_s` for an incomplete head, otherwise ``idle_s`` or
        ``late_s``. During the drain, close an idle connection without input instead.
        """
        connection = self.connection
        connections = connection.connections
        # The buffer begins with an incomplete head. Its deadline runs from the first byte, so that
        # a client cannot keep the connection by sending single bytes.
        if connection.part is not None or connection.pos < len(connection.buffer):
            if connection.idle or connection.deadline == NEVER:
                connection.deadline = connections.now + connection.timings.head_s
            connection.idle = False
        elif connections.draining and not connection.is_late and not connection.has_input:
            self._close()
            return
        else:
            # The buffer contains a token, so it must not be kept.
            connection.buffer, connection.pos = b"", 0
            timings = connection.timings
            timeout_s = timings.late_s if connection.is_late else timings.idle_s
            connection.idle, connection.deadline = True, connection.inactive_since + timeout_s
        self._state = State.READING
        if self.watched != INPUT:
            self._watch(INPUT)

    def _wait_for_body(self, head: AdmittedHead) -> bool:
        """Wait for the rest of a short body. Return False, because no response was sent."""
        connection = self.connection
        # Later waits for the same body keep the deadline of the first one.
        if connection.deadline == NEVER:  # the first wait for this body
            # The task sends the interim response 100 (Continue).
            if head.expects_continue:
                self._start(self._read_and_answer, head)
                return False
            connection.begin_body()
        self._read()
        return False

    def _read(self) -> None:
        """Watch the socket for input."""
        self._state = State.READING
        if self.watched != INPUT:
            self._watch(INPUT)

    # Responses of the data plane

    def _answer(self, head: AdmittedHead, body: bytes) -> bool:
        """Serve a request with its complete, short body. Return whether its response was sent."""
        connection, exchange = self.connection, self.exchange
        if connection.deadline != NEVER:  # the connection has waited for the body
            connection.deadline, exchange.at = NEVER, time.monotonic_ns()
        # A view of the admin plane may wait, and is imported on first use. It always runs in a
        # task.
        if head.is_admin:
            self._start(self._run_admin, head, body)
            return False
        # The key may have changed while the body arrived.
        try:
            request = exchange.renew()
        except TopicsError as failure:
            return self._send(self._parts.dispatcher.failed(failure), close=head.close)
        # Set the state before the call, because the shard may reply before the operation returns.
        self._state = State.CALLING
        if request.route.waits:
            connection.begin_waiting()
        dispatcher = self._parts.dispatcher
        try:
            operation = dispatcher.operations[request.route]
            call = operation(request, body, exchange.at, self._answered)
        except TopicsError as refusal:
            self._result = refusal
        except Exception:
            self._result = dispatcher.unexpected(request)
        # Take the result, so that it is sent only once. It is None if it arrives later.
        result, self._result = self._result, None
        if result is not None:
            self._state, connection.waits = State.SERVING, False
            return self._finish(head, request, result)
        # There is no result yet: the operation continues in a task, or the shard will call
        # `_answered`.
        if type(call) is CoroutineType:
            self._start(self._await_answer, head, call)
        else:
            self._call = call
        return False

    def _answered(self, result: Answer | TopicsError) -> None:
        """Handle the result of an operation, which may arrive before the operation returns."""
        if self._is_serving:
            # The operation has not returned yet. `_answer` sends the result.
            self._result = result
            return
        head, request = self._head, self.exchange.request
        # The connection was closed, or its task responds. The operation was executed nevertheless.
        # `unsent` undoes effects that only the client would have used, such as a lease.
        if self._state is not State.CALLING or head is None or request is None:
            if isinstance(result, Answer):  # the connection has ended
                result.unsent()
                result.done()
            return
        self._call, self.connection.waits = None, False
        self._state, self._is_serving = State.SERVING, True
        try:
            is_sent = self._finish(head, request, result)
        except CONNECTION_ERRORS:
            self._close()
        except Exception:
            self._send_internal_error()
        else:
            connection = self.connection
            if is_sent:
                # Call `serve` only if there is work other than waiting for a head.
                if (
                    connection.closing
                    or self._unused_bytes
                    or connection.pos < len(connection.buffer)
                ):
                    self.serve()
                else:
                    self._wait_for_head()
        finally:
            self._is_serving = False
        self._wait_or_close()

    def _finish(self, head: AdmittedHead, request: Request, result: Answer | TopicsError) -> bool:
        """Send the result of an operation that needed no task. Return whether it was sent."""
        dispatcher = self._parts.dispatcher
        # Timing, compression and errors need the dispatcher. A plain answer is sent unchanged.
        if request.is_timed or request.gzip_out or not isinstance(result, Answer):
            answer = dispatcher.finished(request, result, self.exchange.at)
            is_long = len(answer.body) >= COMPRESS_MIN_BYTES
            if request.gzip_out and is_long and answer.stream is None:
                self._start(self._compress_and_send, head, answer)
                return False
        else:
            answer = result
        if answer.stream is not None:
            self._start(self._begin_stream, head, answer)
            return False
        # A long response counts toward the memory that the server holds for clients
        # (`decisions/0054`).
        if len(answer.body) > COPY_MAX_BYTES:
            answer = self.exchange.within_limits(answer)
        return self._send(answer, close=head.close)

    # Requests that run no operation

    def _answer_unadmitted(self, found: RefusedHead | PreflightHead) -> bool:
        """Respond to a head that was refused, or to a preflight."""
        head = found.head
        if isinstance(found, RefusedHead):
            answer = self._parts.dispatcher.failed(found.failure)
        else:
            answer = Answer(NO_CONTENT, headers=found.allowed)
        return self._refuse(answer, head.length, head.close, head.expects_continue)

    def _refuse(
        self, answer: Answer, length: int | None, close: bool, expects_continue: bool
    ) -> bool:
        """Send a response without using the request body."""
        self._skip_unused_body(length, expects_continue)
        return self._send(answer, close=close)

    def _skip_unused_body(self, length: int | None, expects_continue: bool) -> None:
        """Prepare for the end of this request, whose body is not used.

        A short body is skipped after the response. After a long one, the connection is closed.
        """
        connection = self.connection
        # The length is unknown, or reading the body would cost more than a new connection. With
        # ``Expect: 100-continue``, a refused client must not send the body.
        if length is None or length > SKIP_MAX_BYTES or (expects_continue and length):
            connection.unread_body = True
        else:
            self._unused_bytes = connection.skip(length)

    def _discard_body(self) -> bool:
        """Discard received bytes of an unused body, after the response.

        Return whether all were discarded.
        """
        connection = self.connection
        self._unused_bytes = left = connection.skip(self._unused_bytes)
        if left:
            if connection.deadline == NEVER:
                connection.begin_body()
            # The response was sent, so the connection may be closed at any time.
            connection.idle = True
            self._read()
        return not left

    # Sending

    def _send(self, answer: Answer, *, close: bool) -> bool:
        """Send a response. Return whether the socket has accepted all of it."""
        # The client has hung up, and an undelivered response must be reported. A task checks
        # whether the client is still reading.
        if answer.on_unsent is not None and not self.connection.is_connected:
            self._start(self._deliver, answer, close)
            return False
        # Most responses fit into the socket's buffer. Only the rest needs a task that waits.
        unsent, length = self.exchange.send_now(answer, close=close)
        if unsent:
            self._start(self._send_remaining, answer, unsent, length)
            return False
        if answer.reply is not None:
            answer.done()
        self._sent()
        return True

    def _sent(self) -> None:
        """Finish the current request. Called when its response was sent."""
        self.exchange.end()
        connection, connections = self.connection, self._parts.connections
        self._head = None
        connections.request_count += 1
        connection.inactive_since = connections.now

    def _send_internal_error(self) -> None:
        """Send a 500 response after an unexpected exception.

        Call this in an ``except`` block.
        """
        log.exception("connection failed")
        # A part of the response may have been sent. A second response would be read as its body.
        if self.exchange.has_answered:
            self._close()
            return
        try:
            if self._send(self._internal_error(), close=True):
                self._linger()
        except CONNECTION_ERRORS:
            self._close()

    def _internal_error(self) -> Answer:
        """Return a 500 response, and let the connection close after it."""
        self.exchange.begin_unread()
        self.connection.unread_body = True
        return error_answer(Internal("internal error"))

    # The end of the connection

    def _end_after_answer(self) -> None:
        """Close the connection after its last response, after lingering if necessary."""
        connection = self.connection
        if self._unused_bytes:
            connection.unread_body = True
        # Closing with unread input makes the kernel send a reset, which may discard the response
        # before the client has read it.
        if connection.must_linger:
            self._linger()
        else:
            self._close()

    def _linger(self) -> None:
        """Start to read and discard input, because the last response was sent. Raise `OSError`."""
        self._state = State.LINGERING
        self.connection.linger()
        self._watch(INPUT)

    def _drop_input(self) -> None:
        """Discard input while lingering. Close the connection at the end of the input."""
        try:
            is_open = self.connection.discard_input()
        except OSError:
            is_open = False
        if not is_open:
            self._close()

    def _close(self) -> None:
        """Close the connection and release its resources. Safe to call twice."""
        if self._state is State.CLOSED:
            return
        # Set the state first, so that the calls below cannot enter this function again.
        self._state = State.CLOSED
        call, self._call = self._call, None
        # The client no longer waits for the shard's reply.
        if call is not None:
            call.abandon()
        self.exchange.stop_counting()
        self.connection.close()
        self.exchange.end(is_complete=False)
        self._parts.connections.remove(self.connection)
        self._parts.on_end()

    # Tasks

    def _start(self, function: Callable[..., Awaitable[None]], *args: Any) -> None:
        """Continue in a task.

        If the server has already stopped, release the arguments and close the connection.
        """
        self._state = State.IN_TASK
        # The poller refuses tasks after the server has stopped.
        if not self._poller.start(self._run, function, *args):
            self._state = State.SERVING
            for arg in args:
                if isinstance(arg, Answer):
                    arg.unsent()
                    arg.done()
                elif isinstance(arg, Coroutine):
                    arg.close()
            self._close()

    async def _run(self, function: Callable[..., Awaitable[None]], *args: Any) -> None:
        """Run a function as the task of this connection, then serve the next requests."""
        try:
            with trio.CancelScope() as self._scope:
                # The connection may have ended before the task ran.
                if self.connection.is_ended:
                    self._scope.cancel()
                running = function(*args)
                del args  # they may include a body, and the task of a stream may last for days
                await self._attempt(running)
        except BaseException:
            self._close()
            raise
        self._scope = None
        if self.connection.is_ended:
            self._close()
        elif self._state is not State.CLOSED:
            # Serve the requests that arrived while the task ran.
            self.serve()

    async def _attempt(self, running: Awaitable[None]) -> None:
        """Await the work of a task. If it fails, send a 500 response or close the connection."""
        try:
            await running
        except* CONNECTION_ERRORS:
            self._close()
        except* Exception:
            log.exception("connection failed")
            if self.exchange.has_answered:
                self._close()
            else:
                await self._send_internal_error_in_task()

    async def _send_internal_error_in_task(self) -> None:
        try:
            await self._deliver(self._internal_error(), close=True)
        except CONNECTION_ERRORS:
            self._close()

    async def _read_and_answer(self, head: AdmittedHead) -> None:
        """Serve a request whose body is long or has not fully arrived."""
        try:
            # No variable of this frame refers to the body, because the frame exists until the
            # request has ended.
            answering = (self._run_admin if head.is_admin else self._run_operation)(
                head, await self._parts.bodies.read(self.connection, head)
            )
        except TopicsError as failure:
            self.connection.unread_body = True
            await self._deliver(self._parts.dispatcher.failed(failure), close=True)
        else:
            self.exchange.at = time.monotonic_ns()
            await answering

    async def _run_operation(self, head: AdmittedHead, body: Any) -> None:
        """Run an operation of the data plane in a task, and send its response."""
        exchange, dispatcher = self.exchange, self._parts.dispatcher
        try:
            request = exchange.renew()
        except TopicsError as failure:
            discard(body)
            await self._deliver(dispatcher.failed(failure), head.close)
            return
        if request.route.waits:
            self.connection.begin_waiting()
        running = dispatcher.run(request, body, exchange.at)
        del body  # release it, because the operation may wait for a long time after sending it
        await self._complete(head, await running)

    async def _complete(self, head: AdmittedHead, answer: Answer) -> None:
        """Send the response of an operation that may have waited, or run its stream."""
        self.connection.waits = False
        if answer.stream is not None:
            await self._begin_stream(head, answer)
        else:
            await self._deliver(self.exchange.within_limits(answer), head.close)

    async def _run_admin(self, head: AdmittedHead, body: Any) -> None:
        """Run a view of the admin plane in a task, and send its response."""
        exchange, dispatcher, admin = self.exchange, self._parts.dispatcher, self._parts.admin
        exchange.at = at = time.monotonic_ns()
        call = AdminCall(head.request, body, at)
        del body
        try:
            # The admin plane is imported by its first request.
            await admin.loaded()
            call.request = exchange.renew()
        except TopicsError as failure:
            call.drop_body()
            await self._deliver(dispatcher.failed(failure), head.close)
            return
        except BaseException:
            call.drop_body()
            raise
        answer = await dispatcher.awaited(call.request, admin.call(call), at)
        await self._deliver(exchange.within_limits(answer), head.close)

    async def _await_answer(self, head: AdmittedHead, call: Coroutine[Any, Any, Answer]) -> None:
        """Wait for an operation of the data plane that is a coroutine, such as one that opens a
        stream.
        """
        exchange = self.exchange
        try:
            request = exchange.renew()  # the key may have been removed before this task ran
        except TopicsError as failure:
            call.close()
            await self._deliver(self._parts.dispatcher.failed(failure), head.close)
            return
        await self._complete(head, await self._parts.dispatcher.awaited(request, call, exchange.at))

    async def _begin_stream(self, head: AdmittedHead, answer: Answer) -> None:
        """Run a stream on the connection until it ends, unless its key was removed or has lost its
        rights.
        """
        try:
            self.exchange.renew()
        except TopicsError as failure:
            answer.unsent()
            await self._deliver(self._parts.dispatcher.failed(failure), head.close)
        else:
            await self.exchange.send_stream(answer)
            self.exchange.end()

    async def _compress_and_send(self, head: AdmittedHead, answer: Answer) -> None:
        """Compress a response and send it."""
        exchange, request = self.exchange, self.exchange.request
        assert request is not None, "a request is in progress"
        packed = await self._parts.dispatcher.compressed(request, answer, exchange.at)
        await self._deliver(exchange.within_limits(packed), head.close)

    async def _deliver(self, answer: Answer, close: bool) -> None:
        """Send a response and wait until the socket has accepted all of it."""
        await self.exchange.send(answer, close=close)
        self._sent()

    async def _send_remaining(self, answer: Answer, unsent: Any, length: int) -> None:
        """Send the rest of a response after the socket has accepted its beginning."""
        await self.exchange.send_remaining(answer, unsent, length)
        self._sent()
