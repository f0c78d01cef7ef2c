"""Workers for `tests.bench.queues` that cost little: requests made ready before they are sent, seqs
found in the bytes of answers, all connections in one epoll loop.
"""

from __future__ import annotations

import re
import select
import socket
import time
from collections.abc import Sequence
from typing import Protocol

from tests.bench.http_load import DATA, Client, append, post
from tests.bench.live_clients import RECV_BYTES, connect, uncollected, until

_SEQ = re.compile(rb'"\$seq":(\d+)[,}]')
FILL_BATCH = 1000
IDLE_S = 10


def make(client: Client, queue: str, config: bytes = b'"durability":"disk"') -> None:
    """A queue."""
    body = b'{"type":"queue",%b}' % config
    head = b"PUT /v0/topics/%b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    client.ask(head % queue.encode() + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))


def state(client: Client, queue: str) -> dict[str, int]:
    """Its counters, and ``count``."""
    request = b"GET /v0/topics/%b?touch=false HTTP/1.1\r\nHost: localhost\r\n\r\n"
    body = client.ask_json(request % queue.encode())
    return {"count": body["count"], **body["queue"]}


def fill(client: Client, queue: str, jobs: int) -> None:
    """Append until so many are ready."""
    request = append(queue, FILL_BATCH)
    ready = state(client, queue)["ready"]
    while ready < jobs:
        size = min(jobs - ready, FILL_BATCH)
        client.ask(request if size == FILL_BATCH else append(queue, size))
        ready += size


def claim(queue: str, node: str, max_jobs: int, **fields: int) -> bytes:
    """A claim as it goes over the wire."""
    more = "".join(f',"{name}":{value}' for name, value in fields.items())
    body = f'{{"node":"{node}","max":{max_jobs}{more}}}'
    return post(f"/v0/topics/{queue}/claim", body.encode())


def ack(queue: str, node: str, seqs: Sequence[bytes], do: str = "ack") -> bytes:
    """An ack, or a nack."""
    body = b'{"node":"%b","seqs":[%b]}' % (node.encode(), b",".join(seqs))
    return post(f"/v0/topics/{queue}/{do}", body)


def seqs_in(answer: bytes) -> list[bytes]:
    return _SEQ.findall(answer)


class Worker(Protocol):
    """Somebody with connections. ``acked``: jobs."""

    acked: int

    def sockets(self) -> list[socket.socket]: ...

    def begin(self) -> None: ...

    def take(self, sock: socket.socket) -> None:
        """Read what has come and go on."""
        ...

    def close(self) -> None: ...


class Poller:
    """Claims and acks in turn on one connection."""

    def __init__(self, address: tuple[str, int], queue: str, node: str, batch: int) -> None:
        self.acked, self._seqs = 0, list[bytes]()
        self._client = Client(address)
        self._queue, self._node = queue, node
        self._claim = claim(queue, node, batch)

    def sockets(self) -> list[socket.socket]:
        return [self._client.sock]

    def begin(self) -> None:
        self._client.send(self._claim)

    def take(self, sock: socket.socket) -> None:
        if not self._client.collect():
            return
        if self._seqs:
            self.acked += len(self._seqs)
            self._seqs = []
        else:
            self._seqs = seqs_in(bytes(self._client.collected))
            assert self._seqs, "the queue is empty"
        self._client.send(ack(self._queue, self._node, self._seqs) if self._seqs else self._claim)

    def close(self) -> None:
        self._client.close()


class Pushed:
    """A stream of jobs, and a connection for acks of several at a time."""

    def __init__(
        self, address: tuple[str, int], queue: str, node: str, depth: int, batch: int
    ) -> None:
        self.acked, self._asked, self._seqs = 0, 0, list[bytes]()
        self._queue, self._node, self._batch = queue, node, batch
        self._client = Client(address)
        self._stream, self._rest = work_stream(address, queue, node, depth)

    def sockets(self) -> list[socket.socket]:
        return [self._stream, self._client.sock]

    def begin(self) -> None:
        self._read(b"")

    def take(self, sock: socket.socket) -> None:
        if sock is self._stream:
            data = sock.recv(RECV_BYTES)
            assert data, "the server has ended the stream"
            self._read(data)
            return
        if not self._client.collect():
            return
        self.acked += self._asked
        self._asked = 0
        self._read(b"")

    def _read(self, data: bytes) -> None:
        """Take jobs out of events; ack them if there are enough and no ack is under way."""
        whole, _, self._rest = (self._rest + data).rpartition(b"\n\n")
        self._seqs += seqs_in(whole)
        if not self._asked and len(self._seqs) >= self._batch:
            self._asked = len(self._seqs)
            self._client.send(ack(self._queue, self._node, self._seqs))
            self._seqs = []

    def close(self) -> None:
        self._stream.close()
        self._client.close()


def work_stream(
    address: tuple[str, int], queue: str, node: str, depth: int
) -> tuple[socket.socket, bytes]:
    """An open stream, and what has come of its events."""
    sock = connect(address)
    head = f"GET /v0/topics/{queue}/work?node={node}&max={depth} HTTP/1.1\r\nHost: localhost\r\n"
    sock.sendall(head.encode() + b"Accept: text/event-stream\r\n\r\n")
    came = until(sock, b"\r\n\r\n")
    assert came.startswith(b"HTTP/1.1 200 "), came
    return sock, came.partition(b"\r\n\r\n")[2]


def jobs_a_second(workers: Sequence[Worker], seconds: float) -> float:
    """Acked jobs a second with all workers at work; they are closed then."""
    poll, by_fd = select.epoll(), dict[int, tuple[Worker, socket.socket]]()
    for worker in workers:
        for sock in worker.sockets():
            poll.register(sock, select.EPOLLIN)
            by_fd[sock.fileno()] = worker, sock
    with uncollected():
        began = time.perf_counter()
        for worker in workers:
            worker.begin()
        while time.perf_counter() < began + seconds:
            ready = poll.poll(IDLE_S)
            assert ready, f"nothing comes for {IDLE_S} s"
            for fd, _ in ready:
                worker, sock = by_fd[fd]
                worker.take(sock)
        took = time.perf_counter() - began
    poll.close()
    for worker in workers:
        worker.close()
    return sum(worker.acked for worker in workers) / took


def delayed(queue: str, deliver_at_ms: int) -> bytes:
    """An append of one job that is due then (wall clock)."""
    body = b'{"records":[{"data":%b,"deliver_at":%d}]}' % (DATA, deliver_at_ms)
    return post(f"/v0/topics/{queue}", body)
