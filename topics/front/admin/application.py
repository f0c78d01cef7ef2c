"""Application of the admin plane: Quart-Trio behind an unmodified Hypercorn, with one URL rule for
each route.

    admitted head, body --> head written here --> H11Protocol --> Quart --> view
                 response <-- response body, status and header fields <--------'

It serves requests that the data plane has read and admitted. Hypercorn gets a head that this module
writes: method, path as matched by the route table, and a fixed Host. The request and its body are
passed separately, as an `AdminCall` in the ASGI scope. The data plane sends the response with its
own head.

No bytes from a client may reach Hypercorn. So no message is parsed twice, and Hypercorn never gets
an upgrade or a malformed request, to which it would respond itself. No part of a head that
Hypercorn writes may reach a client.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import structlog
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.events import Event, RawData
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.lifespan import Lifespan
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from quart import Response
from quart_trio import QuartTrio

from topics.errors import Internal, TopicsError
from topics.front.admin import leases, metrics, routers, topic_list
from topics.front.admin.views import CALL, CONTEXT, View, admitted, answer_of, response
from topics.front.answers import Answer
from topics.front.data.context import RouteContext
from topics.front.dispatch import Dispatcher
from topics.front.error_answers import error_answer
from topics.front.http.admin_plane import AdminCall
from topics.front.request import Request
from topics.front.route import ROUTER, TOPIC, Route

log = structlog.get_logger()

VIEWS: Mapping[Route, View] = {**topic_list.VIEWS, **leases.VIEWS, **routers.VIEWS, **metrics.VIEWS}

AsgiMessage = dict[str, Any]
Receive = Callable[[], Awaitable[AsgiMessage]]
Send = Callable[[AsgiMessage], Awaitable[None]]
App = Callable[[AsgiMessage, Receive, Send], Awaitable[None]]


def hypercorn_config() -> Config:
    """Return Hypercorn's settings.

    Hypercorn opens no socket; the data plane passes it one request at a time.
    """
    config = Config()
    config.accesslog = None
    config.errorlog = logging.getLogger("hypercorn.error")  # `topics.process.logs` forwards it
    return config


def make_application(dispatcher: Dispatcher, context: RouteContext) -> Application:
    """Build all parts that serve requests of the admin plane."""
    app = ASGIWrapper(make_app(dispatcher, VIEWS))  # type: ignore[arg-type]
    return Application(app, hypercorn_config(), WorkerContext(None), context)


def make_app(dispatcher: Dispatcher, views: Mapping[Route, View]) -> App:
    """Build the Quart application."""
    app = QuartTrio(__name__, static_folder=None)
    app.config["RESPONSE_TIMEOUT"] = None  # the data plane enforces deadlines
    for route, view in views.items():
        rule = route.path.replace(TOPIC, "<topic>").replace(ROUTER, "<router>")
        app.add_url_rule(
            rule,
            endpoint=f"{route.name} {rule}",
            view_func=view,
            methods=(route.method,),
            provide_automatic_options=False,
        )

    async def refuse(failure: TopicsError) -> Response:
        return response(dispatcher.refused(admitted().request, failure, admitted().at))

    async def send_internal_error(bug: Exception) -> Response:
        log.error("request failed", route=admitted().request.route.name, exc_info=bug)
        return response(error_answer(Internal("internal error"), admitted().at))

    async def keep(made: Response) -> Response:
        admitted().response = made
        return made

    # `keep` receives every response, including the responses of the error handlers.
    app.register_error_handler(TopicsError, refuse)
    app.register_error_handler(Exception, send_internal_error)
    app.after_request(keep)
    return _shielded(app)


def _shielded(app: QuartTrio) -> App:
    """Wrap the application so that it sends each response message completely.

    Hypercorn 0.18 sends ``http.disconnect`` while it is still handling the last body message.
    Quart-trio 0.12 then cancels its nursery, and with it the handling of that message. So messages
    are sent in a shielded scope. Sending a message never waits for the client.
    """

    async def shielded(scope: AsgiMessage, receive: Receive, send: Send) -> None:
        async def send_without_length(message: AsgiMessage) -> None:
            with trio.CancelScope(shield=True):
                await send(message)

        await app(scope, receive, send_without_length)  # type: ignore[arg-type]

    return shielded


@dataclass(frozen=True, slots=True)
class Application:
    """The parts that Hypercorn needs to serve a request."""

    app: ASGIWrapper
    config: Config
    worker: WorkerContext
    context: RouteContext

    async def call(self, call: AdminCall) -> Answer:
        """Return the response, without waiting for the client. Its body is not in shared memory."""
        sent: list[bytes] = []

        async def take(event: Event) -> None:
            if isinstance(event, RawData):
                sent.append(event.data)

        async with TaskGroup() as group:
            protocol = H11Protocol(
                self.app,
                self.config,
                self.worker,
                group,
                connection_state=ConnectionState({CALL: call, CONTEXT: self.context}),
                ssl=False,
                client=None,
                server=None,
                send=take,
            )
            await protocol.initiate()
            await protocol.handle(RawData(_head_of(call.request)))
        # Only the body is used, because the front renders its own head.
        wire = b"".join(sent)
        assert call.response is not None, "Hypercorn responded without calling the application"
        return answer_of(call.response, memoryview(wire)[wire.index(b"\r\n\r\n") + 4 :])

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Run the application's lifespan. Requests are permitted within the context."""
        lifespan = Lifespan(self.app, self.config, {})
        async with trio.open_nursery() as nursery:
            await nursery.start(lifespan.handle_lifespan)
            await lifespan.wait_for_startup()
            yield
            await lifespan.wait_for_shutdown()
            nursery.cancel_scope.cancel()


def _head_of(request: Request) -> bytes:
    """Return a minimal request head for Hypercorn."""
    # A HEAD request uses the view of GET, because the response has the same length.
    route = request.route
    path = route.path_of(request.topic or request.router)
    return f"{route.method} {path} HTTP/1.1\r\nhost: topics\r\n\r\n".encode("ascii")
