"""A front on a real socket with fake shards in this process."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import trio
import trio.testing

from tests.support.fake_backend import FakeBackend
from tests.support.raw_client import RawClient, request
from topics.config import Settings
from topics.engine.access import Access
from topics.front.http.connection import Timings
from topics.front.server import Server

LANES = pytest.mark.parametrize("fast", [True, False], ids=["fast", "cold"])
RECORD = b'{"records":[{"data":1}]}'
APPEND = request("POST", "/v0/topics/a", RECORD)
KEYS = "boss,reader:read,writer:write:t.,admin:admin+delete"

HANDSHAKE = {
    "upgrade": "websocket",
    "connection": "Upgrade",
    "sec_websocket_version": "13",
    "sec_websocket_key": "dGhlIHNhbXBsZSBub25jZQ==",
}


def bearer(key: str) -> str:
    """The Authorization value of a key."""
    return f"Bearer {key}"


@dataclass
class Running:
    server: Server
    backend: FakeBackend
    stop: trio.Event
    address: tuple[str, int]
    stopped: trio.Event

    clients: list[RawClient] = field(default_factory=list)

    async def connect(self) -> RawClient:
        self.clients.append(RawClient(await trio.open_tcp_stream(*self.address)))
        return self.clients[-1]

    def sweep_in(self, seconds: float) -> None:
        """Let the sweep see a later time."""
        self.server.connections.sweep(trio.current_time() + seconds)

    async def until(self, condition: Callable[[], bool]) -> None:
        with trio.fail_after(10):
            while not condition():  # the kernel is in between: there is no event to wait for
                await trio.testing.wait_all_tasks_blocked(0.001)


Start = Callable[..., Awaitable[Running]]


@asynccontextmanager
async def running(
    *,
    keys: str = "",
    fast: bool = True,
    settings: Settings | None = None,
    backend: FakeBackend | None = None,
    timings: Timings | None = None,
    probe_auth: bool = False,
) -> AsyncIterator[Running]:
    """A server until the block ends. Afterwards no block and no reply may be out."""
    backend = backend or FakeBackend()
    settings = settings or Settings(inline_bytes=4096, max_body_bytes=1024 * 1024, drain_ms=2000)
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    server = Server(
        settings,
        Access.parse(keys),
        backend,
        use_fast_lane=fast,
        timings=timings or Timings(tick_s=0.2),
        probe_auth=probe_auth,
    )
    run = Running(server, backend, trio.Event(), address, trio.Event())

    async def serve() -> None:
        await server.run(listener, run.stop)
        run.stopped.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        try:
            yield run
        finally:
            run.stop.set()
            for client in run.clients:
                client.stream.socket.close()
    assert len(server.connections) == 0
    assert backend.blocks_out == 0
    assert backend.replies_out == 0
