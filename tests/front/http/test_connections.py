"""All connections: the sweep closes expired ones, the drain closes idle ones."""

from __future__ import annotations

import gc
import socket
import struct
import weakref
from collections.abc import Iterator
from typing import NamedTuple

import pytest
import trio

from tests.support.driven import scenes
from tests.support.fake_shards import FakeShards
from tests.support.front import APPEND, RECORD, Running, bearer, running
from tests.support.raw_client import RawClient, request
from topics.engine.access import ANYONE, Access
from topics.front.http.connection import Connection, Connections, Timings
from topics.front.limits import Cap


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "deadline_s"),
    [
        (b"POST /v0/topics/a HTT", 10),
        (b"\r", 10),
        (b"", 75),
        (APPEND[:-5], 30),
        (request("PUT", "/v0/routers/a", RECORD)[:-5], 30),
        (request("POST", "/v0/topics/a", RECORD * 1000)[:9000], 31),
        (
            request(
                "POST", "/v0/topics/a", content_type="application/json", transfer_encoding="chunked"
            )
            + b"5\r\na",
            30,
        ),
    ],
    ids=["head", "one byte", "nothing", "body", "cold body", "long body", "chunked body"],
)
async def test_a_silent_client_is_closed_at_its_deadline(sent: bytes, deadline_s: float) -> None:
    async with running() as run:
        client = await run.connect()
        await run.until(lambda: len(run.server.connections) == 1)
        [connection] = run.server.connections
        await run.until(lambda: connection.deadline < 1e18)
        if sent:
            await client.send(sent)
            await run.until(lambda: not connection.idle)
            await trio.testing.wait_all_tasks_blocked(0.01)
        run.sweep_in(deadline_s - 2)
        assert len(run.server.connections) == 1
        run.sweep_in(deadline_s + 2)
        assert await client.is_closed()
        await run.until(lambda: len(run.server.connections) == 0)


@pytest.mark.slow
async def test_a_long_poll_ends_when_its_client_disconnects() -> None:
    shards = FakeShards(topics={"slow": []}, gate=trio.Event())
    async with running(shards=shards) as run:
        client = await run.connect()
        await client.send(request("POST", "/v0/topics/slow/diff", b'{"wait_ms":30000}'))
        await run.until(lambda: shards.waiting == 1)
        await client.stream.aclose()
        await run.until(lambda: shards.cancelled == 1)
        await run.until(lambda: len(run.server.connections) == 0)


@pytest.mark.slow
async def test_a_client_that_does_not_read_is_disconnected() -> None:
    shards = FakeShards(topics={"a": []}, answer_bytes=20_000_000)
    async with running(shards=shards) as run:
        client = await run.connect()
        await client.send(request("POST", "/v0/topics/a/diff", b"{}"))
        await run.until(
            lambda: any(c.deadline < 1e18 for c in run.server.connections) and bool(shards.calls)
        )
        await trio.testing.wait_all_tasks_blocked(0.05)
        run.sweep_in(29)
        assert len(run.server.connections) == 1
        run.sweep_in(32)
        await run.until(lambda: len(run.server.connections) == 0)


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
        with trio.fail_after(10):
            await connections.wait_closed()
        connections.drain()
        assert connections.draining_count == 1
        assert late.closing


class Pair(NamedTuple):
    """All connections, the only connection, and its client."""

    connections: Connections
    connection: Connection
    client: socket.socket


@pytest.fixture
def pair() -> Iterator[Pair]:
    """An open connection, idle and without a deadline."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connections = Connections(Timings(tick_s=1.0), 0.0)
        connection = Connection(ours, connections)
        connections.add(connection)
        yield Pair(connections, connection, theirs)


def ended(connection: Connection) -> str:
    """Return how the sweep or the drain ended the connection. A cut sends a reset."""
    size = struct.calcsize("ii")
    is_cut = connection.sock.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, size) != bytes(size)
    return ("cut" if is_cut else "closed") if connection.closing else "open"


@pytest.mark.parametrize(("idle", "end"), [(True, "closed"), (False, "cut")])
def test_past_its_deadline_an_idle_connection_is_closed_and_a_busy_one_cut(
    pair: Pair, idle: bool, end: str
) -> None:
    connections, connection, _ = pair
    connection.idle, connection.deadline = idle, 10.0
    connections.sweep(9.9)
    assert ended(connection) == "open"
    connections.sweep(10.0)
    assert (ended(connection), connections.now) == (end, 10.0)


@pytest.mark.parametrize(("sent", "end"), [(b"", "closed"), (b"GET", "open")])
async def test_the_drain_closes_idle_connections_without_input_and_waits_for_others(
    pair: Pair, sent: bytes, end: str
) -> None:
    connections, connection, client = pair
    client.send(sent)
    connections.drain()
    assert (ended(connection), connections.draining_count) == (end, 1)
    connections.remove(connection)
    with trio.fail_after(10):
        await connections.wait_closed()


async def test_a_request_received_before_its_idle_connection_is_closed_is_answered() -> None:
    """This also holds if the process was stalled and has not read the request yet."""
    async with running() as run, scenes(run) as make:
        active, idle_one = make(), make()
        for scene in (active, idle_one):
            scene.connection.deadline = 75.0
        active.client.sendall(request("GET", "/v0/health"))
        active.connections.sweep(trio.current_time() + 600.0)
        assert idle_one.client.recv(9) == b""
        active.poll()
        assert active.client.recv(4096)[9:12] == b"200"


@pytest.mark.parametrize("how", ["sent", "closed"])
def test_a_connection_with_unread_input_is_not_displaced(pair: Pair, how: str) -> None:
    connections, connection, client = pair
    client.send(b"GET") if how == "sent" else client.close()
    assert not connections.evict(keyless_only=False)
    assert ended(connection) == "open"


def test_a_connection_that_its_client_has_closed_is_not_displaced(pair: Pair) -> None:
    """The search for an earlier eviction has found it, and no slot would become free."""
    connections, connection, _ = pair
    ours, theirs = socket.socketpair()
    with ours, theirs:
        closed = Connection(ours, connections)
        closed.inactive_since = connection.inactive_since + 1
        connections.add(closed)
        assert connections.evict(keyless_only=False)
        assert ended(connection) == "closed"
        connections.remove(closed)
        assert not connections.evict(keyless_only=False)


@pytest.mark.parametrize("has_key", [True, False])
def test_with_keys_a_client_without_one_is_displaced_despite_its_input(
    pair: Pair, has_key: bool
) -> None:
    connections, connection, client = pair
    connections.has_keys = True
    if has_key:
        connection.principal = Access.parse("key").authenticate(b"key") or ANYONE
    client.send(b"GET")
    assert connections.evict(keyless_only=False) is not has_key
    assert ended(connection) == ("open" if has_key else "closed")


@pytest.mark.parametrize(
    ("keyed_server", "keyed_client", "is_closed"),
    [(True, True, False), (True, False, True), (False, False, False)],
)
def test_many_waiting_clients_displace_only_a_client_without_a_key(
    pair: Pair, keyed_server: bool, keyed_client: bool, is_closed: bool
) -> None:
    connections, connection, _ = pair
    connections.has_keys = keyed_server
    if keyed_client:
        connection.principal = Access.parse("key").authenticate(b"key") or ANYONE
    assert connections.evict(keyless_only=True) is is_closed
    assert ended(connection) == ("closed" if is_closed else "open")
    assert connections.evict(keyless_only=False) is not is_closed


def ports_of(run: Running) -> set[int]:
    """Return the ports of the clients whose connections are open."""
    return {one.sock.getpeername()[1] for one in run.server.connections}


@pytest.mark.slow
async def test_without_free_slots_the_longest_idle_connection_is_displaced() -> None:
    async with running(keys="key", timings=Timings(tick_s=1000.0)) as run:

        async def list_topics(client: RawClient) -> None:
            answer = await client.request("GET", "/v0/topics", authorization=bearer("key"))
            assert answer.status == 200

        early, late, silent, part, refused, busy = [await run.connect() for _ in range(6)]
        port = {client: client.stream.socket.getsockname()[1] for client in run.clients}
        await list_topics(early)
        append = request("POST", "/v0/topics/a", RECORD, authorization=bearer("key"))
        await busy.send(append[:-1])
        run.sweep_in(1)
        await list_topics(late)
        for client, sent in (
            (silent, b"\r\n\r\n"),
            (part, b"GET /v0/he"),
            (refused, append.replace(b"key", b"no")[:-1]),
        ):
            await client.send(sent)
        assert (await refused.receive()).status == 401
        await run.until(lambda: sum(not one.idle for one in run.server.connections) == 2)
        run.server.slots.connections.in_all = Cap("max_connections", 6)
        without_key = {port[silent], port[part], port[refused]}
        for left in (2, 1, 0):
            await list_topics(await run.connect())
            ports = ports_of(run)
            assert len(ports & without_key) == left
            assert {port[early], port[late], port[busy]} <= ports
        run.sweep_in(2)
        await list_topics(await run.connect())
        assert port[early] not in ports_of(run), "the longest idle client"
        assert {port[late], port[busy]} <= ports_of(run)
        await busy.send(RECORD[-1:])
        assert (await busy.receive()).status == 201


async def test_a_refused_client_leaves_no_reference_cycle() -> None:
    async with running(keys="key") as run:
        client = await run.connect()
        wrong = request("POST", "/v0/topics/a", RECORD, authorization=bearer("no"))
        await client.send(wrong + wrong[:-1])
        assert (await client.receive()).status == 401
        connection = weakref.ref(next(iter(run.server.connections)))
        gc.disable()
        try:
            client.stream.socket.close()
            await run.until(lambda: len(run.server.connections) == 0)
            await run.until(lambda: connection() is None)
        finally:
            gc.enable()
