"""The application of the admin plane: Quart-Trio behind an unmodified Hypercorn, with one rule for
each row.

    admitted head, body --> head written here --> H11Protocol --> Quart --> view
                 answer <-- body of the response, its status and fields <-----'

It answers requests that the data plane has read and admitted. Hypercorn gets a head that this
module writes: method, path as the route table understood it, a fixed Host. Request and body travel
beside it, as an `AdminCall` in the ASGI scope. The data plane sends the answer as one of its own,
with the same head.

No byte of a client may reach Hypercorn: there is no second reading of one message, no upgrade that
it could take and no error answer of its own. No byte of a head of Hypercorn's reaches a client.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
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

LOG = logging.getLogger("topics.front")

VIEWS: Mapping[Route, View] = {**topic_list.VIEWS, **leases.VIEWS, **routers.VIEWS, **metrics.VIEWS}

AsgiMessage = dict[str, Any]
Receive = Callable[[], Awaitable[AsgiMessage]]
Send = Callable[[AsgiMessage], Awaitable[None]]
App = Callable[[AsgiMessage, Receive, Send], Awaitable[None]]


def hypercorn_config() -> Config:
    """Hypercorn's settings. It opens no socket: the data plane hands it one request at a time."""
    config = Config()
    config.accesslog = None
    config.errorlog = LOG
    return config


def make_application(dispatcher: Dispatcher, context: RouteContext) -> Application:
    """Build everything that answers requests of the admin plane."""
    app = ASGIWrapper(make_app(dispatcher, VIEWS))  # type: ignore[arg-type]
    return Application(app, hypercorn_config(), WorkerContext(None), context)


def make_app(dispatcher: Dispatcher, views: Mapping[Route, View]) -> App:
    """Build the Quart application."""
    app = QuartTrio(__name__, static_folder=None)
    app.config["RESPONSE_TIMEOUT"] = None  # the data plane has the deadlines
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

    async def apologize(bug: Exception) -> Response:
        LOG.error("unexpected server error: route %s", admitted().request.route.name, exc_info=bug)
        return response(error_answer(Internal("internal error"), admitted().at))

    async def keep(made: Response) -> Response:
        admitted().response = made
        return made

    app.register_error_handler(TopicsError, refuse)
    app.register_error_handler(Exception, apologize)
    app.after_request(keep)
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


@dataclass(frozen=True, slots=True)
class Application:
    """What Hypercorn needs to answer a request."""

    app: ASGIWrapper
    config: Config
    worker: WorkerContext
    context: RouteContext

    async def ask(self, call: AdminCall) -> Answer:
        """The answer, whose body lives in no shared memory. Nothing here waits for the client."""
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
        wire = b"".join(sent)
        assert call.response is not None, "Hypercorn answered without asking the application"
        return answer_of(call.response, memoryview(wire)[wire.index(b"\r\n\r\n") + 4 :])

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
