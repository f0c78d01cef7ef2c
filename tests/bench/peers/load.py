"""The load for all servers: connections in one epoll loop, and subscribers. Each connection sends
its next request as soon as it has received the reply to the previous one.
"""

from __future__ import annotations

import gc
import select
import socket
import statistics
import time
from array import array
from collections.abc import Generator, Sequence
from typing import NamedTuple, Protocol

from tests.bench.peers.replies import Http, Reply, http

RECV_BYTES = 1 << 20
IDLE_S = 30.0
PUBLISH_HZ = 100
AHEAD_MAX = 100  # records that the slowest subscriber has not received yet
Address = tuple[str, int]
# A record of 200 bytes. It contains the mark once, in a form that no server escapes.
MARK = b"end-of-record"
RECORD = b'{"pad":"%b","end":"%b"}' % (b"x" * (200 - 19 - len(MARK)), MARK)
assert len(RECORD) == 200


def append(topic: str, records: int, fields: bytes = b"") -> bytes:
    """Return an append request of ``records`` records to a topic of `topics`. ``fields`` are
    further fields of the body, each followed by a comma.
    """
    rows = b",".join([b'{"data":%b}' % RECORD] * records)
    path = f"/v0/topics/{topic}?return_seqs=false"
    return http("POST", path, b'{%b"records":[%b]}' % (fields, rows))


class Connection:
    """One connection, one request at a time."""

    def __init__(self, address: Address, reply: Reply | None = None) -> None:
        self.sock = socket.create_connection(address, timeout=IDLE_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.reply: Reply = reply or Http()

    def send(self, request: bytes) -> None:
        self.sock.sendall(request)

    def take(self) -> bool:
        """Read the available input. Return whether the reply is complete."""
        data = self.sock.recv(RECV_BYTES)
        assert data, "the server closed the connection"
        return self.reply.feed(data)

    def call(self, request: bytes, reply: Reply | None = None) -> bytes:
        """Send a request and return its reply."""
        self.reply = reply or self.reply
        self.send(request)
        while not self.take():
            pass
        return self.reply.body

    def close(self) -> None:
        self.sock.close()


class Step(NamedTuple):
    """The next request of a script. ``done`` counts the records or jobs that the replies since the
    previous step completed.
    """

    request: bytes
    reply: Reply
    done: int = 0


Script = Generator[Step, bytes, None]  # a client: it receives the replies to its requests
Client = tuple[Connection, Script]


def repeated(request: bytes, reply: Reply, done: int) -> Script:
    """Repeat a request forever."""
    yield Step(request, reply)
    step = Step(request, reply, done)
    while True:
        yield step


class Loaded(NamedTuple):
    """The result of a load."""

    done: int
    took_s: float


def drive(clients: Sequence[Client], seconds: float) -> Loaded:
    """Run scripts concurrently until the time is over or they are complete. All requests that were
    sent have been answered when this returns.
    """
    poll, by_fd = select.epoll(), {each[0].sock.fileno(): each for each in clients}
    clock, done, busy = time.perf_counter, 0, len(by_fd)
    gc.disable()
    for fd in by_fd:
        poll.register(fd, select.EPOLLIN)
    began = clock()
    until = began + seconds
    for connection, script in clients:
        step = next(script)
        connection.reply = step.reply
        connection.send(step.request)
    while busy:
        ready = poll.poll(IDLE_S)
        assert ready, f"no reply for {IDLE_S} s"
        for fd, _ in ready:
            connection, script = by_fd[fd]
            if not connection.take():
                continue
            next_step = _next_step(script, connection.reply.body)
            done += next_step.done if next_step else 0
            if next_step and clock() < until:
                connection.reply = next_step.reply
                connection.send(next_step.request)
            else:
                busy -= 1
    took = clock() - began
    gc.enable()
    poll.close()
    return Loaded(done, took)


def _next_step(script: Script, body: bytes) -> Step | None:
    try:
        return script.send(body)
    except StopIteration:
        return None


class Subscriber(Protocol):
    """One subscriber. ``sock`` is readable when data has arrived."""

    sock: socket.socket

    def take(self) -> int:
        """Read the data and return the number of records in it."""
        ...


class Stream:
    """A subscriber to which the server pushes all records."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock, self._cut = sock, b""

    def take(self) -> int:
        """As `Subscriber.take`."""
        data = self.sock.recv(RECV_BYTES)
        assert data, "the server closed a stream"
        data = self._cut + data
        complete, _, self._cut = data.rpartition(MARK)
        if len(self._cut) == len(data):
            return 0
        return complete.count(MARK) + 1


class FanOut:
    """A publisher and its subscribers; counts the deliveries."""

    def __init__(self, publisher: Connection, subscribers: Sequence[Subscriber]) -> None:
        self.delivered, self.published = 0, 0
        self.delays = array("d")
        self._publisher, self._is_publishing, self._sent_at = publisher, False, 0.0
        self._poll = select.epoll()
        self._by_fd = {each.sock.fileno(): each for each in subscribers}
        for fd in (*self._by_fd, publisher.sock.fileno()):
            self._poll.register(fd, select.EPOLLIN)

    @property
    def has_pending_deliveries(self) -> bool:
        """Return whether a subscriber has not received all published records."""
        return self.delivered < self.published * len(self._by_fd)

    def publish(self, request: bytes) -> None:
        self._sent_at, self._is_publishing = time.perf_counter(), True
        self.published += 1
        self._publisher.send(request)

    def step(self) -> None:
        """Wait for input and read it."""
        ready = self._poll.poll(IDLE_S)
        assert ready, f"no input for {IDLE_S} s"
        for fd, _ in ready:
            if fd not in self._by_fd:
                self._is_publishing = not self._publisher.take()
                continue
            count = self._by_fd[fd].take()
            self.delivered += count
            self.delays.extend([time.perf_counter() - self._sent_at] * count)

    def settle(self) -> None:
        """Wait until all subscribers have received all published records."""
        while self.has_pending_deliveries or self._is_publishing:
            self.step()

    def latency_ms(self, request: bytes, seconds: float) -> float:
        """Publish at `PUBLISH_HZ`. Return the median delay from before the publish request to a
        delivery.
        """
        due = time.perf_counter()
        until = due + seconds
        while due < until:
            time.sleep(max(0.0, due - time.perf_counter()))
            self.publish(request)
            self.settle()
            due = max(due + 1 / PUBLISH_HZ, time.perf_counter() - 1 / PUBLISH_HZ)
        return statistics.median(self.delays) * 1000

    def flood(self, request: bytes, seconds: float) -> float:
        """Return the deliveries per second. The publisher sends its next request after the reply to
        the previous one, unless it is more than `AHEAD_MAX` records ahead of the subscribers.
        """
        began, readers = time.perf_counter(), len(self._by_fd)
        until = began + seconds
        while time.perf_counter() < until:
            if not self._is_publishing and self.delivered >= (self.published - AHEAD_MAX) * readers:
                self.publish(request)
            self.step()
        self.settle()
        return self.delivered / (time.perf_counter() - began)
