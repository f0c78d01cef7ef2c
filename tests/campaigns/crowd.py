"""Crowds: many clients of one kind, in a separate process with one loop.

    connect     all connect; clients that the server disconnects reconnect after a pause
    disconnect  all disconnect
    report      do nothing; each command returns the state of the crowd

    kind        each client
    nodes       makes watch sessions with 10,000 nodes
    responses   requests 8 MiB and reads nothing
    streams     opens an event stream of 8 MiB events and reads nothing
    trickles    the same, and reads a byte every 5 s
    churning    the same, and disconnects after 2 s
    works       opens a work stream and reads nothing
    sockets     subscribes on a WebSocket to messages of 8 MiB and reads nothing
    echoes      sends commands with a `request_id` of 100 KiB and reads nothing
    messages    sends WebSocket messages of 16 MiB with a key that may only read
    idle        connects and sends nothing, without a key
    heads       connects and sends the first line of a request, without a key
    refused     sends the head of a request with a wrong key, and no body
    bodiless    declares a body on a route that needs no key, and sends none of it
    bodies      the same, and sends all of the body but its last byte
    headed      the same on a route that reads header fields, after a head of 60 KB
    partial     sends 60 KB of an incomplete head, without a key
    wrong-keys  sends a head of 60 KB with a wrong key, and a body without its last byte
    unread      sends requests for long files without a key, and reads no response
    chunks      sends endless chunked bodies in chunks of one byte, with a key
    prefixes    lists topics with a prefix of 16 KB, which takes 64 KB when it is decoded, a
                different one each time
    leaving     sends requests without a key and closes its connection immediately
    visitors    requests the root without a key, repeatedly
    watchers    opens an event stream with few events, and reads it
    keep-alive  requests a state, reads the response, and stays connected
    slow        sends single bytes of a head or a body at intervals (slow loris)

Clients connect from several addresses, 127.0.0.2 and up, because one address has too few ports.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import itertools
import json
import multiprocessing
import os
import select
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from tests.support.api import Api, ok, request
from tests.support.ws import KEY, frame_bytes, handshake
from topics.process.children import raise_file_limit

MIB = 2**20
KEYS = "hostile-key:rw,reader-key:read,other-key"
HOSTILE, READER, OTHER = "hostile-key", "reader-key", "other-key"
TOPIC, QUEUE = "hostile.topic", "hostile.queue"
RECORDS = 40  # of 1 MiB including their envelope
TOPICS = 100  # that watchers are distributed over
HEARTBEAT_MS = 60_000
BURST = 20  # number of clients that connect before the existing ones are served
BURST_S = 0.005  # the maximum time to wait for the existing ones
CONNECTS_PER_ADDRESS = 5000  # in a row; a closed connection keeps its port for a minute
ADDRESSES = 200
TIMEOUT_S = 300.0  # for a reply of the crowd's process
RESPONSE_S = 60.0  # for the first bytes of a response
NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Kind:
    """``payload`` returns the bytes that a client sends immediately. ``lifetime_s`` is the time
    until it disconnects. ``read_interval_s`` is the interval between reads of one byte, 0 to read
    all input. ``send_interval_s`` is the interval at which it sends one byte. ``reconnect_after_s``
    is the time until it reconnects after the server has closed its connection.
    ``closes_after_send``: it closes as soon as everything is sent. ``repeats_request``: it sends
    the same bytes again after each response.
    """

    payload: Callable[[Api, int], bytes]
    lifetime_s: float = 10.0
    read_interval_s: float = NEVER
    send_interval_s: float = NEVER
    reconnect_after_s: float = 0.5
    closes_after_send: bool = False
    repeats_request: bool = False


def _authorized(method: str, path: str, body: object = None, key: str = HOSTILE) -> bytes:
    raw = None if body is None else json.dumps(body).encode()
    return request(method, path, raw, f"Authorization: Bearer {key}")


def _nodes(_: Api, number: int) -> bytes:
    nodes = [f"{number}-{each:06}" for each in range(10_000)]
    return _authorized("POST", "/v0/watch", {"topics": {TOPIC: {"from_seq": 0}}, "node": nodes})


def _responses(_: Api, number: int) -> bytes:
    body = {"from_seq": number % (RECORDS // 2), "max_batch_bytes": 8 * MIB}
    return _authorized("POST", f"/v0/topics/{TOPIC}/diff", body)


def _streams(api: Api, number: int) -> bytes:
    # Of two topics. Event ids differ between clients, so their bytes are not shared.
    topics = {TOPIC: {"from_seq": number % (RECORDS // 2)}, QUEUE: {"tail": True}}
    body = {"topics": topics, "max_batch_bytes": 8 * MIB}
    session = ok(api.call("POST", "/v0/watch", body))
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
    return _upgrade(READER) + _text(body + b",".join([record] * 16) + b"]}")


def _watchers(api: Api, number: int) -> bytes:
    body = {"topics": {f"idle-{number % TOPICS}": {"tail": True}}, "heartbeat_ms": HEARTBEAT_MS}
    return request("GET", ok(api.call("POST", "/v0/watch", body))["stream_url"], None)


def _slow(_: Api, number: int) -> bytes:
    head = "POST /v0/topics/idle-0 HTTP/1.1\r\nHost: localhost\r\n"
    body = 'Content-Type: application/json\r\nContent-Length: 100000\r\n\r\n{"records":['
    return (head + ("X-Slow: " if number % 2 else body)).encode()


LONG = 60_000
PADDING = f"X-Long: {'x' * LONG}"
HEALTH = request("GET", "/v0/health", None)
UNFINISHED_BODY = b"x" * (LONG - 1)


def _constant(*parts: bytes) -> Callable[[Api, int], bytes]:
    """Return the same bytes for all clients, so that a large crowd needs little memory."""
    payload_bytes = b"".join(parts)
    return lambda _api, _number: payload_bytes


WIDE = "%F0%9F%98%80"  # a text that contains it takes four bytes for each character


def _prefixes(_: Api, number: int) -> bytes:
    return _authorized("GET", f"/v0/topics?prefix={number:06}{WIDE}{'x' * 16_000}", key=READER)


def _bodiless(path: str, *fields: str) -> bytes:
    return request("GET", path, None, f"Content-Length: {LONG}", *fields)


WRONG_KEY = ("Authorization: Bearer wrong-key", "Content-Type: application/json", PADDING)
CHUNKED = ("Content-Type: application/json", "Transfer-Encoding: chunked")
KINDS = {
    "bodiless": Kind(_constant(_bodiless("/v0/health")), lifetime_s=120.0),
    "bodies": Kind(_constant(_bodiless("/v0/health"), UNFINISHED_BODY), lifetime_s=120.0),
    "headed": Kind(_constant(_bodiless("/console", PADDING), UNFINISHED_BODY), lifetime_s=120.0),
    "partial": Kind(_constant(request("GET", "/v0/health", None, PADDING)[:-2]), lifetime_s=120.0),
    "wrong-keys": Kind(
        _constant(
            request("POST", "/v0/topics/t", None, f"Content-Length: {LONG}", *WRONG_KEY),
            UNFINISHED_BODY,
        ),
        lifetime_s=120.0,
    ),
    "unread": Kind(_constant(request("GET", "/v0/openapi.json", None) * 40), lifetime_s=120.0),
    "chunks": Kind(
        _constant(
            request("POST", "/v0/topics/t", None, f"Authorization: Bearer {HOSTILE}", *CHUNKED),
            b"1\r\n{\r\n",
        ),
        lifetime_s=120.0,
    ),
    "prefixes": Kind(_prefixes, lifetime_s=30.0),
    "leaving": Kind(_constant(HEALTH * 8), reconnect_after_s=0, closes_after_send=True),
    "visitors": Kind(
        _constant(request("GET", "/", None)), NEVER, read_interval_s=0, repeats_request=True
    ),
    "nodes": Kind(_nodes),
    "responses": Kind(_responses),
    "streams": Kind(_streams, lifetime_s=60.0),
    "trickles": Kind(_streams, lifetime_s=60.0, read_interval_s=5.0),
    "churning": Kind(_streams, lifetime_s=2.0),
    "works": Kind(_works),
    "sockets": Kind(_sockets),
    "echoes": Kind(_echoes),
    "messages": Kind(_messages),
    "idle": Kind(lambda _api, _number: b"", lifetime_s=120.0),
    "heads": Kind(lambda _api, _number: b"GET /v0/health HTTP/1.1\r\nHost: ", lifetime_s=120.0),
    "watchers": Kind(_watchers, lifetime_s=NEVER, read_interval_s=0),
    "keep-alive": Kind(
        lambda _api, _: request("GET", "/v0/topics/idle-1", None), NEVER, read_interval_s=0
    ),
    "slow": Kind(_slow, lifetime_s=NEVER, send_interval_s=2.0, reconnect_after_s=0),
    "refused": Kind(
        lambda _api, _number: _authorized("POST", "/v0/topics/t", {}, "wrong-key")[:-1],
        lifetime_s=120.0,
    ),
}


def fill(api: Api) -> None:
    """Create the topics that the crowd reads."""
    for topic, config in ((TOPIC, {}), (QUEUE, {"type": "queue"})):
        api.put(topic, config)
        for _ in range(RECORDS // 8):
            answer = api.append(topic, *["x" * (MIB - 256)] * 8)
            assert answer.status in (200, 201), str(answer)


@dataclass(slots=True)
class CrowdState:
    """The state of a crowd. For reading clients: ``first_byte_ms`` from a connect to the first
    bytes, ``statuses``, and the number of clients that were ``lost`` before that.
    """

    connected: Counter[str] = field(default_factory=Counter)  # connected clients by kind
    made: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    first_byte_ms: list[float] = field(default_factory=list)


class Client:
    """One client."""

    def __init__(
        self, address: tuple[str, int], kind: str, number: int, payload_bytes: bytes, connects: int
    ) -> None:
        """``connects`` is the number of earlier connects of the crowd."""
        self.kind, self.number, self.began, self.has_response = (
            kind,
            number,
            time.monotonic(),
            False,
        )
        self.payload_bytes = self._unsent = memoryview(payload_bytes)
        self.socket = socket.socket()
        if KINDS[kind].read_interval_s:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.bind((f"127.0.0.{2 + connects // CONNECTS_PER_ADDRESS % ADDRESSES}", 0))
        self.socket.setblocking(False)
        code = self.socket.connect_ex(address)
        assert code in (0, errno.EINPROGRESS), os.strerror(code)

    @property
    def events(self) -> int:
        """Return the poll events that the client waits for."""
        reads = 0 if KINDS[self.kind].read_interval_s else select.EPOLLIN
        return select.EPOLLRDHUP | reads | (select.EPOLLOUT if self._unsent else 0)

    def send_more(self) -> None:
        """Send unsent bytes. Raise OSError."""
        with contextlib.suppress(BlockingIOError):
            self._unsent = self._unsent[self.socket.send(self._unsent) :]

    @property
    def is_done(self) -> bool:
        """Return whether everything is sent."""
        return not self._unsent

    def repeat(self) -> None:
        """Send the same bytes again."""
        self._unsent = self.payload_bytes


class Crowd:
    """All clients."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._poll = select.epoll()
        self._clients: dict[int, Client] = {}  # by descriptor
        self._waiting: list[tuple[float, str, int]] = []  # when which client connects
        # when, a number, the client, the action
        self._actions: list[tuple[float, int, Client, str]] = []
        self._numbers = itertools.count()
        # sessions of the previous connection are reused
        self._payloads: dict[tuple[str, int], bytes] = {}
        self._connects = 0
        self.state = CrowdState()

    def prepare(self, kind: str, count: int) -> None:
        with Api(self._address, token=HOSTILE) as api:
            for number in range(count):
                self._payloads[kind, number] = KINDS[kind].payload(api, number)

    def connect(self, is_reset: bool) -> None:
        """Let all prepared clients connect. With ``is_reset`` all are reset before."""
        self.disconnect(reset=is_reset)
        self._waiting = sorted((0.0, *key) for key in self._payloads)
        while any(not KINDS[kind].read_interval_s for _, kind, _ in self._waiting):
            self.work(0.0)
        is_waiting, until = True, time.monotonic() + RESPONSE_S
        while is_waiting and time.monotonic() < until:
            self.work(0.05)
            is_waiting = any(
                not (client.has_response or KINDS[client.kind].read_interval_s)
                for client in self._clients.values()
            )
        self.state.lost += sum(
            not (client.has_response or KINDS[client.kind].read_interval_s)
            for client in self._clients.values()
        )

    def disconnect(self, *, reset: bool = False) -> None:
        """Close all connections."""
        self._waiting.clear()
        for fd in [*self._clients]:
            if reset:
                linger = struct.pack("ii", 1, 0)
                self._clients[fd].socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self._close(fd)
        self.state = CrowdState()

    def work(self, wait_s: float) -> None:
        """Run due actions, and handle received bytes."""
        now = time.monotonic()
        for _ in range(BURST):
            if not self._waiting or self._waiting[0][0] > now:
                break
            self._connect(*heapq.heappop(self._waiting)[1:])
        if self._waiting and self._waiting[0][0] <= now:
            wait_s = min(wait_s, BURST_S)
        for fd, events in self._poll.poll(wait_s, 1000):
            if fd in self._clients:
                self._serve_client(fd, self._clients[fd], events)
        while self._actions and self._actions[0][0] <= time.monotonic():
            _, _, client, what = heapq.heappop(self._actions)
            fd = client.socket.fileno()
            if self._clients.get(fd) is client:
                self._execute(fd, client, what)

    def _connect(self, kind: str, number: int) -> None:
        client = Client(self._address, kind, number, self._payloads[kind, number], self._connects)
        self._connects += 1
        fd, plan = client.socket.fileno(), KINDS[kind]
        self._clients[fd] = client
        self._poll.register(client.socket, client.events)
        self.state.made += 1
        self.state.connected[kind] += 1
        spread = (
            plan.send_interval_s * (number % 97) / 97 if plan.send_interval_s < NEVER else NEVER
        )
        for what, after in (
            ("end", plan.lifetime_s),
            ("read", plan.read_interval_s),
            ("drip", spread),
        ):
            if 0 < after < NEVER or (what == "drip" and after < NEVER):
                self._push(after, client, what)

    def _serve_client(self, fd: int, client: Client, events: int) -> None:
        try:
            if events & select.EPOLLIN:
                self._receive(client, client.socket.recv(1 << 16))
            elif events & (select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR):
                raise ConnectionResetError
            client.send_more()
            if KINDS[client.kind].closes_after_send and client.is_done:
                self._reconnect_later(fd, client)
                return
            self._poll.modify(fd, client.events)
        except OSError:
            self.state.ended[client.kind] += 1
            self.state.lost += not (client.has_response or KINDS[client.kind].read_interval_s)
            self._reconnect_later(fd, client)

    def _receive(self, client: Client, data: bytes) -> None:
        if not data:
            raise ConnectionResetError
        if KINDS[client.kind].repeats_request:
            client.repeat()
        if not client.has_response:
            client.has_response = True
            self.state.statuses[data[9:12].decode()] += 1
            self.state.first_byte_ms.append((time.monotonic() - client.began) * 1000)

    def _execute(self, fd: int, client: Client, what: str) -> None:
        plan = KINDS[client.kind]
        if what == "end":
            self._reconnect_later(fd, client)
            return
        with contextlib.suppress(OSError):
            client.socket.recv(1) if what == "read" else client.socket.send(b"x")
        after = plan.read_interval_s if what == "read" else plan.send_interval_s
        self._push(after, client, what)

    def _push(self, after_s: float, client: Client, what: str) -> None:
        due = time.monotonic() + after_s
        heapq.heappush(self._actions, (due, next(self._numbers), client, what))

    def _reconnect_later(self, fd: int, client: Client) -> None:
        """Let a client reconnect, except a kind that is expected to stay connected."""
        self._close(fd)
        plan = KINDS[client.kind]
        if plan.read_interval_s or plan.lifetime_s < NEVER:
            due = time.monotonic() + plan.reconnect_after_s
            heapq.heappush(self._waiting, (due, client.kind, client.number))

    def _close(self, fd: int) -> None:
        client = self._clients.pop(fd)
        self.state.connected[client.kind] -= 1
        client.socket.close()


class Remote:
    """A crowd in a separate process, controlled by this process."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def command(self, command: str, *arguments: object) -> CrowdState:
        """Send a command: ``prepare``, ``connect``, ``disconnect`` or ``report``."""
        self._pipe.send((command, *arguments))
        assert self._pipe.poll(TIMEOUT_S), "the process of the crowd does not reply"
        state = self._pipe.recv()
        assert isinstance(state, CrowdState), state
        return state


@contextlib.contextmanager
def crowd(address: tuple[str, int], kinds: dict[str, int]) -> Iterator[Remote]:
    """Run a crowd of these kinds while the body runs."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(theirs, address), daemon=True)
    process.start()
    theirs.close()
    remote = Remote(ours)
    try:
        for kind, count in kinds.items():
            remote.command("prepare", kind, count)
        yield remote
    finally:
        ours.close()
        process.join(60)
        process.kill()


def _run(pipe: Connection, address: tuple[str, int]) -> None:
    """Execute the commands of the parent process until it closes the pipe."""
    raise_file_limit()
    all_clients = Crowd(address)
    while True:
        all_clients.work(0.02)
        if not pipe.poll():
            continue
        try:
            command, *arguments = pipe.recv()
        except EOFError:
            return
        state = all_clients.state
        if command != "report":
            getattr(all_clients, command)(*arguments)
            state = state if command == "disconnect" else all_clients.state
        pipe.send(state)
