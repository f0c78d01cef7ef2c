"""All connections of a front: the sweep that keeps their deadlines, room for others, and their
drain.

every tick    past its deadline --idle, no input--> closed, --else--> cut
              waiting for a call whose client has hung up --> cut
when full     the connection that has been quiet for longest goes, those without a key first

A connection is quiet while it has no admitted request under way: between two requests, within a
head, and while a request is being refused. One with a request or a stream never goes, so whoever
works is not thrown off by those who only connect.
"""

from __future__ import annotations

import logging
import select
from collections.abc import Callable, Iterator, Sequence
from heapq import nsmallest

import trio

from topics.engine.access import ANYONE
from topics.front.held_memory import HeldMemory
from topics.front.http.connection import NEVER, Connection, Timings, ready_descriptors

LOG = logging.getLogger("topics.front")

SHED_PER_PASS = 16
QUIET_FOUND_MAX = 256  # by one look at all connections, which takes a millisecond for each 10,000


class Connections:
    """All open connections. ``now`` is the time of the last sweep, in seconds."""

    def __init__(self, timings: Timings, now: float, held: HeldMemory | None = None) -> None:
        self.timings = timings
        self.now = now
        self.draining = False
        self.held = HeldMemory() if held is None else held
        self.request_count = 0  # since the start
        self._open: set[Connection] = set()
        self._quiet: list[tuple[float, Connection]] = []  # since when, the longest last
        self._added = self._look_from = 0  # connections since the start; when to look again
        self._displaced = 0  # since the last sweep
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
        self._added += 1
        connection.is_late = self.draining
        self._open.add(connection)

    def remove(self, connection: Connection) -> None:
        """The connection has ended."""
        self._open.discard(connection)
        self._leaving.discard(connection)
        if self.draining and not self._leaving:
            self._empty.set()

    def make_room(self) -> bool:
        """End the connection that has been quiet for longest; whether one has left."""
        has_looked = False
        while True:
            if not self._quiet:
                if has_looked or not self._look_for_quiet():
                    return False
                has_looked = True  # once: others run before input is read, or a hang-up is seen
            since, connection = self._quiet.pop()
            if connection.quiet_since == since and not connection.is_ended:
                if connection.has_input:  # its request has come just now
                    continue
                connection.end_idle()
                if connection not in self._open:  # else its task ends it, later
                    self._displaced += 1
                    return True

    def _look_for_quiet(self) -> bool:
        """Find those that go next; whether there are any."""
        if self._added < self._look_from:
            return False
        self._look_from = self._added + len(self._open) // 64  # so a newcomer costs 64 looks
        quiet = [one for one in self._open if one.quiet_since < NEVER and not one.is_ended]
        found = nsmallest(QUIET_FOUND_MAX, quiet, key=_precedence)
        self._quiet = [(one.quiet_since, one) for one in reversed(found)]
        return bool(found)

    async def run(self, tick: Callable[[float], None]) -> None:
        """Sweep until cancelled. ``tick`` is told the time first, once a tick."""
        while True:
            await trio.sleep(self.timings.tick_s)
            now = trio.current_time()
            tick(now)
            self.sweep(now)

    def sweep(self, now: float) -> None:
        """End connections past their deadline."""
        self.now, self._quiet, self._look_from = now, [], 0
        if self._displaced:
            LOG.warning("quiet connections closed for others: %d", self._displaced)
            self._displaced = 0
        idle = []
        for connection in [*self._open]:  # one that ends may leave at once
            if connection.deadline <= now:
                idle.append(connection) if connection.idle else connection.cut()
        if idle:
            _end_idle(idle)
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


def _precedence(connection: Connection) -> tuple[bool, float]:
    """Who goes first: clients without a key, and those that have been quiet for longest."""
    return connection.principal is not ANYONE, connection.quiet_since


def _end_idle(connections: Sequence[Connection]) -> None:
    """Close idle connections, but for those with input that nobody has read yet."""
    by_fd = {connection.fd: connection for connection in connections}
    busy = ready_descriptors(by_fd, select.POLLIN, select.POLLIN)
    for fd, connection in by_fd.items():
        if fd not in busy:
            connection.end_idle()
