"""Sockets and their deadlines. One sweep a second watches all connections; nothing here costs a
task or a timer per request.
"""

from __future__ import annotations

import math
import select
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import trio

from topics.front.http.pace import Pace

RECV_BYTES = 64 * 1024
RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER: on, 0 s
HANG_UP = select.POLLRDHUP | select.POLLHUP | select.POLLERR
NEVER = math.inf
HELD_MAX_BYTES = 256 << 20  # of answers that wait for their clients, if these are slow
HELD_FACTOR = 2  # so many times as much, if they are not
TURNOVER_MAX_S = 10.0  # who takes longer for an answer is slow
SCRATCH = memoryview(bytearray(RECV_BYTES))  # for what nobody will look at


@dataclass(frozen=True, slots=True)
class Timings:
    """How long a client may take, in seconds."""

    tick_s: float = 1.0  # between two sweeps: the grain of all below
    head_s: float = 10.0  # from a head's first byte to its last
    body_grace_s: float = 30.0  # a body may fall behind by so much ...
    body_bytes_per_s: int = 64 * 1024  # ... of this rate; being ahead counts for nothing later
    idle_s: float = 75.0  # between two requests; longer than the 60 s of common proxies
    late_s: float = 1.0  # to the first byte from a client who comes during the drain
    send_s: float = 30.0  # without the client taking a single byte
    linger_s: float = 2.0  # for the client to read a refusal while it still sends


class Connection:
    """One client's socket, non-blocking, with what has been read and not used yet.

    ``buffer[pos:]`` is unread input. ``deadline`` is when the sweep ends this connection. ``idle``
    says that nothing of a request has been read. ``waits_since`` is when a call began that must end
    if the client hangs up.
    """

    def __init__(self, sock: socket.socket, connections: Connections, said: bytes = b"") -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.connections = connections
        self.timings = connections.timings
        self.scope = trio.CancelScope()
        self.buffer = said
        self.pos = 0
        self.deadline = NEVER
        self.idle = not said
        self.is_late = False  # it came during the drain
        self.waits_since = NEVER
        self.closing = False
        self.unread_body = False  # the client may still be sending what we will not read
        self.body_deadline = NEVER
        self.pace = Pace()  # at which the client takes answers

    @property
    def has_input(self) -> bool:
        """Whether the client has said something that was not read, or has closed its side."""
        return bool(_ready({self.fd: self}, select.POLLIN, select.POLLIN))

    async def receive(self) -> bool:
        """Wait for more input. False when the client has closed its side. Raises OSError."""
        while True:
            await trio.lowlevel.wait_readable(self.fd)
            try:
                data = self.sock.recv(RECV_BYTES)
            except BlockingIOError:
                continue
            self.buffer = self.buffer[self.pos :] + data if self.pos < len(self.buffer) else data
            self.pos = 0
            return bool(data)

    async def receive_into(self, view: memoryview) -> int:
        """Wait for input and put it at the start of ``view``; 0 when the client has closed its
        side. Raises OSError.
        """
        while True:
            await trio.lowlevel.wait_readable(self.fd)
            try:
                return self.sock.recv_into(view)
            except BlockingIOError:
                continue

    def begin_body(self) -> None:
        """A body starts: give it its grace."""
        self.body_deadline = self.deadline = self.connections.now + self.timings.body_grace_s

    def earned(self, received: int) -> None:
        """So many bytes of the body came: they buy time, up to the grace from now."""
        bought = self.body_deadline + received / self.timings.body_bytes_per_s
        most = self.connections.now + self.timings.body_grace_s
        self.deadline = self.body_deadline = min(bought, most)

    async def drop(self, length: int) -> None:
        """Read and forget so many bytes of a body. Raises OSError, also when the client leaves."""
        ready = min(length, len(self.buffer) - self.pos)
        self.pos += ready
        left = length - ready
        while left:
            count = await self.receive_into(SCRATCH[:left])
            if not count:
                raise ConnectionResetError("the client left within a body")
            self.earned(count)
            left -= count

    async def send(self, data: bytes | memoryview) -> None:
        """Send all of it. Raises OSError; a client that takes nothing for ``send_s`` is cut off by
        the sweep.
        """
        try:
            sent = self.sock.send(data)
        except BlockingIOError:
            sent = 0
        if sent != len(data):
            await self._send_rest(memoryview(data)[sent:])

    async def send_both(self, head: bytes, body: bytes | memoryview) -> None:
        """Send two buffers in one write, without copying the second."""
        try:
            sent = self.sock.sendmsg([head, body])
        except BlockingIOError:
            sent = 0
        if sent < len(head):
            await self._send_rest(memoryview(head)[sent:])
            sent = len(head)
        rest = memoryview(body)[sent - len(head) :]
        if rest:
            with self.connections.holding(self, len(body)):
                await self._send_rest(rest)

    async def _send_rest(self, rest: memoryview) -> None:
        before = self.deadline
        while rest:
            self.deadline = self.connections.now + self.timings.send_s
            await trio.lowlevel.wait_writable(self.fd)
            try:
                sent = self.sock.send(rest)
            except BlockingIOError:
                continue
            self.pace.count(sent, trio.current_time())
            rest = rest[sent:]
        self.deadline = before

    def cut(self) -> None:
        """End the connection now, whatever its task is doing: a reset for the client, cancellation
        for the task.
        """
        self.closing = True
        if self.sock.fileno() >= 0:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        self.scope.cancel()

    def end_idle(self) -> None:
        """End a connection that is between two requests, in the ordinary way."""
        self.closing = True
        self.scope.cancel()

    async def linger(self) -> None:
        """After a refusal that left input unread: let the client read it, since closing at once
        would be a reset.
        """
        if not self.unread_body or self.scope.cancel_called:
            return
        self.deadline = NEVER
        self.sock.shutdown(socket.SHUT_WR)
        with trio.move_on_after(self.timings.linger_s):
            while await self.receive_into(SCRATCH):
                pass


class Connections:
    """All open connections, and the sweep that keeps their deadlines. ``now`` is the time of the
    last sweep, in seconds.
    """

    def __init__(self, timings: Timings, now: float, held_max_bytes: int = HELD_MAX_BYTES) -> None:
        self.timings = timings
        self.now = now
        self.draining = False
        self._held: dict[Connection, int] = {}  # bytes of answers that wait for their clients
        self._held_bytes = 0
        self._held_max_bytes = held_max_bytes
        self.heard = 0  # requests
        self._open: set[Connection] = set()
        self._leaving: set[Connection] = set()  # those of `_open` that the drain waits for
        self._empty = trio.Event()

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Connection]:
        return iter(self._open)

    @property
    def leaving(self) -> int:
        """How many the drain waits for."""
        return len(self._leaving)

    def add(self, connection: Connection) -> None:
        connection.is_late = self.draining
        self._open.add(connection)

    def remove(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._leaving.discard(connection)
        if self.draining and not self._leaving:
            self._empty.set()

    @contextmanager
    def holding(self, connection: Connection, size: int) -> Iterator[None]:
        """So many bytes of an answer stay in memory until ``connection`` has taken them."""
        connection.pace.count(size, trio.current_time())  # a credit of some seconds
        self._held[connection] = size
        self._held_bytes += size
        self.shed()
        try:
            yield
        finally:
            self._let_go(connection)

    def _let_go(self, connection: Connection) -> None:
        self._held_bytes -= self._held.pop(connection, 0)

    def shed(self) -> None:
        """While clients hold too much of what they were answered, cut the slowest.

        Who takes a tenth of it a second is not slow; but at `HELD_FACTOR` times the bound the
        slowest is cut, however fast it is.
        """
        if self._held_bytes <= self._held_max_bytes:
            return
        now = trio.current_time()
        slowness = {one: one.pace.turnover_s(size, now) for one, size in self._held.items()}
        for connection in sorted(slowness, key=slowness.__getitem__, reverse=True):
            factor = 1 if slowness[connection] > TURNOVER_MAX_S else HELD_FACTOR
            if self._held_bytes <= factor * self._held_max_bytes:
                return
            self._let_go(connection)
            connection.cut()

    async def run(self, tick: Callable[[float], None]) -> None:
        """Sweep for ever. ``tick`` is told the time first, once a tick."""
        while True:
            await trio.sleep(self.timings.tick_s)
            now = trio.current_time()
            tick(now)
            self.sweep(now)

    def sweep(self, now: float) -> None:
        """Cut what is past its deadline, and what waits for a client that has gone."""
        self.now = now
        waiting = {}
        for connection in self._open:
            if connection.deadline <= now:
                connection.end_idle() if connection.idle else connection.cut()
            elif now - connection.waits_since >= self.timings.tick_s:
                waiting[connection.fd] = connection
        for fd in _ready(waiting, select.POLLRDHUP, HANG_UP):
            waiting[fd].cut()
        self.shed()

    def drain(self) -> None:
        """From now on connections end after their request; those that have sent nothing, at once.

        Who comes later has a moment for one request, which is not waited for until this is called
        again.
        """
        self.draining = True
        self._leaving, self._empty = set(self._open), trio.Event()
        idle = {connection.fd: connection for connection in self._open if connection.idle}
        busy = _ready(idle, select.POLLIN, select.POLLIN)
        for fd, connection in idle.items():
            if fd not in busy:
                connection.end_idle()
        if not self._leaving:
            self._empty.set()

    async def wait_empty(self) -> None:
        """After `drain`: until the last connection that was there then has closed."""
        await self._empty.wait()

    def cut_all(self) -> None:
        for connection in self._open:
            connection.cut()


def _ready(connections: dict[int, Connection], ask: int, want: int) -> set[int]:
    """The descriptors on which one of ``want`` holds right now; one system call for all of them."""
    if not connections:
        return set()
    poller = select.poll()
    for fd in connections:
        poller.register(fd, ask)
    return {fd for fd, events in poller.poll(0) if events & want}
