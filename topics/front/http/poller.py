"""Poller: watches the sockets of all clients, and starts the tasks that they need.

A socket stays in the epoll of the event loop, level-triggered: waiting for a request costs no
system call. One whose input nobody reads now leaves it until it is read again; while its connection
waits for a call it stays, and only a hang-up is watched for.
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import trio

from topics.actors.link.event_loop import EventLoop
from topics.front.http.connection import Connections

UNKNOWN_PER_PASS = 64  # clients without a key in a pass of the loop; each takes about 0.05 ms


class Watched(Protocol):
    """A client's socket. ``watched``: the events that are watched for, None while none are;
    ``ticket``: its place in the order in which clients without a key are served, None while it has
    no input.
    """

    fd: int
    watched: int | None
    ticket: int | None

    def ready(self, events: int) -> None:
        """The socket has input, or the client has hung up."""


class Poller:
    """The sockets of one front. Tasks run in ``nursery``; ``connections`` end when `run` does."""

    def __init__(self, nursery: trio.Nursery, connections: Connections) -> None:
        self._nursery, self._connections = nursery, connections
        self._loop = EventLoop.of_this_run()
        self._is_over = False
        self._pass_began = 0.0  # start of the current pass of the loop
        self._next_ticket = self._served_until = 0  # of clients without a key

    def watch(self, client: Watched, events: int) -> None:
        """Call its `ready` when one of the ``events`` of epoll happens, or the client is gone, from
        now on. Raises OSError.
        """
        if self._is_over:
            raise OSError(errno.ECANCELED, "the server is over")
        if client.watched is None:
            self._loop.watch(client.fd, events, client.ready)
        else:
            self._loop.change(client.fd, events)
        client.watched = events

    def leave(self, client: Watched) -> None:
        """Stop calling its `ready`."""
        client.watched = None
        self._loop.leave(client.fd)

    def serves_unknown(self, client: Watched) -> bool:
        """Return whether this pass of the loop serves a client that has shown no key.

        The limit applies only if the server has keys. The input of further clients stays in their
        sockets. A client gets a ticket when it has input, and each pass serves the next tickets.
        The order of epoll would not be fair: a client that is served and has input again by the
        next pass keeps its position before all clients that were not served.
        """
        if not self._connections.has_keys:
            return True
        if self._pass_began != self._loop.lag.pass_began:
            self._pass_began = self._loop.lag.pass_began
            self._served_until = min(self._served_until, self._next_ticket) + UNKNOWN_PER_PASS
        if client.ticket is None:
            client.ticket = self._next_ticket
            self._next_ticket += 1
        if client.ticket >= self._served_until:
            return False
        client.ticket = None
        return True

    def start(self, task: Callable[..., Awaitable[None]], *args: Any) -> bool:
        """Start a task; False when the server is over."""
        if not self._is_over:
            self._nursery.start_soon(task, *args)
        return not self._is_over

    async def run(self) -> None:
        """Sleep until cancelled; then end all connections."""
        try:
            await trio.sleep_forever()
        finally:
            self._is_over = True
            for connection in [*self._connections]:
                connection.end_idle()
