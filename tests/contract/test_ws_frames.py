"""GET /v0/ws (§7.3, RFC 6455): handshake, frames, and errors that do not close the socket."""

from __future__ import annotations

import json
import struct

import pytest

from tests.support.api import Api, create, request
from tests.support.server import Server
from tests.support.ws import (
    CLOSE,
    CONTINUATION,
    KEY,
    PING,
    PONG,
    TEXT,
    Socket,
    WebSocketFrame,
    accept_of,
    alive,
    command,
    handshake,
    shake,
    subscribe,
)


def test_the_response_to_a_handshake_conforms_to_the_rfc(server: Server) -> None:
    answer = shake(server, handshake(KEY))
    assert answer.status == 101
    assert answer.headers["upgrade"].lower() == "websocket"
    assert answer.headers["connection"].lower() == "upgrade"
    assert answer.headers["sec-websocket-accept"] == accept_of(KEY)
    assert accept_of(KEY) == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    unwanted = {"content-length", "transfer-encoding"}
    unwanted |= {"sec-websocket-extensions", "sec-websocket-protocol"}
    assert not unwanted & set(answer.headers)


@pytest.mark.parametrize(
    "lines",
    [
        ["Upgrade: WebSocket", "Connection: upgrade"],
        ["upgrade: websocket", "connection: keep-alive, Upgrade"],
        ["UPGRADE: websocket", "CONNECTION: Upgrade", "ORIGIN: HTTP://LOCALHOST:8000"],
        ["Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Extensions: x-unheard-of"],
    ],
)
def test_header_names_and_tokens_are_case_insensitive(server: Server, lines: list[str]) -> None:
    content = request(
        "GET", "/v0/ws", None, *lines, f"Sec-WebSocket-Key: {KEY}", "Sec-WebSocket-Version: 13"
    )
    answer = shake(server, content)
    assert answer.status == 101
    assert "x-unheard-of" not in answer.headers.get("sec-websocket-extensions", "")


@pytest.mark.parametrize("version", ["8", "14", "abc", None])
def test_another_version_is_refused(server: Server, version: str | None) -> None:
    answer = shake(server, handshake(KEY, version=version))
    assert answer.status in (400, 426)
    if answer.status == 426:
        assert answer.headers["sec-websocket-version"] == "13"


@pytest.mark.parametrize("key", [None, "short", "!" * 24])
def test_a_key_that_does_not_encode_16_bytes_is_refused(server: Server, key: str | None) -> None:
    assert shake(server, handshake(key)).status == 400


def test_a_plain_get_is_refused(api: Api) -> None:
    answer = api.call("GET", "/v0/ws")
    fields = (answer.headers["connection"], answer.headers["upgrade"])
    assert (answer.status, *fields) == (426, "Upgrade", "websocket")


def test_a_message_may_be_fragmented(socket: Socket) -> None:
    text = json.dumps(command("ping", "fragments-é"), ensure_ascii=False).encode()
    cut = text.index("é".encode()) + 1  # inside a character
    socket.frame(TEXT, text[:5], fin=False)
    socket.frame(PING, b"between")
    socket.frame(PONG, b"unsolicited")
    socket.frame(CONTINUATION, text[5:cut], fin=False)
    socket.frame(CONTINUATION, b"", fin=False)
    socket.frame(CONTINUATION, text[cut:])
    assert socket.receive() == WebSocketFrame(PONG, b"between")
    assert socket.message("pong")["request_id"] == "fragments-é"


@pytest.mark.parametrize("size", [125, 126, 65_535, 65_536, 300_000])
def test_frames_of_every_length_encoding_are_sent_and_received(
    socket: Socket, api: Api, topic: str, size: int
) -> None:
    create(api, topic)
    subscribe(socket, topic)
    text = json.dumps(command("publish", "p", topic=topic, records=[{"data": ""}]))
    data = "x" * max(size - len(text), 0)
    socket.text(text.replace('"data": ""', f'"data": "{data}"'))
    seen = socket.until("ack", request_id="p")
    records = [record for message in seen for record in message.get("records", [])]
    assert [record["data"] for record in records or socket.records(1)] == [data]


@pytest.mark.parametrize("code", [1000, 1001, 3000, None])
def test_a_close_is_answered_with_a_close(socket: Socket, code: int | None) -> None:
    socket.frame(CLOSE, b"" if code is None else struct.pack("!H", code) + b"bye")
    frame = socket.receive()
    assert frame.opcode == CLOSE
    assert frame.code in (code, 1000, None)
    assert socket.rest() == b""


BROKEN = {
    "unmasked": b"\x81\x02{}",
    "opcode 3": b"\x83\x80abcd",
    "opcode 11": b"\x8b\x80abcd",
    "reserved bit": b"\xc1\x80abcd",
    "fragmented ping": b"\x09\x80abcd",
    "ping of 128": b"\x89\xfe\x00\x80abcd" + bytes(128),
    "nothing to continue": b"\x80\x80abcd",
    "close of 1 byte": b"\x88\x81abcdx",
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_protocol_error_closes_the_socket(server: Server, content: bytes) -> None:
    with Socket(server.address) as socket:
        socket.send(content)
        assert socket.closed() in (1002, None)
    with Socket(server.address) as socket:
        alive(socket)


def test_text_that_is_not_utf_8_is_refused(server: Server, api: Api, topic: str) -> None:
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


def test_a_command_requires_no_request_id(socket: Socket, api: Api, topic: str) -> None:
    create(api, topic)
    socket.send_command("ping")
    body = socket.message("pong")
    assert body.get("request_id") is None
    socket.send_command("publish", topic=topic, records=[{"data": 1}])
    assert socket.message("ack").get("request_id") is None
