"""Load for the benchmarks of real servers: clients that take little processor time, with requests
that are prepared before they are sent.
"""

from __future__ import annotations

import gc
import json
import select
import socket
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

DATA = b'{"pad":"' + b"x" * 190 + b'"}'  # 200 bytes
ANSWER_MAX = 16 << 20
_POST = (
    b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b"
)
NextRequest = Callable[[], bytes | None]


def post(path: str, body: bytes) -> bytes:
    """A request as it goes over the wire."""
    return _POST % (path.encode(), len(body), body)


def append(topic: str, records: int, config: bytes = b"{}") -> bytes:
    """An append of so many records of 200 bytes."""
    rows = b",".join([b'{"data":%b}' % DATA] * records)
    return post(
        f"/v0/topics/{topic}?return_seqs=false", b'{"config":%b,"records":[%b]}' % (config, rows)
    )


class TaggedAppends:
    """Appends whose records have tags ``tag-0000000`` and so on, one after the other and round
    again.
    """

    def __init__(self, topic: str, records: int, tag_count: int, first: int = 0) -> None:
        assert not tag_count % records, "the tags come out even"
        self._path, self._records, self._tag_count, self._at = (
            f"/v0/topics/{topic}?return_seqs=false",
            records,
            tag_count,
            first,
        )
        row = b'{"data":%b,"tag":"tag-%%07d"}' % DATA
        self._body = b'{"records":[%b]}' % b",".join([row] * records)

    def __call__(self) -> bytes:
        """The next one."""
        first = self._at % self._tag_count
        self._at += self._records
        return post(self._path, self._body % tuple(range(first, first + self._records)))


class Client:
    """One connection, one request at a time."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.sock = socket.create_connection(address, timeout=60)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = memoryview(bytearray(ANSWER_MAX))

    def ask(self, request: bytes) -> memoryview:
        """The body of the answer, valid until the next call; anything but a 2xx is an error."""
        self.sock.sendall(request)
        buffer, filled, end = self._buffer, 0, 0
        while not end or filled < end:
            count = self.sock.recv_into(buffer[filled:])
            assert count, "the server hung up"
            filled += count
            if not end:
                end = _end_of(bytes(buffer[: min(filled, 2048)]))
        assert buffer[9] == ord("2"), bytes(buffer[: min(filled, 600)])
        return buffer[bytes(buffer[:2048]).index(b"\r\n\r\n") + 4 : end]

    def ask_json(self, request: bytes) -> Any:
        """The same, decoded."""
        return json.loads(bytes(self.ask(request)))

    def send(self, request: bytes) -> None:
        """Send without waiting; `collect` then takes what has come."""
        self.sock.sendall(request)
        self._filled = self._end = 0

    def collect(self) -> bool:
        """Whether the answer is whole now."""
        count = self.sock.recv_into(self._buffer[self._filled :])
        assert count, "the server hung up"
        self._filled += count
        self._end = self._end or _end_of(bytes(self._buffer[: min(self._filled, 2048)]))
        if not self._end or self._filled < self._end:
            return False
        assert self._buffer[9] == ord("2"), bytes(self._buffer[: min(self._filled, 600)])
        return True

    @property
    def collected(self) -> memoryview:
        """The whole answer, head and body, once `collect` has said that it is there."""
        return self._buffer[: self._filled]

    def close(self) -> None:
        self.sock.close()


def _end_of(start: bytes) -> int:
    """Where the answer ends that begins so; 0 while its head is not whole."""
    head_end = start.find(b"\r\n\r\n")
    if head_end < 0:
        return 0
    head = start[:head_end].lower()
    at = head.index(b"content-length:") + len(b"content-length:")
    return head_end + 4 + int(head[at:].split(b"\r\n", 1)[0])


@dataclass
class Load:
    """So many connections that each send the next request as soon as they have the last answer;
    None ends one of them.
    """

    name: str
    connections: int
    next_request: NextRequest
    seconds: array[float] = field(default_factory=lambda: array("d"))  # that each answer took


def drive(address: tuple[str, int], loads: list[Load], seconds: float | None = None) -> float:
    """Run them side by side, until their requests end or the time is over; the seconds that it
    took.
    """
    poll = select.epoll()
    busy: dict[int, tuple[Client, Load]] = {}
    began: dict[int, float] = {}
    clock = time.perf_counter
    clients = []
    for load in loads:
        for _ in range(load.connections):
            client = Client(address)
            clients.append(client)
            poll.register(client.sock, select.EPOLLIN)
            busy[client.sock.fileno()] = client, load
    gc.disable()
    start = clock()
    deadline = start + (seconds or 1e9)
    for fd, (client, load) in list(busy.items()):
        _send_next(fd, client, load, began, busy, deadline)
    while busy:
        for fd, _ in poll.poll(60):
            client, load = busy[fd]
            if client.collect():
                load.seconds.append(clock() - began[fd])
                _send_next(fd, client, load, began, busy, deadline)
    took = clock() - start
    gc.enable()
    poll.close()
    for client in clients:
        client.close()
    return took


def _send_next(
    fd: int,
    client: Client,
    load: Load,
    began: dict[int, float],
    busy: dict[int, tuple[Client, Load]],
    deadline: float,
) -> None:
    began[fd] = time.perf_counter()
    request = load.next_request() if began[fd] < deadline else None
    if request is None:
        del busy[fd]
    else:
        client.send(request)


def several(request: bytes | NextRequest, times: int) -> NextRequest:
    """The same request, or the next ones of another source, so many times."""
    left = iter(range(times))

    def give() -> bytes | None:
        if next(left, None) is None:
            return None
        return request if isinstance(request, bytes) else request()

    return give


def quantiles_ms(seconds: array[float]) -> list[float]:
    """p50, p99, p99.9 and the largest, in milliseconds."""
    ordered = sorted(seconds)
    return [
        ordered[min(int(len(ordered) * share), len(ordered) - 1)] * 1000
        for share in (0.5, 0.99, 0.999, 1.0)
    ]


def verdict(holds: bool) -> str:
    return "pass" if holds else "FAIL"
