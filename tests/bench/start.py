"""How fast a server starts on an empty directory: ``python -m tests.bench.start [--starts 5]
[--before CHECKOUT] [--shards 2]``.

Each start is a process of its own, seen from outside by one client, in milliseconds after the exec:

    listening    a connection is accepted by the kernel
    ready        GET /v0/ready has answered 200
    append       the first append, of class fsync, is acknowledged
    cold         GET /v0/topics, sent after that append, is answered: the cold lane is loaded

``p99`` and ``most`` are of the appends that follow one another during the first second, in
milliseconds. ``cpu`` is the processor time of all processes until then, ``pss`` their memory in MB,
where shared pages are counted once. Modules are compiled before, as by an installation. With
``--before`` the starts of two checkouts alternate. Required: ready and append within 250 ms.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import socket
import statistics
import tempfile
import time
from array import array
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from tests.bench.peers.load import append
from tests.bench.peers.programs import free_port
from tests.bench.processes import cpu_s, quantiles_ms, server_of, verdict
from tests.support.server import ROOT

READY_MS = 250
STUTTER_S = 1.0  # for which appends follow one another
GIVE_UP_S = 30.0
PAUSE_S = 0.001  # between two attempts
PATIENCE_S = 0.0001
GET = b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Start:
    """One start, or the medians of several."""

    listening: float
    ready: float
    append: float
    cold: float
    p99: float
    most: float
    cpu: float
    pss: float


class Asker:
    """A connection that takes short answers, of any status."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, request: bytes) -> bool:
        """Whether the answer is a 2xx."""
        self._sock.settimeout(GIVE_UP_S)
        self._sock.sendall(request)
        return self._take()

    def send(self, request: bytes) -> None:
        """Send without waiting for the answer."""
        self._sock.sendall(request)

    def has_answer(self) -> bool:
        """Whether a 2xx has come."""
        self._sock.settimeout(PATIENCE_S)
        with contextlib.suppress(TimeoutError):
            return self._take()
        return False

    def _take(self) -> bool:
        answer = self._sock.recv(1 << 16)
        assert answer, "the server hung up"
        return answer[9:10] == b"2"


def connected(address: tuple[str, int], until: float) -> Asker:
    """A connection, as soon as one is possible."""
    while True:
        try:
            return Asker(socket.create_connection(address, timeout=GIVE_UP_S))
        except ConnectionRefusedError:
            assert time.perf_counter() < until, "nothing listens"
            time.sleep(PAUSE_S)


def ask_until_done(asker: Asker, request: bytes, until: float) -> None:
    """Ask again until the answer is a 2xx."""
    while not asker.ask(request):
        assert time.perf_counter() < until, "never answered"
        time.sleep(PAUSE_S)


def pss_mb(pids: list[int]) -> float:
    """Memory of these processes together; a page that several of them map counts once."""
    total_kb = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total_kb += int(line.split()[1])
    return total_kb / 1024


def start(root: Path, shards: int, compiled: Path) -> Start:
    """Start a server of the checkout ``root`` once, with its modules compiled in ``compiled``."""
    folder = Path(tempfile.mkdtemp(prefix="topics-start-"))
    port = free_port()
    server = server_of(root, folder / "data", port=port, shards=shards)
    server.env["PYTHONPYCACHEPREFIX"] = str(compiled)
    one = append("first", 1, b'"config":{"durability":"fsync"},')
    try:
        began = time.perf_counter()

        def passed_ms() -> float:
            return (time.perf_counter() - began) * 1000

        server.spawn()
        until = began + GIVE_UP_S
        asker = connected(("127.0.0.1", port), until)
        listening = passed_ms()
        ask_until_done(asker, GET % b"/v0/ready", until)
        ready = passed_ms()
        ask_until_done(asker, one, until)
        first = passed_ms()
        delays, cold = stutter(asker, connected(("127.0.0.1", port), until), one, began)
        _, p99, _, most = quantiles_ms(delays)
        pids = server.pids()
        cpu = cpu_s(*pids) * 1000
        return Start(listening, ready, first, cold, p99, most, cpu, pss_mb(pids))
    finally:
        server.kill()
        shutil.rmtree(folder)


def stutter(asker: Asker, cold: Asker, request: bytes, began: float) -> tuple[array[float], float]:
    """Appends of the first second, each as soon as the one before it is answered, while one request
    waits for the cold lane: the seconds that each took, and when that one was answered.
    """
    delays = array("d")
    answered_ms = 0.0
    cold.send(GET % b"/v0/topics")
    while (now := time.perf_counter()) - began < STUTTER_S or not answered_ms:
        assert asker.ask(request), "an append was refused"
        delays.append(time.perf_counter() - now)
        if not answered_ms and cold.has_answer():
            answered_ms = (time.perf_counter() - began) * 1000
        assert now - began < GIVE_UP_S, "the cold lane does not answer"
    return delays, answered_ms


def medians(starts: list[Start]) -> Start:
    return Start(*map(statistics.median, zip(*map(astuple, starts), strict=True)))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--starts", type=int, default=5, help="of each checkout")
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--before", type=Path, help="another checkout")
    arguments = parser.parse_args()
    roots = {"before": arguments.before} if arguments.before else {}
    roots["this"] = ROOT
    found: dict[str, list[Start]] = {name: [] for name in roots}
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory(prefix="topics-compiled-") as folder:
        for name, root in roots.items():
            start(root, arguments.shards, Path(folder, name))  # compiles, and does not count
        for _ in range(arguments.starts):
            for name, root in roots.items():
                found[name].append(start(root, arguments.shards, Path(folder, name)))
    names = [field.name for field in fields(Start)]
    print(f"{'':<16}" + "".join(f"{name:>11}" for name in names))
    for name, starts in found.items():
        best = Start(*map(min, zip(*map(astuple, starts), strict=True)))
        for label, shown in ((f"{name}, median", medians(starts)), (f"{name}, least", best)):
            print(f"{label:<16}" + "".join(f"{value:>11.1f}" for value in astuple(shown)))
    this = medians(found["this"])
    print(verdict(max(this.ready, this.append) <= READY_MS))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
