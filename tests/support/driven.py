"""Connections of a server whose poller's turns are the test's."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, nullcontext

import trio

from tests.support.front import Running
from topics.front.http.connection import Connection
from topics.front.http.fast_lane import FastLane
from topics.front.http.poller import Poller


class Scene:
    """One connection, and a client at its other end."""

    def __init__(self, run: Running, poller: Poller) -> None:
        ours, self.client = socket.socketpair()
        ours.setblocking(False)
        self.client.settimeout(10)
        self.connections, self.poller = run.server.connections, poller
        self.connection = Connection(ours, self.connections)
        self._run = run

    def serve(self) -> None:
        """As the acceptor does."""
        self._run.server.slots.connections.acquire()
        self.connections.add(self.connection)
        FastLane(self.connection, self._run.server.lanes, self.poller).begin()

    def say(self, data: bytes) -> None:
        """The client sends, and the poller sees it."""
        self.client.sendall(data)
        self.poller.turn()

    @property
    def is_over(self) -> bool:
        return self.connection.sock.fileno() < 0


@contextlib.asynccontextmanager
async def scenes(
    run: Running, batch: AbstractContextManager[None] | None = None
) -> AsyncIterator[Callable[[], Scene]]:
    """Makes scenes that share a poller."""
    made: list[Scene] = []
    async with trio.open_nursery() as nursery:
        poller = Poller(nursery, run.server.connections, batch or nullcontext())

        def make() -> Scene:
            made.append(Scene(run, poller))
            made[-1].serve()
            return made[-1]

        yield make
        for scene in made:
            scene.connection.cut()
        nursery.cancel_scope.cancel()
    for scene in made:
        scene.client.close()
