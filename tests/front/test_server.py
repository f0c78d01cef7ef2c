"""The drain of a server: requests that are finished, refused or aborted."""

from __future__ import annotations

import pytest
import trio

from tests.support.fake_shards import FakeShards
from tests.support.front import APPEND, RECORD, running
from tests.support.raw_client import request
from topics.config import Settings


@pytest.mark.slow
async def test_the_drain_lets_requests_finish_and_closes_the_rest() -> None:
    shards = FakeShards(topics={"slow": []}, gate=trio.Event())
    async with running(shards=shards) as run:
        idle, busy, halfway = [await run.connect() for _ in range(3)]
        assert (await idle.request("GET", "/v0/health")).status == 200
        await busy.send(request("POST", "/v0/topics/slow/diff", b"{}"))
        await halfway.send(APPEND[:30])
        await run.until(
            lambda: shards.waiting == 1 and sum(c.idle for c in run.server.connections) == 1
        )
        run.stop.set()
        assert await idle.is_closed()
        await halfway.send(APPEND[30:])
        answer = await halfway.receive()
        assert (answer.status, answer.code) == (503, "shutting_down")
        assert (answer.headers["connection"], answer.headers["retry-after"]) == ("close", "1")
        assert await halfway.is_closed()
        assert shards.gate is not None
        shards.gate.set()
        answer = await busy.receive()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert await busy.is_closed()
        with trio.fail_after(5):
            await run.stopped.wait()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/v0/topics/a"), ("PUT", "/v0/topics/a"), ("GET", "/v0/ready")]
)
async def test_a_client_that_connects_during_the_drain_gets_503(method: str, path: str) -> None:
    shards = FakeShards(topics={"slow": []}, gate=trio.Event())
    async with running(shards=shards) as run:
        busy = await run.connect()
        await busy.send(request("POST", "/v0/topics/slow", RECORD))
        await run.until(lambda: shards.waiting == 1)
        run.stop.set()
        await run.until(lambda: run.server.guard.drain.is_draining)
        late, silent = await run.connect(), await run.connect()
        answer = await late.request(method, path, b"" if method == "GET" else RECORD)
        assert (answer.status, answer.code) == (503, "shutting_down")
        assert (answer.headers["connection"], answer.headers["retry-after"]) == ("close", "1")
        assert await late.is_closed()
        assert shards.gate is not None
        shards.gate.set()
        assert (await busy.receive()).status == 200
        with trio.fail_after(1):
            await run.stopped.wait()
        assert await silent.is_closed()
        with pytest.raises(OSError):
            await trio.open_tcp_stream(*run.address)


@pytest.mark.slow
async def test_a_request_that_does_not_end_is_aborted_after_the_drain_time() -> None:
    shards = FakeShards(topics={"slow": [], "a": []}, gate=trio.Event(), answer_bytes=20_000_000)
    async with running(shards=shards, settings=Settings(drain_ms=100)) as run:
        waiting, deaf = [await run.connect() for _ in range(2)]
        await waiting.send(request("POST", "/v0/topics/slow/diff", b"{}"))
        await deaf.send(request("POST", "/v0/topics/a/diff", b"{}"))
        await run.until(lambda: len(shards.calls) == 2)
        run.stop.set()
        with trio.fail_after(5):
            await run.stopped.wait()
        assert shards.cancelled == 1
