"""Held memory: which clients exceed it, which are closed, and which responses are refused."""

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
    BEHIND_MAX_BYTES,
    STALL_MAX_S,
    TAKE_MIN_BYTES_PER_S,
    TURNOVER_MAX_S,
    UNREAD_MIN_BYTES,
    HeldMemory,
    Holding,
    UnreadInput,
)
from topics.front.http.connection import Connection, Connections, Timings


class Client:
    """A client that the caller of `HeldMemory.excess` closes."""

    def shed(self) -> None:
        """Do nothing."""


class Ledger:
    """A ledger with a bound of 1,000 bytes, 500 of a key."""

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
        """Which of these must end."""
        clients = [holding.client for holding in holdings]
        return [clients.index(client) for client in self.held.excess(now)]


def test_below_half_of_the_bound_a_client_may_be_as_slow_as_it_likes() -> None:
    ledger = Ledger()
    one = ledger.hold(500)
    assert ledger.ended(1000.0, one) == []
    assert (ledger.held.size, ledger.alarms) == (500, 0)


def test_above_half_of_the_bound_the_slowest_end_until_it_holds() -> None:
    ledger = Ledger()
    slow, slower, fast = ledger.hold(300), ledger.hold(300), ledger.hold(300)
    assert ledger.ended(1.0, slow, slower, fast) == [], "all have a credit of some seconds"
    slow.took(1, 30.0)
    fast.took(290, 30.0)
    assert ledger.ended(30.0, slow, slower, fast) == [1, 0]
    assert ledger.held.size == 300
    ledger.held.release(slower)
    assert ledger.held.size == 300, "it was released when it was told to end"


def test_above_the_bound_fast_ones_end_as_well_and_at_once() -> None:
    ledger = Ledger()
    brisk = [ledger.hold(400), ledger.hold(400)]
    assert ledger.alarms == 0
    brisk.append(ledger.hold(400))
    assert ledger.alarms == 1
    assert all(one.rate.turnover_s(one.size, 0.0) < TURNOVER_MAX_S for one in brisk)
    assert len(ledger.ended(0.0, *brisk)) == 1


def test_a_block_that_many_wait_for_counts_once() -> None:
    ledger = Ledger()
    page = object()
    many = [ledger.hold(400, block=page, key=b"k") for _ in range(100)]
    assert (ledger.held.size, ledger.alarms) == (400, 0)
    for one in many[1:]:
        ledger.held.release(one)
    assert ledger.held.size == 400
    ledger.held.release(many[0])
    assert ledger.held.size == 0


def test_a_key_has_half_and_pays_for_itself() -> None:
    ledger = Ledger()
    other = ledger.hold(100, key=b"other")
    greedy = [ledger.hold(180, key=b"greedy") for _ in range(3)]
    assert ledger.alarms == 1
    assert [*ledger.ended(0.0, other, *greedy)] != [0]
    assert ledger.held.size == 100 + 2 * 180


def test_a_long_answer_is_refused_by_the_bound_that_it_would_break() -> None:
    ledger = Ledger()
    assert ledger.held.refusal(b"a", 5000) is None, "a key that holds nothing is never refused"
    ledger.hold(400, key=b"a")
    assert ledger.held.refusal(b"a", 100) is None
    failure = ledger.held.refusal(b"a", 101)
    assert failure is not None
    assert failure.detail == {"limit": "max_held_bytes_per_key", "max": 500}
    ledger.hold(590)
    failure = ledger.held.refusal(b"a", 11)
    assert failure is not None
    assert failure.detail == {"limit": "max_held_bytes", "max": 1000}


def test_without_a_bound_nobody_ends() -> None:
    ledger = Ledger(0)
    one = ledger.hold(1 << 40, key=b"k")
    assert (ledger.ended(99.0, one), ledger.held.refusal(b"k", 9)) == ([], None)


def test_what_waits_behind_the_first_write_of_a_client_is_bounded() -> None:
    ledger = Ledger(0)
    one = ledger.hold(BEHIND_MAX_BYTES * 2)
    ledger.held.add(one, object(), BEHIND_MAX_BYTES, 0.0)
    assert (ledger.alarms, ledger.ended(0.0, one)) == (0, [])
    ledger.held.add(one, object(), 1, 0.0)
    assert (ledger.alarms, ledger.ended(0.0, one)) == (1, [0])


def test_a_trickle_does_not_keep_bytes_for_ever() -> None:
    """The age of the oldest unsent byte counts, and clients below a minimum rate are closed."""
    taker, trickle = Ledger().hold(1 << 20), Ledger().hold(1 << 20)
    now = 0.0
    while now < 100:
        now += 5.0
        taker.took(5 * TAKE_MIN_BYTES_PER_S, now)
        trickle.took(1, now)
        assert (trickle.due <= now) == (now > STALL_MAX_S)
    assert taker.due == now + STALL_MAX_S


@pytest.mark.slow
async def test_a_slow_reader_is_cut_when_its_shared_memory_is_needed() -> None:
    shards = FakeShards(topics={"a": []}, answer_bytes=20_000_000)
    async with running(shards=shards) as run:
        client = await run.connect()
        await client.say(request("POST", "/v0/topics/a/diff", b"{}"))
        await run.until(lambda: len(shards.releases) == 1)
        shards.releases[0]()
        await run.until(lambda: shards.replies_out == 0)
        with pytest.raises((EOFError, trio.BrokenResourceError)):
            await client.hear()


async def test_an_answer_is_held_from_when_its_head_finds_no_room() -> None:
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


async def test_a_client_that_trickles_is_cut_and_one_that_takes_enough_is_not(
    autojump_clock: trio.testing.MockClock,
) -> None:
    connections = Connections(Timings(), trio.current_time())
    ended = {}
    for count in (1, TAKE_MIN_BYTES_PER_S):
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
    assert ended == {1: True, TAKE_MIN_BYTES_PER_S: False}


@pytest.mark.slow
async def test_beyond_the_bound_long_reads_are_refused_and_other_keys_are_not() -> None:
    shards = FakeShards(topics={"a": []}, answer_bytes=20_000_000)
    settings = Settings(inline_bytes=4096, max_body_bytes=1 << 20, max_held_bytes=70_000_000)
    async with running(shards=shards, settings=settings, keys="greedy,other") as run:

        async def ask(key: str) -> tuple[int, object]:
            client = await run.connect()
            diff = request("POST", "/v0/topics/a/diff", b"{}", authorization=bearer(key))
            await client.say(diff)
            head = await client.stream.receive_some(12)
            return int(head[9:]), client

        assert (await ask("greedy"))[0] == 200
        await run.until(lambda: run.server.connections.held.size > 20_000_000)
        client = await run.connect()
        answer = await client.ask(
            "POST", "/v0/topics/a/diff", b"{}", authorization=bearer("greedy")
        )
        assert (answer.status, answer.code) == (429, "throttled")
        detail = answer.json()["error"]["detail"]
        assert detail == {"limit": "max_held_bytes_per_key", "max": 35_000_000}
        assert answer.headers["retry-after"] == "1"
        assert (await ask("other"))[0] == 200
        assert (await client.ask("GET", "/v0/health")).status == 200


# Unread input


class Input:
    """Unread input with a bound of 10 times what counts."""

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


def test_unread_input_is_counted_as_long_as_it_is_kept() -> None:
    ledger, client = Input(), Client()
    for length, size in ((UNREAD_MIN_BYTES - 1, 0), (5000, 5000), (9000, 9000), (2000, 2000)):
        ledger.unread.keep(client, b"", length)
        assert ledger.unread.size == size
    ledger.unread.keep(client, b"", UNREAD_MIN_BYTES - 1)
    ledger.unread.keep(client, b"", 0)
    assert (ledger.unread.size, ledger.alarms, ledger.unread.excess()) == (0, 0, [])


def test_above_the_bound_the_oldest_go_first_until_a_quarter_is_free() -> None:
    ledger = Input()
    clients = [ledger.keep(2) for _ in range(5)]
    ledger.unread.keep(clients[0], b"", 2 * UNREAD_MIN_BYTES)  # it keeps its place
    assert (ledger.alarms, ledger.unread.excess()) == (0, [])
    clients.append(ledger.keep(1))
    assert ledger.alarms == 1
    assert ledger.unread.excess() == clients[:2]
    assert ledger.unread.size == 7 * UNREAD_MIN_BYTES
    ledger.unread.keep(clients[0], b"", 0)
    assert ledger.unread.size == 7 * UNREAD_MIN_BYTES, "it was released when it had to end"


def test_who_has_no_key_goes_before_those_of_the_key_that_keeps_most() -> None:
    ledger = Input()
    small, large = ledger.keep(1, b"small"), ledger.keep(4, b"large")
    unknown, larger = ledger.keep(2), ledger.keep(4, b"large")
    assert ledger.unread.excess() == [unknown, large]
    assert ledger.keep(7) not in (small, larger)
    assert small not in ledger.unread.excess()


def test_zero_means_no_bound_of_unread_input() -> None:
    ledger = Input(0)
    ledger.keep(1000)
    assert (ledger.alarms, ledger.unread.excess()) == (0, [])


def test_the_ledger_of_answers_ends_those_with_too_much_unread_input() -> None:
    ledger, client = Ledger(2000), Client()
    ledger.held.unread.keep(client, b"", 2001)
    assert ledger.alarms == 1
    assert ledger.held.excess(0.0) == [client]
