"""Draining: requests finish, long polls end, late clients are refused."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from tests.support.driven import scenes
from tests.support.fake_shards import FakeShards
from tests.support.front import APPEND, running
from tests.support.raw_client import request
from topics.config import Settings


@pytest.mark.slow
async def test_a_long_poll_longer_than_the_drain_gets_503() -> None:
    shards = FakeShards(topics={"slow": []}, gate=trio.Event())
    async with running(shards=shards, settings=Settings(drain_ms=300)) as run:
        client = await run.connect()
        await client.send(request("POST", "/v0/topics/slow/diff", b'{"wait_ms":30000}'))
        await run.until(lambda: shards.waiting == 1)
        run.stop.set()
        answer = await client.receive()
        assert (answer.status, answer.code, answer.headers["connection"]) == (
            503,
            "shutting_down",
            "close",
        )
        assert shards.cancelled == 1


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["diff", "claim"])
async def test_a_waiting_call_whose_body_arrives_late_in_the_drain_gets_503(
    operation: str,
) -> None:
    shards = FakeShards(topics={"slow": []}, gate=trio.Event())
    async with running(shards=shards, settings=Settings(drain_ms=20_000)) as run:
        client = await run.connect()
        poll = request("POST", f"/v0/topics/slow/{operation}", b'{"wait_ms":30000}')
        await client.send(poll[:-2])
        await run.until(lambda: any(c.body_deadline < 1e18 for c in run.server.connections))
        run.stop.set()
        await run.until(lambda: run.server.guard.drain.is_draining)
        await run.until(lambda: not run.server.guard.drain._may_wait)
        await client.send(poll[-2:])
        with trio.fail_after(5):
            assert (await client.receive()).code == "shutting_down"


@pytest.mark.slow
async def test_a_request_received_before_the_drain_is_answered() -> None:
    """Its bytes are in the buffer of the socket, and the front has not read them yet."""
    async with running() as run, scenes(run) as make:
        scene = make()
        scene.client.sendall(APPEND)
        run.server.guard.drain.begin()
        run.server.connections.drain()
        assert run.server.connections.draining_count == 1
        scene.poll()
        assert scene.client.recv(4096).startswith(b"HTTP/1.1 503 ")
        assert scene.is_over
