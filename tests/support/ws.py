"""A WebSocket client on a raw socket (RFC 6455), which can also violate the protocol.

byte 0      FIN 0x80, RSV 0x70, opcode 0x0f
byte 1      MASK 0x80, length 0..125, 126 (16 bits follow) or 127 (64 bits follow)
4 bytes     masking key, in frames of clients only
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tests.support.api import TIMEOUT_S, Answer, Wire, request
from tests.support.server import Server
from tests.support.traffic_checks import check_response, check_unknown, checks

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
KEY = "dGhlIHNhbXBsZSBub25jZQ=="
GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455 §1.3


@dataclass(frozen=True, slots=True)
class WebSocketFrame:
    opcode: int
    payload: bytes
    fin: bool = True

    @property
    def code(self) -> int | None:
        """Return the status code of a close frame."""
        return int.from_bytes(self.payload[:2], "big") if len(self.payload) >= 2 else None


def frame_bytes(
    opcode: int, payload: bytes, *, fin: bool = True, rsv: int = 0, mask: bytes | None = None
) -> bytes:
    """Return the bytes of a frame. With ``mask`` None it is unmasked, as from servers."""
    first = (0x80 if fin else 0) | rsv | opcode
    flag = 0 if mask is None else 0x80
    if len(payload) < 126:
        head = struct.pack("!BB", first, flag | len(payload))
    elif len(payload) < 1 << 16:
        head = struct.pack("!BBH", first, flag | 126, len(payload))
    else:
        head = struct.pack("!BBQ", first, flag | 127, len(payload))
    return head + payload if mask is None else head + mask + masked(payload, mask)


def masked(payload: bytes, mask: bytes) -> bytes:
    size = len(payload)
    key = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(key, "big")).to_bytes(size, "big")


def accept_of(key: str) -> str:
    """Return the required value of Sec-WebSocket-Accept."""
    return base64.b64encode(hashlib.sha1(key.encode() + GUID).digest()).decode()


def handshake(
    key: str | None = KEY,
    *headers: str,
    path: str = "/v0/ws",
    version: str | None = "13",
) -> bytes:
    """Return the bytes of an upgrade request. None omits a header."""
    lines = ["Upgrade: websocket", "Connection: Upgrade", *headers]
    if key is not None:
        lines.append(f"Sec-WebSocket-Key: {key}")
    if version is not None:
        lines.append(f"Sec-WebSocket-Version: {version}")
    return request("GET", path, None, *lines)


class Socket(Wire):
    """An open WebSocket. Commands are dicts, and messages of the server are read one at a time."""

    def __init__(
        self,
        address: tuple[str, int],
        *,
        token: str | None = None,
        headers: Iterable[str] = (),
        receive_bytes: int | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        super().__init__(address, timeout_s, receive_bytes=receive_bytes)
        self._commands: dict[str, Any] = {}  # By request_id, for the judges
        key = base64.b64encode(os.urandom(16)).decode()
        sent = [*headers, *([f"Authorization: Bearer {token}"] if token else [])]
        self.send(handshake(key, *sent))
        try:
            self._open(key)
        except BaseException:
            self.socket.close()
            raise

    def _open(self, key: str) -> None:
        status, self.headers = self.head()
        if status != 101:
            content = self._take(int(self.headers.get("content-length", 0)))
            raise AssertionError(f"no upgrade: {Answer(status, self.headers, content)}")
        check_response("GET", "/v0/ws", Answer(status, self.headers, b""))
        assert self.headers["upgrade"].lower() == "websocket", self.headers
        assert "upgrade" in self.headers["connection"].lower(), self.headers
        assert self.headers["sec-websocket-accept"] == accept_of(key), self.headers
        assert "sec-websocket-extensions" not in self.headers, "an extension that was not offered"
        assert "sec-websocket-protocol" not in self.headers, "a protocol that was not offered"

    # --- to the server

    def frame(self, opcode: int, payload: bytes = b"", *, fin: bool = True, rsv: int = 0) -> None:
        self.send(frame_bytes(opcode, payload, fin=fin, rsv=rsv, mask=os.urandom(4)))

    def text(self, text: str | bytes) -> None:
        self.frame(TEXT, text.encode() if isinstance(text, str) else text)

    def send_command(self, op: str, request_id: str | None = None, **fields: Any) -> None:
        """Send one command."""
        sent_command = command(op, request_id, **fields)
        if checks and request_id is not None:
            self._commands[request_id] = sent_command
        self.text(json.dumps(sent_command))

    def request(self, op: str, request_id: str, **fields: Any) -> Any:
        """Send one command and return the next message, which must have its ``request_id``."""
        self.send_command(op, request_id, **fields)
        answer = self.message()
        assert answer.get("request_id") == request_id, (
            f"the reply to {request_id} expected, got {str(answer)[:500]}"
        )
        return answer

    # --- from the server

    def receive(self) -> WebSocketFrame:
        """Return the next frame, which must be unmasked and without reserved bits."""
        first, second = self._take(2)
        assert not first & 0x70, f"reserved bits in {first:#x}"
        assert not second & 0x80, "a server's frame is masked"
        size = second & 0x7F
        if size == 126:
            (size,) = struct.unpack("!H", self._take(2))
            assert size > 125, "a length that is not the shortest"
        elif size == 127:
            (size,) = struct.unpack("!Q", self._take(8))
            assert size > 65_535, "a length that is not the shortest"
        opcode = first & 0x0F
        assert opcode < CLOSE or size < 126, "a control frame above 125 bytes"
        return WebSocketFrame(opcode, self._take(size), bool(first & 0x80))

    def message(self, *ops: str, timeout_s: float | None = None) -> Any:
        """Return the next text message as JSON, joined from its frames. Its ``op`` must be one of
        ``ops`` if any are given.
        """
        if timeout_s is not None:
            self.socket.settimeout(timeout_s)
        frame = self.receive()
        assert frame.opcode == TEXT, f"a text message expected, got {str(frame)[:500]}"
        text_bytes = frame.payload
        while not frame.fin:
            frame = self.receive()
            assert frame.opcode == CONTINUATION, frame
            text_bytes += frame.payload
        body = json.loads(text_bytes.decode())
        assert isinstance(body, dict), body
        for check in checks:
            check.said(body, self._commands.pop(str(body.get("request_id")), None))
        assert not ops or body["op"] in ops, f"{ops} expected, got {str(body)[:500]}"
        return body

    def records(self, count: int, *, timeout_s: float = TIMEOUT_S) -> list[Any]:
        """Return the next ``count`` records. Skip caught_up frames, and fail on any other."""
        found: list[Any] = []
        while len(found) < count:
            found += self.message("record", "caught_up", timeout_s=timeout_s).get("records", [])
        assert len(found) == count, f"{count} records expected, got {len(found)}"
        return found

    def until(self, op: str, **fields: Any) -> list[Any]:
        """Return all messages up to and including the first with this ``op`` and these fields."""
        expected = {"op": op, **fields}.items()
        seen = [self.message()]
        while not expected <= {name: seen[-1].get(name) for name in ("op", *fields)}.items():
            seen.append(self.message())
        return seen

    def closed(self) -> int | None:
        """Read up to the end, which must follow. Return the code of the close frame, or None if
        there was none.
        """
        deadline = time.monotonic() + TIMEOUT_S
        code = None
        while time.monotonic() < deadline:
            try:
                frame = self.receive()
            except (EOFError, ConnectionError):
                return code
            if frame.opcode == CLOSE:
                code = frame.code
                break
        self.rest()
        return code


def command(op: str, request_id: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"op": op, **({} if request_id is None else {"request_id": request_id}), **fields}


def subscribe(socket: Socket, topic: str, **fields: Any) -> list[Any]:
    """Subscribe, read up to the first caught_up, and return the received records."""
    assert socket.request("subscribe", f"s-{topic}", topic=topic, **fields)["op"] == "subscribed"
    seen = socket.until("caught_up", topic=topic)
    return [
        record for message in seen if message["op"] == "record" for record in message["records"]
    ]


def alive(socket: Socket) -> None:
    """Check that the socket is open and responds."""
    assert socket.request("ping", "alive")["op"] == "pong"


def failed(message: Any, request_id: str | None, *codes: str) -> None:
    """Check for an error frame (§7.3). ``codes`` are the allowed codes; without any, all are
    allowed.
    """
    assert message["op"] == "error", message
    assert {"op", "code", "message"} <= set(message), message
    assert message.get("request_id") == request_id, message
    assert isinstance(message["code"], str)
    assert not codes or message["code"] in codes, message
    assert isinstance(message["message"], str)
    assert message["message"]


def shake(server: Server, content: bytes) -> Answer:
    with Wire(server.address) as wire:
        wire.send(content)
        status, headers = wire.head()
        body = wire._take(int(headers["content-length"])) if "content-length" in headers else b""
        answer = Answer(status, headers, body)
        if wire._unanswered:
            check_response(*wire._unanswered.popleft(), answer)
        else:
            check_unknown(answer)
        return answer
