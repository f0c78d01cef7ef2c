"""How a server starts: ``python -m tests.bench.starts [BEFORE] [--only NAME] [--rounds 3]``.

    empty           on an empty directory, two shards
    stop            many topics with one record each, stopped in order; one shard
    kill            the same topics, and a kill
    CLASS N x M     killed in the middle of writing at full speed: N clients, M records a request,
                    default sizes of files, a shard for each core

Each start is a process of its own, seen from outside by one client. The page cache is dropped
before it, where the user may do that (root). Modules are compiled before, as by an installation.
With BEFORE, another checkout, both run alternately. In milliseconds after the exec:

    listening    a connection is accepted by the kernel
    ready        GET /v0/ready has answered 200
    append       the first append, of class fsync, is acknowledged
    cold         GET /v0/topics, sent after that append, is answered: the admin plane is loaded

``p99`` and ``most`` are of the appends that follow one another during the next second, in ms.
``recovered`` is the longest recovery of a shard in seconds, ``CPU`` what all processes have used
until ready, ``shards`` the anonymous memory of the shards, ``pss`` that of all processes, where
shared pages count once, ``log`` the log files on the disk before, in MB. Required of ``empty``:
ready and append within 250 ms.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.bench.peers.load import Client, Connection, append, drive, repeated
from tests.bench.peers.replies import Http, http
from tests.bench.peers.system import free_port
from tests.bench.processes import anon_mb, cpu_s, quantiles_ms, server_of, verdict
from tests.bench.topics import FILLERS, script
from tests.support.server import ROOT, Server

TOPICS = 16
LOADS = (("fsync", 16, 1), ("disk", 16, 1), ("fsync", 4, 1000), ("disk", 4, 1000))
DEADLINE_S = 120.0
READY_MS = 250
APPENDS_S = 1.0  # duration of consecutive appends
PAUSE_S = 0.001  # between two attempts
POLL_TIMEOUT_S = 0.0001
DROP_CACHES = Path("/proc/sys/vm/drop_caches")
FIRST = append("first", 1, b'"config":{"durability":"fsync"},')
Scene = Callable[[Server], None]  # leaves the server stopped, killed, or never started


class Start(NamedTuple):
    """One start, or the medians of several."""

    listening: float
    ready: float
    append: float
    cold: float
    p99: float
    most: float
    recovered: float
    cpu: float
    shards: float
    pss: float
    log: float


class ProbeConnection:
    """A connection that reads short responses with any status."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, request: bytes) -> None:
        self._sock.sendall(request)

    def receives_success(self, timeout_s: float = DEADLINE_S) -> bool:
        """Return whether the response is a 2xx."""
        self._sock.settimeout(timeout_s)
        with contextlib.suppress(TimeoutError):
            return self._sock.recv(1 << 16)[9:10] == b"2"
        return False

    def retry_until_success(self, request: bytes) -> None:
        """Retry until the response is a 2xx."""
        self.send(request)
        while not self.receives_success():
            time.sleep(PAUSE_S)
            self.send(request)


def connected(port: int) -> ProbeConnection:
    """Connect as soon as possible."""
    until = time.perf_counter() + DEADLINE_S
    while True:
        try:
            return ProbeConnection(
                socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
            )
        except ConnectionRefusedError:
            assert time.perf_counter() < until, "no process listens"
            time.sleep(PAUSE_S)


def many_topics(count: int, *, stop: bool) -> Scene:
    """Prepare a server with this number of topics."""

    def run(server: Server) -> None:
        server.start(DEADLINE_S)
        numbers = iter(range(count))
        scripts = (script(lambda n: append(f"topic-{n}", 1), numbers) for _ in range(FILLERS))
        drive([(Connection(server.address), each) for each in scripts], 1e6)
        server.stop() if stop else server.kill()

    return run


def full_speed(durability: str, clients: int, records: int, seconds: float) -> Scene:
    """Prepare a server that is killed while its clients write."""
    config = b'"config":{"durability":"%b"},' % durability.encode()
    requests = [append(f"topic-{number % TOPICS}", records, config) for number in range(clients)]

    def run(server: Server) -> None:
        server.start(DEADLINE_S)
        writers = [
            (Connection(server.address), repeated(each, Http(), records)) for each in requests
        ]
        writing = threading.Thread(target=_write, args=(writers,))
        writing.start()
        time.sleep(seconds)
        server.kill()
        writing.join()

    return run


def _write(writers: list[Client]) -> None:
    with contextlib.suppress(OSError, AssertionError):  # the server was killed
        drive(writers, 1e6)


def pss_mb(pids: list[int]) -> float:
    """Return the memory of these processes. A page that several of them map counts once."""
    rows = (
        row for pid in pids for row in Path(f"/proc/{pid}/smaps_rollup").read_text().split("\n")
    )
    return sum(int(row.split()[1]) for row in rows if row.startswith("Pss:")) / 1024


def start(server: Server, port: int) -> Start:
    """Start the server with cold caches, measure it, and kill it afterwards."""
    log_bytes = sum(path.stat().st_size for path in server.data_dir.glob("wal/*/*.wal"))
    os.sync()
    if os.access(DROP_CACHES, os.W_OK):
        DROP_CACHES.write_text("3")
    moments: list[float] = []
    began = time.perf_counter()

    def record_moment() -> None:
        moments.append((time.perf_counter() - began) * 1000)

    log = server.spawn()
    try:
        probe = connected(port)
        record_moment()
        probe.retry_until_success(http("GET", "/v0/ready"))
        record_moment()
        cpu = cpu_s(*server.pids())
        probe.retry_until_success(FIRST)
        record_moment()
        cold, delays, until = connected(port), [], time.perf_counter() + APPENDS_S
        cold.send(http("GET", "/v0/topics"))
        while (now := time.perf_counter()) < until or len(moments) < 4:
            probe.send(FIRST)
            assert probe.receives_success(), "an append was refused"
            delays.append(time.perf_counter() - now)
            if len(moments) < 4 and cold.receives_success(POLL_TIMEOUT_S):
                record_moment()
        _, p99, _, most = quantiles_ms(delays)
        recovered = max(
            line["duration_s"] for line in log.events() if line["event"] == "shard recovered"
        )
        shards = [pid for role, pid in server.roles().items() if role.startswith("shard")]
        shards_mb, all_mb = anon_mb(shards), pss_mb(server.pids())
        rest = p99, most, recovered, cpu, shards_mb, all_mb, log_bytes / 1e6
        return Start._make([*moments, *rest])
    finally:
        server.kill()


def scenes_of(args: argparse.Namespace) -> Iterator[tuple[str, Scene, int]]:
    """Return name, scene and number of shards; 0: one for each core."""
    yield "empty", lambda _: None, 2
    yield "stop", many_topics(args.topics, stop=True), 1
    yield "kill", many_topics(args.topics, stop=False), 1
    for load in LOADS:
        yield "{} {} x {}".format(*load), full_speed(*load, args.seconds), 0


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("before", type=Path, nargs="?", help="another checkout")
    options.add_argument("--only", default="", help="part of the names of scenes")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--topics", type=int, default=100_000)
    options.add_argument(
        "--seconds", type=float, default=12.0, help="duration of writes before a kill"
    )
    options.add_argument("--dir", type=Path, default=None, help="folder of the data")
    args = options.parse_args()
    roots = {"before": args.before.resolve()} if args.before else {}
    roots["this"] = ROOT
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    print(f"{'':<16}{'':<8}" + "".join(f"{name:>10}" for name in Start._fields))
    with tempfile.TemporaryDirectory(prefix="topics-starts-", dir=args.dir) as folder:
        for name, scene, shards in scenes_of(args):
            if args.only not in name:
                continue
            found: dict[str, list[Start]] = {version: [] for version in roots}
            # The very first start compiles modules, and does not count.
            for number in range(0 if any(Path(folder).iterdir()) else -1, args.rounds):
                for version, root in roots.items():
                    with tempfile.TemporaryDirectory(dir=folder) as data:
                        port = free_port()
                        env = {"shards": shards} if shards else {}
                        server = server_of(root, Path(data, "data"), port=port, **env)
                        server.env["PYTHONPYCACHEPREFIX"] = str(Path(folder, version))
                        scene(server)
                        one = start(server, port)
                        found[version] += [one] if number >= 0 else []
            for version, starts in found.items():
                middle = Start(*map(statistics.median, zip(*starts, strict=True)))
                shown = "".join(f"{value:>10.1f}" for value in middle)
                print(f"{name:<16}{version:<8}{shown}", flush=True)
            if name == "empty":
                print(verdict(max(middle.ready, middle.append) <= READY_MS))


if __name__ == "__main__":
    main()
