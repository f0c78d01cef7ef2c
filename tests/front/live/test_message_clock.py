"""The time in which a WebSocket message must arrive, without a server."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.live_harness import LiveHarness
from topics.actors.link.tick import TICK_INTERVAL_S
from topics.front.http.connection import Timings
from topics.front.live.web_socket import WebSocket
from topics.front.live.web_socket_publish import UNANSWERED_MAX

pytestmark = pytest.mark.usefixtures("_clock")
TIMINGS = Timings(body_grace_s=0.3, body_bytes_per_s=20)
BEGUN = bytes.fromhex("81 85 00000000") + b"four"  # of five


@pytest.fixture
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics.front.live.streams.time.monotonic", trio.current_time)


@asynccontextmanager
async def web_socket(front: LiveHarness) -> AsyncIterator[tuple[WebSocket, socket.socket]]:
    client = front.socket(begins=False, timings=TIMINGS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.stream.run)
        await wait_all_tasks_blocked()
        yield client.stream, client.sock
        nursery.cancel_scope.cancel()


async def test_a_message_that_never_completes_ends_its_socket(
    front: LiveHarness, autojump_clock: MockClock
) -> None:
    async with web_socket(front) as (stream, client), web_socket(front) as (idle, _):
        client.send(BEGUN)
        await trio.sleep(TIMINGS.body_grace_s + 2 * TICK_INTERVAL_S)
        assert stream.ended
        assert (
            b'"code":"throttled","message":"the message was not received in time"'
            in client.recv(1000)
        )
        assert not idle.ended


async def test_a_slow_message_at_the_minimum_rate_is_accepted(
    front: LiveHarness, autojump_clock: MockClock
) -> None:
    """Each fragment arrives before the deadline that the previous fragments have extended."""
    async with web_socket(front) as (stream, client):
        client.send(bytes.fromhex("01 80 00000000"))
        for _ in range(6):
            await trio.sleep(TIMINGS.body_grace_s / 1.5)
            client.send(bytes.fromhex("00 84 00000000") + b"four")
        assert not stream.ended
        client.send(bytes.fromhex("80 80 00000000") + bytes.fromhex("88 80 00000000"))
        await trio.sleep(0.05)
        assert b"invalid_request" in client.recv(1000)  # complete, but not JSON


async def test_each_message_has_its_own_time(front: LiveHarness, autojump_clock: MockClock) -> None:
    async with web_socket(front) as (stream, client):
        for _ in range(20):
            client.send(BEGUN)
            await trio.sleep(TIMINGS.body_grace_s * 0.7)
            client.send(b"!")
            await wait_all_tasks_blocked()
        assert not stream.ended


async def test_a_message_that_is_not_read_because_of_a_slow_shard_is_not_late(
    front: LiveHarness, autojump_clock: MockClock
) -> None:
    publish = b'{"op":"publish","topic":"t","request_id":1,"data":1}'
    async with web_socket(front) as (stream, client):
        data = (bytes((0x81, 0x80 | len(publish), 0, 0, 0, 0)) + publish) * UNANSWERED_MAX + BEGUN
        client.send(data[:10])
        await wait_all_tasks_blocked()
        client.send(data[10:])
        await trio.sleep(TIMINGS.body_grace_s + 2 * TICK_INTERVAL_S)
        assert not stream.ended
