"""The poller: the sockets of all clients in the epoll of the event loop.

Sockets stay in the epoll, level-triggered: waiting for a request costs no system call. A socket
whose input nobody reads now leaves it until it is read again; while its connection waits for a call
it stays, and only a hang-up is watched for.

A turn takes all sockets that are ready, as a pass of trio does. Pressure is measured over passes
(`LoopLag`): it would not see input that waits in the kernel for a later turn.
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from topics.actors.link.event_loop import EventLoop
from topics.front.http.connections import Connections
from topics.front.http.request_tasks import RequestTasks


class Poller:
    """Tells lanes that their sockets have input, and starts the tasks that they need in
    ``nursery``. ``connections`` end when `run` does.
    """

    def __init__(self, nursery: trio.Nursery, connections: Connections) -> None:
        self._nursery, self._connections = nursery, connections
        self._loop = EventLoop.of_this_run()
        self._is_over = False

    def watch(self, lane: RequestTasks, events: int) -> None:
        """Part of `Watcher`."""
        if self._is_over:
            raise OSError(errno.ECANCELED, "the server is over")
        if lane.watched is None:
            self._loop.watch(lane.fd, events, lane.ready)
        else:
            self._loop.change(lane.fd, events)
        lane.watched = events

    def leave(self, lane: RequestTasks) -> None:
        """Part of `Watcher`."""
        lane.watched = None
        self._loop.leave(lane.fd)

    def start(self, task: Callable[..., Awaitable[None]], *args: Any) -> bool:
        """Part of `Watcher`."""
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
