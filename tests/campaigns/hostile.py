"""Hostile clients: their effect on a server and on its other clients.

Runs as a program: ``python -m tests.campaigns.hostile --kinds streams --clients 1000``. A crowd of
one kind (`crowd`) loads a server for some time, and no request of another client may be refused.
With ``--clients 17000 --connections 16384`` a crowd tries to use all connections of a front.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.campaigns.crowd import KEYS, OTHER, crowd, fill
from tests.campaigns.killer import Summary, program
from tests.support.api import Answer, Api, Wire, ok, request
from tests.support.server import Server, rss_bytes

MIB = 2**20
FILES_RESERVED = 128  # descriptors of a front that are not for clients
# Kinds that have no key, or send no complete request with one, and take all connections.
WITHOUT_KEY = (
    *("idle", "heads", "refused", "bodiless", "bodies", "headed", "partial", "wrong-keys"),
    *("unread", "leaving"),
)
KINDS = (
    *("nodes", "responses", "streams", "trickles", "churning", "works", "sockets", "echoes"),
    *("messages", "chunks", "prefixes", "visitors", *WITHOUT_KEY),
)
SAMPLE_S = 0.01
CONNECT_S = 60.0  # until all clients of a crowd have connected once, in addition to `seconds`


class Memory:
    """Resident bytes of front and shards over time."""

    def __init__(self, roles: dict[str, int]) -> None:
        self.samples = {role: [rss_bytes(pid)] for role, pid in roles.items()}

    @property
    def growth(self) -> dict[str, int]:
        """Return how far each process rose above its first sample."""
        return {role: max(found) - found[0] for role, found in self.samples.items()}

    def lines(self) -> dict[str, str]:
        """Return the first sample, those at a quarter and at half of the time, and the last one, in
        MiB.
        """
        return {
            role: " -> ".join(
                f"{found[(len(found) - 1) * at // 4] / MIB:.0f}" for at in (0, 1, 2, 4)
            )
            for role, found in self.samples.items()
        }

    def __str__(self) -> str:
        rises = sorted(self.growth.items())
        return ", ".join(f"{role} +{growth / MIB:.1f} MiB" for role, growth in rises)


@contextlib.contextmanager
def watched(server: Server, every_s: float = SAMPLE_S) -> Iterator[Memory]:
    """Sample the memory of front and shards while the body runs."""
    roles, done = server.roles(), threading.Event()
    memory = Memory(roles)

    def sample() -> None:
        while not done.wait(every_s):
            for role, pid in roles.items():
                memory.samples[role].append(rss_bytes(pid))

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    try:
        yield memory
    finally:
        done.set()
        sampler.join()


class Bystander(threading.Thread):
    """A well-behaved client with small requests. ``took_ms`` contains the duration of each
    request.
    """

    token: str | None = None

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self._server = server
        self._done = threading.Event()
        self.took_ms: list[float] = []
        self.problems: list[str] = []

    def run(self) -> None:
        with Api(self._server.address, token=self.token) as api:
            while not self._done.wait(0.005):
                sent = time.perf_counter()
                try:
                    answer = self.send_request(api)
                    problem = "" if answer.status in (200, 201) else str(answer)
                except OSError as failure:
                    problem = repr(failure)
                self.took_ms.append((time.perf_counter() - sent) * 1000)
                if problem:
                    self.problems.append(problem)

    def send_request(self, api: Api) -> Answer:
        """Send one small request."""
        return api.append("bystander", 1)

    def finish(self) -> None:
        self._done.set()
        self.join(30)
        assert not self.is_alive(), "the bystander does not stop"

    def percentile(self, percent: int) -> float:
        """Return a percentile in milliseconds."""
        return statistics.quantiles(self.took_ms * 2, n=100)[percent - 1]

    def __str__(self) -> str:
        p50, p99, most = self.percentile(50), self.percentile(99), max(self.took_ms)
        costs = f"p50 {p50:.1f} ms, p99 {p99:.1f} ms, max {most:.1f} ms"
        return f"{len(self.took_ms)} small requests: {costs}"


class Neighbour(Bystander):
    """A bystander with its own key that alternately appends and reads."""

    token = OTHER

    def send_request(self, api: Api) -> Answer:
        """Send one small request."""
        if len(self.took_ms) % 2:
            return api.diff("bystander", from_seq=0, limit=10)
        return api.append("bystander", 1)


class Visitor(Neighbour):
    """A bystander that opens a new connection for each request. If the client's thread has to
    wait for a core before it sends the request, the server may close the connection as the one that
    has been idle longest. Such an attempt is not counted.
    """

    def send_request(self, api: Api) -> Answer:
        """Send one small request."""
        for _ in range(2):
            api.close()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                return super().send_request(api)
        api.close()
        return super().send_request(api)


class Probe(Bystander):
    """A bystander that only requests the health of the server."""

    def send_request(self, api: Api) -> Answer:
        return api.call("GET", "/v0/health")


@contextlib.contextmanager
def run_alongside(server: Server, kind: type[Bystander] = Bystander) -> Iterator[Bystander]:
    """Run a bystander while the body runs."""
    bystander = kind(server)
    bystander.start()
    try:
        yield bystander
    finally:
        bystander.finish()


def large_body() -> bytes:
    """Return 64 MiB of records of almost 1 MiB."""
    body = b'{"records":[' + b",".join([b'{"data":"' + b"x" * (MIB - 64) + b'"}'] * 63) + b"]}"
    return body + b" " * (64 * MIB - len(body))


def send_large_bodies(server: Server, count: int) -> None:
    """Send large bodies from a separate process, so that the bystander's times are those of the
    server and not of the sender.
    """
    sender = multiprocessing.get_context("spawn").Process(
        target=_send_large_bodies, args=(server.address, count)
    )
    sender.start()
    sender.join(120)
    code = sender.exitcode
    sender.kill()
    assert code == 0, f"the sender ended with {code}"


def _send_large_bodies(address: tuple[str, int], count: int) -> None:
    body = large_body()
    with Api(address, timeout_s=60) as api:
        for _ in range(count):
            answer = api.call("POST", "/v0/topics/large", body)
            assert answer.status in (200, 201), str(answer)


def malformed(source: random.Random) -> bytes:
    """Return one request that every server should refuse."""
    path, noise = "/v0/topics/hostile", source.randbytes(source.randint(0, 300))
    chunked = "Content-Type: application/json", "Transfer-Encoding: chunked"
    kinds = [
        b"?" + noise,
        request("POST", path, noise),
        request("POST", path, b'{"records":[{"data":' + b"[" * source.randint(1, 20_000)),
        request("POST", path, b'{"records":[{"data":"\xff' + noise[:20] + b'"}]}'),
        request("PUT", path, b'{"ttl_ms":' + b"9" * source.randint(21, 5000) + b"}"),
        request("POST", f"{path}/diff", b'{"limit":"%b"}' % (b"x" * len(noise) * 7)),
        request("POST", path, None, *chunked) + b"xyz\r\n",
        request("POST", path, b"{}", "Transfer-Encoding: chunked"),
        request("GET", "/" + "a" * source.randint(1, 3000)),
        request("GET", f"{path}%{source.randint(0, 255):02x}%0A"),
        request("POST", path, b"\x1f\x8b" + noise, "Content-Encoding: gzip"),
        b"GET /v0/health HTTP/1.1\r\n" + b"x: y\r\n" * source.randint(1, 400),
    ]
    return source.choice(kinds)


def pile_up_responses(server: Server, requests: int, hold_s: float = 2.0) -> int:
    """Request large responses without reading them, and keep the connection open. Return the number
    of requests that the server read before it stopped.
    """
    with Api(server.address) as api:
        ok(api.append("piled", *["x" * (MIB - 64)] * 4), 201)
    with Wire(server.address, timeout_s=2) as wire:
        diff = request("POST", "/v0/topics/piled/diff", b'{"max_batch_bytes":8388608}')
        for number in range(requests):
            try:
                wire.send(diff)
            except OSError:
                return number
        time.sleep(hold_s)  # an unread response uses memory only while its connection is open
    return requests


@dataclass(frozen=True, slots=True)
class Cost:
    """The effect of a crowd of one kind on a server and its other clients. ``others`` stay
    connected, and ``newcomers`` connect for each request.
    """

    kind: str
    made: int
    ended: int
    memory: Memory
    others: Bystander
    newcomers: Bystander

    @property
    def problems(self) -> list[str]:
        """Return the refused requests of other clients."""
        return [*self.others.problems, *self.newcomers.problems]

    def __str__(self) -> str:
        return (
            f"{self.kind}: {self.made} clients connected, the server disconnected {self.ended};"
            f" {self.memory}; others {self.others}; on new connections {self.newcomers};"
            f" {len(self.problems)} refused; load average {os.getloadavg()[0]:.1f}"
        )


def measure_crowd(
    directory: Path,
    kind: str,
    clients: int,
    seconds: float,
    connections: int = 0,
    **settings: object,
) -> Cost:
    """Run a crowd of one kind against a new server. ``connections`` is the number of connections
    that the server accepts, by default three quarters of the crowd.
    """
    server = Server(directory / kind, shards=1, api_keys=KEYS, **settings)
    if kind in WITHOUT_KEY:
        most = f"ulimit -n {FILES_RESERVED + (connections or clients * 3 // 4)}"
        server.zygote = None
        server.command = ["sh", "-c", f'{most} && exec "$@"', "sh", *server.command]
    with server:
        with Api(server.address, token=OTHER) as api:
            fill(api)
        with (
            crowd(server.address, {kind: clients}) as remote,
            watched(server) as memory,
            run_alongside(server, Neighbour) as others,
            run_alongside(server, Visitor) as newcomers,
        ):
            remote.command("connect", False)
            time.sleep(seconds)
            deadline = time.monotonic() + CONNECT_S
            while remote.command("report").made < clients and time.monotonic() < deadline:
                time.sleep(0.1)  # on a busy machine some clients have not connected yet
            state = remote.command("disconnect")
        assert "Traceback" not in server.logged, server.log_tail
    return Cost(kind, state.made, state.ended[kind], memory, others, newcomers)


def campaign(
    data_dir: Path, *, seed: int, kinds: str, clients: int, seconds: float, connections: int
) -> Summary:
    """Run crowds of these kinds sequentially and report their effects."""
    summary = Summary(seed)
    for kind in kinds.split(","):
        cost = measure_crowd(data_dir.parent, kind, clients, seconds, connections)
        summary.print_progress(str(cost))
        summary.problems += [f"{kind}: {problem}" for problem in cost.problems[:3]]
        summary.counts[kind] = cost.made
    return summary


if __name__ == "__main__":
    sys.exit(
        program(__doc__, campaign, kinds=",".join(KINDS), clients=1000, seconds=40.0, connections=0)
    )
