"""Held memory: clients that are closed and responses that are refused above its bounds."""

from __future__ import annotations

import socket
from contextlib import suppress

import pytest
import trio
import trio.testing

from tests.support.fake_shards import FakeShards
from tests.support.front import bearer, running
from tests.support.raw_client import request
from topics.config import Settings
from topics.front.held_memory import (
    BACKLOG_MAX_BYTES,
    READ_MIN_BYTES_PER_S,
    STALL_MAX_S,
    TURNOVER_MAX_S,
    UNREAD_MIN_BYTES,
    HeldMemory,
    Holding,
    UnreadInput,
)
from topics.front.http.connection import Connection, Connections, Timings


class Client:
    """A client that the caller of `HeldMemory.excess` closes."""

    def disconnect(self) -> None:
        """Do nothing."""


class Ledger:
    """A ledger with a bound of 1,000 bytes, and of 500 bytes for each key."""

    def __init__(self, most: int = 1000) -> None:
        self.held = HeldMemory(most)
        self.alarms = 0
        self.held.on_excess = self._alarm

    def _alarm(self) -> None:
        self.alarms += 1

    def hold(
        self, size: int, *, key: bytes = b"", now: float = 0.0, block: object = None
    ) -> Holding:
        holding = self.held.hold(Client(), key, now)
        self.held.add(holding, block or holding, size, now)
        return holding

    def ended(self, now: float, *holdings: Holding) -> list[int]:
        """Return the indexes of the clients that must be closed."""
        clients = [holding.client for holding in holdings]
        return [clients.index(client) for client in self.held.excess(now)]


def test_below_half_of_the_bound_slow_clients_are_not_closed() -> None:
    ledger = Ledger()
    one = ledger.hold(500)
    assert ledger.ended(1000.0, one) == []
    assert (ledger.held.size, ledger.alarms) == (500, 0)


def test_above_half_of_the_bound_the_slowest_clients_are_closed() -> None:
    ledger = Ledger()
    slow, slower, fast = ledger.hold(300), ledger.hold(300), ledger.hold(300)
    assert ledger.ended(1.0, slow, slower, fast) == [], "closed too early"
    slow.count_sent(1, 30.0)
    fast.count_sent(290, 30.0)
    assert ledger.ended(30.0, slow, slower, fast) == [1, 0]
    assert ledger.held.size == 300
    ledger.held.release(slower)
    assert ledger.held.size == 300, "released twice"


def test_above_the_bound_fast_clients_are_closed_immediately_too() -> None:
    ledger = Ledger()
    brisk = [ledger.hold(400), ledger.hold(400)]
    assert ledger.alarms == 0
    brisk.append(ledger.hold(400))
    assert ledger.alarms == 1
    assert all(one.rate.turnover_s(one.size, 0.0) < TURNOVER_MAX_S for one in brisk)
    assert len(ledger.ended(0.0, *brisk)) == 1


def test_a_block_that_is_sent_to_many_clients_counts_once() -> None:
    ledger = Ledger()
    page = object()
    many = [ledger.hold(400, block=page, key=b"k") for _ in range(100)]
    assert (ledger.held.size, ledger.alarms) == (400, 0)
    for one in many[1:]:
        ledger.held.release(one)
    assert ledger.held.size == 400
    ledger.held.release(many[0])
    assert ledger.held.size == 0


def test_a_key_may_hold_half_of_the_bound_and_affects_only_its_own_clients() -> None:
    ledger = Ledger()
    other = ledger.hold(100, key=b"other")
    greedy = [ledger.hold(180, key=b"greedy") for _ in range(3)]
    assert ledger.alarms == 1
    assert [*ledger.ended(0.0, other, *greedy)] != [0]
    assert ledger.held.size == 100 + 2 * 180


def test_a_long_response_is_refused_by_the_bound_that_it_would_exceed() -> None:
    ledger = Ledger()
    assert ledger.held.refusal(b"a", 5000) is None, "a key without held bytes was refused"
    ledger.hold(400, key=b"a")
    assert ledger.held.refusal(b"a", 100) is None
    failure = ledger.held.refusal(b"a", 101)
    assert failure is not None
    assert failure.detail == {"limit": "max_held_bytes_per_key", "max": 500}
    ledger.hold(590)
    failure = ledger.held.refusal(b"a", 11)
    assert failure is not None
    assert failure.detail == {"limit": "max_held_bytes", "max": 1000}


def test_without_a_bound_no_client_is_closed() -> None:
    ledger = Ledger(0)
    one = ledger.hold(1 << 40, key=b"k")
    assert (ledger.ended(99.0, one), ledger.held.refusal(b"k", 9)) == ([], None)


def test_bytes_that_wait_after_the_first_write_of_a_client_are_bounded() -> None:
    ledger = Ledger(0)
    one = ledger.hold(BACKLOG_MAX_BYTES * 2)
    ledger.held.add(one, object(), BACKLOG_MAX_BYTES, 0.0)
    assert (ledger.alarms, ledger.ended(0.0, one)) == (0, [])
    ledger.held.add(one, object(), 1, 0.0)
    assert (ledger.alarms, ledger.ended(0.0, one)) == (1, [0])


def test_a_client_below_the_minimum_rate_is_closed() -> None:
    """The age of its oldest unsent byte is limited."""
    taker, trickle = Ledger().hold(1 << 20), Ledger().hold(1 << 20)
    now = 0.0
    while now < 100:
        now += 5.0
        taker.count_sent(5 * READ_MIN_BYTES_PER_S, now)
        trickle.count_sent(1, now)
        assert (trickle.due <= now) == (now > STALL_MAX_S)
    assert taker.due == now + STALL_MAX_S


@pytest.mark.slow
async def test_a_slow_reader_is_disconnected_if_its_shared_memory_is_needed() -> None:
    shards = FakeShards(topics={"a": []}, answer_bytes=20_000_000)
    async with running(shards=shards) as run:
        client = await run.connect()
        await client.send(request("POST", "/v0/topics/a/diff", b"{}"))
        await run.until(lambda: len(shards.releases) == 1)
        shards.releases[0]()
        await run.until(lambda: shards.replies_out == 0)
        with pytest.raises((EOFError, trio.BrokenResourceError)):
            await client.receive()


async def test_a_response_counts_as_held_as_soon_as_its_head_cannot_be_sent() -> None:
    connections = Connections(Timings(), 0.0)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        connection = Connection(ours, connections)
        with suppress(BlockingIOError):
            while True:
                ours.send(bytes(65536))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.send, b"head", bytes(40_000))
            await trio.testing.wait_all_tasks_blocked()
            assert connections.held.size == 40_004
            nursery.cancel_scope.cancel()
        assert connections.held.size == 0


async def test_only_a_connection_below_the_minimum_rate_is_closed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    connections = Connections(Timings(), trio.current_time())
    ended = {}
    for count in (1, READ_MIN_BYTES_PER_S):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            connection = Connection(ours, connections)
            connections.add(connection)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(connection.send, bytes(1 << 24))
                for _ in range(40):
                    await trio.testing.wait_all_tasks_blocked()
                    theirs.recv(count)
                    await trio.sleep(1)
                    connections.sweep(trio.current_time())
                nursery.cancel_scope.cancel()
            ended[count] = connection.is_ended
    assert ended == {1: True, READ_MIN_BYTES_PER_S: False}


@pytest.mark.slow
async def test_above_the_bound_long_reads_of_only_that_key_are_refused() -> None:
    shards = FakeShards(topics={"a": []}, answer_bytes=20_000_000)
    settings = Settings(inline_bytes=4096, max_body_bytes=1 << 20, max_held_bytes=70_000_000)
    async with running(shards=shards, settings=settings, keys="greedy,other") as run:

        async def send_diff(key: str) -> tuple[int, object]:
            client = await run.connect()
            diff = request("POST", "/v0/topics/a/diff", b"{}", authorization=bearer(key))
            await client.send(diff)
            head = await client.stream.receive_some(12)
            return int(head[9:]), client

        assert (await send_diff("greedy"))[0] == 200
        await run.until(lambda: run.server.connections.held.size > 20_000_000)
        client = await run.connect()
        answer = await client.request(
            "POST", "/v0/topics/a/diff", b"{}", authorization=bearer("greedy")
        )
        assert (answer.status, answer.code) == (429, "throttled")
        detail = answer.json()["error"]["detail"]
        assert detail == {"limit": "max_held_bytes_per_key", "max": 35_000_000}
        assert answer.headers["retry-after"] == "1"
        assert (await send_diff("other"))[0] == 200
        assert (await client.request("GET", "/v0/health")).status == 200


# Unread input


class Input:
    """Unread input with a bound of 10 times the minimum that is counted."""

    def __init__(self, most: int = 10) -> None:
        self.alarms = 0
        self.unread = UnreadInput(most * UNREAD_MIN_BYTES, self._alarm)

    def _alarm(self) -> None:
        self.alarms += 1

    def keep(self, count: int, key: bytes = b"") -> Client:
        """Return a client with ``count * UNREAD_MIN_BYTES`` unread bytes."""
        client = Client()
        self.unread.keep(client, key, count * UNREAD_MIN_BYTES)
        return client


def test_unread_input_is_counted_while_it_is_kept() -> None:
    ledger, client = Input(), Client()
    for length, size in ((UNREAD_MIN_BYTES - 1, 0), (5000, 5000), (9000, 9000), (2000, 2000)):
        ledger.unread.keep(client, b"", length)
        assert ledger.unread.size == size
    ledger.unread.keep(client, b"", UNREAD_MIN_BYTES - 1)
    ledger.unread.keep(client, b"", 0)
    assert (ledger.unread.size, ledger.alarms, ledger.unread.excess()) == (0, 0, [])


def test_above_the_bound_the_oldest_clients_are_closed_until_a_quarter_is_free() -> None:
    ledger = Input()
    clients = [ledger.keep(2) for _ in range(5)]
    ledger.unread.keep(clients[0], b"", 2 * UNREAD_MIN_BYTES)  # the client keeps its position
    assert (ledger.alarms, ledger.unread.excess()) == (0, [])
    clients.append(ledger.keep(1))
    assert ledger.alarms == 1
    assert ledger.unread.excess() == clients[:2]
    assert ledger.unread.size == 7 * UNREAD_MIN_BYTES
    ledger.unread.keep(clients[0], b"", 0)
    assert ledger.unread.size == 7 * UNREAD_MIN_BYTES, "released twice"


def test_clients_without_a_key_are_closed_before_those_of_the_largest_key() -> None:
    ledger = Input()
    small, large = ledger.keep(1, b"small"), ledger.keep(4, b"large")
    unknown, larger = ledger.keep(2), ledger.keep(4, b"large")
    assert ledger.unread.excess() == [unknown, large]
    assert ledger.keep(7) not in (small, larger)
    assert small not in ledger.unread.excess()


def test_zero_disables_the_bound_of_unread_input() -> None:
    ledger = Input(0)
    ledger.keep(1000)
    assert (ledger.alarms, ledger.unread.excess()) == (0, [])


def test_held_memory_also_closes_clients_with_too_much_unread_input() -> None:
    ledger, client = Ledger(2000), Client()
    ledger.held.unread.keep(client, b"", 2001)
    assert ledger.alarms == 1
    assert ledger.held.excess(0.0) == [client]
