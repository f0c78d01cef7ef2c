"""Connections: keep-alive, half-close, deadlines, slow and disconnected clients."""

from __future__ import annotations

import contextlib
import math
import socket

import pytest
import trio
from trio.testing import MockClock

from tests.support.fake_shards import FakeShards
from tests.support.front import APPEND, RECORD, running
from tests.support.raw_client import request
from topics.config import Settings
from topics.front.http.connection import Connection, Connections, Timings


@pytest.mark.slow
async def test_a_half_closed_client_still_gets_its_responses() -> None:
    async with running() as run:
        client = await run.connect()
        await client.send(APPEND + request("GET", "/v0/health") + request("GET", "/"))
        await client.stream.send_eof()
        assert [(await client.receive()).status for _ in range(3)] == [201, 200, 200]
        assert await client.is_closed()


@pytest.mark.slow
async def test_input_after_the_last_request_does_not_discard_its_response() -> None:
    shards = FakeShards(topics={"a": []}, answer_bytes=20_000_000)
    async with running(shards=shards) as run:
        client = await run.connect()
        diff = request("POST", "/v0/topics/a/diff", b"{}", connection="close")
        await client.send(diff + APPEND * 1000)
        assert (await client.receive()).status == 200
        await client.stream.send_eof()
        assert await client.is_closed()


@pytest.mark.slow
async def test_a_stalled_body_has_exactly_the_grace_period() -> None:
    settings = Settings(inline_bytes=4096, max_body_bytes=64 * 1024 * 1024)
    async with running(settings=settings) as run:
        client = await run.connect()
        body = b'{"records":[]}' + b" " * (40 * 64 * 1024)
        await client.send(request("POST", "/v0/topics/a", body)[:-1])
        await run.until(lambda: len(run.server.connections) == 1)
        [connection] = run.server.connections
        await run.until(lambda: run.shards.blocks_out == 1)
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert 25 < connection.deadline - trio.current_time() < 30.1
        await client.send(b" ")
        assert (await client.receive()).status == 201


@pytest.mark.slow
def test_a_body_below_the_minimum_rate_reaches_its_deadline() -> None:
    connections = Connections(Timings(), 0.0)
    for share, ends_s in ((1.0, math.inf), (0.9, 30 / 0.1)):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            connection = Connection(ours, connections)
            connections.now = 0.0
            connection.begin_body()
            while connection.deadline > connections.now and connections.now < 1000:
                connections.now += 1
                connection.extend_body_deadline(round(share * 64 * 1024))
            assert connections.now == pytest.approx(min(ends_s, 1000), abs=2)


@pytest.mark.slow
async def test_an_append_is_not_cancelled_if_its_client_disconnects() -> None:
    shards = FakeShards(topics={"slow": []}, gate=trio.Event())
    async with running(shards=shards) as run:
        client = await run.connect()
        await client.send(request("POST", "/v0/topics/slow", RECORD))
        await run.until(lambda: shards.waiting == 1)
        await client.stream.aclose()
        run.sweep_in(60)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert shards.cancelled == 0
        assert shards.gate is not None
        shards.gate.set()
        await run.until(lambda: len(shards.topics["slow"]) == 1)


@pytest.mark.slow
async def test_a_slow_reader_gets_the_complete_response() -> None:
    shards = FakeShards(topics={"a": []}, answer_bytes=8_000_000)
    async with running(shards=shards) as run:
        client = await run.connect()
        await client.send(
            request("POST", "/v0/topics/a/diff", b"{}") + request("GET", "/v0/health")
        )
        assert len((await client.receive()).json()["filler"]) == 8_000_000
        assert (await client.receive()).json()["status"] == "ok"


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
    ours.setblocking(False)
    return ours, theirs


@pytest.mark.parametrize("end", ["close", "cut", "half", ""])
async def test_a_disconnected_client_is_detected_before_the_response(end: str) -> None:
    ours, theirs = tcp_pair()
    with ours, theirs:
        connection = Connection(ours, Connections(Timings(), 0.0))
        theirs.send(b"the next request")
        await connection.check_client()
        if end == "close":
            theirs.close()
        elif end == "half":
            theirs.shutdown(socket.SHUT_WR)
        elif end == "cut":
            connection.abort()
        is_gone = end in ("close", "cut")
        with pytest.raises(ConnectionResetError) if is_gone else contextlib.nullcontext():
            await connection.check_client()
        if not is_gone:
            await connection.send(b"HTTP/1.1 200 OK\r\n\r\n", b"{}")
            assert theirs.recv(99) == b"HTTP/1.1 200 OK\r\n\r\n{}"
            assert connection.sent_bytes == 21


async def test_a_half_closed_client_with_a_full_socket_counts_as_connected(
    autojump_clock: MockClock,
) -> None:
    """The socket is full of earlier responses, so it cannot be probed."""
    ours, theirs = tcp_pair()
    with ours, theirs:
        connection = Connection(ours, Connections(Timings(), 0.0))
        with contextlib.suppress(BlockingIOError):
            while ours.send(b"x" * 65536):
                pass
        theirs.shutdown(socket.SHUT_WR)
        await connection.check_client()
