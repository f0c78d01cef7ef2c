"""WebSocket replies (§7.3): what the server says to one client's commands, as text frames.

    ping         {"op":"pong","request_id":...}
    subscribe    {"op":"subscribed","request_id":...,"topics":{...}}
    unsubscribe  {"op":"unsubscribed","request_id":...,"topic":...}
    publish      {"op":"ack","request_id":..., and the members of the append's answer
                 (web_socket_publish.py)
    refused      {"op":"error","request_id":...,"code":...,"message":...,"detail":...}

A ``request_id`` is repeated as the bytes that came.
"""

from __future__ import annotations

import logging
from typing import Any

from topics.errors import Internal, TopicsError
from topics.formats.api.websocket_frames import text_frame
from topics.formats.json_text import json_bytes

LOG = logging.getLogger("topics.front")


def json_frame(document: dict[str, Any]) -> bytes:
    """A text message of one JSON object."""
    return text_frame(json_bytes(document))


def pong(request_id: bytes) -> bytes:
    """The answer to a ``ping`` command."""
    return text_frame(b'{"op":"pong","request_id":%b}' % request_id)


def subscribed(request_id: bytes, topics: dict[str, Any]) -> bytes:
    """The answer to ``subscribe``."""
    return text_frame(
        b'{"op":"subscribed","request_id":%b,"topics":%b}' % (request_id, json_bytes(topics))
    )


def unsubscribed(request_id: bytes, topic: str) -> bytes:
    """The answer to ``unsubscribe``."""
    return text_frame(
        b'{"op":"unsubscribed","request_id":%b,"topic":%b}' % (request_id, json_bytes(topic))
    )


def refusal(request_id: bytes, failure: TopicsError) -> bytes:
    """Why a command was not done."""
    if isinstance(failure, Internal):
        LOG.error("unexpected shard error: WebSocket command: %s", failure.message)
        failure = Internal("internal error")
    detail = b',"detail":' + json_bytes(failure.detail) if failure.detail else b""
    return text_frame(
        b'{"op":"error","request_id":%b,"code":%b,"message":%b%b}'
        % (request_id, json_bytes(failure.code), json_bytes(failure.message), detail)
    )
