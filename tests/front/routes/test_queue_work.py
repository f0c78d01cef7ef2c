"""Streams of work: how they open, what refuses them, and that the shard hears of every end."""

from __future__ import annotations

import socket

import pytest

from tests.front.routes.queues_support import HOW, granted, hang_up
from tests.support.fake_shards import FakeShards
from tests.support.front import Running, running
from tests.support.raw_client import RawClient, request
from topics.formats.wire import calls
from topics.front.live.event_stream import HEADERS, HEARTBEAT, RETRY

WORK_CLOSE = ("work.close", calls.WorkCloseParams(1, 0), b"")


@pytest.mark.parametrize(
    ("query", "max_jobs", "lease_ms"),
    [
        ("", 1, None),
        ("&max=8&lease_ms=5000", 8, 5000),
        ("&max=99999&lease_ms=0", 1000, 100),
        ("&lease_ms=99999999999", 1, 86_400_000),
    ],
)
async def test_a_stream_of_work_begins_with_a_retry_and_a_heartbeat(
    query: str, max_jobs: int, lease_ms: int | None
) -> None:
    async with running(shards=FakeShards(topics={"a": []})) as run:
        client = await run.connect()
        path = f"/v0/topics/a/work?node=n{query}"
        await client.say(request("GET", path, accept="text/event-stream"))
        head, _, events = (await said(client, HEARTBEAT)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        for name, value in HEADERS:
            assert b"\r\n%b: %b" % (name, value) in head
        assert events == RETRY + HEARTBEAT
        [asked] = run.shards.calls
        assert asked == ("work.open", calls.WorkOpenParams(1, "a", "n", max_jobs, lease_ms), b"")
        assert run.server.slots.streams.used == 1


async def said(client: RawClient, end: bytes) -> bytes:
    """What has come, up to this."""
    while not client._buffer.endswith(end):
        await client._more()
    return client._buffer


async def opened(run: Running, path: str = "/v0/topics/a/work?node=n") -> RawClient:
    """A stream that has begun."""
    client = await run.connect()
    await client.say(request("GET", path))
    await said(client, HEARTBEAT)
    return client


@pytest.mark.parametrize("how", HOW)
async def test_a_shard_hears_that_a_worker_has_gone(how: str) -> None:
    async with running(shards=FakeShards(topics={"a": []})) as run:
        client = await opened(run)
        await hang_up(client, how)
        await run.until(lambda: WORK_CLOSE in run.shards.calls)
        assert run.server.slots.streams.used == 0


async def test_a_shard_hears_of_a_worker_that_went_while_the_stream_was_opened(
    slow: FakeShards,
) -> None:
    async with running(shards=slow) as run:
        client = await run.connect()
        await client.say(request("GET", "/v0/topics/slow/work?node=n"))
        await run.until(lambda: slow.waiting == 1)
        await hang_up(client, "reset")
        with granted(slow):
            pass
        await run.until(lambda: WORK_CLOSE in slow.calls)
        assert run.server.slots.streams.used == 0


async def test_a_shard_hears_of_a_stream_whose_head_could_not_be_sent(
    slow: FakeShards,
) -> None:
    async with running(shards=slow) as run:
        client = await run.connect()
        await client.say(request("GET", "/v0/topics/slow/work?node=n"))
        await run.until(lambda: slow.waiting == 1)
        [connection] = run.server.connections
        connection.sock.shutdown(socket.SHUT_WR)
        with granted(slow):
            pass
        await run.until(lambda: WORK_CLOSE in slow.calls)
        assert run.server.slots.streams.used == 0


async def test_the_drain_ends_a_stream_of_work() -> None:
    async with running(shards=FakeShards(topics={"a": []})) as run:
        client = await opened(run)
        run.stop.set()
        await said(client, b'{"code":503,"error":"the server is shutting down"}\n\n')
        await run.until(lambda: WORK_CLOSE in run.shards.calls)
