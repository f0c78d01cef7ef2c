"""The crowd of `tests.campaigns.idle`, in a process of its own: event streams that nothing is sent
on, and connections that send a byte now and then (slow loris).

    parent --"open"--> crowd: connects all, hears every stream's head   --CrowdState--> parent
    parent --"tell"--> crowd                                            --CrowdState--> parent
    parent --"close"-> crowd: hangs up everywhere                       --CrowdState--> parent

In between the crowd reads what comes and drips. A slow connection that the server has closed is
made again at once. Clients come from several addresses, 127.0.0.2 and up, so that ports suffice.
"""

from __future__ import annotations

import contextlib
import heapq
import select
import socket
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

from tests.support.api import Api
from tests.support.sse import session
from topics.process.children import raise_file_limit

CLIENTS_PER_ADDRESS = 5000
BURST = 200  # streams that are opened before their answers are heard
OPEN_S = 20.0  # for the answers to one burst
DRIP_S = 2.0
TOPICS = 100
HEARTBEAT_MS = 60_000
HEAD = b"POST /v0/topics/idle-0 HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
BODY = (
    b"POST /v0/topics/idle-0 HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b'Content-Length: 100000\r\n\r\n{"records":['
)


@dataclass(frozen=True, slots=True)
class CrowdState:
    """``refused``: statuses of streams that did not open; ``ended``: streams that the server ended;
    ``thrown_off``: slow connections that it closed.
    """

    streams: int
    slow: int
    refused: list[str]
    ended: int
    thrown_off: int


class Crowd:
    """All connections of the crowd."""

    def __init__(self, address: tuple[str, int], streams: int, slow: int) -> None:
        self._address = address
        self._slow_count = slow
        self._poll = select.epoll()
        self._made = 0
        self._streams: dict[int, socket.socket] = {}
        self._unheard: set[int] = set()
        self._slow: dict[int, socket.socket] = {}
        self._drips: list[tuple[float, int, int]] = []  # when, descriptor, which connection
        self._numbers: dict[int, int] = {}  # of slow connections, by descriptor
        self._refused: list[str] = []
        self._ended = self._thrown_off = 0
        with Api(address) as api:
            topics = [f"idle-{number % TOPICS}" for number in range(streams)]
            self._urls = [
                session(api, [topic], heartbeat_ms=HEARTBEAT_MS)["stream_url"] for topic in topics
            ]

    def open(self) -> None:
        """Open everything. The sessions are those of the last time."""
        for start in range(0, len(self._urls), BURST):
            for url in self._urls[start : start + BURST]:
                request = f"GET {url} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
                sock = self._connect(request)
                self._streams[sock.fileno()] = sock
                self._unheard.add(sock.fileno())
            deadline = time.monotonic() + OPEN_S
            while self._unheard and time.monotonic() < deadline:
                self.work(0.1)
        self._refused += ["no answer"] * len(self._unheard)
        for _ in range(self._slow_count):
            self._open_slow()

    def close(self) -> None:
        """Hang up everywhere."""
        for sock in (*self._streams.values(), *self._slow.values()):
            sock.close()
        self._streams.clear()
        self._slow.clear()
        self._unheard.clear()
        self._drips.clear()
        self._numbers.clear()

    def state(self) -> CrowdState:
        return CrowdState(
            len(self._streams), len(self._slow), self._refused[:5], self._ended, self._thrown_off
        )

    def work(self, seconds: float) -> None:
        """Read what has come, drip what is due."""
        for descriptor, _ in self._poll.poll(seconds, 1000):
            try:
                piece = (self._streams.get(descriptor) or self._slow[descriptor]).recv(1 << 16)
            except ConnectionError:
                piece = b""
            if descriptor in self._slow:
                if not piece:
                    self._thrown_off += 1
                    self._slow.pop(descriptor).close()
                    self._open_slow()
            else:
                self._hear(descriptor, piece)
        now = time.monotonic()
        while self._drips and self._drips[0][0] <= now:
            _, descriptor, number = heapq.heappop(self._drips)
            if self._numbers.get(descriptor) == number:
                self._drip(descriptor, number, now)

    def _hear(self, descriptor: int, piece: bytes) -> None:
        """The head of a stream, its heartbeats, its end."""
        if descriptor in self._unheard:
            self._unheard.discard(descriptor)
            if not piece.startswith(b"HTTP/1.1 200"):
                self._refused.append(piece[9:12].decode() or "hung up")
                self._streams.pop(descriptor).close()
        elif not piece:
            self._ended += 1
            self._streams.pop(descriptor).close()

    def _drip(self, descriptor: int, number: int, now: float) -> None:
        with contextlib.suppress(ConnectionError):
            self._slow[descriptor].send(b"x")
        heapq.heappush(self._drips, (now + DRIP_S, descriptor, number))

    def _open_slow(self) -> None:
        """Half of them are slow with their heads, half with their bodies."""
        sock = self._connect(HEAD if self._made % 2 else BODY)
        descriptor, number = sock.fileno(), self._made
        self._slow[descriptor], self._numbers[descriptor] = sock, number
        due = time.monotonic() + DRIP_S * (number % 97) / 97  # spread between two drips
        heapq.heappush(self._drips, (due, descriptor, number))

    def _connect(self, content: bytes) -> socket.socket:
        source = f"127.0.0.{2 + self._made // CLIENTS_PER_ADDRESS % 100}"
        self._made += 1
        sock = socket.create_connection(self._address, timeout=30, source_address=(source, 0))
        sock.send(content)
        self._poll.register(sock, select.EPOLLIN)
        return sock


def run(address: tuple[str, int], streams: int, slow: int, parent: Connection) -> None:
    """The process: does what the parent says, until it hangs up."""
    raise_file_limit()
    crowd = Crowd(address, streams, slow)
    parent.send(crowd.state())
    while True:
        crowd.work(0.05)
        if parent.poll():
            try:
                order = parent.recv()
            except EOFError:
                return
            if order == "open":
                crowd.open()
            elif order == "close":
                crowd.close()
            parent.send(crowd.state())
