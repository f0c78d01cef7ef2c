"""WebSocket (§7): the handshake that turns a connection into a socket for publish and subscribe.

    GET   /v0/ws    Upgrade: websocket    every command on the socket is authorised on its own

The socket itself is `topics.front.live`.
"""

from __future__ import annotations

from topics.front.answers import Answer
from topics.front.http.connection import Connection
from topics.front.live.web_socket import WebSocket
from topics.front.live.web_socket_upgrade import upgrade
from topics.front.request import Body, Request
from topics.front.route import Lane, Route
from topics.front.routes.context import RouteContext


async def open_socket(context: RouteContext, request: Request, _body: Body, _at: int) -> Answer:
    """The handshake. Raises `UpgradeRequired`, `Throttled`."""
    assert request.head is not None, "a request for a stream keeps its head"
    headers = upgrade(request.head)
    context.live.check_room(request.principal)
    context.pressure.check_stream(request.principal.digest, "ws", [], None)
    let_go = context.live.hold_slot(request.principal)

    async def run(connection: Connection) -> None:
        let_go()
        principal, settings, limits = request.principal, context.settings, context.limits
        await WebSocket(context.live, connection, principal, settings, limits).run()

    answer = Answer(101, headers=headers, stream=run)
    answer.on_unsent = let_go
    return answer


ROUTES = {
    Route(
        ("GET",),
        "/v0/ws",
        "ws",
        None,
        lane=Lane.HOT,
        streams=True,
        is_audited=True,
        no_preflight=True,
    ): open_socket,
}
