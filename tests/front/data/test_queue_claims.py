"""Waiting claims: jobs are delivered to a connected client or released to the queue."""

from __future__ import annotations

import socket
from functools import partial

import pytest

from tests.front.data.queues_support import answered_afterwards, disconnect
from tests.support.fake_shards import FakeShards
from tests.support.front import running
from tests.support.raw_client import request
from topics.formats.wire import calls
from topics.front.http.connection import Connection

CLAIM = b'{"node":"n","wait_ms":30000}'
POLL = request("POST", "/v0/topics/slow/claim", CLAIM)
UNCLAIMED = ("queue.unclaimed", calls.UnclaimedParams("slow", 7, [1, 2]), b"")


@pytest.mark.parametrize("path", ["claim", "diff"])
@pytest.mark.parametrize("how", ["closed", "reset"])
@pytest.mark.parametrize("following", [b"", POLL], ids=["alone", "pipelined"])
async def test_a_waiting_call_ends_when_its_client_disconnects(
    slow: FakeShards, path: str, how: str, following: bytes
) -> None:
    """The call ends immediately, without waiting for the periodic sweep."""
    async with running(shards=slow) as run:
        client = await run.connect()
        await client.send(POLL.replace(b"/claim", b"/%b" % path.encode()) + following)
        await run.until(lambda: slow.waiting == 1)
        await disconnect(client, how)
        await run.until(lambda: slow.cancelled == 1)
        await run.until(lambda: len(run.server.connections) == 0)
        assert UNCLAIMED not in slow.calls, "jobs were released instead of the call cancelled"


@pytest.mark.parametrize("how", ["closed", "reset"])
async def test_jobs_of_a_disconnected_client_are_released(
    slow: FakeShards, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The front has not noticed the disconnect when the reply arrives."""
    monkeypatch.setattr(Connection, "begin_waiting", lambda self: None)
    async with running(shards=slow) as run:
        client = await run.connect()
        await client.send(POLL)
        await run.until(lambda: slow.waiting == 1)
        with answered_afterwards(slow):
            await disconnect(client, how)
        await run.until(lambda: UNCLAIMED in slow.calls)
        await run.until(lambda: len(run.server.connections) == 0)


async def abort_connection(connection: Connection) -> None:
    connection.abort()


async def test_jobs_that_cannot_be_sent_are_released(
    slow: FakeShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client disconnects between the last check of its socket and the write."""
    async with running(shards=slow) as run:
        client = await run.connect()
        await client.send(POLL)
        await run.until(lambda: slow.waiting == 1)
        [connection] = run.server.connections
        monkeypatch.setattr(connection, "check_client", partial(abort_connection, connection))
        connection.sock.shutdown(socket.SHUT_WR)
        with answered_afterwards(slow):
            pass
        await run.until(lambda: UNCLAIMED in slow.calls)


async def test_the_socket_is_checked_only_for_responses_with_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running(shards=FakeShards(topics={"a": []})) as run:
        client = await run.connect()
        await run.until(lambda: len(run.server.connections) == 1)
        [connection] = run.server.connections
        monkeypatch.setattr(connection, "check_client", lambda: pytest.fail("looked"))
        assert (await client.request("POST", "/v0/topics/a/claim", CLAIM)).status == 200
