"""Connections of a server whose event loop is advanced by the test."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Callable

import trio

from tests.support.front import Running
from topics.actors.link.event_loop import EventLoop
from topics.front.http.connection import Connection
from topics.front.http.http1_protocol import Http1Protocol
from topics.front.http.poller import Poller


class Scene:
    """A connection and the client at its other end."""

    def __init__(self, run: Running, poller: Poller) -> None:
        ours, self.client = socket.socketpair()
        ours.setblocking(False)
        self.client.settimeout(10)
        self.connections, self.poller = run.server.connections, poller
        self._loop = EventLoop.of_this_run()
        self.connection = Connection(ours, self.connections)
        self._run = run

    def serve(self) -> None:
        """Serve the connection, as the acceptor does."""
        self._run.server.slots.connections.acquire()
        self.connections.add(self.connection)
        Http1Protocol(self.connection, self._run.server.parts, self.poller).begin()

    def send(self, data: bytes) -> None:
        """Send data from the client and run one iteration of the loop."""
        self.client.sendall(data)
        self.poll()

    def poll(self) -> None:
        """Serve everything that is ready."""
        self._loop.poll()

    @property
    def is_over(self) -> bool:
        return self.connection.sock.fileno() < 0


@contextlib.asynccontextmanager
async def scenes(run: Running) -> AsyncIterator[Callable[[], Scene]]:
    """Yield a function that creates scenes with a shared poller."""
    made: list[Scene] = []
    async with trio.open_nursery() as nursery:
        poller = Poller(nursery, run.server.connections)

        def make() -> Scene:
            made.append(Scene(run, poller))
            made[-1].serve()
            return made[-1]

        yield make
        for scene in made:
            scene.connection.abort()
        nursery.cancel_scope.cancel()
    for scene in made:
        scene.client.close()
