"""The cold lane: Quart-Trio behind an unmodified Hypercorn, with one rule for each row of the route
table.

    admitted head, body --> head written here --> H11Protocol --> Quart --> answer --> fast lane

It answers requests that the fast lane has read and admitted, with the same operations. Hypercorn
gets a head that this module writes: method, path as the route table understood it, a fixed Host.
Request and body travel beside it, as a `ColdCall` in the ASGI scope; so does the answer, but for
its body. The fast lane sends it as one of its own, with the same head.

No byte of a client may reach Hypercorn: there is no second reading of one message, no upgrade that
it could take and no error answer of its own. No byte of a head of Hypercorn's reaches a client.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.events import Event, RawData
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.lifespan import Lifespan
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from quart import Response, request
from quart_trio import QuartTrio

from topics.errors import Internal
from topics.front.answers import Answer
from topics.front.dispatch import Dispatcher
from topics.front.errors import error_answer
from topics.front.http.cold_loader import CALL, ColdCall
from topics.front.request import Request
from topics.front.route import Route

LOG = logging.getLogger("topics.front")

AsgiMessage = dict[str, Any]
Receive = Callable[[], Awaitable[AsgiMessage]]
Send = Callable[[AsgiMessage], Awaitable[None]]
App = Callable[[AsgiMessage, Receive, Send], Awaitable[None]]


def hypercorn_config() -> Config:
    """Hypercorn's settings. It opens no socket: the fast lane hands it one request at a time."""
    config = Config()
    config.accesslog = None
    config.errorlog = LOG
    return config


def make_stack(dispatcher: Dispatcher, routes: Sequence[Route]) -> ColdStack:
    """Build everything that answers cold requests."""
    app = ASGIWrapper(make_app(dispatcher, routes))  # type: ignore[arg-type]
    return ColdStack(app, hypercorn_config(), WorkerContext(None))


def make_app(dispatcher: Dispatcher, routes: Sequence[Route]) -> App:
    """Build the application."""
    app = QuartTrio(__name__, static_folder=None)
    app.config["RESPONSE_TIMEOUT"] = None  # the fast lane has the deadlines
    view = _View(dispatcher)
    for route in routes:
        if not route.streams:
            rule = route.path_of("<name>")
            app.add_url_rule(
                rule,
                endpoint=f"{route.name} {rule}",
                view_func=view.answer,
                methods=(route.method,),
                provide_automatic_options=False,
            )
    app.register_error_handler(Exception, view.answer_bug)
    return _shielded(app)


def _shielded(app: QuartTrio) -> App:
    """Let each message of an answer through to its end.

    Hypercorn 0.18 puts ``http.disconnect`` while it still handles the last body message; quart-trio
    0.12 then cancels its nursery, and with it that message. So messages are sent shielded; none of
    them waits for the client.
    """

    async def shielded(scope: AsgiMessage, receive: Receive, send: Send) -> None:
        async def send_whole(message: AsgiMessage) -> None:
            with trio.CancelScope(shield=True):
                await send(message)

        await app(scope, receive, send_whole)  # type: ignore[arg-type]

    return shielded


class _View:
    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    async def answer(self, **_: str) -> Response:
        """Answer any request. The path as Quart has read it is not used."""
        call = _call()
        answer = await self._dispatcher.run(call.request, call.take_body(), call.at)
        return self._response(call, answer)

    async def answer_bug(self, bug: Exception) -> Response:
        """Answer after an exception that `Dispatcher.run` did not see."""
        LOG.error("unexpected server error: cold lane", exc_info=bug)
        return self._response(_call(), error_answer(Internal("internal error")))

    def _response(self, call: ColdCall, answer: Answer) -> Response:
        assert answer.stream is None, "streams are answered by the fast lane"
        call.answer = answer
        try:
            return Response(bytes(answer.body), answer.status)
        finally:
            answer.done()


def _call() -> ColdCall:
    call: ColdCall = request.scope["state"][CALL]
    return call


@dataclass(frozen=True, slots=True)
class ColdStack:
    """What Hypercorn needs to answer a request."""

    app: ASGIWrapper
    config: Config
    context: WorkerContext

    async def ask(self, call: ColdCall) -> Answer:
        """The answer, whose body lives in no shared memory. Nothing here waits for the client."""
        sent: list[bytes] = []

        async def take(event: Event) -> None:
            if isinstance(event, RawData):
                sent.append(event.data)

        try:
            async with TaskGroup() as group:
                protocol = H11Protocol(
                    self.app,
                    self.config,
                    self.context,
                    group,
                    connection_state=ConnectionState({CALL: call}),
                    ssl=False,
                    client=None,
                    server=None,
                    send=take,
                )
                await protocol.initiate()
                await protocol.handle(RawData(_head_of(call.request)))
        except BaseException:
            if call.answer is not None:
                call.answer.unsent()
            raise
        finally:
            call.drop_body()
        answer, wire = call.answer, b"".join(sent)
        assert answer is not None, "Hypercorn answered without asking the application"
        answer.body = memoryview(wire)[wire.index(b"\r\n\r\n") + 4 :]
        return answer

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """The life of the application: requests are for the time within."""
        lifespan = Lifespan(self.app, self.config, {})
        async with trio.open_nursery() as nursery:
            await nursery.start(lifespan.handle_lifespan)
            await lifespan.wait_for_startup()
            yield
            await lifespan.wait_for_shutdown()
            nursery.cancel_scope.cancel()


def _head_of(request: Request) -> bytes:
    route = request.route  # its method: that of a HEAD is GET, whose length the answer tells
    path = route.path_of(request.topic or request.router)
    return f"{route.method} {path} HTTP/1.1\r\nhost: topics\r\n\r\n".encode("ascii")
