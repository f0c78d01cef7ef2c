"""WebSocket streams: their events as frames, and what a subscription tells."""

from __future__ import annotations

import socket

import pytest

from tests.support.live_desk import desk
from topics.config import Settings
from topics.engine.access import ANYONE
from topics.formats.api.limits import limits_of
from topics.front.http.connection import Connection, Timings
from topics.front.http.connections import Connections
from topics.front.live.web_socket import WebSocket


@pytest.mark.parametrize(
    ("code", "name", "close_code"),
    [(408, "throttled", 1008), (500, "internal", 1011), (503, "shutting_down", 1001)],
)
async def test_a_websocket_is_told_what_went_wrong(code: int, name: str, close_code: int) -> None:
    ours, theirs = socket.socketpair()
    async with desk() as front:
        with ours, theirs:
            connection = Connection(ours, Connections(Timings(), 0.0))
            stream = WebSocket(front.live, connection, ANYONE, Settings(), limits_of(Settings()))
            stream.begin()
            stream.fail(code, "why")
            told = theirs.recv(1000)
            assert b'"code":"%b"' % name.encode() in told
            assert told.endswith(close_code.to_bytes(2, "big") + b"why")
            assert (stream.ended, len(front.live.streams)) == (True, 0)
