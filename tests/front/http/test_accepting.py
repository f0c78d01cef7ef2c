"""Accepting: how many clients an iteration accepts, and the response to clients above the limit."""

from __future__ import annotations

import errno
import resource
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.front.conftest import Logged
from tests.support.front import APPEND, running
from tests.support.raw_client import request
from tests.support.server import Server
from topics.errors import Throttled
from topics.formats.api.response_heads import ResponseHeads
from topics.front.http import accepting
from topics.front.http.accepting import (
    FILES_RESERVED,
    LINGERING_MAX,
    TAKEN_PER_ITERATION_MAX,
    TAKEN_PER_ITERATION_MIN,
    Acceptor,
    Refusals,
    connections_max,
)
from topics.front.http.connection import NEVER
from topics.front.limits import Cap, Slots

GET = request("GET", "/v0/health")


def key_of(first_bytes: bytes) -> bytes | None:
    """Return the complete input as the key if it starts with ``key``."""
    return first_bytes if first_bytes.startswith(b"key") else None


def acceptor_of(most: int, request_count: Callable[[], int]) -> Acceptor:
    """Return an acceptor with a limit of ``most`` clients."""
    slots = Slots("there are too many connections", in_all=Cap("max_connections", most))
    return Acceptor(
        ResponseHeads(),
        lambda: b"",
        slots,
        request_count,
        lambda _keyless_only: False,
        key_of,
    )


@pytest.fixture(autouse=True)
def without_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Iterations take the number of clients that the tests expect, also on a slow machine."""
    monkeypatch.setattr(accepting, "SPENT_MAX_S", 60.0)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=500) as listener:
        yield listener


async def taken_per_iteration(listener: socket.socket, count: int, others: int) -> list[int]:
    """Return how many of ``count`` waiting clients each iteration of a busy loop takes.

    Each iteration also serves ``others`` requests.
    """
    clients = [socket.create_connection(listener.getsockname()) for _ in range(count)]
    iterations: list[int] = []
    iteration = 0

    def take(sock: socket.socket, first_bytes: bytes) -> None:
        clients.append(sock)
        iterations.append(iteration)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            acceptor_of(1000, lambda: iteration * others + len(iterations)).run, listener, take
        )
        with trio.fail_after(5):
            while len(iterations) < count:
                iteration += 1
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    for sock in clients:
        sock.close()
    return [iterations.count(iteration) for iteration in sorted(set(iterations))]


async def test_few_waiting_clients_are_taken_in_one_iteration(listener: socket.socket) -> None:
    assert await taken_per_iteration(listener, TAKEN_PER_ITERATION_MIN, 0) == [
        TAKEN_PER_ITERATION_MIN
    ]


async def test_one_iteration_takes_a_bounded_number_of_clients(listener: socket.socket) -> None:
    few, many = TAKEN_PER_ITERATION_MIN, TAKEN_PER_ITERATION_MAX
    calm = await taken_per_iteration(listener, 10 * few, 1)
    assert max(calm) <= 2 * few, "tasks run in any order, so two iterations may count as one"
    busy = await taken_per_iteration(listener, 5 * many, 1000)
    assert max(busy) <= 2 * many
    assert len(busy) <= 7


async def test_clients_are_accepted_before_they_are_taken(listener: socket.socket) -> None:
    """Early accepts keep the kernel's queue from overflowing. A stop closes waiting clients."""
    count, taken = 4 * TAKEN_PER_ITERATION_MIN, list[socket.socket]()
    clients = [socket.create_connection(listener.getsockname(), timeout=5) for _ in range(count)]
    acceptor, accepted = acceptor_of(1000, int), list[int]()

    def take(sock: socket.socket, _: bytes) -> None:
        taken.append(sock)
        accepted.append(acceptor.slots.used)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(acceptor.run, listener, take)
        while acceptor.slots.used < count:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert accepted[0] > TAKEN_PER_ITERATION_MIN
    assert len(taken) < count
    assert acceptor.slots.used == len(taken)
    assert [client.recv(1) for client in clients[len(taken) :]] == [b""] * (count - len(taken))
    for sock in (*taken, *clients):
        sock.close()


async def test_no_client_is_refused_while_taking_a_waiting_one_could_free_a_slot(
    listener: socket.socket,
) -> None:
    most, taken, ended = TAKEN_PER_ITERATION_MIN + 2, list[socket.socket](), list[socket.socket]()
    clients = [socket.create_connection(listener.getsockname(), timeout=5) for _ in range(40)]
    acceptor = acceptor_of(most, int)

    def evict(_keyless_only: bool) -> bool:
        if taken:
            ended.append(taken.pop(0))
            acceptor.slots.release()
        return bool(ended)

    acceptor._evict = evict
    async with trio.open_nursery() as nursery:
        nursery.start_soon(acceptor.run, listener, lambda sock, _: taken.append(sock))
        await wait_all_tasks_blocked(0.001)
        nursery.cancel_scope.cancel()
    assert acceptor.refusals.count == 0
    assert len(taken) + len(ended) == len(clients)
    for sock in (*taken, *ended, *clients):
        sock.close()


FLOOD = 5 * TAKEN_PER_ITERATION_MIN


async def taken_of(acceptor: Acceptor, listener: socket.socket, count: int) -> list[bytes]:
    """Take ``count`` clients, and return their first inputs in the order of the clients."""
    inputs, taken = list[bytes](), list[socket.socket]()

    def take(sock: socket.socket, first_bytes: bytes) -> None:
        inputs.append(first_bytes)
        taken.append(sock)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(acceptor.run, listener, take)
        with trio.fail_after(10):
            while len(inputs) < count:
                await trio.lowlevel.checkpoint()
        await wait_all_tasks_blocked(0.001)
        nursery.cancel_scope.cancel()
    for sock in taken:
        sock.close()
    return inputs


def connected(listener: socket.socket, count: int, first_bytes: bytes) -> list[socket.socket]:
    """Return connected clients that have sent this input."""
    clients = [socket.create_connection(listener.getsockname(), timeout=5) for _ in range(count)]
    for client in clients:
        client.sendall(first_bytes)
    return clients


@pytest.mark.parametrize("first_bytes", [b"no", b"", b"key of many"])
async def test_a_client_with_a_key_does_not_wait_for_many_without_or_with_one_other_key(
    first_bytes: bytes, listener: socket.socket
) -> None:
    clients = connected(listener, FLOOD, first_bytes) + connected(listener, 1, b"key")
    inputs = await taken_of(acceptor_of(1000, int), listener, FLOOD + 1)
    assert b"key" in inputs[: TAKEN_PER_ITERATION_MIN + 1]
    assert len(inputs) == FLOOD + 1
    for client in clients:
        client.close()


@pytest.mark.parametrize("first_bytes", [b"no", b"key of many"])
async def test_if_many_wait_and_no_slot_is_free_the_oldest_is_refused_for_a_new_client(
    first_bytes: bytes, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accepting, "WAITING_MAX", 2 * TAKEN_PER_ITERATION_MIN)
    clients = connected(listener, FLOOD + 4, first_bytes) + connected(listener, 1, b"key")
    acceptor = acceptor_of(FLOOD, int)
    inputs = await taken_of(acceptor, listener, FLOOD)
    assert b"key" in inputs[: 2 * TAKEN_PER_ITERATION_MIN]
    assert acceptor.refusals.count == 5
    refused = clients[TAKEN_PER_ITERATION_MIN:][:5]
    assert all(client.recv(4096).startswith(b"HTTP/1.1 429 ") for client in refused)
    for client in clients:
        client.close()


async def test_few_clients_without_a_key_do_not_protect_many_clients_of_one_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accepting, "WAITING_MAX", 4)
    acceptor = acceptor_of(5, int)
    (keyless, other), *keyed = [socket.socketpair() for _ in range(5)]
    acceptor._waiting.append(keyless)
    acceptor._known[b"key"] = deque(ours for ours, _ in keyed)
    for _ in range(5):
        acceptor.slots.acquire()
    assert await acceptor._free_slot()
    assert keyed[0][1].recv(4096).startswith(b"HTTP/1.1 429 ")
    assert (list(acceptor._waiting), len(acceptor._known[b"key"])) == ([keyless], 3)
    acceptor.close()
    for client in (other, *(client for _, client in keyed)):
        client.close()


async def test_a_client_without_a_key_does_not_wait_for_many_with_one(
    listener: socket.socket,
) -> None:
    clients = connected(listener, FLOOD, b"key") + connected(listener, 1, b"no")
    inputs = await taken_of(acceptor_of(1000, int), listener, FLOOD + 1)
    assert b"no" in inputs[: 2 * TAKEN_PER_ITERATION_MIN + 2]
    for client in clients:
        client.close()


async def test_a_waiting_client_that_closed_its_side_is_taken_last(listener: socket.socket) -> None:
    """The client may have closed only its sending side and still read its response."""
    left = connected(listener, FLOOD, b"left")
    for client in left[::2]:
        client.close()
    for client in left[1::2]:
        client.shutdown(socket.SHUT_WR)
    here = connected(listener, 3, b"here")
    acceptor = acceptor_of(1000, int)
    inputs = await taken_of(acceptor, listener, FLOOD + 3)
    assert inputs.index(b"left") <= inputs.index(b"here") + 3
    assert inputs[:5].count(b"here") == 3, "each iteration also takes a closed one"
    assert acceptor.slots.used == len(inputs) == FLOOD + 3
    for client in (*left, *here):
        client.close()


async def test_a_waiting_client_that_reset_its_connection_is_not_taken(
    listener: socket.socket,
) -> None:
    left = connected(listener, FLOOD, b"left")
    for client in left:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
    here = connected(listener, 1, b"here")
    acceptor = acceptor_of(1000, int)
    assert await taken_of(acceptor, listener, 1) == [b"here"]
    assert acceptor.slots.used == 1
    here[0].close()


async def test_without_free_slots_waiting_clients_that_closed_their_side_are_displaced(
    listener: socket.socket,
) -> None:
    left = connected(listener, FLOOD, b"left")
    for client in left:
        client.shutdown(socket.SHUT_WR)
    here = connected(listener, TAKEN_PER_ITERATION_MIN, b"here")
    acceptor = acceptor_of(FLOOD // 2, int)
    inputs = await taken_of(acceptor, listener, TAKEN_PER_ITERATION_MIN)
    assert inputs.count(b"here") == TAKEN_PER_ITERATION_MIN
    assert acceptor.refusals.count == 0
    for client in (*left, *here):
        client.close()


async def test_a_client_is_taken_with_its_first_input(listener: socket.socket) -> None:
    inputs = []
    with socket.create_connection(listener.getsockname()) as client:
        client.send(GET)

        def take(sock: socket.socket, first_bytes: bytes) -> None:
            inputs.append(first_bytes)
            sock.close()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(acceptor_of(9, int).run, listener, take)
            await wait_all_tasks_blocked(0.001)
            nursery.cancel_scope.cancel()
    assert inputs == [GET]


async def test_a_client_above_the_limit_gets_429_until_another_one_disconnects() -> None:
    async with running() as run:
        slots = run.server.slots.connections
        slots.in_all = Cap("max_connections", 2)
        first, second = await run.connect(), await run.connect()
        for client in (first, second):
            await client.send(APPEND[:-5])
        await run.until(
            lambda: [one.inactive_since for one in run.server.connections] == 2 * [NEVER]
        )
        third = await run.connect()
        answer = await third.receive()
        assert (answer.status, answer.code, answer.headers["connection"]) == (
            429,
            "throttled",
            "close",
        )
        assert answer.headers["retry-after"] == "1"
        assert answer.json()["error"]["detail"]["limit"] == "max_connections"
        assert await third.is_closed()
        await first.stream.aclose()
        await run.until(lambda: slots.used == 1)
        fourth = await run.connect()
        await fourth.send(GET)
        assert (await fourth.receive()).status == 200
    assert slots.used == 0


class WithoutDescriptors:
    """A listener in a process whose last free descriptor is the acceptor's spare."""

    def __init__(self, listener: socket.socket, acceptor: Acceptor) -> None:
        self._listener, self._acceptor = listener, acceptor

    def accept(self) -> tuple[socket.socket, object]:
        if self._acceptor._spare_fd >= 0:
            raise OSError(errno.EMFILE, "Too many open files")
        return self._listener.accept()

    def fileno(self) -> int:
        return self._listener.fileno()

    def setblocking(self, flag: bool) -> None:
        self._listener.setblocking(flag)


async def test_without_a_free_descriptor_clients_get_429_and_one_line_is_logged(
    listener: socket.socket, logged: Logged
) -> None:
    acceptor = acceptor_of(100, int)
    clients = [socket.create_connection(listener.getsockname(), timeout=5) for _ in range(20)]
    taken: list[socket.socket] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            acceptor.run,
            cast("Any", WithoutDescriptors(listener, acceptor)),
            lambda sock, _: taken.append(sock),
        )
        await wait_all_tasks_blocked(0.001)
        acceptor.tick()
        acceptor.tick()
        nursery.cancel_scope.cancel()
    for client in clients:
        with client:
            assert client.recv(4096).startswith(b"HTTP/1.1 429 ")
    assert not taken
    assert logged == [
        {
            "event": "clients refused",
            "log_level": "warning",
            "reason": "no file descriptor left",
            "count": 20,
            "open_count": 0,
        }
    ]


def test_the_limit_of_connections_reserves_descriptors_for_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for soft, most in ((1024, 1024 - FILES_RESERVED), (1 << 20, 16_384), (-1, 16_384), (10, 1)):
        monkeypatch.setattr(resource, "getrlimit", dict.fromkeys(range(99), (soft, soft)).get)
        assert connections_max(1) == most


@pytest.mark.slow
def test_a_server_without_free_descriptors_responds_and_recovers(tmp_path: Path) -> None:
    with Server(tmp_path / "data", shards=1) as server:
        front = server.roles()["front 0"]
        used = len(list(Path(f"/proc/{front}/fd").iterdir()))
        resource.prlimit(front, resource.RLIMIT_NOFILE, (used + 20, used + 20))
        clients = []
        for _ in range(60):
            clients.append(socket.create_connection(server.address, timeout=20))
            clients[-1].send(GET)
        statuses = [client.recv(4096)[9:12] for client in clients]
        assert {*statuses} <= {b"200", b"429"}, "a client got another response"
        assert statuses.count(b"200") >= 20
        for client in clients:
            client.close()
        with socket.create_connection(server.address, timeout=20) as client:
            client.send(GET)
            assert client.recv(4096)[9:12] == b"200"
        assert server.log is not None
        lines = [event for event in server.log.events() if "refused" in event["event"]]
        assert len(lines) <= 2


# Refused clients

LINE = b"x-request-id: made\r\n"
FULL = Throttled("there are too many connections", retry_after_ms=1000)


def refused(refusals: Refusals) -> tuple[socket.socket, socket.socket]:
    """Return the server's end of a refused client, and the client, which has already sent data."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname(), timeout=5)
        ours, _ = listener.accept()
    client.send(b"GET / HTTP/1.1\r\n")
    refusals.refuse(ours, FULL)
    return ours, client


def test_a_refused_client_gets_a_complete_response_before_the_close() -> None:
    refusals = Refusals(ResponseHeads(), lambda: LINE)
    _, client = refused(refusals)
    with client:
        head, _, body = client.recv(4096).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 429 ")
        assert b"\r\nconnection: close" in head
        assert b"\r\nx-request-id: made\r\n" in head
        assert b'"code":"throttled"' in body
        assert client.recv(4096) == b""
        refusals.close_all()


def test_refusing_a_disconnected_client_raises_no_error() -> None:
    refusals = Refusals(ResponseHeads(), lambda: LINE)
    ours, client = socket.socketpair()
    client.close()
    refusals.refuse(ours, FULL)
    refusals.close_all()
    assert ours.fileno() == -1


def test_a_bounded_number_of_refused_clients_stays_open_until_a_stop() -> None:
    refusals = Refusals(ResponseHeads(), lambda: LINE)
    pairs = [refused(refusals) for _ in range(LINGERING_MAX + 3)]
    is_open = [ours.fileno() >= 0 for ours, _ in pairs]
    assert is_open == [False] * 3 + [True] * LINGERING_MAX, "the oldest were not closed first"
    refusals.close_all()
    assert all(ours.fileno() < 0 for ours, _ in pairs)
    for _, client in pairs:
        error = client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        assert error == 0, "a reset may discard the response"
        assert client.recv(4096).startswith(b"HTTP/1.1 429 ")
        client.close()


def test_all_refusals_since_the_last_line_are_logged_in_one_line(
    logged: Logged,
) -> None:
    refusals = Refusals(ResponseHeads(), lambda: LINE)
    refusals.log(7)
    for reason in ("a", "a", "b"):
        refusals.note(reason)
    refusals.log(8)
    refusals.log(8)
    refusals.note("c")
    refusals.log(9)
    assert [(event["reason"], event["count"], event["open_count"]) for event in logged] == [
        ("b", 3, 8),
        ("c", 1, 9),
    ]
    assert refusals.count == 4
