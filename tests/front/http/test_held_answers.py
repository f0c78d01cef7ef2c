"""Held answers: memory of answers that wait for slow clients."""

from __future__ import annotations

import socket
from contextlib import ExitStack, suppress

import pytest
import trio
import trio.testing

from tests.support.fake_backend import FakeBackend
from tests.support.front import running
from tests.support.raw_client import request
from topics.front.http.connection import Connection, Timings
from topics.front.http.connections import Connections


@pytest.mark.slow
async def test_a_slow_reader_is_cut_when_its_shared_memory_is_needed() -> None:
    backend = FakeBackend(topics={"a": []}, answer_bytes=20_000_000)
    async with running(backend=backend) as run:
        client = await run.connect()
        await client.say(request("POST", "/v0/topics/a/diff", b"{}"))
        await run.until(lambda: len(backend.releases) == 1)
        backend.releases[0]()
        await run.until(lambda: backend.replies_out == 0)
        with pytest.raises((EOFError, trio.BrokenResourceError)):
            await client.hear()


@pytest.mark.slow
async def test_while_answers_fill_the_memory_the_slowest_client_is_cut(
    autojump_clock: trio.testing.MockClock,
) -> None:
    connections = Connections(Timings(), 0.0, held_max_bytes=1000)
    with ExitStack() as stack:

        def held(size: int) -> Connection:
            ours, _ = map(stack.enter_context, socket.socketpair())
            connection = Connection(ours, connections)
            stack.enter_context(connections.answers.holding(connection, size))
            return connection

        fast, slow = held(400), held(400)
        await trio.sleep(30)
        fast.rate.count(400, trio.current_time())
        assert not slow.is_ended
        third = held(400)
        assert [connection.is_ended for connection in (fast, slow, third)] == [
            False,
            True,
            False,
        ]
        brisk = [fast, third, held(400), held(400), held(400)]
        assert not any(connection.is_ended for connection in brisk)
        brisk.append(held(400))
        assert sum(connection.is_ended for connection in brisk) == 1, "there is an end to it"


@pytest.mark.slow
async def test_answers_of_both_lanes_count_while_their_clients_do_not_take_them() -> None:
    backend = FakeBackend(topics={f"t{number:05}{'x' * 200}": [] for number in range(1000)})
    async with running(backend=backend) as run:
        client = await run.connect()
        await client.say(request("GET", "/v0/topics?page_size=1000") * 40)
        await run.until(lambda: run.server.connections.answers.held_bytes > 200_000)
        client.stream.socket.close()
        await run.until(lambda: run.server.connections.answers.held_bytes == 0)


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
            nursery.start_soon(connection.send_both, b"head", bytes(40_000))
            await trio.testing.wait_all_tasks_blocked()
            assert connections.answers.held_bytes == 40_000
            nursery.cancel_scope.cancel()
        assert connections.answers.held_bytes == 0
