"""WebSocket (§7): the handshake that upgrades a connection for publish and subscribe.

    GET   /v0/ws    Upgrade: websocket    each command on the socket is authorized separately

The open socket is served by `topics.front.live`.
"""

from __future__ import annotations

from topics.errors import InvalidRequest, UpgradeRequired
from topics.formats.api.request_heads import Headers, HeadFields, list_members
from topics.formats.api.websocket_frames import VERSION, accept_key, is_key
from topics.front.answers import Answer
from topics.front.data.context import RouteContext
from topics.front.dispatch import OnResult
from topics.front.http.connection import Connection
from topics.front.live.web_socket import WebSocket
from topics.front.request import Body, Request
from topics.front.route import Route


def upgrade(fields: HeadFields) -> Headers:
    """Return the header fields of the response that upgrades a connection to a WebSocket.

    Raise `InvalidRequest` or `UpgradeRequired`.
    """
    protocols = list_members(fields.joined(b"upgrade"))
    options = list_members(fields.joined(b"connection"))
    if b"websocket" not in protocols or b"upgrade" not in options:
        raise UpgradeRequired("this path requires WebSocket")
    if fields.values(b"sec-websocket-version") != [VERSION]:
        raise UpgradeRequired("only WebSocket version 13 is supported")
    keys = fields.values(b"sec-websocket-key")
    if len(keys) != 1 or not is_key(keys[0]):
        raise InvalidRequest("Sec-WebSocket-Key must be 16 bytes in base64")
    if fields.values(b"transfer-encoding") or {*fields.values(b"content-length")} - {b"0"}:
        # A body would be read as frames.
        raise InvalidRequest("a WebSocket handshake must not have a body")
    return (
        (b"upgrade", b"websocket"),
        (b"connection", b"Upgrade"),
        (b"sec-websocket-accept", accept_key(keys[0])),
    )


def open_socket(
    context: RouteContext, request: Request, _body: Body, _at: int, then: OnResult
) -> None:
    """Upgrade the connection. Raise `InvalidRequest`, `UpgradeRequired` or `Throttled`."""
    assert request.head is not None, "a request for a stream keeps its head"
    headers = upgrade(request.head)
    # The slot is held until the stream acquires its own.
    context.live.check_limits(request.principal)
    context.pressure.check_stream(request.principal.digest, "ws", [], None)
    release_slot = context.live.hold_slot(request.principal)

    async def run(connection: Connection) -> None:
        release_slot()
        principal, settings, limits = request.principal, context.settings, context.limits
        await WebSocket(context.live, connection, principal, settings, limits).run()

    answer = Answer(101, headers=headers, stream=run)
    answer.on_unsent = release_slot
    then(answer)


ROUTES = {
    Route(
        "GET",
        "/v0/ws",
        "ws",
        None,
        streams=True,
        is_audited=True,
    ): open_socket,
}
