"""WebSocket upgrade (§7.3): the handshake of a request for ``/v0/ws``, judged and answered."""

from __future__ import annotations

from topics.errors import InvalidRequest, UpgradeRequired
from topics.formats.api.fields import Headers, HeadFields, list_members
from topics.formats.api.websocket_handshake import VERSION, accept_key, is_key


def upgrade(fields: HeadFields) -> Headers:
    """The headers of the answer that makes a connection a WebSocket. Raises `InvalidRequest`,
    `UpgradeRequired`.
    """
    protocols = list_members(fields.joined(b"upgrade"))
    options = list_members(fields.joined(b"connection"))
    if b"websocket" not in protocols or b"upgrade" not in options:
        raise UpgradeRequired("this path speaks WebSocket")
    if fields.values(b"sec-websocket-version") != [VERSION]:
        raise UpgradeRequired("WebSocket version 13 is spoken here")
    keys = fields.values(b"sec-websocket-key")
    if len(keys) != 1 or not is_key(keys[0]):
        raise InvalidRequest("Sec-WebSocket-Key must be 16 bytes in base64")
    return (
        (b"upgrade", b"websocket"),
        (b"connection", b"Upgrade"),
        (b"sec-websocket-accept", accept_key(keys[0])),
    )
