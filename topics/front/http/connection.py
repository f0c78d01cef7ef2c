"""Client connection: one client's socket, its unread input, and its deadline.

    input      recv --> `RequestStream`
    output     send: head and body in one write
    deadline   set here, checked once a second by the sweep
    hang-up    reset: the client has disconnected
               half-closed: the client is still reading or has closed its socket

Until the server sends data, TCP does not distinguish a closed socket from one that only reads. If
the socket is closed, the client's kernel replies to the data with a reset. So if a client is
half-closed while it is waiting, the front sends it the first byte of the response as a probe.

The ``async`` functions are for requests that run in tasks. No request needs a timer, and a typical
request needs no task.

`Connections` contains all connections of a front. It enforces deadlines, closes quiet connections
to admit new clients, and handles the drain.

    at each tick      connections past their deadline: closed if idle without input, else reset
    if no slot is     the connection that has been quiet longest is closed; connections that have
    free              no key are closed before others

A connection is quiet while it has no admitted request in flight: between two requests, while a
head, or a body that will not be used, is incomplete, and while a request is being refused. Requests
that need no key do not count as in flight. A connection with any other request or a stream is never
closed for a new connection, so clients that only connect cannot displace active clients.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import select
import socket
import struct
import termios
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import Protocol

import structlog
import trio

from topics.actors.link.tick import wait_tick
from topics.engine.access import ANYONE, Principal
from topics.formats.api.request_heads import TraceFields
from topics.front.held_memory import UNREAD_MIN_BYTES, HeldMemory
from topics.front.http.request_stream import RequestStream

log = structlog.get_logger()

RECV_BYTES = 64 * 1024
RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER: on, 0 s
HANG_UP = select.POLLHUP | select.POLLERR  # the same bits as EPOLLHUP and EPOLLERR
HALF_CLOSED = select.POLLRDHUP
PROBE = b"HTTP/1.1"  # the first bytes of every response
PROBE_PAUSES_S = tuple(0.001 * 2**step for step in range(11))  # 2 s in total
NEVER = math.inf
INT = struct.Struct("i")
DISCONNECTS_PER_PASS = 16
WITH_INPUT_MAX = 8  # connections with input that are skipped to find one without input
CHECKED_PER_CALL = 256  # connections that a call to `evict` checks on average: 0.03 ms
CANDIDATES_MAX = 256  # result size of a search of all connections (1 ms per 10,000 connections)
SCRATCH = memoryview(bytearray(RECV_BYTES))  # for input that is discarded


@dataclass(frozen=True, slots=True)
class Timings:
    """Time limits of a connection, in seconds."""

    tick_s: float = 1.0  # interval between sweeps, and so the precision of all limits below
    head_s: float = 10.0  # maximum time from the first byte of a head to the last
    body_grace_s: float = 30.0  # the time by which a body may fall behind `body_bytes_per_s`
    body_bytes_per_s: int = 64 * 1024  # minimum rate of a body; early bytes earn no more time
    idle_s: float = 75.0  # maximum time between two requests; common proxies use 60 s
    late_s: float = 1.0  # time to the first byte, for a client that connects during the drain
    linger_s: float = 2.0  # time to read the last response, for a client that is still sending


class Owner(Protocol):
    """The interface of the object that serves a connection
    (`topics.front.http.http1_protocol.Http1Protocol`).

    ``watched`` is the set of events for which the socket is watched, or None if it is not watched.
    """

    watched: int | None

    def end(self) -> None:
        """Stop serving the connection in any state. `Connection.is_ended` is already set."""

    def watch_hang_up(self) -> None:
        """Watch the client, so that the connection is reset if the client hangs up while ``waits``
        is true.
        """

    def unwatch(self) -> None:
        """Stop watching the socket."""


class Connection(RequestStream):
    """One client's non-blocking socket, with its unread input.

    ``deadline`` is the time at which the sweep ends this connection. ``idle`` is true if no byte of
    a request has been read, or if only an unused body must still be read. ``waits`` is true while
    the connection waits for a call that must end if the client hangs up. ``inactive_since`` is the
    time since which no request is in flight, or `NEVER` if one is. Requests that need no key do not
    count. ``principal`` is the principal of the last request with a known key.
    """

    def __init__(
        self, sock: socket.socket, connections: Connections, initial_input: bytes = b""
    ) -> None:
        """``initial_input`` is input that has already been read."""
        super().__init__(initial_input)
        self.sock = sock
        self.fd = sock.fileno()
        self.connections = connections
        self.timings = connections.timings
        self.owner: Owner | None = None
        self.is_ended = False  # reset, or closed while idle; the owner is notified by `Owner.end`
        self.deadline = NEVER
        self.idle = not initial_input
        self.is_late = False  # the client connected during the drain
        self.waits = False
        self._probe_bytes = 0  # bytes of the next response that were sent as probes
        self.inactive_since = connections.now
        self.principal: Principal = ANYONE
        self.closing = False  # the connection closes after the current response
        self.is_chunked = False  # the current response has no length and is sent in chunks
        # True if the client may still be sending bytes that the server will not read.
        self.unread_body = False
        self.is_lingering = False  # the last response was sent; see `linger`
        self.is_counted = False  # the ledger contains unread input of this connection
        # The time by which the body must be complete; see `extend_body_deadline`.
        self.body_deadline = NEVER
        self.trace: TraceFields | None = None  # the current request's trace fields
        self.sent_bytes = 0  # sent bytes of the current response, heads included
        # Received bytes of the current request, and of later requests in the buffer.
        self.received_bytes = len(initial_input)

    @property
    def has_input(self) -> bool:
        """Whether the socket has input, or the client has closed its side."""
        return bool(poll_now([self.fd], select.POLLIN))

    def begin_waiting(self) -> None:
        """Mark the connection as waiting for a call that must end if the client hangs up."""
        self.waits = True
        self.compact()  # drop the consumed head and body
        owner = self.owner
        if owner is not None and (owner.watched is None or not owner.watched & HALF_CLOSED):
            owner.watch_hang_up()

    def probe(self) -> None:
        """Send one more byte of the next response.

        The kernel of a client that has closed its socket replies with a reset.
        """
        with contextlib.suppress(OSError):
            self._probe_bytes += self.sock.send(PROBE[self._probe_bytes :][:1])

    @property
    def is_connected(self) -> bool:
        """Whether the client has not hung up, so that a response can reach it."""
        return not (self.is_ended or self._hang_up)

    async def check_client(self) -> None:
        """Raise `ConnectionResetError` if the client would not read a response.

        If the client is half-closed, wait up to 2 s to find out whether it is still reading.
        """
        if not self.is_connected and (
            self.is_ended or self._hang_up & HANG_UP or not await self._may_read()
        ):
            raise ConnectionResetError("the client has hung up")

    async def _may_read(self) -> bool:
        """Return whether a half-closed client may still be reading.

        The client's kernel acknowledges the probe byte, or resets the connection. A client that has
        not acknowledged earlier responses by the end of the wait is only slow, so it may still be
        reading.
        """
        # True if bytes of earlier responses have not been acknowledged.
        is_behind = _unconfirmed_bytes(self.sock) > self._probe_bytes
        self.probe()
        for pause_s in PROBE_PAUSES_S:
            if self._hang_up & HANG_UP:
                return False
            if not _unconfirmed_bytes(self.sock):
                return True
            await trio.sleep(pause_s)
        return is_behind

    @property
    def _hang_up(self) -> int:
        """The hang-up events of the socket, or 0."""
        return poll_now([self.fd], HALF_CLOSED).get(self.fd, 0)

    async def receive_more(self) -> bool:
        """Wait for more input and append it to the buffer.

        Return False if the client has closed its side. Raise `OSError` if the connection fails.
        """
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
        """Wait for input and store it at the start of ``view``.

        Return the number of bytes, or 0 if the client has closed its side. Raise `OSError` if the
        connection fails.
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
        """Drop consumed input, and report the size of the remaining input to the ledger.

        Call this whenever the connection starts to wait.
        """
        kept = self.compact()
        if kept >= UNREAD_MIN_BYTES or self.is_counted:
            self.is_counted = kept >= UNREAD_MIN_BYTES
            self.connections.held.unread.keep(self, self.principal.digest, kept)

    def begin_body(self) -> None:
        """Start the deadline of a body with its grace period."""
        self.body_deadline = self.deadline = self.connections.now + self.timings.body_grace_s

    def extend_body_deadline(self, received: int) -> None:
        """Extend the deadline of the body for ``received`` bytes, at most to one grace period from
        now.
        """
        extended = self.body_deadline + received / self.timings.body_bytes_per_s
        most = self.connections.now + self.timings.body_grace_s
        self.deadline = self.body_deadline = min(extended, most)

    async def send(self, *parts: bytes | memoryview) -> None:
        """Send all parts, waiting if necessary.

        Raise `OSError` if the connection fails. The sweep resets the connection of a client that
        reads too slowly (`topics.front.held_memory`).
        """
        unsent = self.send_now(*parts)
        if unsent:
            await self.send_remaining(unsent, sum(map(len, parts)))

    def send_now(self, *parts: bytes | memoryview) -> Sequence[memoryview]:
        """Send as many bytes as the socket accepts, without copying. Return the unsent parts.

        Raise `OSError` if the connection fails.
        """
        if self._probe_bytes:
            parts = (self._unprobed(parts[0]), *parts[1:])
        try:
            sent = self.sock.send(parts[0]) if len(parts) == 1 else self.sock.sendmsg(parts)
        except BlockingIOError:
            sent = 0
        self.sent_bytes += sent
        # Skip the bytes of each part that were sent.
        unsent = []
        for part in parts:
            if sent < len(part):
                unsent.append(memoryview(part)[sent:])
            sent = max(0, sent - len(part))
        return unsent

    def _unprobed(self, answer: bytes | memoryview) -> bytes:
        """Return the response, excluding the bytes that were sent as probes."""
        sent, self._probe_bytes = self._probe_bytes, 0
        self.sent_bytes += sent
        assert bytes(answer[:sent]) == PROBE[:sent], "all responses start with the same bytes"
        return bytes(answer[sent:])

    async def send_remaining(self, unsent: Sequence[memoryview], length: int) -> None:
        """Send the unsent parts as fast as the client reads them.

        ``length`` is the number of bytes that stay in memory until all parts are sent. Raise
        `OSError` if the connection fails.
        """
        held, before = self.connections.held, self.deadline
        holding = held.hold(self, self.principal.digest, trio.current_time())
        held.add(holding, unsent, length, trio.current_time())
        try:
            for part in unsent:
                while part:
                    # The sweep enforces this deadline, which is extended while the client is
                    # reading.
                    self.deadline = holding.due
                    await trio.lowlevel.wait_writable(self.fd)
                    try:
                        sent = self.sock.send(part)
                    except BlockingIOError:
                        continue
                    self.sent_bytes += sent
                    holding.count_sent(sent, trio.current_time())
                    part = part[sent:]
            self.deadline = before
        finally:
            held.release(holding)

    def abort(self) -> None:
        """Close the connection immediately, in any state. The client gets a reset."""
        if self.sock.fileno() >= 0:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        self._end()

    disconnect = abort  # for `topics.front.held_memory.Client`

    def end_idle(self) -> None:
        """Close a connection that is between two requests, without a reset."""
        self._end()

    def _end(self) -> None:
        """Let the owner stop in its current state and close the connection."""
        self.closing = self.is_ended = True
        if self.owner is not None:
            self.owner.end()

    def close(self) -> None:
        """Close the socket and stop watching it. Remove its unread input from the ledger."""
        self.clear()
        if self.is_counted:
            self.count_unread()
        # Break the reference cycle, so that memory is freed immediately.
        owner, self.owner = self.owner, None
        if owner is not None:
            owner.unwatch()
        self.sock.close()

    @property
    def must_linger(self) -> bool:
        """Whether closing now would make the client lose the last response.

        This happens if the client has sent input that is never read, because the kernel then sends
        a reset. Raise `OSError` if the connection has failed.
        """
        return not self.is_ended and (self.unread_body or (self.closing and self._has_unread()))

    def linger(self) -> None:
        """Start to read and discard input after the last response, because input is left unread.

        This continues until the client closes its side or the deadline passes. Closing immediately
        would send a reset, which makes the client lose this response and earlier ones. Raise
        `OSError` if the connection has failed.
        """
        self.clear()
        self.is_lingering = True
        self.deadline = self.connections.now + self.timings.linger_s
        self.sock.shutdown(socket.SHUT_WR)

    def discard_input(self) -> bool:
        """Read and discard input. Return whether the client may send more. Raise `OSError`."""
        try:
            return bool(self.sock.recv_into(SCRATCH))
        except BlockingIOError:
            return True

    def _has_unread(self) -> bool:
        """Return whether unread input follows the last request. Raise `OSError`."""
        if self.pos < len(self.buffer):
            return True
        try:
            return bool(self.sock.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return False


class Connections:
    """All open connections of a front. ``now`` is the time of the last sweep, in seconds."""

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
        self.request_count = 0  # requests since startup
        self._open: set[Connection] = set()
        # Connections, each with the time since which it has been quiet. The one that has been quiet
        # longest is last.
        self._candidates: list[tuple[float, Connection]] = []
        # The number of calls to `evict`, and the number of calls at which it searches again.
        self._calls = self._search_from = 0
        self._displaced = 0  # connections closed by `evict` since the last sweep
        # The subset of `_open` for which the drain waits.
        self._draining_count: set[Connection] = set()
        self._empty = trio.Event()

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Connection]:
        return iter(self._open)

    @property
    def draining_count(self) -> int:
        """The number of connections that the drain waits for."""
        return len(self._draining_count)

    def add(self, connection: Connection) -> None:
        """Add the connection of an accepted client."""
        connection.is_late = self.draining
        self._open.add(connection)

    def remove(self, connection: Connection) -> None:
        """Remove a connection that has ended."""
        self._open.discard(connection)
        self._draining_count.discard(connection)
        if self.draining and not self._draining_count:
            self._empty.set()

    def evict(self, keyless_only: bool) -> bool:
        """Close the connection that has been quiet longest. Return whether one was closed.

        If ``keyless_only`` is true, close only a connection on which no known key was received, and
        only if the server has keys. If a task serves the connection, it is closed when that task
        runs next.
        """
        self._calls += 1
        found = self._next_evicted()
        if found is None:
            return False
        if keyless_only and not (self.has_keys and found.principal is ANYONE):
            self._candidates.append((found.inactive_since, found))
            return False
        found.end_idle()
        self._displaced += 1
        return True

    def _next_evicted(self) -> Connection | None:
        """Return the connection to close next, or None.

        A connection with unread input is skipped, because a request has just arrived. If the server
        has keys, this does not protect clients without a key, which could always have input.
        """
        # Connections with input but without a key are the second choice.
        has_searched, unknown = False, list[Connection]()
        while True:
            if not self._candidates:
                if has_searched or not self._find_candidates():
                    return unknown[0] if unknown else None
                # Search only once, because input is read and hang-ups are noticed only in later
                # iterations.
                has_searched = True
            since, connection = self._candidates.pop()
            # Skip connections that have become active or were closed since the search.
            is_open = connection in self._open and not connection.is_ended
            if is_open and connection.inactive_since == since:
                if not (connection.idle and connection.has_input):
                    return connection
                if self.has_keys and connection.principal is ANYONE:
                    unknown.append(connection)
                    if len(unknown) == WITH_INPUT_MAX:
                        return unknown[0]

    def _find_candidates(self) -> bool:
        """Collect the next connections to close. Return whether there are any.

        The time of a search is proportional to the number of connections, so it is repeated only
        after a proportional number of calls.
        """
        if self._calls < self._search_from:
            return False
        self._search_from = self._calls + len(self._open) // CHECKED_PER_CALL
        inactive = [
            each for each in self._open if each.inactive_since < NEVER and not each.is_ended
        ]
        found = nsmallest(CANDIDATES_MAX, inactive, key=_precedence)
        self._candidates = [(each.inactive_since, each) for each in reversed(found)]
        return bool(found)

    async def run(self, tick: Callable[[float], None]) -> None:
        """Sweep periodically until cancelled. Call ``tick`` with the current time before each
        sweep.
        """
        while True:
            await wait_tick(self.timings.tick_s)
            now = trio.current_time()
            tick(now)
            self.sweep(now)

    def sweep(self, now: float) -> None:
        """Close or reset connections past their deadline, and log the displaced connections."""
        self.now, self._candidates, self._search_from = now, [], 0
        if self._displaced:
            log.warning("idle connections evicted", count=self._displaced)
            self._displaced = 0
        idle = []
        # A copy, because `remove` may be called during the iteration.
        for connection in [*self._open]:
            if connection.deadline <= now:
                if connection.idle:
                    idle.append(connection)
                elif connection.is_lingering:
                    connection.end_idle()
                else:
                    connection.abort()
        if idle:
            _end_idle(idle)
        self.held.on_excess()  # a client's rate may have fallen since the last check

    async def disconnect_excess(self) -> None:
        """Disconnect clients to free their memory, until cancelled.

        Each loop iteration disconnects a bounded number of clients.
        """
        while True:
            excess = trio.Event()
            self.held.on_excess = excess.set
            await excess.wait()
            for number, client in enumerate(self.held.excess(trio.current_time())):
                if number % DISCONNECTS_PER_PASS == 0:
                    await trio.lowlevel.checkpoint()
                client.disconnect()

    def drain(self) -> None:
        """Start the drain.

        Connections close after their current request, and idle connections without input close
        immediately.

        A client that connects later gets `Timings.late_s` for one request. The drain does not wait
        for it until this function is called again.
        """
        self.draining = True
        self._draining_count, self._empty = set(self._open), trio.Event()
        _end_idle([connection for connection in self._open if connection.idle])
        if not self._draining_count:
            self._empty.set()

    async def wait_closed(self) -> None:
        """Wait until all connections that were open when `drain` was called have closed."""
        await self._empty.wait()

    def abort_all(self) -> None:
        """Reset all connections now."""
        for connection in [*self._open]:
            connection.abort()


def _precedence(connection: Connection) -> tuple[bool, float]:
    """Return the sort key for closing: clients without a key first, then by last activity."""
    return connection.principal is not ANYONE, connection.inactive_since


def _end_idle(connections: Sequence[Connection]) -> None:
    """Close idle connections, except those with unread input in their sockets."""
    by_fd = {connection.fd: connection for connection in connections}
    busy = poll_now(by_fd, select.POLLIN)
    for fd, connection in by_fd.items():
        if fd not in busy:
            connection.end_idle()


def _unconfirmed_bytes(sock: socket.socket) -> int:
    """Return the number of sent bytes that the client's kernel has not acknowledged."""
    count: int = INT.unpack(fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(INT.size)))[0]
    return count


def poll_now(descriptors: Iterable[int], events: int) -> dict[int, int]:
    """Return the descriptors with one of the events, a hang-up or an error, each with its events.

    This is one system call, which does not block.
    """
    poller = select.poll()
    for fd in descriptors:
        poller.register(fd, events)
    return dict(poller.poll(0))
