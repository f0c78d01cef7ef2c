"""The crowd of `tests.campaigns.hostile`, in a process of its own: many clients of one kind, which
come back whenever the server has ended them.

    kind        each client
    nodes       makes watch sessions with 10,000 nodes
    answers     asks for 8 MiB and reads nothing
    streams     opens an event stream of 8 MiB events and reads nothing
    trickles    the same, and reads a byte every 5 s
    churning    the same, and hangs up after 2 s
    works       opens a work stream and reads nothing
    sockets     subscribes on a WebSocket to messages of 8 MiB and reads nothing
    echoes      sends commands with a `request_id` of 100 KiB and reads nothing
    messages    sends WebSocket messages of 60 MiB with a key that may only read
    idle        connects and says nothing, without a key
    heads       connects and says the first line of a request, without a key
    refused     sends the head of a request with a wrong key, and no body
"""

from __future__ import annotations

import contextlib
import errno
import json
import multiprocessing
import os
import select
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection

from tests.support.api import Api, ok, request
from tests.support.ws import KEY, frame_bytes, handshake
from topics.process.children import raise_file_limit

MIB = 2**20
KEYS = "hostile-key:rw,reader-key:read,other-key"
HOSTILE, READER, OTHER = "hostile-key", "reader-key", "other-key"
TOPIC, QUEUE = "hostile.topic", "hostile.queue"
RECORDS = 40  # of 1 MiB, less what it is wrapped in
BURST = 20  # clients that connect in one turn
CLIENTS_PER_ADDRESS = 5000
AGAIN_S = 0.5  # after the server has ended a client
TRICKLE_S = 5.0


@dataclass(frozen=True, slots=True)
class Kind:
    """``says`` gives what a client sends at once; ``life_s``: then it hangs up; ``reads_s``: how
    often it reads a byte.
    """

    says: Callable[[Api, int], bytes]
    life_s: float = 10.0
    reads_s: float = float("inf")


def _authorized(method: str, path: str, body: object = None, key: str = HOSTILE) -> bytes:
    raw = None if body is None else json.dumps(body).encode()
    return request(method, path, raw, f"Authorization: Bearer {key}")


def _nodes(_: Api, number: int) -> bytes:
    nodes = [f"{number}-{each:06}" for each in range(10_000)]
    return _authorized("POST", "/v0/watch", {"topics": {TOPIC: {"from_seq": 0}}, "node": nodes})


def _answers(_: Api, number: int) -> bytes:
    body = {"from_seq": number % (RECORDS // 2), "max_batch_bytes": 8 * MIB}
    return _authorized("POST", f"/v0/topics/{TOPIC}/diff", body)


def _streams(api: Api, number: int) -> bytes:
    # Of two topics: the ids of events are its own, so none of their bytes are shared.
    topics = {TOPIC: {"from_seq": number % (RECORDS // 2)}, QUEUE: {"tail": True}}
    asked = {"topics": topics, "max_batch_bytes": 8 * MIB}
    session = ok(api.call("POST", "/v0/watch", asked))
    return _authorized("GET", session["stream_url"])


def _works(_: Api, number: int) -> bytes:
    return _authorized("GET", f"/v0/topics/{QUEUE}/work?node=n{number}&max=8&lease_ms=1000")


def _upgrade(key: str) -> bytes:
    return handshake(KEY, f"Authorization: Bearer {key}")


def _text(payload: bytes) -> bytes:
    return frame_bytes(1, payload, mask=bytes(4))


def _sockets(_: Api, number: int) -> bytes:
    topics = {TOPIC: {"from_seq": number % (RECORDS // 2)}}
    command = {"op": "subscribe", "request_id": "s", "topics": topics, "max_batch_bytes": 8 * MIB}
    return _upgrade(HOSTILE) + _text(json.dumps(command).encode())


def _echoes(_: Api, __: int) -> bytes:
    command = json.dumps({"op": "ping", "request_id": "x" * 100_000}).encode()
    return _upgrade(HOSTILE) + _text(command) * 40


def _messages(_: Api, __: int) -> bytes:
    record = b'{"data":"' + b"x" * (MIB - 64) + b'"}'
    body = b'{"op":"publish","topic":"hostile.topic","request_id":"m","records":['
    return _upgrade(READER) + _text(body + b",".join([record] * 60) + b"]}")


KINDS = {
    "nodes": Kind(_nodes),
    "answers": Kind(_answers),
    "streams": Kind(_streams, life_s=60.0),
    "trickles": Kind(_streams, life_s=60.0, reads_s=TRICKLE_S),
    "churning": Kind(_streams, life_s=2.0),
    "works": Kind(_works),
    "sockets": Kind(_sockets),
    "echoes": Kind(_echoes),
    "messages": Kind(_messages),
    "idle": Kind(lambda _api, _number: b"", life_s=120.0),
    "heads": Kind(lambda _api, _number: b"GET /v0/health HTTP/1.1\r\nHost: ", life_s=120.0),
    "refused": Kind(
        lambda _api, _number: _authorized("POST", "/v0/topics/t", {}, "wrong-key")[:-1],
        life_s=120.0,
    ),
}


def fill(api: Api) -> None:
    """Make the topics that the crowd reads."""
    for topic, config in ((TOPIC, {}), (QUEUE, {"type": "queue"})):
        api.put(topic, config)
        for _ in range(RECORDS // 8):
            answer = api.append(topic, *["x" * (MIB - 256)] * 8)
            assert answer.status in (200, 201), str(answer)


class Client:
    """One hostile client."""

    def __init__(self, address: tuple[str, int], said: bytes, number: int, until: float) -> None:
        self.until = until
        self._unsent = memoryview(said)
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.bind((f"127.0.0.{2 + number // CLIENTS_PER_ADDRESS}", 0))
        self.socket.setblocking(False)
        code = self.socket.connect_ex(address)
        assert code in (0, errno.EINPROGRESS), os.strerror(code)

    @property
    def events(self) -> int:
        """What it waits for."""
        return select.EPOLLRDHUP | (select.EPOLLOUT if self._unsent else 0)

    def go_on(self) -> None:
        """Send what is unsent. Raises OSError."""
        with contextlib.suppress(BlockingIOError):
            self._unsent = self._unsent[self.socket.send(self._unsent) :]


class Crowd:
    """All clients of one kind."""

    def __init__(self, address: tuple[str, int], kind: Kind, count: int) -> None:
        self._address, self._kind = address, kind
        self._poll = select.epoll()
        self._clients: dict[int, tuple[Client, int]] = {}  # by descriptor, with its number
        self._waiting = [(0.0, number) for number in reversed(range(count))]  # to connect
        with Api(address, token=HOSTILE) as api:
            self._said = [kind.says(api, number) for number in range(count)]
        self.made = self.ended = 0

    def run(self, seconds: float) -> None:
        """Bother the server for so long."""
        end = time.monotonic() + seconds
        read_at = time.monotonic() + self._kind.reads_s
        while (now := time.monotonic()) < end:
            self._connect(now)
            for fd, events in self._poll.poll(0.02):
                self._handle(fd, events, now)
            for fd, (client, _) in [*self._clients.items()]:
                if client.until < now:
                    self._leave(fd, now)
            if now >= read_at:
                read_at = now + self._kind.reads_s
                self._read_a_byte_each()

    def close(self) -> None:
        """Hang up everywhere."""
        for fd in [*self._clients]:
            self._leave(fd, 0)

    def _connect(self, now: float) -> None:
        for _ in range(BURST):
            if not self._waiting or self._waiting[-1][0] > now:
                return
            _, number = self._waiting.pop()
            client = Client(self._address, self._said[number], number, now + self._kind.life_s)
            self._clients[client.socket.fileno()] = client, number
            self._poll.register(client.socket, client.events)
            self.made += 1

    def _handle(self, fd: int, events: int, now: float) -> None:
        if fd not in self._clients:
            return
        client, _ = self._clients[fd]
        try:
            if events & (select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR):
                raise ConnectionResetError
            client.go_on()
            self._poll.modify(fd, client.events)
        except OSError:
            self.ended += 1
            self._leave(fd, now)

    def _leave(self, fd: int, now: float) -> None:
        client, number = self._clients.pop(fd)
        client.socket.close()
        self._waiting.insert(0, (now + AGAIN_S, number))

    def _read_a_byte_each(self) -> None:
        for client, _ in self._clients.values():
            with contextlib.suppress(OSError):
                client.socket.recv(1)


@contextlib.contextmanager
def crowd(address: tuple[str, int], kind: str, count: int, seconds: float) -> Iterator[Connection]:
    """Run a crowd beside the body; what is yielded receives, when the crowd has hung up, how many
    clients it made and how many of them the server ended.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(theirs, address, kind, count, seconds))
    process.start()
    try:
        assert ours.poll(60), "the crowd does not begin"
        assert ours.recv() == "ready"
        yield ours
    finally:
        process.join(60)
        process.kill()


def _run(told: Connection, address: tuple[str, int], kind: str, count: int, seconds: float) -> None:
    raise_file_limit()
    many = Crowd(address, KINDS[kind], count)
    told.send("ready")
    many.run(seconds)
    many.close()
    told.send((many.made, many.ended))
