"""A front on a real socket with fake shards in this process."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import trio
import trio.testing

from tests.support.fake_shards import FakeShards
from tests.support.raw_client import RawClient, request
from topics.config import Settings
from topics.engine.access import Access
from topics.front.access_log import Write
from topics.front.http.connection import Timings
from topics.front.server import Server

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
    """Return the Authorization value of a key."""
    return f"Bearer {key}"


class GivenKeys:
    """Keys that a test replaces, as the supervisor does."""

    def __init__(self, text: str) -> None:
        self.access = Access.parse(text)
        self._next: Access | None = None

    def replace(self, text: str) -> None:
        """Replace the keys. A key keeps its slot if the keys before it are unchanged."""
        self._next = Access.parse(text)

    def changed(self) -> Access | None:
        """Return the replaced keys once, as `KeySource.changed`."""
        changed, self._next = self._next, None
        return changed


@dataclass
class Running:
    server: Server
    shards: FakeShards
    stop: trio.Event
    address: tuple[str, int]
    stopped: trio.Event
    keys: GivenKeys

    clients: list[RawClient] = field(default_factory=list)

    async def connect(self) -> RawClient:
        self.clients.append(RawClient(await trio.open_tcp_stream(*self.address)))
        return self.clients[-1]

    def sweep_in(self, seconds: float) -> None:
        """Run the sweep with a later time."""
        self.server.connections.sweep(trio.current_time() + seconds)

    async def replace_keys(self, text: str) -> None:
        """Replace the keys and wait until they are in use."""
        before = self.server.keys.access
        self.keys.replace(text)
        await self.until(lambda: self.server.keys.access is not before)

    async def until(self, condition: Callable[[], bool]) -> None:
        with trio.fail_after(10):
            while not condition():  # The kernel is involved, so that there is no event to wait for
                await trio.testing.wait_all_tasks_blocked(0.001)


class StepGuard(trio.abc.Instrument):
    """Check that no step of a connection leaves a cancel scope entered on the task that ran it.

    A scope that the step entered without a task of its own would belong to that task.
    """

    def __init__(self) -> None:
        self._statuses: dict[trio.lowlevel.Task, Any] = {}
        self.faults: list[str] = []  # Names of tasks

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._statuses[task] = task._cancel_status

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        before = self._statuses.pop(task, task._cancel_status)
        now = task._cancel_status  # None: the task has ended
        is_changed = task.name.endswith("EventLoop._run_beside") and now not in (before, None)
        if is_changed:
            self.faults.append(task.name)


Start = Callable[..., Awaitable[Running]]


@asynccontextmanager
async def running(
    *,
    keys: str = "",
    settings: Settings | None = None,
    shards: FakeShards | None = None,
    timings: Timings | None = None,
    probe_auth: bool = False,
    write_request: Write | None = None,
) -> AsyncIterator[Running]:
    """Run a server until the block ends. Then check that every block and reply was released."""
    shards = shards or FakeShards()
    settings = settings or Settings(inline_bytes=4096, max_body_bytes=1024 * 1024, drain_ms=2000)
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    given = GivenKeys(keys)
    server = Server(
        settings,
        given,
        shards,
        timings=timings or Timings(tick_s=0.2),
        probe_auth=probe_auth,
        write_request=write_request,
    )
    run = Running(server, shards, trio.Event(), address, trio.Event(), given)

    async def serve() -> None:
        await server.run(listener, run.stop)
        run.stopped.set()

    guard = StepGuard()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        trio.lowlevel.add_instrument(guard)
        try:
            yield run
        finally:
            trio.lowlevel.remove_instrument(guard)
            assert guard.faults == []
            run.stop.set()
            for client in run.clients:
                client.stream.socket.close()
    assert len(server.connections) == 0
    assert shards.blocks_out == 0
    assert shards.replies_out == 0
