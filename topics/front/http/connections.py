"""All connections of a front: the sweep that keeps their deadlines, and their drain.

every tick    past its deadline --idle, no input--> closed, --else--> cut
              waiting for a call whose client has hung up --> cut
"""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator, Sequence

import trio

from topics.front.held_memory import HeldMemory
from topics.front.http.connection import Connection, Timings, hung_up, ready_descriptors

SHED_PER_PASS = 16


class Connections:
    """All open connections. ``now`` is the time of the last sweep, in seconds."""

    def __init__(self, timings: Timings, now: float, held: HeldMemory | None = None) -> None:
        self.timings = timings
        self.now = now
        self.draining = False
        self.held = HeldMemory() if held is None else held
        self.request_count = 0  # since the start
        self._open: set[Connection] = set()
        self._leaving: set[Connection] = set()  # the part of `_open` that the drain waits for
        self._empty = trio.Event()

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Connection]:
        return iter(self._open)

    @property
    def leaving(self) -> int:
        """How many connections the drain waits for."""
        return len(self._leaving)

    def add(self, connection: Connection) -> None:
        """A client was accepted."""
        connection.is_late = self.draining
        self._open.add(connection)

    def remove(self, connection: Connection) -> None:
        """The connection has ended."""
        self._open.discard(connection)
        self._leaving.discard(connection)
        if self.draining and not self._leaving:
            self._empty.set()

    async def run(self, tick: Callable[[float], None]) -> None:
        """Sweep until cancelled. ``tick`` is told the time first, once a tick."""
        while True:
            await trio.sleep(self.timings.tick_s)
            now = trio.current_time()
            tick(now)
            self.sweep(now)

    def sweep(self, now: float) -> None:
        """End connections past their deadline, and calls whose client has hung up."""
        self.now = now
        idle, waiting = [], {}
        for connection in [*self._open]:  # one that ends may leave at once
            if connection.deadline <= now:
                idle.append(connection) if connection.idle else connection.cut()
            elif now - connection.waits_since >= self.timings.tick_s:
                waiting[connection.fd] = connection
        if idle:
            _end_idle(idle)
        if waiting:
            for fd in hung_up(waiting):
                waiting[fd].cut()
        self.held.on_excess()  # who was fast a second ago may be slow now

    async def shed(self) -> None:
        """End clients whose memory is needed, until cancelled; a few in a pass of the loop."""
        while True:
            excess = trio.Event()
            self.held.on_excess = excess.set
            await excess.wait()
            for number, client in enumerate(self.held.excess(trio.current_time())):
                if number % SHED_PER_PASS == 0:
                    await trio.lowlevel.checkpoint()
                client.shed()

    def drain(self) -> None:
        """From now on connections end after their request; those without input end at once.

        A client that connects later has a moment for one request, and the drain does not wait for
        it until this is called again.
        """
        self.draining = True
        self._leaving, self._empty = set(self._open), trio.Event()
        _end_idle([connection for connection in self._open if connection.idle])
        if not self._leaving:
            self._empty.set()

    async def wait_empty(self) -> None:
        """After `drain`: until the last connection that was open then has closed."""
        await self._empty.wait()

    def cut_all(self) -> None:
        """End all connections now."""
        for connection in [*self._open]:
            connection.cut()


def _end_idle(connections: Sequence[Connection]) -> None:
    """Close idle connections, but for those with input that nobody has read yet."""
    by_fd = {connection.fd: connection for connection in connections}
    busy = ready_descriptors(by_fd, select.POLLIN, select.POLLIN)
    for fd, connection in by_fd.items():
        if fd not in busy:
            connection.end_idle()
