"""The fast lane: reads, admits and answers the requests of one connection, in their order.

                 .--------------------- answered <-------------------.
                 v                                                    |
    READING --> SERVING --> head --> body --> operation --> CALLING --+--> sent
       ^           |                            '--------> IN_TASK ---'
       '- no input-'

    head   head_reader    body   request_stream, body_reader    operation   dispatch

What a request usually needs is a plain function: a short body, an operation that asks a shard, an
answer that the socket takes at once. All else is a task: bodies that are long, cold requests
(cold_lane), streams, slow clients, the end of a connection with unread input. Both lanes accept
exactly the same bytes: heads and bodies are read here, whatever the lane.

A client that hangs up while its connection ``waits`` is noticed in every state. At the end of the
connection a call under way is abandoned and a task cancelled. Nothing but a cancellation escapes.
"""

from __future__ import annotations

import logging
import select
import time
from types import CoroutineType

import trio

from topics.engine.access import ANYONE
from topics.errors import Internal, InvalidRequest, TopicsError
from topics.front.answers import Answer
from topics.front.dispatch import COMPRESS_MIN_BYTES
from topics.front.errors import error_answer
from topics.front.http.connection import HALF_CLOSED, NEVER, RECV_BYTES
from topics.front.http.head_reader import AdmittedHead, PreflightHead, RefusedHead
from topics.front.http.request_tasks import (
    CLIENT_GONE,
    COPY_MAX_BYTES,
    NO_CONTENT,
    RequestTasks,
    State,
)
from topics.front.request import Request

LOG = logging.getLogger("topics.front")

REQUESTS_PER_TURN = 8  # of one connection, if they came together; one takes 0.1 ms
SHORT_MAX_BYTES = RECV_BYTES  # of a body that is waited for without a task
SKIP_MAX_BYTES = (
    64 * 1024
)  # an unused body of this size is read; after a longer one the connection closes
INPUT = select.EPOLLIN | HALF_CLOSED


class FastLane(RequestTasks):
    """One connection's requests."""

    __slots__ = ()

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
        if self._state is not State.READING:
            if self._state is State.LINGERING:
                self._drop_input()
            else:
                self._note_hang_up(events)
            return
        if connection.principal is ANYONE and not self._poller.serves_unknown(self):
            return
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
        if self._head is not None or self._unused_bytes:  # the data is part of a body
            connection.earned(len(data))
        self.serve()

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
        self._rest()

    def _rest(self) -> None:
        """Wait for input or close, because no further request can be served now."""
        connection = self.connection
        if connection.is_ended and self._state is not State.IN_TASK:
            self._over()
        elif connection.buffer or connection.part is not None or connection.is_counted:
            connection.count_unread()

    def _end_after_answer(self) -> None:
        connection = self.connection
        if self._unused_bytes:
            connection.unread_body = True
        if connection.must_linger:
            self._linger()
        else:
            self._over()

    def _linger(self) -> None:
        """Read and drop input, because the last answer was sent. Raise `OSError`."""
        self._state = State.LINGERING
        self.connection.linger()
        self._watch(INPUT)

    def _drop_input(self) -> None:
        try:
            is_open = self.connection.drop_input()
        except OSError:
            is_open = False
        if not is_open:
            self._over()

    def _next(self) -> bool:
        """Answer the next request; False when that has to wait."""
        if self._head is not None:
            return self._with_body(self._head)
        if self._unused_bytes and not self._pass_over():
            return False
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
        exchange = self.exchange
        exchange.head, exchange.is_open, exchange.at = found, True, time.monotonic_ns()
        if isinstance(found, AdmittedHead):
            return self._enter(found)
        return self._answer_unadmitted(found)

    def _enter(self, head: AdmittedHead) -> bool:
        """Begin a request whose head was admitted."""
        request, connection, guard = head.request, self.connection, self._lanes.guard
        self._is_head = request.method == "HEAD"
        has_key = request.principal is not ANYONE
        if has_key or not request.route.is_open:
            connection.quiet_since, connection.principal = NEVER, request.principal
        if has_key or guard.drain.is_draining:
            try:
                guard.enter(request)
            except TopicsError as failure:
                answer = self._lanes.dispatcher.failed(failure)
                return self._refuse(answer, head.length, head.close, head.expects_continue)
            self._is_entered = has_key  # requests without a key are not counted
        self._head, self._request = head, request
        if head.uses_body:
            return self._with_body(head)
        if head.length != 0:
            self._leave_unused(head.length, head.expects_continue)
        return self._answer(head, b"")

    def _with_body(self, head: AdmittedHead) -> bool:
        """Serve a request whose route uses the body."""
        if head.plain and (length := head.length) is not None and length <= SHORT_MAX_BYTES:
            body = self.connection.take(length) if length else b""
            if body is None:
                return self._wait_for_body(head)
            return self._answer(head, body)
        self._start(self._read_and_answer, head)
        return False

    def _wait_for_head(self) -> None:
        connection = self.connection
        connections = connection.connections
        if connection.part is not None or connection.pos < len(connection.buffer):
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
        self._state = State.READING
        if self.watched != INPUT:
            self._watch(INPUT)

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
        if connection.deadline != NEVER:  # the connection has waited for the body
            connection.deadline, self.exchange.at = NEVER, time.monotonic_ns()
        if not (head.is_hot and request.route.is_plain):
            self._start(self._answer_in_task, head, body)
            return False
        if request.principal is not ANYONE:
            try:
                self._request = request = lanes.guard.renewed(request)
            except TopicsError as failure:
                return self._send(lanes.dispatcher.failed(failure), close=head.close)
        self._state, at = State.CALLING, self.exchange.at
        if request.route.waits:
            connection.begin_waiting()
        try:
            call = lanes.dispatcher.operations[request.route](request, body, at, self._answered)
        except TopicsError as refusal:
            self._result = refusal
        except Exception:
            self._result = lanes.dispatcher.unexpected(request)
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
        self._rest()

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
        """Answer without using the body."""
        self._leave_unused(length, expects_continue)
        return self._send(answer, close=close)

    def _leave_unused(self, length: int | None, expects_continue: bool) -> None:
        """Decide what happens to the unused body of this request.

        A short body is skipped after the answer. Otherwise the connection is closed.
        """
        connection = self.connection
        if length is None or length > SKIP_MAX_BYTES or (expects_continue and length):
            connection.unread_body = True
        else:
            self._unused_bytes = connection.skip(length)

    def _pass_over(self) -> bool:
        """Drop received bytes of an unused body after the answer. Return whether it is complete."""
        connection = self.connection
        self._unused_bytes = left = connection.skip(self._unused_bytes)
        if left:
            if connection.deadline == NEVER:
                connection.begin_body()
            connection.idle = (
                True  # the answer was sent, so the connection may be closed at any time
            )
            self._read()
        return not left

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
                self._linger()
        except CLIENT_GONE:
            self._over()
