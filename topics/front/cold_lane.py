"""The cold lane: Quart-Trio, with one view for the whole table. The same guard and operations as in the fast lane."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import trio
from hypercorn.config import Config
from quart import Response, request
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException

from topics.config import Settings
from topics.errors import Internal, InvalidRequest, NotFound, PayloadTooLarge, TopicsError
from topics.front.answers import Answer, StreamAnswer
from topics.front.backend import Backend, Body
from topics.front.bodies import BodySink, GzipSink
from topics.front.cold_bridge import CONNECTION_KEY
from topics.front.connections import NEVER, Connection, Timings
from topics.front.errors import error_answer
from topics.front.guard import Guard, HeadFields, Request, check_length
from topics.front.http1 import HEAD_MAX_BYTES
from topics.front.operations import Operations
from topics.front.routes import BodyRule

LOG = logging.getLogger("topics.front")

SKIP_MAX_BYTES = 64 * 1024  # of a refused request's body, as in the fast lane
COPY_BYTES = 64 * 1024
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE")

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


def hypercorn_config(settings: Settings, timings: Timings) -> Config:
    """Hypercorn's settings. It opens no socket: the connections come from the fast lane, which also keeps their deadlines."""
    config = Config()
    config.include_server_header = False
    config.accesslog = None
    config.errorlog = LOG
    config.keep_alive_max_requests = 2**62
    config.keep_alive_timeout = timings.idle_s
    config.h11_max_incomplete_size = HEAD_MAX_BYTES + 1024
    config.graceful_timeout = settings.drain_ms / 1000
    return config


class ColdApp:
    """The Quart application, wrapped so that Hypercorn 0.18 and quart-trio 0.12 work together.

    Two defects meet there. Hypercorn puts ``http.disconnect`` while it still handles the last body message; quart-trio then
    cancels its nursery, and with it the step that recycles or closes the connection: so that message is sent shielded.
    And a request body that nobody reads any more fills Hypercorn's queue and blocks that same step: so it is drained meanwhile.
    """

    def __init__(self, app: QuartTrio, guard: Guard, operations: Operations, timings: Timings) -> None:
        self.app = app
        self._timings = timings
        self._guard = guard
        self._operations = operations

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._refuse_websocket(scope, receive, send)
            return

        async def guarded_send(message: Message) -> None:
            if message["type"] == "http.response.body":
                await self._send_body(scope, message, receive, send)
            else:
                await send(message)

        await self.app(scope, receive, guarded_send)  # type: ignore[arg-type]

    async def _send_body(self, scope: Message, message: Message, receive: Receive, send: Send) -> None:
        connection: Connection = scope["state"][CONNECTION_KEY]
        deadline = self._deadline(scope, message)
        if message.get("more_body", False):
            with trio.CancelScope(deadline=deadline):
                await send(message)
            return
        with connection.shielded(deadline):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_drop, receive)
                await send(message)
                nursery.cancel_scope.cancel()

    def _deadline(self, scope: Message, message: Message) -> float:
        """HTTP/2 flow control may hold an answer while the socket moves, which the connection's own deadline does not see."""
        if scope["http_version"].startswith("1"):
            return NEVER
        return trio.current_time() + self._timings.send_s + len(message.get("body", b"")) / self._timings.body_bytes_per_s

    async def _refuse_websocket(self, scope: Message, receive: Receive, send: Send) -> None:
        """No route takes WebSockets; the refusal keeps the guard's order."""
        try:
            self._guard.admit("GET", scope["raw_path"], HeadFields(scope["headers"]), 0)
            raise NotFound("no WebSocket on this path")
        except TopicsError as failure:
            answer = self._operations.failed(failure)
        await receive()
        headers = [(b"content-type", b"application/json"), *answer.headers]
        await send({"type": "websocket.http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "websocket.http.response.body", "body": bytes(answer.body), "more_body": False})


async def _drop(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def make_app(settings: Settings, timings: Timings, backend: Backend, guard: Guard, operations: Operations) -> ColdApp:
    """Build the application."""
    app = QuartTrio(__name__, static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = settings.max_body_bytes
    app.config["BODY_TIMEOUT"] = timings.body_grace_s + settings.max_body_bytes / timings.body_bytes_per_s
    app.config["RESPONSE_TIMEOUT"] = None  # a slow reader may be slow; one that takes nothing is cut off by the connection
    app.url_map.merge_slashes = False
    view = _View(settings, backend, guard, operations)
    for rule in ("/", "/<path:path>"):
        app.add_url_rule(rule, rule, view.answer, methods=METHODS, provide_automatic_options=False)
    app.register_error_handler(HTTPException, view.answer_refusal)
    app.register_error_handler(Exception, view.answer_bug)
    return ColdApp(app, guard, operations, timings)


class _View:
    def __init__(self, settings: Settings, backend: Backend, guard: Guard, operations: Operations) -> None:
        self._settings = settings
        self._backend = backend
        self._guard = guard
        self._operations = operations

    async def answer(self, **_: str) -> Response:
        """Every request. Quart's own reading of the path is not used: the table has its matcher."""
        scope = request.scope
        head = HeadFields(list(scope["headers"]))
        target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        length = None
        try:
            length = _content_length(head)
            admitted = self._guard.admit(request.method, target, head, length)
            self._guard.enter(admitted)
        except TopicsError as failure:
            return self._response(self._operations.failed(failure), read=await _skip_body(length))
        try:
            try:
                body = await self._body(admitted)
            except TopicsError as failure:
                return self._response(self._operations.failed(failure), read=False)
            answer = await self._operations.run(admitted, body, time.monotonic_ns())
            return self._response(answer, read=True) if answer.stream is None else self._streamed(answer.stream)
        finally:
            self._guard.leave(admitted)

    def _streamed(self, stream: StreamAnswer) -> Response:
        """A stream writes to a socket, so it gets one, and what comes out at its other end is the body. For HTTP/2."""
        headers = {name.decode(): value.decode() for name, value in stream.headers if name != b"connection"}
        response = Response(_pieces(stream), headers=headers)
        response.timeout = None
        return response

    async def answer_refusal(self, refusal: HTTPException) -> Response:
        """What Quart or Werkzeug turned down before the view could."""
        code = refusal.code or 500
        failure: TopicsError = InvalidRequest(refusal.name)
        if code in (404, 405):  # Quart's own reading of path and method does not count
            return await self.answer()
        if code == 413:
            failure = PayloadTooLarge(f"the body is larger than {self._settings.max_body_bytes} bytes")
        elif code >= 500:
            failure = Internal("internal error")
        return self._response(error_answer(failure), read=False)

    async def answer_bug(self, bug: Exception) -> Response:
        """An exception that nobody expected."""
        LOG.error("a bug in the cold lane", exc_info=bug)
        return self._response(error_answer(Internal("internal error")), read=False)

    async def _body(self, admitted: Request) -> Body:
        if admitted.route.body is BodyRule.NONE:
            async for _ in request.body:
                pass
            return b""
        with BodySink(
            self._backend,
            admitted.shard,
            inline_bytes=self._settings.inline_bytes,
            max_bytes=self._settings.max_body_bytes,
        ) as sink:
            gzip = GzipSink(sink, self._settings.max_body_bytes) if admitted.gzip_in else None
            with trio.move_on_after(request.body_timeout or NEVER) as patience:
                async for piece in request.body:
                    if piece and admitted.wrong_media is not None:
                        raise admitted.wrong_media
                    await (sink if gzip is None else gzip).write(piece)
            if patience.cancelled_caught:
                raise InvalidRequest("the body did not come in time")
            if gzip is not None:
                gzip.check_end()
            check_length(admitted.route, sink.length)
            return sink.finish()

    def _response(self, answer: Answer, *, read: bool) -> Response:
        """``read``: the request's body was read, so the connection may go on."""
        headers = {name.decode(): value.decode() for name, value in answer.headers}
        if request.http_version.startswith("1") and (not read or self._guard.draining):
            headers["connection"] = "close"
        try:
            return Response(bytes(answer.body), answer.status, headers, content_type="application/json")
        finally:
            answer.done()


@dataclass(frozen=True, slots=True)
class _Pipe:
    sock: socket.socket


async def _pieces(stream: StreamAnswer) -> AsyncGenerator[bytes, None]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        pieces, received = trio.open_memory_channel[bytes](0)

        async def carry() -> None:
            with pieces:
                while True:
                    await trio.lowlevel.wait_readable(ours)
                    piece = ours.recv(COPY_BYTES)
                    if not piece:
                        return
                    await pieces.send(piece)

        async def show() -> None:
            await stream.run(_Pipe(theirs))
            theirs.shutdown(socket.SHUT_WR)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(carry)
            nursery.start_soon(show)
            async for piece in received:
                yield piece
            nursery.cancel_scope.cancel()


def _content_length(head: HeadFields) -> int | None:
    """The declared length: 0 when HTTP/1 declares no body, None when the length shows only at the end."""
    lengths = head.values(b"content-length")
    if lengths:
        if len(lengths) > 1 or not (lengths[0].isdigit() and len(lengths[0]) <= 18):
            raise InvalidRequest("Content-Length must be one decimal number")
        return int(lengths[0])
    chunked = head.values(b"transfer-encoding")
    return None if chunked or not request.http_version.startswith("1") else 0


async def _skip_body(length: int | None) -> bool:
    """Read and drop a short body; False when it is left unread."""
    if length is None and request.http_version.startswith("1"):
        return False
    dropped = length or 0
    if dropped <= SKIP_MAX_BYTES:
        async for piece in request.body:
            dropped += len(piece) if length is None else 0
            if dropped > SKIP_MAX_BYTES:
                break
    return dropped <= SKIP_MAX_BYTES
