"""Ten thousand clients reconnect simultaneously after a restart; each receives every record once.

Runs as a program: ``python -m tests.campaigns.storm --clients 10000 --restarts 3``. Half of the
clients follow their topic on a WebSocket, a quarter in a watch session, a quarter by one request as
an EventSource does. A disconnected client reconnects after a random backoff of up to `BACKOFF_S`.
A refused client retries after the time in the refusal. A writer appends all the time.

These conditions must hold:

- all clients are connected after each restart, and none has waited for longer than ``late_s``,
  not counting backoffs
- each client receives consecutive seqs: no record is missed or duplicated
- appends continue; the report contains their p99 since the restart
"""

from __future__ import annotations

import heapq
import itertools
import json
import multiprocessing
import random
import re
import select
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from enum import Enum, auto
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from tests.bench.processes import quantiles_ms
from tests.campaigns.killer import Summary, program
from tests.support.api import Api, ok, request
from tests.support.server import Server
from tests.support.ws import TEXT, frame_bytes, handshake
from topics.process.children import raise_file_limit

TOPICS = 100
CLIENTS_PER_ADDRESS = 5000
BACKOFF_S = 1.0
NEVER = float("inf")
PAUSE_S = 0.02  # between two appends
SETTLE_S = 60.0  # for all clients to reconnect
SEQ = re.compile(rb'"\$seq":(\d+)')
ID = re.compile(rb"^id: ?(.*)$", re.MULTILINE)
OPEN = re.compile(rb"event: caught-up|event: record|caught_up|\"records\"")
NOT_READY = re.compile(rb'"code":(503|"not_ready"),')
RETRY_AFTER = re.compile(rb"(?i)\r\nretry-after: *(\d+)")
URL = re.compile(rb'"stream_url": *"([^"]+)"')


class FollowMode(Enum):
    """How a client follows its topic."""

    SOCKET = auto()
    SESSION = auto()
    ONE_REQUEST = auto()


class StormState(NamedTuple):
    """The state of the clients: the number of connected ones, the records that they received, the
    time between the first and the last reconnect, and the wait of each client without its
    backoffs.
    """

    connected: int
    records: int
    last_s: float
    waits_ms: list[float]
    problems: list[str]
    refusals: dict[str, int]


class Client:
    """One client: its position in its topic, and its connection."""

    def __init__(self, number: int, address: tuple[str, int]) -> None:
        self.number, self._address = number, address
        self.mode = (
            FollowMode.SOCKET,
            FollowMode.SESSION,
            FollowMode.SOCKET,
            FollowMode.ONE_REQUEST,
        )[number % 4]
        self.topic = f"storm-{number % TOPICS}"
        self.seq = self.records = 0
        self.id = b""
        self.url = b""  # of its session
        self.is_connected = self._has_head = False
        self.began = 0.0  # start of its current attempt
        self.waited_s = 0.0  # in all attempts since it was disconnected
        self.socket: socket.socket | None = None
        self.unsent, self.text = b"", b""

    def connect(self) -> socket.socket:
        """Open a new connection, and prepare the bytes to send."""
        self.text, self.unsent, self._has_head = b"", self._request_bytes(), False
        self.began = time.monotonic()
        sock = self.socket = socket.socket()
        sock.bind((f"127.0.0.{2 + self.number // CLIENTS_PER_ADDRESS}", 0))
        sock.setblocking(False)
        sock.connect_ex(self._address)
        return sock

    def _request_bytes(self) -> bytes:
        last = [f"Last-Event-ID: {self.id.decode()}"] if self.id else []
        if self.mode is FollowMode.ONE_REQUEST:
            return request("GET", f"/v0/watch?topic={self.topic}&from_seq={self.seq}", None, *last)
        start = {"from_seq": self.seq}
        if self.mode is FollowMode.SESSION:
            if self.url:
                return request("GET", self.url.decode(), None, *last)
            body = json.dumps({"topics": {self.topic: start}}).encode()
            return request("POST", "/v0/watch", body)
        command = {"op": "subscribe", "request_id": "s", "topics": {self.topic: start}}
        return handshake() + frame_bytes(TEXT, json.dumps(command).encode(), mask=bytes(4))

    def receive(self, data: bytes) -> str | None:
        """Check received bytes. Return an error message if a record was missed or duplicated. Raise
        ConnectionRefusedError for a refusal.
        """
        self.text += data
        if not self._has_head:
            head, end, rest = self.text.partition(b"\r\n\r\n")
            if not end:
                return None
            if head[9:10] not in b"12":
                raise ConnectionRefusedError(head[9:12].decode())
            if self.mode is FollowMode.SESSION and not self.url:
                if found := URL.search(rest):
                    self.url = found[1]
                    self.text, self.unsent = b"", self._request_bytes()
                return None
            self._has_head, self.text = True, rest
        if NOT_READY.search(self.text):  # the response is complete; the subscription is refused
            raise ConnectionRefusedError("503")
        self.is_connected = self.is_connected or OPEN.search(self.text) is not None
        complete = (
            self.text.rfind(b"\n\n") + 2 if self.mode is not FollowMode.SOCKET else len(self.text)
        )
        state, self.text = self.text[:complete], self.text[complete:]
        if self.mode is FollowMode.SOCKET:  # the bytes may end within a seq
            at = state.rfind(b"}") + 1
            state, self.text = state[:at], state[at:] + self.text
        elif ids := ID.findall(state):
            self.id = ids[-1].strip()
        for seq in map(int, SEQ.findall(state)):
            if seq != self.seq + 1:
                return f"client {self.number} ({self.mode.name}): seq {seq} follows seq {self.seq}"
            self.seq, self.records = seq, self.records + 1
        return None


class Storm:
    """All clients, in one loop."""

    def __init__(self, address: tuple[str, int], count: int, seed: int) -> None:
        self.clients = [Client(number, address) for number in range(count)]
        self._poll, self._rng = select.epoll(), random.Random(seed)
        self._by_fd: dict[int, Client] = {}
        self._waiting = [(0.0, client.number) for client in self.clients]
        self._waits_ms: list[float] = []
        self._problems: list[str] = []
        self._refusals: Counter[str] = Counter()
        # when the first client was connected; the time until the last one
        self._ready_at, self._last_s = NEVER, 0.0

    def print_progress(self) -> StormState:
        """Report the state of all clients. Waits and problems are reported once."""
        connected = sum(client.is_connected for client in self.clients)
        records = sum(client.records for client in self.clients)
        state = StormState(
            connected, records, self._last_s, self._waits_ms, self._problems, dict(self._refusals)
        )
        self._waits_ms, self._problems = [], []
        return state

    def work(self) -> None:
        """Connect the clients that are due, and serve the sockets that are ready."""
        now = time.monotonic()
        for _ in range(50):
            if not self._waiting or self._waiting[0][0] > now:
                break
            client = self.clients[heapq.heappop(self._waiting)[1]]
            sock = client.connect()
            self._by_fd[sock.fileno()] = client
            self._poll.register(sock, select.EPOLLIN | select.EPOLLOUT)
        for fd, _ in self._poll.poll(0.005, 500):
            self._serve(fd, self._by_fd[fd])

    def _serve(self, fd: int, client: Client) -> None:
        assert client.socket is not None
        was_connected = client.is_connected
        try:
            if client.unsent:
                client.unsent = client.unsent[client.socket.send(client.unsent) :]
                self._poll.modify(fd, select.EPOLLIN)
            try:
                data = client.socket.recv(1 << 16)
            except BlockingIOError:
                return
            if not data:
                raise ConnectionResetError
            if (problem := client.receive(data)) is not None:
                self._problems.append(problem)
            if client.unsent:
                self._poll.modify(fd, select.EPOLLIN | select.EPOLLOUT)
            if client.is_connected and not was_connected:
                self._record_connected(client)
        except OSError as error:
            self._backoff(fd, client, error)

    def _record_connected(self, client: Client) -> None:
        now = time.monotonic()
        self._ready_at = min(self._ready_at, now)
        self._last_s = now - self._ready_at
        self._waits_ms.append((client.waited_s + now - client.began) * 1000)
        client.waited_s = 0.0

    def _backoff(self, fd: int, client: Client, error: OSError) -> None:
        now = time.monotonic()
        if client.is_connected:
            self._ready_at = NEVER
        client.waited_s += 0 if client.is_connected else now - client.began
        pause_s = self._rng.random() * BACKOFF_S
        if isinstance(error, ConnectionRefusedError) and error.args[0] not in (111,):
            self._refusals[str(error.args[0])] += 1
            if error.args[0] == "404":  # sessions do not survive a restart of the front
                client.url, pause_s = b"", 0.0
            elif found := RETRY_AFTER.search(client.text):
                pause_s += int(found[1])
        client.is_connected = False
        del self._by_fd[fd]
        assert client.socket is not None
        client.socket.close()
        heapq.heappush(self._waiting, (now + pause_s, client.number))


def _run(pipe: Connection, address: tuple[str, int], count: int, seed: int) -> None:
    raise_file_limit()
    storm = Storm(address, count, seed)
    while True:
        storm.work()
        if pipe.poll():
            try:
                pipe.recv()
            except EOFError:
                return
            pipe.send(storm.print_progress())


class Writer(threading.Thread):
    """Appends records sequentially, and reconnects after a failure."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self._server, self.is_over = server, False
        self.took_ms: list[float] = []

    def run(self) -> None:
        """Append until stopped."""
        for number in itertools.cycle(range(TOPICS)):
            if self.is_over:
                return
            try:
                with Api(self._server.address) as api:
                    self._write(api, number)
            except (OSError, AssertionError, ValueError):
                time.sleep(PAUSE_S)

    def _write(self, api: Api, number: int) -> None:
        for one in itertools.count(number):
            if self.is_over:
                return
            began = time.monotonic()
            ok(api.append(f"storm-{one % TOPICS}", one))
            self.took_ms.append((time.monotonic() - began) * 1000)
            time.sleep(PAUSE_S)


def settled(pipe: Connection, count: int) -> Iterator[StormState]:
    """Poll until all clients are connected."""
    until = time.monotonic() + SETTLE_S
    while True:
        pipe.send(None)
        state = pipe.recv()
        yield state
        if state.connected == count or time.monotonic() > until:
            return
        time.sleep(0.1)


def campaign(
    data_dir: Path, *, seed: int, clients: int, restarts: int, seconds: float, late_s: float
) -> Summary:
    """Run the campaign. ``seconds`` is the quiet time before each restart."""
    summary, context = Summary(seed), multiprocessing.get_context("spawn")
    raise_file_limit()
    env = dict.fromkeys(("max_sse_connections", "max_watch_sessions"), clients)
    with Server(data_dir, shards=2, **env) as server:
        with Api(server.address) as api:
            for number in range(TOPICS):
                ok(api.put(f"storm-{number}", {"durability": "disk"}), 201)
        ours, theirs = context.Pipe()
        arguments = (theirs, server.address, clients, seed)
        process = context.Process(target=_run, args=arguments, daemon=True)
        process.start()
        server.env["TOPICS_PORT"] = str(server.port)
        writer = Writer(server)
        writer.start()
        for number in range(restarts + 1):
            if number:
                server.restart("kill" if number == restarts else "stop")
            writer.took_ms.clear()
            what = f"restart {number}" if number else "open"
            _wait_connected(ours, summary, clients, what, late_s)
            _, p99, _, most = quantiles_ms([ms / 1000 for ms in writer.took_ms] or [0])
            summary.print_progress(f"  appends at the same time: p99 {p99:.1f} max {most:.1f} ms")
            time.sleep(seconds)
        writer.is_over = True
        writer.join()
        records = _check_end(server, ours, clients, summary)
        ours.close()
        process.join(60)
        process.kill()
    summary.counts |= Counter({"clients": clients, "received records": records})
    return summary


def _wait_connected(
    pipe: Connection, summary: Summary, clients: int, what: str, late_s: float
) -> None:
    waits, state = [], None
    for state in settled(pipe, clients):
        waits += state.waits_ms
        summary.problems += state.problems
    assert state is not None
    p50, p99, _, most = quantiles_ms([ms / 1000 for ms in waits] or [0])
    summary.print_progress(
        f"{what}: {state.connected} of {clients} are connected, the last {state.last_s:.1f} s"
        f" after the first; waits p50 {p50:.0f} p99 {p99:.0f} max {most:.0f} ms;"
        f" refusals {state.refusals}"
    )
    if state.connected != clients:
        summary.problems.append(f"{what}: {state.connected} of {clients} have reconnected")
    if most > late_s * 1000:
        summary.problems.append(f"{what}: a client has waited for {most:.0f} ms")


def _check_end(server: Server, pipe: Connection, clients: int, summary: Summary) -> int:
    """Wait until all clients have received all records. Return the number of records."""
    with Api(server.address) as api:
        heads = [ok(api.call("GET", f"/v0/topics/storm-{n}"))["head_seq"] for n in range(TOPICS)]
    expected = sum(heads[number % TOPICS] for number in range(clients))
    until, records = time.monotonic() + SETTLE_S, -1
    while records < expected and time.monotonic() < until:
        pipe.send(None)
        state = pipe.recv()
        summary.problems += state.problems
        records = state.records
    if records != expected:
        summary.problems.append(f"{records} records were received, {expected} expected")
    return records


if __name__ == "__main__":
    sys.exit(program(__doc__, campaign, clients=10_000, restarts=3, seconds=5.0, late_s=6.0))
