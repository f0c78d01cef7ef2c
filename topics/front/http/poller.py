"""The poller: all sockets of clients in one epoll, behind one task of trio.

    epoll is readable --> poll once --> each lane serves --> send their calls together

Sockets stay in the epoll, level-triggered: waiting for a request costs no system call. A socket
whose input nobody reads now leaves it until it is read again; while its connection waits for a call
it stays, and only a hang-up is watched for.

A turn takes all sockets that are ready, as a pass of trio does. Pressure is measured over passes
(`LoopLag`): it would not see input that waits in the kernel for a later turn.
"""

from __future__ import annotations

import errno
import select
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any

import trio

from topics.front.http.connections import Connections
from topics.front.http.request_tasks import RequestTasks

READY_MAX = 4096  # sockets of one turn


class Poller:
    """Tells lanes that their sockets have input, and starts the tasks that they need in
    ``nursery``. ``batch``: what it asks shards. ``connections``: they end when `run` does.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        connections: Connections,
        batch: AbstractContextManager[None],
    ) -> None:
        self._nursery, self._connections, self._batch = nursery, connections, batch
        self._epoll = select.epoll()
        self._watched: dict[int, RequestTasks] = {}
        self._is_over = False

    def is_watched(self, fd: int) -> bool:
        """Whether the descriptor is in the epoll."""
        return fd in self._watched

    def watch(self, lane: RequestTasks, events: int) -> None:
        """Part of `Watcher`."""
        if self._is_over:
            raise OSError(errno.ECANCELED, "the server is over")
        if lane.watched is None:
            self._epoll.register(lane.fd, events)
            self._watched[lane.fd] = lane
        else:
            self._epoll.modify(lane.fd, events)
        lane.watched = events

    def leave(self, lane: RequestTasks) -> None:
        """Part of `Watcher`."""
        lane.watched = None
        del self._watched[lane.fd]
        if not self._is_over:
            self._epoll.unregister(lane.fd)

    def start(self, task: Callable[..., Awaitable[None]], *args: Any) -> bool:
        """Part of `Watcher`."""
        if not self._is_over:
            self._nursery.start_soon(task, *args)
        return not self._is_over

    async def run(self) -> None:
        """Poll until cancelled."""
        try:
            while True:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
                self.turn()
        finally:
            self._is_over = True
            self._epoll.close()
            for connection in [*self._connections]:
                connection.end_idle()

    def turn(self) -> None:
        """Resume the lanes whose sockets have input."""
        watched = self._watched
        with self._batch:
            for fd, events in self._epoll.poll(0, READY_MAX):
                lane = watched.get(fd)
                if lane is not None:  # it may have been closed in this turn
                    lane.ready(events)
