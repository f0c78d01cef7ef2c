"""Live clients of the benchmarks, a fresh server, and the lines of their output."""

from __future__ import annotations

import gc
import random
import shutil
import socket
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bench.http_load import Client, post
from tests.support.server import Server

RECV_BYTES = 1 << 18
ACK, ERROR = b'"op":"ack"', b'"op":"error"'
CLASSES = ("ephemeral", "disk", "fsync")
_UPGRADE = (
    b"GET /v0/ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
CHANCE = random.Random(7)


def line(name: str, figures: str, holds: str) -> None:
    print(f"{name:<34}{figures:<98}  {holds}", flush=True)


def text(payload: bytes) -> bytes:
    """A masked text message, made without the code that is measured."""
    head, length, key = 0x81, len(payload), CHANCE.randbytes(4)
    if length <= 125:
        header = struct.pack(">BB", head, 0x80 | length)
    else:
        header = (
            struct.pack(">BBH", head, 0xFE, length)
            if length < 1 << 16
            else struct.pack(">BBQ", head, 0xFF, length)
        )
    mask = (key * (length // 4 + 1))[:length]
    return header + key + (int.from_bytes(payload) ^ int.from_bytes(mask)).to_bytes(length)


def connect(address: tuple[str, int]) -> socket.socket:
    sock = socket.create_connection(address, timeout=60)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def web_socket(address: tuple[str, int]) -> socket.socket:
    """One that is open."""
    sock = connect(address)
    sock.sendall(_UPGRADE)
    head = until(sock, b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101 "), head
    assert head.endswith(b"\r\n\r\n"), "the server says more than it was asked"
    return sock


def stream(address: tuple[str, int], client: Client, topic: str) -> socket.socket:
    """A session of its own at the head of a topic, and its open stream, once it is live."""
    return opened(
        address,
        client.ask_json(post("/v0/watch", b'{"topics":{"%b":{"tail":true}}}' % topic.encode()))[
            "stream_url"
        ],
    )


def opened(address: tuple[str, int], url: str) -> socket.socket:
    sock = connect(address)
    sock.sendall(
        b"GET %b HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n" % url.encode()
    )
    until(sock, b"event: caught-up\n")
    return sock


def until(sock: socket.socket, end: bytes) -> bytes:
    found = b""
    while end not in found:
        piece = sock.recv(RECV_BYTES)
        assert piece, found
        found += piece
    return found


@contextmanager
def running(folder: Path | None, shards: int = 1) -> Iterator[Server]:
    """A server on a fresh data directory."""
    data = Path(tempfile.mkdtemp(prefix="topics-live-", dir=folder))
    try:
        with Server(data / "data", shards=shards) as server:
            yield server
    finally:
        shutil.rmtree(data)


@contextmanager
def uncollected() -> Iterator[None]:
    """The client's own collector stays out of the figures."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
