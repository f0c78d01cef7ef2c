"""The cold lane: Quart-Trio, with one rule for each row of the table.

The same operations as in the fast lane, which has read and admitted the request.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import trio
from hypercorn.config import Config
from quart import Response, request
from quart_trio import QuartTrio

from topics.errors import Internal
from topics.front.answers import Answer
from topics.front.errors import error_answer
from topics.front.guard import Guard
from topics.front.http.cold_bridge import CALL, ColdCall
from topics.front.routes.operations import Operations
from topics.front.routes.table import ROUTES

LOG = logging.getLogger("topics.front")

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


def hypercorn_config() -> Config:
    """Hypercorn's settings. It opens no socket: the fast lane hands it one request at a time."""
    config = Config()
    config.include_server_header = False
    config.accesslog = None
    config.errorlog = LOG
    return config


def make_app(guard: Guard, operations: Operations) -> App:
    """Build the application."""
    app = QuartTrio(__name__, static_folder=None)
    app.config["RESPONSE_TIMEOUT"] = None  # the fast lane has the deadlines
    view = _View(guard, operations)
    for route in ROUTES:
        if not route.streams:
            rule = route.path("<topic>")
            app.add_url_rule(
                rule,
                endpoint=f"{route.name} {rule}",
                view_func=view.answer,
                methods=route.methods,
                provide_automatic_options=False,
            )
    app.register_error_handler(Exception, view.answer_bug)
    return _whole(app)


def _whole(app: QuartTrio) -> App:
    """Let each message of an answer through to its end.

    Hypercorn 0.18 puts ``http.disconnect`` while it still handles the last body message; quart-trio
    0.12 then cancels its nursery, and with it that message. So messages are sent shielded; none of
    them waits for the client.
    """

    async def shielded(scope: Message, receive: Receive, send: Send) -> None:
        async def send_whole(message: Message) -> None:
            with trio.CancelScope(shield=True):
                await send(message)

        await app(scope, receive, send_whole)  # type: ignore[arg-type]

    return shielded


class _View:
    def __init__(self, guard: Guard, operations: Operations) -> None:
        self._guard = guard
        self._operations = operations

    async def answer(self, **_: str) -> Response:
        """Every request. Quart's own reading of the path is not used."""
        call = _call()
        answer = await self._operations.run(call.request, call.take_body(), call.at)
        return self._response(call, answer)

    async def answer_bug(self, bug: Exception) -> Response:
        """An exception that nobody expected."""
        LOG.error("a bug in the cold lane", exc_info=bug)
        return self._response(_call(), error_answer(Internal("internal error")))

    def _response(self, call: ColdCall, answer: Answer) -> Response:
        assert answer.stream is None, "streams are the fast lane's"
        call.has_answered = True
        call.close = call.close or self._guard.draining
        headers = {name.decode(): value.decode() for name, value in answer.headers}
        if call.close:
            headers["connection"] = "close"
        try:
            return Response(
                bytes(answer.body), answer.status, headers, content_type="application/json"
            )
        finally:
            answer.done()


def _call() -> ColdCall:
    call: ColdCall = request.scope["state"][CALL]
    return call
