"""One client's connection: its socket, its unread input, and its deadline.

    input      recv --> `RequestStream`
    output     send: head and body in one write
    deadline   set here, checked once a second by the sweep
    hang-up    reset: the client has left. Half closed: it may still read, or have closed its socket

The front cannot distinguish a closed socket from one that only reads until it sends data: then the
client's kernel resets a closed connection. So if a client is half closed while it waits, the front
sends it the first byte of its answer.

The ``async`` functions are for requests that run in tasks. No request needs a timer, and the usual
one needs no task.

`Connections` has all connections of a front: it enforces deadlines, closes quiet connections for
new clients, and drains.

    every tick    past its deadline --idle, no input--> closed, --else--> cut
                  waiting for a call whose client has hung up --> cut
    when full     the connection that has been quiet for longest is closed, without a key first

A connection is quiet while it has no admitted request in flight: between two requests, while a head
or an unused body is incomplete, and while a request is being refused. Requests that need no key do
not count as in flight. A connection with any other request or a stream is never closed for a new
one, so clients that only connect cannot displace active clients.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import math
import select
import socket
import struct
import termios
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import Protocol

import trio

from topics.actors.link.beat import wait_beat
from topics.engine.access import ANYONE, Principal
from topics.formats.api.request_heads import TraceFields
from topics.front.held_memory import UNREAD_MIN_BYTES, HeldMemory
from topics.front.http.request_stream import RequestStream

LOG = logging.getLogger("topics.front")

RECV_BYTES = 64 * 1024
RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER: on, 0 s
GONE = select.POLLHUP | select.POLLERR  # the same bits as those of epoll
HALF_CLOSED = select.POLLRDHUP
PROBE = b"HTTP/1.1"  # every answer begins so
PROBE_PAUSES_S = tuple(0.001 * 2**step for step in range(11))  # 2 s in all
NEVER = math.inf
INT = struct.Struct("i")
SHED_PER_PASS = 16
WITH_INPUT_MAX = 8  # connections with input that are skipped to find one without
CHECKED_PER_CALL = 256  # connections that a call of `make_room` checks on average: 0.03 ms
QUIET_FOUND_MAX = 256  # by one search of all connections, which takes a millisecond for each 10,000
SCRATCH = memoryview(bytearray(RECV_BYTES))  # for bytes that are dropped


@dataclass(frozen=True, slots=True)
class Timings:
    """How long a client may take, in seconds."""

    tick_s: float = 1.0  # between two sweeps: the grain of all below
    head_s: float = 10.0  # from a head's first byte to its last
    body_grace_s: float = 30.0  # a body may fall behind by so much ...
    body_bytes_per_s: int = 64 * 1024  # ... of this rate; being ahead counts for nothing later
    idle_s: float = 75.0  # between two requests; longer than the 60 s of common proxies
    late_s: float = 1.0  # to the first byte from a client that connects during the drain
    linger_s: float = 2.0  # for the client to read the last answer while it still sends


class Owner(Protocol):
    """Who serves a connection: `topics.front.http.http1_protocol.Http1Protocol`. ``watched``: the
    events that its socket is watched for, None while it is not.
    """

    watched: int | None

    def end(self) -> None:
        """End it, wherever it waits; `Connection.is_ended` is set."""

    def watch_hang_up(self) -> None:
        """Cut the connection when its client has gone, while it ``waits``."""

    def leave(self) -> None:
        """Watch the socket no more."""


class Connection(RequestStream):
    """One client's socket, non-blocking, with its unread input.

    ``deadline`` is when the sweep ends this connection. ``idle``: no byte of a request has been
    read. ``waits``: it waits for a call that must end if the client hangs up. ``quiet_since``: the
    time since when no request is in flight, `NEVER` while one is; requests that need no key do not
    count. ``principal``: the principal of the last request with a known key.
    """

    def __init__(self, sock: socket.socket, connections: Connections, said: bytes = b"") -> None:
        """``said`` is input that has already been read."""
        super().__init__(said)
        self.sock = sock
        self.fd = sock.fileno()
        self.connections = connections
        self.timings = connections.timings
        self.owner: Owner | None = None
        self.is_ended = False  # cut, or closed while idle: its owner is told so
        self.deadline = NEVER
        self.idle = not said
        self.is_late = False  # the client connected during the drain
        self.waits = False
        self._probe_bytes = 0  # of the answer to come, that were sent
        self.quiet_since = connections.now
        self.principal: Principal = ANYONE
        self.closing = False
        self.is_chunked = False  # its last answer has no length and is sent in chunks
        self.unread_body = False  # the client may still be sending bytes that are never read
        self.is_lingering = False  # the last answer was sent; see `linger`
        self.is_counted = False  # the ledger has unread input of this connection
        self.body_deadline = NEVER
        self.trace: TraceFields | None = None  # of the request
        self.sent_bytes = 0  # of the answer, heads included
        self.received_bytes = len(said)  # of the request, and of later ones in the buffer

    @property
    def has_input(self) -> bool:
        """Whether there is input in the socket, or the client has closed its side."""
        return bool(poll_now([self.fd], select.POLLIN))

    def begin_waiting(self) -> None:
        """A call begins that must end if the client hangs up."""
        self.waits = True
        self.compact()  # drop the head and the body, which have been used
        owner = self.owner
        if owner is not None and (owner.watched is None or not owner.watched & HALF_CLOSED):
            owner.watch_hang_up()

    def probe(self) -> None:
        """Send another byte of the answer to come: a client that is gone resets the connection."""
        with contextlib.suppress(OSError):
            self._probe_bytes += self.sock.send(PROBE[self._probe_bytes :][:1])

    @property
    def is_there(self) -> bool:
        """The client has not hung up: an answer reaches it."""
        return not (self.is_ended or self._hang_up)

    async def check_client(self) -> None:
        """Raises `ConnectionResetError` when nobody would read an answer."""
        if not self.is_there and (
            self.is_ended or self._hang_up & GONE or not await self._may_read()
        ):
            raise ConnectionResetError("the client has hung up")

    async def _may_read(self) -> bool:
        """Whether a client that is half closed may still read."""
        is_behind = _unconfirmed_bytes(self.sock) > self._probe_bytes  # with the answers before
        self.probe()
        for pause_s in PROBE_PAUSES_S:
            if self._hang_up & GONE:
                return False
            if not _unconfirmed_bytes(self.sock):
                return True
            await trio.sleep(pause_s)
        return is_behind

    @property
    def _hang_up(self) -> int:
        return poll_now([self.fd], HALF_CLOSED).get(self.fd, 0)

    async def receive_more(self) -> bool:
        """Wait for more input. False when the client has closed its side. Raises OSError."""
        while True:
            await trio.lowlevel.wait_readable(self.sock)
            try:
                data = self.sock.recv(RECV_BYTES)
            except BlockingIOError:
                continue
            self.received_bytes += len(data)
            self.receive(data)
            return bool(data)

    async def receive_into(self, view: memoryview) -> int:
        """Wait for input and put it at the start of ``view``; 0 when the client has closed its
        side. Raises OSError.
        """
        while True:
            await trio.lowlevel.wait_readable(self.sock)
            try:
                count = self.sock.recv_into(view)
            except BlockingIOError:
                continue
            self.received_bytes += count
            return count

    def count_unread(self) -> None:
        """Drop used input, and report the size of the rest to the ledger.

        Call this whenever the connection starts to wait.
        """
        kept = self.compact()
        if kept >= UNREAD_MIN_BYTES or self.is_counted:
            self.is_counted = kept >= UNREAD_MIN_BYTES
            self.connections.held.unread.keep(self, self.principal.digest, kept)

    def begin_body(self) -> None:
        """A body starts: give it its grace."""
        self.body_deadline = self.deadline = self.connections.now + self.timings.body_grace_s

    def earned(self, received: int) -> None:
        """So many bytes of the body came: they extend its deadline, up to the grace from now."""
        extended = self.body_deadline + received / self.timings.body_bytes_per_s
        most = self.connections.now + self.timings.body_grace_s
        self.deadline = self.body_deadline = min(extended, most)

    async def send(self, *parts: bytes | memoryview) -> None:
        """Send all of it. Raises OSError; the sweep cuts off a client that is too slow
        (`topics.front.held_memory`).
        """
        unsent = self.send_now(*parts)
        if unsent:
            await self.send_rest(unsent, sum(map(len, parts)))

    def send_now(self, *parts: bytes | memoryview) -> Sequence[memoryview]:
        """Send what the socket takes, without copying; what is left. Raises OSError."""
        if self._probe_bytes:
            parts = (self._rest(parts[0]), *parts[1:])
        try:
            sent = self.sock.send(parts[0]) if len(parts) == 1 else self.sock.sendmsg(parts)
        except BlockingIOError:
            sent = 0
        self.sent_bytes += sent
        unsent = []
        for part in parts:
            if sent < len(part):
                unsent.append(memoryview(part)[sent:])
            sent = max(0, sent - len(part))
        return unsent

    def _rest(self, answer: bytes | memoryview) -> bytes:
        """The answer without what was sent of it to probe the client."""
        sent, self._probe_bytes = self._probe_bytes, 0
        self.sent_bytes += sent
        assert bytes(answer[:sent]) == PROBE[:sent], "every answer begins alike"
        return bytes(answer[sent:])

    async def send_rest(self, unsent: Sequence[memoryview], length: int) -> None:
        """Send as fast as the client takes it; so many bytes stay in memory until then."""
        held, before = self.connections.held, self.deadline
        holding = held.hold(self, self.principal.digest, trio.current_time())
        held.add(holding, unsent, length, trio.current_time())
        try:
            for part in unsent:
                while part:
                    self.deadline = holding.due
                    await trio.lowlevel.wait_writable(self.fd)
                    try:
                        sent = self.sock.send(part)
                    except BlockingIOError:
                        continue
                    self.sent_bytes += sent
                    holding.took(sent, trio.current_time())
                    part = part[sent:]
            self.deadline = before
        finally:
            held.release(holding)

    def cut(self) -> None:
        """End the connection now, whatever it waits for: a reset for the client."""
        if self.sock.fileno() >= 0:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        self._end()

    shed = cut  # for `topics.front.held_memory.Client`

    def end_idle(self) -> None:
        """Close a connection that is between two requests, without a reset."""
        self._end()

    def _end(self) -> None:
        self.closing = self.is_ended = True
        if self.owner is not None:
            self.owner.end()

    def close(self) -> None:
        """Close the socket; nobody watches it any more. Unread input is given back."""
        self.clear()
        if self.is_counted:
            self.count_unread()
        owner, self.owner = self.owner, None  # no circle: memory is given back at once
        if owner is not None:
            owner.leave()
        self.sock.close()

    @property
    def must_linger(self) -> bool:
        """The client would lose the last answer if the connection were closed at once: it has sent
        what is never read. Raises OSError.
        """
        return not self.is_ended and (self.unread_body or (self.closing and self._has_unread()))

    def linger(self) -> None:
        """Start to read and drop input after the last answer, which left input unread.

        This continues until the client closes its side or the deadline passes. Closing immediately
        would send a reset, which makes the client lose this answer and earlier ones. Raise OSError.
        """
        self.clear()
        self.is_lingering = True
        self.deadline = self.connections.now + self.timings.linger_s
        self.sock.shutdown(socket.SHUT_WR)

    def drop_input(self) -> bool:
        """Read and drop input. Return whether the client may send more. Raise OSError."""
        try:
            return bool(self.sock.recv_into(SCRATCH))
        except BlockingIOError:
            return True

    def _has_unread(self) -> bool:
        """Whether there are requests behind the last one. Raises OSError."""
        if self.pos < len(self.buffer):
            return True
        try:
            return bool(self.sock.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return False


class Connections:
    """All open connections. ``now`` is the time of the last sweep, in seconds."""

    def __init__(
        self,
        timings: Timings,
        now: float,
        held: HeldMemory | None = None,
        *,
        has_keys: bool = False,
    ) -> None:
        self.has_keys = has_keys
        self.timings = timings
        self.now = now
        self.draining = False
        self.held = HeldMemory() if held is None else held
        self.request_count = 0  # since the start
        self._open: set[Connection] = set()
        self._quiet: list[tuple[float, Connection]] = []  # since when, the longest last
        self._calls = self._search_from = 0  # of `make_room`; the call that searches again
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
        connection.is_late = self.draining
        self._open.add(connection)

    def remove(self, connection: Connection) -> None:
        """The connection has ended."""
        self._open.discard(connection)
        self._leaving.discard(connection)
        if self.draining and not self._leaving:
            self._empty.set()

    def make_room(self, keyless_only: bool) -> bool:
        """Close the connection that has been quiet for longest. Return whether there was one.

        ``keyless_only``: only a connection that has shown no key, on a server with keys. If a task
        serves the connection, it is closed as soon as that task runs.
        """
        self._calls += 1
        found = self._longest_quiet()
        if found is None:
            return False
        if keyless_only and not (self.has_keys and found.principal is ANYONE):
            self._quiet.append((found.quiet_since, found))
            return False
        found.end_idle()
        self._displaced += 1
        return True

    def _longest_quiet(self) -> Connection | None:
        """Return the connection to close next, or None.

        A connection with unread input is skipped, because a request has just arrived. If the server
        has keys, this does not protect clients without a key, which could always have input.
        """
        has_looked, unknown = False, list[Connection]()
        while True:
            if not self._quiet:
                if has_looked or not self._look_for_quiet():
                    return unknown[0] if unknown else None
                has_looked = True  # once: others run before input is read, or a hang-up is seen
            since, connection = self._quiet.pop()
            if connection.quiet_since == since and not connection.is_ended:
                if not (connection.idle and connection.has_input):
                    return connection
                if self.has_keys and connection.principal is ANYONE:
                    unknown.append(connection)
                    if len(unknown) == WITH_INPUT_MAX:
                        return unknown[0]

    def _look_for_quiet(self) -> bool:
        """Find those that go next; whether there are any."""
        if self._calls < self._search_from:
            return False
        self._search_from = self._calls + len(self._open) // CHECKED_PER_CALL
        quiet = [one for one in self._open if one.quiet_since < NEVER and not one.is_ended]
        found = nsmallest(QUIET_FOUND_MAX, quiet, key=_precedence)
        self._quiet = [(one.quiet_since, one) for one in reversed(found)]
        return bool(found)

    async def run(self, tick: Callable[[float], None]) -> None:
        """Sweep until cancelled. ``tick`` is told the time first, once a tick."""
        while True:
            await wait_beat(self.timings.tick_s)
            now = trio.current_time()
            tick(now)
            self.sweep(now)

    def sweep(self, now: float) -> None:
        """End connections past their deadline."""
        self.now, self._quiet, self._search_from = now, [], 0
        if self._displaced:
            LOG.warning("quiet connections closed for others: %d", self._displaced)
            self._displaced = 0
        idle = []
        for connection in [*self._open]:  # one that ends may leave at once
            if connection.deadline <= now:
                if connection.idle:
                    idle.append(connection)
                elif connection.is_lingering:
                    connection.end_idle()
                else:
                    connection.cut()
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
    busy = poll_now(by_fd, select.POLLIN)
    for fd, connection in by_fd.items():
        if fd not in busy:
            connection.end_idle()


def _unconfirmed_bytes(sock: socket.socket) -> int:
    """Bytes that were sent and that the kernel of the client has not confirmed."""
    count: int = INT.unpack(fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(INT.size)))[0]
    return count


def poll_now(descriptors: Iterable[int], events: int) -> dict[int, int]:
    """Return the descriptors with one of the events, a hang-up or an error, each with its events.

    This is one system call, which does not wait.
    """
    poller = select.poll()
    for fd in descriptors:
        poller.register(fd, events)
    return dict(poller.poll(0))
