"""The routes of watch sessions: the fields of a session, and the requests that open its stream."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from tests.support.fake_shards import FakeShards
from tests.support.front import HANDSHAKE, Running, running
from tests.support.raw_client import RawClient, request
from topics.formats.wire import calls
from topics.formats.wire.contract import Call, P, R
from topics.front.http.connection import Connection
from topics.front.limits import Cap
from topics.front.live.watches import SESSION_TTL_S


class Heads(FakeShards):
    """Shards that report the head of each topic and open feeds."""

    def _answer(
        self, call: Call[P, R], params: Any, raw: bytes, shard: int
    ) -> tuple[tuple[Any, ...], bytes]:
        if call is calls.TOPIC_HEADS:
            known = [name for name in params.topics if name in self.topics]
            return calls.TopicHeadsResult({n: (len(self.topics[n]), 1, 1) for n in known}), b""
        if call is calls.FEED_OPEN:
            return calls.FeedOpenResult(len(self.topics[params.topic]), 1, 1), b""
        return super()._answer(call, params, raw, shard)


async def created(run: Running, query: str = "", padding: int = 0) -> tuple[int, dict[str, Any]]:
    client = await run.connect()
    body = b'{"topics":{"a":{"tail":true},"gone":{"from_seq":0}}}' + b" " * padding
    answer = await client.request("POST", f"/v0/watch{query}", body)
    return answer.status, answer.json()


@pytest.mark.parametrize("padding", [0, 50_000], ids=["inline", "in shared memory"])
async def test_a_session_is_created_from_a_body_of_any_length(padding: int) -> None:
    async with running(shards=Heads(topics={"a": [1, 2], "gone": []})) as run:
        status, session = await created(run, padding=padding)
        assert (status, session["stream_url"]) == (200, f"/v0/watch/{session['wid']}")
        assert session["topics"]["a"]["from_seq"] == 2
        assert session["performance"]["server_total_ms"] >= 0
        assert run.shards.blocks_out == 0
        assert run.shards.replies_out == 0


async def handshake_of(run: Running) -> bytes:
    return request("GET", "/v0/ws", b"", **HANDSHAKE)


async def watch_of(run: Running) -> bytes:
    _, session = await created(run)
    return request("GET", session["stream_url"])


@pytest.mark.parametrize("make_request", [watch_of, handshake_of])
async def test_a_stream_has_its_slot_before_the_client_receives_its_head(
    make_request: Callable[[Running], Awaitable[bytes]],
) -> None:
    async with running(shards=Heads(topics={"a": [], "gone": []})) as run:
        streams = run.server.slots.streams
        streams.in_all = Cap("max_streams", 1)
        raw_request, client = await make_request(run), await run.connect()
        slow = await slow_client(run, client)
        await client.send(raw_request)
        await slow.send_called.wait()
        assert streams.used == 1
        other = await run.connect()
        await other.send(request("GET", "/v0/ws", b"", **HANDSHAKE))
        assert (await other.receive()).status == 429
        slow.takes.set()
        await run.until(lambda: len(run.server.live.streams) == 1)
        assert streams.used == 1
        client.stream.socket.close()
        await run.until(lambda: streams.used == 0)


@pytest.mark.parametrize("make_request", [watch_of, handshake_of])
async def test_a_stream_whose_head_is_never_received_releases_its_slot(
    make_request: Callable[[Running], Awaitable[bytes]],
) -> None:
    async with running(shards=Heads(topics={"a": [], "gone": []})) as run:
        streams = run.server.slots.streams
        raw_request, client = await make_request(run), await run.connect()
        slow = await slow_client(run, client)
        slow.failure = ConnectionResetError()
        await client.send(raw_request)
        await slow.send_called.wait()
        assert streams.used == 1
        slow.takes.set()
        await run.until(lambda: streams.used == 0)
        assert run.server.live.streams == set()


async def test_a_session_does_not_expire_while_its_stream_opens() -> None:
    async with running(shards=Heads(topics={"a": [], "gone": []})) as run:
        raw_request, client = await watch_of(run), await run.connect()
        (session,) = run.server._context.watches._sessions.values()
        session.ended_at -= SESSION_TTL_S - 10
        slow = await slow_client(run, client)
        await client.send(raw_request)
        await slow.send_called.wait()
        session.ended_at -= 20
        assert (await created(run))[0] == 200
        assert run.server.slots.watch_sessions.used == 2
        slow.takes.set()
        await run.until(lambda: session.stream is not None)


@pytest.mark.parametrize("is_draining", [False, True], ids=["not ready", "shutting down"])
async def test_a_watch_in_one_request_gets_a_retry_event_instead_of_503(
    is_draining: bool,
) -> None:
    """After a status of 503 an EventSource would never reconnect."""
    async with running(shards=Heads(topics={"a": []})) as run:
        client = await run.connect()
        if is_draining:
            run.server.guard.drain.begin()
        else:
            run.shards.ready = False
        answer = await client.request("GET", "/v0/watch?topic=a")
        assert answer.status == 200
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        reason = b"the server is shutting down" if is_draining else b"the shard is recovering"
        event = b'event: error\ndata: {"code":503,"error":"%b"}\n\nretry: 2000\n\n' % reason
        assert answer.body == event
        assert run.server.slots.streams.used == 0


class SlowClient:
    """A client that receives no data before ``takes`` is set, and then may raise ``failure``."""

    def __init__(self, connection: Connection) -> None:
        self.send_called, self.takes = trio.Event(), trio.Event()
        self.failure: OSError | None = None
        self._send = connection.send

    async def send(self, *parts: bytes | memoryview) -> None:
        """Replace `Connection.send`."""
        self.send_called.set()
        await self.takes.wait()
        if self.failure is not None:
            raise self.failure
        await self._send(*parts)


async def slow_client(run: Running, client: RawClient) -> SlowClient:
    """Make the client slow from now on."""
    name = client.stream.socket.getsockname()

    def its_connections() -> list[Connection]:
        return [one for one in run.server.connections if one.sock.getpeername() == name]

    await run.until(lambda: len(its_connections()) == 1)
    slow = SlowClient(its_connections()[0])
    its_connections()[0].send = slow.send  # type: ignore[method-assign]
    return slow
