"""Poller: watches the sockets of all clients with epoll, and starts tasks for their connections.

A socket stays registered in the epoll instance of the event loop, level-triggered. So waiting for a
request costs no system call. A socket whose input is not read now is removed from epoll until it is
read again. While its connection waits for a call, the socket stays, but only hang-ups are watched.
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import trio

from topics.actors.link.event_loop import EventLoop
from topics.front.http.connection import Connections

# Maximum number of clients without a key that one loop iteration serves; each takes about 0.05 ms.
KEYLESS_PER_PASS = 64


class Watched(Protocol):
    """The interface of a client's socket.

    ``watched`` is the set of watched events, or None if the socket is not watched. ``ticket`` is
    its position in the order in which clients without a key are served, or None if it has no input.
    """

    fd: int
    watched: int | None
    ticket: int | None

    def ready(self, events: int) -> None:
        """Handle input or a hang-up of the client."""


class Poller:
    """The sockets of one front.

    Tasks run in ``nursery``. ``connections`` are closed when `run` ends.
    """

    def __init__(self, nursery: trio.Nursery, connections: Connections) -> None:
        self._nursery, self._connections = nursery, connections
        self._loop = EventLoop.of_this_run()
        self._is_stopped = False
        self._pass_start = 0.0  # start of the current loop iteration
        self._next_ticket = self._served_until = 0  # tickets are for clients without a key

    def watch(self, client: Watched, events: int) -> None:
        """Call `Watched.ready` when one of the epoll ``events`` occurs or the client disconnects.

        Replaces the events of an earlier call. Raise `OSError` if the server has stopped, or if the
        kernel has no memory for the entry.
        """
        if self._is_stopped:
            raise OSError(errno.ECANCELED, "the server has stopped")
        if client.watched is None:
            self._loop.watch(client.fd, events, client.ready)
        else:
            self._loop.change(client.fd, events)
        client.watched = events

    def unwatch(self, client: Watched) -> None:
        """Stop watching the client's socket."""
        client.watched = None
        self._loop.unwatch(client.fd)

    def serves_keyless(self, client: Watched) -> bool:
        """Return whether this loop iteration serves a client that has not sent a known key.

        The limit applies only if the server has keys. The input of further clients stays in their
        sockets. A client gets a ticket when it has input, and each iteration serves the next
        tickets. The order of epoll would not be fair: a client that is served and has input again
        by the next iteration keeps its position before all clients that were not served.
        """
        if not self._connections.has_keys:
            return True
        if self._pass_start != self._loop.lag.pass_started:
            self._pass_start = self._loop.lag.pass_started
            self._served_until = min(self._served_until, self._next_ticket) + KEYLESS_PER_PASS
        if client.ticket is None:
            client.ticket = self._next_ticket
            self._next_ticket += 1
        if client.ticket >= self._served_until:
            return False
        client.ticket = None
        return True

    def start(self, task: Callable[..., Awaitable[None]], *args: Any) -> bool:
        """Start a task. Return False if the server has stopped."""
        if not self._is_stopped:
            self._nursery.start_soon(task, *args)
        return not self._is_stopped

    async def run(self) -> None:
        """Sleep until cancelled, then close all connections."""
        try:
            await trio.sleep_forever()
        finally:
            self._is_stopped = True
            for connection in [*self._connections]:
                connection.end_idle()
