"""Queue calls that wait, and clients that disconnect while they wait."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import trio
import trio.testing

from tests.support.fake_shards import FakeShards
from tests.support.raw_client import RawClient

HOW = ["closed", "half closed", "reset"]


@contextmanager
def answered_afterwards(shards: FakeShards) -> Iterator[None]:
    """Answer the waiting claims when the block ends."""
    yield
    assert shards.gate is not None
    shards.gate.set()


async def disconnect(client: RawClient, how: str) -> None:
    """Disconnect in this way, and wait until the kernel of the server has noticed it."""
    if how == "half closed":
        await client.stream.send_eof()
    else:
        if how == "reset":
            linger = struct.pack("ii", 1, 0)
            client.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        await client.stream.aclose()
    await trio.testing.wait_all_tasks_blocked(0.01)
