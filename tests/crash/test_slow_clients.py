"""Clients that send or read slowly do not exclude other clients, even if processes are killed."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.api import Api, ok
from tests.support.server import Server, kill_one, rss_bytes

pytestmark = pytest.mark.slow

MIB = 2**20
RESTART_MAX_S = 10.0
CLIENTS = 400


def body(mib: int) -> bytes:
    record = b'{"data":"%b"}' % (b"x" * (MIB - 100))
    return b'{"records":[' + b",".join([record] * mib) + b"]}"


def head(path: str, length: int) -> bytes:
    fields = f"Host: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {length}"
    return f"POST {path} HTTP/1.1\r\n{fields}\r\n\r\n".encode()


@contextmanager
def client(server: Server, payload: bytes) -> Iterator[socket.socket]:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(20)
        sock.connect(server.address)
        sock.sendall(payload)
        yield sock


def post(api: Api, topic: str, raw: bytes) -> int:
    return api.call("POST", f"/v0/topics/{topic}", raw).status


def test_clients_that_declare_large_bodies_and_send_little_exclude_no_other_client(
    tmp_path: Path,
) -> None:
    with Server(tmp_path / "data", shards=1) as server, Api(server.address) as api:
        front = server.wait_roles(2)["front 0"]
        before = rss_bytes(front)
        payload = head("/v0/topics/a", 64 * MIB) + b'{"records":['
        clients = [client(server, payload) for _ in range(CLIENTS)]
        for each in clients:
            each.__enter__()
        assert post(api, "b", body(2)) == 201
        assert rss_bytes(front) - before < CLIENTS * 128 * 1024 + 8 * MIB
        assert post(api, "b", body(60)) == 200
        for each in clients:
            each.__exit__(None, None, None)


def test_stalled_bodies_are_dropped_to_make_space_for_a_new_body(tmp_path: Path) -> None:
    settings = {"shards": 1, "arena_bytes": 16 * MIB, "max_body_bytes": 8 * MIB}
    with Server(tmp_path / "data", **settings) as server, Api(server.address) as api:
        payload = head("/v0/topics/a", 8 * MIB) + body(6)[: 5 * MIB]
        with client(server, payload) as first, client(server, payload) as second:
            began = time.monotonic()
            while post(api, "b", body(6)) == 429:
                assert time.monotonic() - began < 20
                time.sleep(0.2)  # The server requests a retry
            answers = {sock.recv(12) for sock in (first, second) if readable(sock)}
            assert answers == {b"HTTP/1.1 429"}


def readable(sock: socket.socket) -> bool:
    sock.settimeout(0.5)
    try:
        return bool(sock.recv(1, socket.MSG_PEEK))
    except TimeoutError:
        return False


@pytest.mark.parametrize("slow", ["reader", "uploader"])
def test_a_shard_that_is_killed_twice_restarts_despite_slow_clients(
    tmp_path: Path,
    slow: str,
) -> None:
    with Server(tmp_path / "data", shards=1) as server, Api(server.address) as api:
        for _ in range(8):
            assert post(api, "a", body(3)) in (200, 201)
        diff = json.dumps({"from_seq": 0, "max_batch_bytes": 8 * MIB, "limit": 100}).encode()
        payload = head("/v0/topics/a", 64 * MIB) + body(1)
        if slow == "reader":
            payload = head("/v0/topics/a/diff", len(diff)) + diff
        with client(server, payload) as sock:
            if slow == "reader":
                assert sock.recv(12) == b"HTTP/1.1 200"
            for _ in range(2):
                kill_one(server.wait_roles(2)["shard 0"])
                began = time.monotonic()
                while api.get("a").status != 200:
                    assert time.monotonic() - began < RESTART_MAX_S
                    time.sleep(0.01)  # No external signal shows that the shard has restarted
            if slow == "uploader":
                assert sock.recv(12) == b"HTTP/1.1 503"
        assert ok(api.append("a", "after"))["count"] == 1
