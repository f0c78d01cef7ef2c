"""Input that a front has not used: its memory is bounded, and it does not exclude other clients."""

from __future__ import annotations

import gc
from typing import Any, cast

import pytest
import trio

from tests.support.driven import scenes
from tests.support.fake_shards import FakeShards
from tests.support.front import HANDSHAKE, RECORD, Running, bearer, running
from tests.support.polling import is_readable
from tests.support.raw_client import RawClient, request
from tests.support.ws import TEXT, frame_bytes
from topics.config import Settings
from topics.formats.api.request_heads import HeadFields
from topics.front.http.connection import NEVER, Timings
from topics.front.http.http1_protocol import Http1Protocol, State
from topics.front.http.poller import KEYLESS_PER_PASS
from topics.front.limits import Cap

LONG = 60_000
KEY: dict[str, Any] = {"authorization": bearer("key")}
NO_SWEEP = Timings(tick_s=1000.0)


def unread(run: Running) -> int:
    """Return the number of bytes that the ledger counts."""
    return run.server.connections.held.unread.size


def kept(run: Running) -> int:
    """Return the bytes that connections and heads keep, measured without the ledger."""
    gc.collect()
    heads = [one for one in gc.get_objects() if isinstance(one, HeadFields)]
    fields = sum(len(value) for head in heads for _, value in head._fields)
    return fields + sum(len(one.buffer) for one in run.server.connections)


def without_body(method: str, path: str, **fields: Any) -> bytes:
    """Return a request that declares a long body and sends none of it."""
    return request(method, path, content_length=str(LONG), **fields)


OPEN = ["/v0/health", "/v0/ready", "/", "/v0", "/console", "/v0/openapi.json"]


@pytest.mark.parametrize("path", OPEN)
async def test_a_route_without_a_key_neither_waits_for_a_body_nor_keeps_it(path: str) -> None:
    async with running(keys="key", timings=NO_SWEEP) as run:
        client = await run.connect()
        await client.send(without_body("GET", path, x_long="x" * LONG) + b"y" * (LONG - 1))
        assert (await client.receive()).status == 200
        await run.until(lambda: unread(run) == 0 and kept(run) < 10_000)
        [connection] = run.server.connections
        assert connection.inactive_since < NEVER
        await client.send(b"z")
        assert (await client.request("GET", "/v0/topics", **KEY)).status == 200


WITHOUT_KEY = {
    "an unused body": without_body("GET", "/v0/health"),
    "half of it": without_body("GET", "/v0/health") + b"y" * 100,
    "a long one": request("GET", "/v0/health", content_length="1000000") + b"y" * 100,
    "a chunked one": request("GET", "/v0/health", transfer_encoding="chunked") + b"5\r\nabc",
    "a refused body": without_body("POST", "/v0/topics/a", content_type="application/json"),
    "a long refused body": request("POST", "/v0/topics/a", content_length="10000000"),
}


@pytest.mark.parametrize("kind", WITHOUT_KEY)
async def test_a_client_without_a_key_that_sends_no_body_excludes_no_other_client(
    kind: str,
) -> None:
    async with running(keys="key", timings=NO_SWEEP) as run:
        run.server.slots.connections.in_all = Cap("max_connections", 2)
        for _ in range(2):
            client = await run.connect()
            await client.send(WITHOUT_KEY[kind])
            assert (await client.receive()).status in (200, 401, 413)
        for _ in range(2):
            newcomer = await run.connect()
            assert (await newcomer.request("GET", "/v0/topics", **KEY)).status == 200
        assert len(run.server.connections) == 2


async def test_a_client_without_a_key_that_reads_no_response_excludes_no_other_client() -> None:
    """A task sends the rest of the response. The new client waits until the task has ended."""
    async with running(keys="key", timings=NO_SWEEP) as run:
        run.server.slots.connections.in_all = Cap("max_connections", 1)
        greedy = await run.connect()
        await greedy.send(request("GET", "/v0/openapi.json") * 200)

        def is_stuck() -> bool:
            [connection] = run.server.connections
            lane = cast("Http1Protocol", connection.owner)
            return lane._state is State.IN_TASK and connection.deadline < NEVER

        await run.until(is_stuck)
        newcomer = await run.connect()
        assert (await newcomer.request("GET", "/v0/topics", **KEY)).status == 200


async def append_partly(run: Running, **fields: Any) -> RawClient:
    """Return a client that has sent 50,000 bytes of an append with a key."""
    client = await run.connect()
    data = request("POST", "/v0/topics/a", RECORD + b" " * LONG, **KEY, **fields)[:50_000]
    await client.send(data)
    return client


PARTS = {
    "a head": request("GET", "/v0/health", x_long="x" * LONG)[:-2],
    "a head in two fragments": request("GET", "/v0/health", x_long="x" * LONG)[:-2],
    "a body": request("POST", "/v0/topics/a", RECORD + b" " * LONG, **KEY)[:50_000],
    "a long body": request("POST", "/v0/topics/a", RECORD + b" " * 200_000, **KEY)[:50_000],
    "a chunked body": request(
        "POST",
        "/v0/topics/a",
        **KEY,
        content_type="application/json",
        transfer_encoding="chunked",
    )
    + b"ffff\r\n"
    + RECORD
    + b" " * 50_000,
}


@pytest.mark.parametrize("kind", PARTS)
async def test_received_bytes_of_a_request_are_counted_until_it_ends(kind: str) -> None:
    settings = Settings(inline_bytes=100_000, max_body_bytes=1024 * 1024, drain_ms=2000)
    async with running(keys="key", timings=NO_SWEEP, settings=settings) as run:
        client = await run.connect()
        data = PARTS[kind]
        middle = len(data) // 2 if "fragments" in kind else 0
        for fragment in (data[:middle], data[middle:]):
            await client.send(fragment)
        await run.until(lambda: 45_000 < unread(run) < 110_000)
        await client.stream.aclose()
        await run.until(lambda: len(run.server.connections) == 0)
        assert unread(run) == 0


async def test_requests_pipelined_after_a_waiting_one_are_counted() -> None:
    gate = trio.Event()
    shards = FakeShards(topics={"slow": []}, gate=gate)
    async with running(keys="key", timings=NO_SWEEP, shards=shards) as run:
        client = await run.connect()
        poll = request("POST", "/v0/topics/slow/diff", b'{"wait_ms":30000}', **KEY)
        health = request("GET", "/v0/health")
        await client.send(poll + health * 200)
        await run.until(lambda: run.shards.waiting == 1)
        assert 200 * len(health) <= unread(run) <= 200 * len(health) + 2 * len(poll)
        gate.set()
        for _ in range(201):
            assert (await client.receive()).status == 200
        await run.until(lambda: unread(run) == 0)


async def test_a_waiting_request_keeps_neither_its_head_nor_its_body() -> None:
    shards = FakeShards(topics={"slow": []}, gate=trio.Event())
    async with running(keys="key", timings=NO_SWEEP, shards=shards) as run:
        client = await run.connect()
        poll = b'{"wait_ms":30000}' + b" " * 20_000
        await client.send(request("POST", "/v0/topics/slow/diff", poll, x_long="x" * 30_000, **KEY))
        await run.until(lambda: run.shards.waiting == 1)
        await run.until(lambda: kept(run) < 10_000)


async def test_a_stream_keeps_no_unread_input() -> None:
    ping = frame_bytes(TEXT, b'{"op":"ping","request_id":"r"}', mask=b"mask")
    async with running(keys="key", timings=NO_SWEEP) as run:
        client = await run.connect()
        await client.send(request("GET", "/v0/ws", b"", **KEY, **HANDSHAKE) + ping * 100)
        assert (await client.receive(method="HEAD")).status == 101
        await run.until(lambda: kept(run) < 1000)
        await run.until(lambda: unread(run) == 0)


async def test_above_the_bound_the_oldest_client_without_a_key_is_disconnected() -> None:
    settings = Settings(inline_bytes=100_000, max_body_bytes=1024 * 1024, drain_ms=2000)
    async with running(keys="key", timings=NO_SWEEP, settings=settings) as run:
        run.server.connections.held.unread.most = 3 * LONG
        known = await append_partly(run)
        clients = list[RawClient]()
        for _ in range(3):
            await run.until(lambda: unread(run) >= 45_000 + len(clients) * LONG)
            clients.append(await run.connect())
            await clients[-1].send(PARTS["a head"])
        assert await clients[0].is_closed()
        await known.send(request("POST", "/v0/topics/a", RECORD + b" " * LONG, **KEY)[50_000:])
        assert (await known.receive()).status == 201
        await clients[2].send(b"\r\n")
        assert (await clients[2].receive()).status == 200


async def test_above_the_bound_a_body_is_refused_with_429() -> None:
    settings = Settings(inline_bytes=200_000, max_body_bytes=1024 * 1024, drain_ms=2000)
    async with running(keys="key", timings=NO_SWEEP, settings=settings) as run:
        client = await run.connect()
        await client.send(PARTS["a long body"])
        await run.until(lambda: unread(run) > 45_000)
        run.server.connections.held.unread.most = 100_000
        other = await run.connect()
        await other.send(PARTS["a head"])
        assert await other.is_closed()
        run.server.connections.held.unread.most = 10_000
        other = await run.connect()
        await other.send(request("GET", "/v0/health", x="x" * 2000)[:-2])
        answer = await client.receive()
        assert (answer.status, answer.code) == (429, "throttled")


@pytest.mark.parametrize(
    "fields", [{"content_length": "9"}, {"transfer_encoding": "chunked"}, {"content_length": "00"}]
)
async def test_a_body_of_a_handshake_is_never_parsed_as_frames(fields: dict[str, Any]) -> None:
    async with running() as run:
        client = await run.connect()
        await client.send(request("GET", "/v0/ws", b"", **HANDSHAKE, **fields))
        answer = await client.receive()
        assert (answer.status, answer.code) == (400, "invalid_request")


async def test_an_iteration_serves_a_bounded_number_of_clients_without_a_key() -> None:
    health, listing = request("GET", "/v0/health"), request("GET", "/v0/health", **KEY)
    async with running(keys="key") as run, scenes(run) as make:
        known = make()
        known.send(request("GET", "/v0/topics/a", b"", **KEY))
        unknown = [make() for _ in range(2 * KEYLESS_PER_PASS + 1)]
        for scene in unknown:
            scene.client.sendall(health)
        known.client.sendall(listing)
        answered = []
        for _ in range(3):
            known.poll()
            answered.append(sum(is_readable(scene.client.fileno(), 0) for scene in unknown))
            assert is_readable(known.client.fileno(), 0)
        assert answered == [KEYLESS_PER_PASS, 2 * KEYLESS_PER_PASS, len(unknown)]


async def test_clients_that_immediately_send_again_do_not_delay_a_new_client() -> None:
    health = request("GET", "/v0/health")
    async with running(keys="key") as run, scenes(run) as make:
        fast = [make() for _ in range(2 * KEYLESS_PER_PASS)]
        for scene in fast:
            scene.client.sendall(health)
        fast[0].poll()
        new = make()
        new.client.sendall(health)
        for _ in range(3):
            for scene in fast:
                if is_readable(scene.client.fileno(), 0):
                    scene.client.recv(4096)
                    scene.client.sendall(health)
            new.poll()
        assert is_readable(new.client.fileno(), 0)


async def test_without_configured_keys_an_iteration_serves_all_clients() -> None:
    async with running() as run, scenes(run) as make:
        everybody = [make() for _ in range(KEYLESS_PER_PASS + 1)]
        for scene in everybody:
            scene.client.sendall(request("GET", "/v0/health"))
        everybody[0].poll()
        assert all(is_readable(scene.client.fileno(), 0) for scene in everybody)
