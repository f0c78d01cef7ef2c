"""WebSocket frames on /v0/ws (RFC 6455): pings, closes, fragments, broken frames."""

from __future__ import annotations

import json
import os
import socket as sockets
import struct

import pytest

from tests.support.api import Api, create, data, ok
from tests.support.server import Server
from tests.support.ws import (
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    Socket,
    WebSocketFrame,
    alive,
    command,
    frame_bytes,
    subscribe,
)


def test_a_ping_command_is_answered(socket: Socket) -> None:
    assert socket.ask("ping", "ping-1")["op"] == "pong"


@pytest.mark.parametrize("payload", [b"", b"hello", bytes(125)], ids=len)
def test_a_ping_frame_is_answered_with_its_payload(socket: Socket, payload: bytes) -> None:
    socket.frame(PING, payload)
    assert socket.receive() == WebSocketFrame(PONG, payload)


def test_a_pong_that_nobody_asked_for_is_ignored(socket: Socket) -> None:
    socket.frame(PONG, b"x")
    alive(socket)


def test_a_message_may_come_in_pieces(socket: Socket) -> None:
    text = json.dumps(command("ping", "pieces-é"), ensure_ascii=False).encode()
    cut = text.index("é".encode()) + 1  # inside a character
    socket.frame(TEXT, text[:5], fin=False)
    socket.frame(PING, b"between")
    socket.frame(CONTINUATION, text[5:cut], fin=False)
    socket.frame(CONTINUATION, b"", fin=False)
    socket.frame(CONTINUATION, text[cut:])
    assert socket.receive() == WebSocketFrame(PONG, b"between")
    assert socket.message("pong")["request_id"] == "pieces-é"


def test_frames_may_come_byte_by_byte_or_many_at_once(socket: Socket) -> None:
    pings = b"".join(ping_bytes(number) for number in range(30))
    for at in range(200):
        socket.send(pings[at : at + 1])
    socket.send(pings[200:])
    assert [socket.message()["request_id"] for _ in range(30)] == [
        str(number) for number in range(30)
    ]


def ping_bytes(number: int) -> bytes:
    return frame_bytes(TEXT, json.dumps(command("ping", str(number))).encode(), mask=os.urandom(4))


@pytest.mark.parametrize("size", [125, 126, 127, 65_535, 65_536, 65_537, 300_000])
def test_every_length_of_frame_goes_both_ways(
    socket: Socket, api: Api, topic: str, size: int
) -> None:
    create(api, topic)
    subscribe(socket, topic)
    text = json.dumps(command("publish", "p", topic=topic, records=[{"data": ""}]))
    socket.text(
        text.replace('"data": ""', f'"data": "{"x" * (size - len(text))}"')
        if size > len(text)
        else text
    )
    seen = socket.until("ack", request_id="p")
    records = [
        record for message in seen for record in message.get("records", [])
    ] or socket.records(1)
    assert len(records[0]["data"]) == max(size - len(text), 0)


@pytest.mark.parametrize("code", [1000, 1001, 3000, None])
def test_a_close_is_answered_with_a_close(socket: Socket, code: int | None) -> None:
    socket.frame(CLOSE, b"" if code is None else struct.pack("!H", code) + b"bye")
    frame = socket.receive()
    assert frame.opcode == CLOSE
    assert frame.code in (code, 1000, None)
    assert socket.rest() == b""


@pytest.mark.parametrize(
    "content",
    [
        b"\x81\x02{}",
        b"\x83\x80abcd",
        b"\x8b\x80abcd",
        b"\xc1\x80abcd",
        b"\x09\x80abcd",
        b"\x89\xfe\x00\x80abcd" + bytes(128),
        b"\x80\x80abcd",
        b"\x88\x81abcd" + b"x",
    ],
    ids=[
        "unmasked",
        "opcode 3",
        "opcode 11",
        "reserved bit",
        "ping in pieces",
        "ping of 128",
        "nothing to continue",
        "close of 1 byte",
    ],
)
def test_a_client_that_breaks_the_protocol_is_closed(server: Server, content: bytes) -> None:
    with Socket(server.address) as socket:
        socket.send(content)
        assert socket.closed() in (1002, None)
    with Socket(server.address) as socket:
        alive(socket)


def test_text_that_is_not_utf_8_is_not_taken(server: Server, api: Api, topic: str) -> None:
    create(api, topic)
    with Socket(server.address) as socket:
        socket.text(b'{"op":"publish","topic":"%s","records":[{"data":"\xff"}]}' % topic.encode())
        frame = socket.receive()
        assert (
            frame.code == 1007
            if frame.opcode == CLOSE
            else json.loads(frame.payload)["op"] == "error"
        )
    assert api.read(topic) == []


def test_a_client_that_vanishes_leaves_the_others(server: Server, api: Api, topic: str) -> None:
    create(api, topic)
    with Socket(server.address) as stays:
        subscribe(stays, topic)
        for _ in range(10):
            with Socket(server.address) as leaves:
                subscribe(leaves, topic)
                leaves.socket.setsockopt(
                    sockets.SOL_SOCKET, sockets.SO_LINGER, struct.pack("ii", 1, 0)
                )
        ok(api.append(topic, "x"))
        assert data(stays.records(1)) == ["x"]
