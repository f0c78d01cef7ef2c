"""One client's connection: its socket, what it said, and its deadline.

    input      recv --> `RequestStream`
    output     send: head and body in one write
    deadline   set here, checked once a second by the sweep of `topics.front.http.connections`
    hang-up    reset: the client is gone. Half closed: it may still read, or have closed its socket

A closed socket and one that only reads look alike until something is sent: then the kernel of the
first one resets the connection. So a client that is half closed while it waits is sent the first
byte of its answer.

What is ``async`` here is for tasks. No request costs a timer, and the usual one no task.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import select
import socket
import struct
import termios
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import trio

from topics.engine.access import ANYONE, Principal
from topics.formats.api.request_heads import TraceFields
from topics.front.held_memory import HeldMemory
from topics.front.http.request_stream import RequestStream

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


class Owner(Protocol):
    """Who serves a connection: `topics.front.http.fast_lane.FastLane`. ``watched``: the events that
    its socket is watched for, None while it is not.
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

    ``deadline`` is when the sweep ends this connection. ``idle``:
    nothing of a request has been read. ``waits``: for a call that must end if the client hangs up.
    ``quiet_since``: when it began to have no request under way, `NEVER` while it has one.
    ``principal``: of its last request with a known key.
    """

    def __init__(self, sock: socket.socket, connections: Registry, said: bytes = b"") -> None:
        """``said`` is input that was read already."""
        super().__init__(said)
        self.sock = sock
        self.fd = sock.fileno()
        self.connections = connections
        self.timings = connections.timings
        self.lane: Owner | None = None
        self.is_ended = False  # cut, or closed while idle: its lane is told so
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
        lane = self.lane
        if lane is not None and (lane.watched is None or not lane.watched & HALF_CLOSED):
            lane.watch_hang_up()

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
        poller = select.poll()
        poller.register(self.fd, HALF_CLOSED)
        events = poller.poll(0)
        return events[0][1] if events else 0

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
        if self.lane is not None:
            self.lane.end()

    def close(self) -> None:
        """Close the socket; nobody watches it any more. Unread input is given back."""
        self.clear()
        lane, self.lane = self.lane, None  # no circle: memory is given back at once
        if lane is not None:
            lane.leave()
        self.sock.close()

    @property
    def must_linger(self) -> bool:
        """The client would lose the last answer if the connection were closed at once: it has sent
        what is never read. Raises OSError.
        """
        return not self.is_ended and (self.unread_body or (self.closing and self._has_unread()))

    async def linger(self) -> None:
        """After an answer that leaves input unread: wait until the client has read it. Closing at
        once would send a reset, which takes the answer back, and those before it.
        """
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
