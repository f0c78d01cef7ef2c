"""One client's connection: its socket, its unread input and its deadline.

    input      recv --> buffer[pos:] --> head reader, body reader
    output     send, or send_both: head and body in one write
    deadline   set here, checked once a second by the sweep of `topics.front.http.connections`
    hang-up    reset: the client is gone. Half closed: it may still read, or have closed its socket

A closed socket and one that only reads look alike until something is sent: then the kernel of the
first one resets the connection. So a client that is half closed while it waits is sent the first
byte of its answer.

Nothing here costs a timer per request. A wait for input needs no task
(`topics.actors.rpc.stepping`), one for a slow client does.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import select
import socket
import struct
import termios
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import trio

from topics.actors.rpc.stepping import in_task, wait_readable
from topics.engine.access import ANYONE, Principal
from topics.formats.api.trace_fields import TraceFields
from topics.front.held_memory import HeldMemory

RECV_BYTES = 64 * 1024
RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER: on, 0 s
GONE = select.POLLHUP | select.POLLERR  # the same bits as those of epoll
HALF_CLOSED = select.POLLRDHUP
PROBE = b"HTTP/1.1"  # every answer begins so
PROBE_PAUSES_S = tuple(0.001 * 2**step for step in range(11))  # 2 s in all
NEVER = math.inf
INT = struct.Struct("i")
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


class Registry(Protocol):
    """What a connection reads of the `Connections` that it belongs to."""

    timings: Timings
    now: float  # time of the last sweep, in seconds
    draining: bool
    held: HeldMemory


class Driver(Protocol):
    """Who resumes the coroutine of a connection (`topics.front.http.driver`)."""

    def end(self) -> None:
        """End the coroutine wherever it waits; its ``finally`` blocks run."""

    def watch_hang_up(self) -> None:
        """Cut the connection when its client has gone, while it ``waits``."""

    def leave(self) -> None:
        """Watch the socket no more."""


class Connection:
    """One client's socket, non-blocking, with its unread input.

    ``buffer[pos:]`` is unread input. ``deadline`` is when the sweep ends this connection. ``idle``:
    nothing of a request has been read. ``waits``: for a call that must end if the client hangs up.
    ``quiet_since``: when it began to have no request under way, `NEVER` while it has one.
    ``principal``: of its last request with a known key.
    """

    def __init__(self, sock: socket.socket, connections: Registry, said: bytes = b"") -> None:
        """``said`` is input that was read already."""
        self.sock = sock
        self.fd = sock.fileno()
        self.connections = connections
        self.timings = connections.timings
        self.driver: Driver | None = None  # of the coroutine that serves it
        self.is_ended = False  # cut, or closed while idle: its coroutine is told so
        self.buffer = said
        self.pos = 0
        self.deadline = NEVER
        self.idle = not said
        self.is_late = False  # the client connected during the drain
        self.waits = False
        self._probe_bytes = 0  # of the answer to come, that were sent
        self.quiet_since = connections.now
        self.principal: Principal = ANYONE
        self.closing = False
        self.unread_body = False  # the client may still be sending bytes that are never read
        self.body_deadline = NEVER
        self.trace: TraceFields | None = None  # of the request
        self.sent_bytes = 0  # of the answer, heads included
        self.received_bytes = len(said)  # of the request, and of those behind it in the buffer

    @property
    def has_input(self) -> bool:
        """Whether there is input in the socket, or the client has closed its side."""
        return bool(ready_descriptors([self.fd], select.POLLIN, select.POLLIN))

    def begin_waiting(self) -> None:
        """A call begins that must end if the client hangs up."""
        self.waits = True
        if self.driver is not None:
            self.driver.watch_hang_up()

    def probe(self) -> None:
        """Send another byte of the answer to come: a client that is gone resets the connection."""
        with contextlib.suppress(OSError):
            self._probe_bytes += self.sock.send(PROBE[self._probe_bytes :][:1])

    async def check_client(self) -> None:
        """Raises `ConnectionResetError` when nobody would read an answer."""
        if not self.is_ended:
            hang_up = self._hang_up
            if not hang_up or (not hang_up & GONE and await self._is_there()):
                return
        raise ConnectionResetError("the client has hung up")

    async def _is_there(self) -> bool:
        """Whether a client that is half closed may still read."""
        is_behind = _unconfirmed_bytes(self.sock) > self._probe_bytes  # with the answers before
        self.probe()
        await in_task()
        for pause_s in PROBE_PAUSES_S:
            if self._hang_up & GONE:
                return False
            if not _unconfirmed_bytes(self.sock):
                return True
            await trio.sleep(pause_s)
        return is_behind

    @property
    def _hang_up(self) -> int:
        poller = select.poll()
        poller.register(self.fd, HALF_CLOSED)
        events = poller.poll(0)
        return events[0][1] if events else 0

    async def receive(self) -> bool:
        """Wait for more input. False when the client has closed its side. Raises OSError."""
        while True:
            await wait_readable(self.fd)
            try:
                data = self.sock.recv(RECV_BYTES)
            except BlockingIOError:
                continue
            self.buffer = self.buffer[self.pos :] + data if self.pos < len(self.buffer) else data
            self.pos = 0
            self.received_bytes += len(data)
            return bool(data)

    async def receive_into(self, view: memoryview) -> int:
        """Wait for input and put it at the start of ``view``; 0 when the client has closed its
        side. Raises OSError.
        """
        while True:
            await wait_readable(self.fd)
            try:
                count = self.sock.recv_into(view)
            except BlockingIOError:
                continue
            self.received_bytes += count
            return count

    def begin_body(self) -> None:
        """A body starts: give it its grace."""
        self.body_deadline = self.deadline = self.connections.now + self.timings.body_grace_s

    def earned(self, received: int) -> None:
        """So many bytes of the body came: they extend its deadline, up to the grace from now."""
        extended = self.body_deadline + received / self.timings.body_bytes_per_s
        most = self.connections.now + self.timings.body_grace_s
        self.deadline = self.body_deadline = min(extended, most)

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
        """Send all of it. Raises OSError; the sweep cuts off a client that is too slow
        (`topics.front.held_memory`).
        """
        if self._probe_bytes:
            data = self._rest(data)
        try:
            sent = self.sock.send(data)
        except BlockingIOError:
            sent = 0
        self.sent_bytes += sent
        if sent != len(data):
            await self._send_slowly(len(data), memoryview(data)[sent:])

    async def send_both(self, head: bytes, body: bytes | memoryview) -> None:
        """Send two buffers in one write, without copying the second. Raises as `send`."""
        if self._probe_bytes:
            head = self._rest(head)
        try:
            sent = self.sock.sendmsg([head, body])
        except BlockingIOError:
            sent = 0
        self.sent_bytes += sent
        length = len(head) + len(body)
        if sent < length:
            body_sent = max(0, sent - len(head))
            await self._send_slowly(length, memoryview(head)[sent:], memoryview(body)[body_sent:])

    def _rest(self, answer: bytes | memoryview) -> bytes:
        """The answer without what was sent of it to probe the client."""
        sent, self._probe_bytes = self._probe_bytes, 0
        self.sent_bytes += sent
        assert bytes(answer[:sent]) == PROBE[:sent], "every answer begins alike"
        return bytes(answer[sent:])

    async def _send_slowly(self, length: int, *unsent: memoryview) -> None:
        """Send as fast as the client takes it; so many bytes stay in memory until then."""
        await in_task()
        held, before = self.connections.held, self.deadline
        holding = held.hold(self, self.principal.digest, trio.current_time())
        held.add(holding, unsent, length + len(self.buffer), trio.current_time())
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

    def shed(self) -> None:
        """As `topics.front.held_memory.Client.shed`."""
        self.cut()

    def cut(self) -> None:
        """End the connection now, whatever it waits for: a reset for the client, cancellation for
        the task, if it has one.
        """
        if self.sock.fileno() >= 0:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        self._end()

    def end_idle(self) -> None:
        """Close a connection that is between two requests, without a reset."""
        self._end()

    def _end(self) -> None:
        self.closing = self.is_ended = True
        if self.driver is not None:
            self.driver.end()

    def close(self) -> None:
        """Close the socket; nobody watches it any more. Unread input is given back."""
        self.buffer, self.pos = b"", 0
        driver, self.driver = self.driver, None  # no circle: memory is given back at once
        if driver is not None:
            driver.leave()
        self.sock.close()

    async def linger(self) -> None:
        """After an answer that leaves input unread: wait until the client has read it. Closing at
        once would send a reset, which takes the answer back, and those before it.
        """
        if self.is_ended or not (self.unread_body or (self.closing and self._has_unread())):
            return
        await in_task()
        self.deadline = NEVER
        self.sock.shutdown(socket.SHUT_WR)
        with trio.move_on_after(self.timings.linger_s, shield=True):
            while await self.receive_into(SCRATCH):
                pass

    def _has_unread(self) -> bool:
        """Whether there are requests behind the last one. Raises OSError."""
        if self.pos < len(self.buffer):
            return True
        try:
            return bool(self.sock.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return False


def _unconfirmed_bytes(sock: socket.socket) -> int:
    """Bytes that were sent and that the kernel of the client has not confirmed."""
    count: int = INT.unpack(fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(INT.size)))[0]
    return count


def ready_descriptors(descriptors: Iterable[int], ask: int, want: int) -> set[int]:
    """The descriptors on which one of the events ``want`` holds right now; one system call."""
    poller = select.poll()
    for fd in descriptors:
        poller.register(fd, ask)
    return {fd for fd, events in poller.poll(0) if events & want}
