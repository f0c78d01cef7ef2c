"""Connections whose coroutines a test writes, driven by a poller whose turns are the test's."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import trio

from topics.actors.rpc.stepping import NOW, Command, Driver, command
from topics.front.http.connection import Connection, Timings
from topics.front.http.connections import Connections
from topics.front.http.poller import Poller

Serve = Callable[["Scene"], Awaitable[None]]


class SteppedCall:
    """A call that a coroutine waits for, in steps or in a task."""

    def __init__(self) -> None:
        self._driver: Driver | None = None
        self._came = trio.Event()
        self.is_abandoned = False

    async def wait(self) -> Any:
        self._driver = NOW.driver
        try:
            if self._driver is not None:
                return await command(Command.ANSWER)
            await self._came.wait()
        except (GeneratorExit, trio.Cancelled):
            self.is_abandoned = True
            raise

    def succeed(self, result: object) -> None:
        if self._driver is not None:
            self._driver.answered(result)
        self._came.set()

    def fail(self, error: Exception) -> None:
        assert self._driver is not None
        self._driver.failed(error)


class Scene:
    """One connection, a client at its other end, and what its coroutine has noted."""

    def __init__(self, poller: Poller, connections: Connections) -> None:
        ours, self.client = socket.socketpair()
        ours.setblocking(False)
        self.client.settimeout(10)
        self.connection = Connection(ours, connections)
        self.poller, self.connections = poller, connections
        self.notes: list[object] = []
        self.call = SteppedCall()

    def serve(self, serve: Serve) -> None:
        """Drive a coroutine that ends as one of a front does."""
        self.connections.add(self.connection)
        self.poller.drive(self.connection, self._run(serve))

    async def _run(self, serve: Serve) -> None:
        try:
            await serve(self)
        finally:
            self.notes.append("over")
            self.connection.close()
            self.connections.remove(self.connection)

    def answer(self, result: object = None) -> None:
        """The shard answers."""
        self.call.succeed(result)

    def say(self, data: bytes) -> None:
        """The client sends, and the poller sees it."""
        self.client.sendall(data)
        self.poller.turn()

    @property
    def is_watched(self) -> bool:
        return self.poller.is_watched(self.connection.fd)


@contextlib.asynccontextmanager
async def scenes(
    batch: AbstractContextManager[None] | None = None,
) -> AsyncIterator[Callable[[], Scene]]:
    """Makes scenes that share a poller."""
    made: list[Scene] = []
    connections = Connections(Timings(), 0.0)
    async with trio.open_nursery() as nursery:
        poller = Poller(nursery, connections, batch or nullcontext())

        def make() -> Scene:
            made.append(Scene(poller, connections))
            return made[-1]

        yield make
        connections.cut_all()
        nursery.cancel_scope.cancel()
    for scene in made:
        scene.client.close()
        scene.connection.sock.close()
    assert NOW.driver is None


async def echo(scene: Scene) -> None:
    """Answers each input with its length, in steps."""
    while await scene.connection.receive():
        await scene.connection.send(b"%d" % len(scene.connection.buffer))
        scene.connection.buffer = b""
