"""Work streams that end while they are opened: the shard is notified."""

from __future__ import annotations

import socket

from tests.front.data.queues_support import answered_afterwards, disconnect
from tests.support.fake_shards import FakeShards
from tests.support.front import running
from tests.support.raw_client import request
from topics.formats.wire import calls

WORK_CLOSE = ("work.close", calls.WorkCloseParams(1, 0), b"")


async def test_the_shard_is_notified_if_a_worker_disconnects_while_its_stream_opens(
    slow: FakeShards,
) -> None:
    async with running(shards=slow) as run:
        client = await run.connect()
        await client.send(request("GET", "/v0/topics/slow/work?node=n"))
        await run.until(lambda: slow.waiting == 1)
        await disconnect(client, "reset")
        with answered_afterwards(slow):
            pass
        await run.until(lambda: WORK_CLOSE in slow.calls)
        assert run.server.slots.streams.used == 0


async def test_the_shard_is_notified_if_the_head_of_a_stream_cannot_be_sent(
    slow: FakeShards,
) -> None:
    async with running(shards=slow) as run:
        client = await run.connect()
        await client.send(request("GET", "/v0/topics/slow/work?node=n"))
        await run.until(lambda: slow.waiting == 1)
        [connection] = run.server.connections
        connection.sock.shutdown(socket.SHUT_WR)
        with answered_afterwards(slow):
            pass
        await run.until(lambda: WORK_CLOSE in slow.calls)
        assert run.server.slots.streams.used == 0
