"""Draining: requests finish, long polls end, late clients are told."""

from __future__ import annotations

import socket

import pytest
import trio

from tests.support.fake_backend import FakeBackend
from tests.support.front import APPEND, LANES, RECORD, running
from tests.support.raw_client import request
from topics.config import Settings
from topics.front.http.connection import Connection, Timings
from topics.front.http.connections import Connections
from topics.front.http.fast_lane import FastLane


@pytest.mark.slow
@LANES
async def test_the_drain_lets_requests_finish_and_closes_the_rest(fast: bool) -> None:
    backend = FakeBackend(topics={"slow": []}, gate=trio.Event())
    async with running(fast=fast, backend=backend) as run:
        idle, busy, halfway = [await run.connect() for _ in range(3)]
        assert (await idle.ask("GET", "/v0/health")).status == 200
        await busy.say(request("POST", "/v0/topics/slow/diff", b"{}"))
        await halfway.say(APPEND[:30])
        await run.until(
            lambda: backend.waiting == 1 and sum(c.idle for c in run.server.connections) == 1
        )
        run.stop.set()
        assert await idle.is_closed()
        await halfway.say(APPEND[30:])
        answer = await halfway.hear()
        assert (answer.status, answer.code) == (503, "shutting_down")
        assert (answer.headers["connection"], answer.headers["retry-after"]) == ("close", "1")
        assert await halfway.is_closed()
        assert backend.gate is not None
        backend.gate.set()
        answer = await busy.hear()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert await busy.is_closed()
        with trio.fail_after(5):
            await run.stopped.wait()


@pytest.mark.slow
@LANES
@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/v0/topics/a"), ("PUT", "/v0/topics/a"), ("GET", "/v0/ready")]
)
async def test_a_client_that_connects_during_the_drain_is_told_so(
    fast: bool, method: str, path: str
) -> None:
    backend = FakeBackend(topics={"slow": []}, gate=trio.Event())
    async with running(fast=fast, backend=backend) as run:
        busy = await run.connect()
        await busy.say(request("POST", "/v0/topics/slow", RECORD))
        await run.until(lambda: backend.waiting == 1)
        run.stop.set()
        await run.until(lambda: run.server.guard.drain.is_draining)
        late, silent = await run.connect(), await run.connect()
        answer = await late.ask(method, path, b"" if method == "GET" else RECORD)
        assert (answer.status, answer.code) == (503, "shutting_down")
        assert (answer.headers["connection"], answer.headers["retry-after"]) == ("close", "1")
        assert await late.is_closed()
        assert backend.gate is not None
        backend.gate.set()
        assert (await busy.hear()).status == 200
        with trio.fail_after(1):
            await run.stopped.wait()
        assert await silent.is_closed()
        with pytest.raises(OSError):
            await trio.open_tcp_stream(*run.address)


@pytest.mark.slow
async def test_the_drain_does_not_wait_for_a_late_client_that_sends_nothing(
    autojump_clock: trio.abc.Clock,
) -> None:
    connections = Connections(Timings(), trio.current_time())
    connections.drain()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        late = Connection(ours, connections)
        connections.add(late)
        assert late.is_late
        with trio.fail_after(1):
            await connections.wait_empty()
        connections.drain()
        assert connections.leaving == 1
        assert late.closing


@pytest.mark.slow
@LANES
async def test_readiness_reports_the_drain(fast: bool) -> None:
    async with running(fast=fast) as run:
        client = await run.connect()
        await client.say(b"GET /v0/ready HTTP/1.1\r\n")
        await run.until(lambda: any(not c.idle for c in run.server.connections))
        run.stop.set()
        await run.until(lambda: run.server.guard.drain.is_draining)
        await client.say(b"host: localhost\r\n\r\n")
        assert (await client.hear()).code == "shutting_down"
        assert await client.is_closed()


@pytest.mark.slow
@LANES
async def test_a_request_that_does_not_end_is_cut_after_the_drain_time(fast: bool) -> None:
    backend = FakeBackend(topics={"slow": [], "a": []}, gate=trio.Event(), answer_bytes=20_000_000)
    async with running(fast=fast, backend=backend, settings=Settings(drain_ms=100)) as run:
        waiting, deaf = [await run.connect() for _ in range(2)]
        await waiting.say(request("POST", "/v0/topics/slow", RECORD))
        await deaf.say(request("POST", "/v0/topics/a/diff", b"{}"))
        await run.until(lambda: len(backend.calls) == 2)
        run.stop.set()
        with trio.fail_after(5):
            await run.stopped.wait()
        assert backend.cancelled == 1


@pytest.mark.slow
@LANES
async def test_a_long_poll_that_outlives_the_drain_is_told_so(fast: bool) -> None:
    backend = FakeBackend(topics={"slow": []}, gate=trio.Event())
    async with running(fast=fast, backend=backend, settings=Settings(drain_ms=300)) as run:
        client = await run.connect()
        await client.say(request("POST", "/v0/topics/slow/diff", b'{"wait_ms":30000}'))
        await run.until(lambda: backend.waiting == 1)
        run.stop.set()
        answer = await client.hear()
        assert (answer.status, answer.code, answer.headers["connection"]) == (
            503,
            "shutting_down",
            "close",
        )
        assert backend.cancelled == 1


@pytest.mark.slow
async def test_a_long_poll_whose_body_arrives_after_the_others_ended_ends_too() -> None:
    backend = FakeBackend(topics={"slow": []}, gate=trio.Event())
    async with running(backend=backend, settings=Settings(drain_ms=20_000)) as run:
        client = await run.connect()
        poll = request("POST", "/v0/topics/slow/diff", b'{"wait_ms":30000}')
        await client.say(poll[:-2])
        await run.until(lambda: any(c.body_deadline < 1e18 for c in run.server.connections))
        run.stop.set()
        await run.until(lambda: run.server.guard.drain.is_draining)
        run.server.guard.drain.stop_waiting()
        await client.say(poll[-2:])
        with trio.fail_after(5):
            assert (await client.hear()).code == "shutting_down"


@pytest.mark.slow
async def test_requests_received_before_the_drain_are_answered() -> None:
    """Before its task has begun to run, and while it is between two requests."""
    async with running() as run:
        connections, lanes = run.server.connections, run.server.lanes
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            theirs.settimeout(5)
            connection = Connection(ours, connections)
            connections.add(connection)
            theirs.sendall(APPEND)
            run.server.guard.drain.begin()
            connections.drain()
            assert connections.leaving == 1
            await FastLane(connection, lanes).run()
            assert theirs.recv(4096).startswith(b"HTTP/1.1 503 ")
            connections.remove(connection)
