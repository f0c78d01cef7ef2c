"""A storm: thousands of clients lose their connections and come back all at once, beside a writer
that must not notice much.

    python -m tests.campaigns.storm [--clients 5000] [--storms 3] [--kinds watch,ask,killed]

``watch``: event streams are cut and opened again; ``ask``: keep-alive clients ask for state;
``killed``: the same, and the front dies, so that they wait in the listen queue until the next one
accepts. Measured is the time from a client's connect to the first byte of its answer. Exit status 1
when a client is refused or not answered, except that a front that dies may reset some.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import select
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.synchronize import Event
from pathlib import Path

from tests.support.api import Api, ok, request
from tests.support.server import Server
from topics.process.children import raise_file_limit

TOPICS = 50  # among which the watchers are dealt
PATIENCE_S = 60.0
CALM_S = 3.0
PAUSE_S = 0.005  # between two appends of the writer
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: a close is a reset, and leaves no port behind
Address = tuple[str, int]


@dataclass(slots=True)
class Took:
    """Milliseconds."""

    values: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        ordered = sorted(self.values)
        if not ordered:
            return "none"
        p50, p99 = (
            ordered[min(len(ordered) - 1, int(len(ordered) * share))] for share in (0.5, 0.99)
        )
        return f"p50 {p50:.1f} p99 {p99:.1f} max {ordered[-1]:.1f} ms"


@dataclass(slots=True)
class Gust:
    """What one storm did to the clients."""

    first_byte: Took = field(default_factory=Took)
    refused: int = 0  # an answer that is no 200
    lost: int = 0  # no answer: reset, or too late


def writer(
    address: Address, stop: Event, taken: multiprocessing.Queue[list[tuple[float, float]]]
) -> None:
    """One small append after the other; when each was sent, and the milliseconds that it took."""
    took = []
    with Api(address) as api:
        while not stop.is_set():
            sent = time.monotonic()
            try:
                ok(api.append("storm.0", 1))
            except (OSError, EOFError, AssertionError):  # the front has been killed
                api.close()
                time.sleep(0.05)
                continue
            took.append((sent, (time.monotonic() - sent) * 1000))
            time.sleep(PAUSE_S)
    taken.put(took)


@contextlib.contextmanager
def writing(address: Address) -> Iterator[list[tuple[float, float]]]:
    """A writer while the body runs; the list is filled at the end."""
    stop = multiprocessing.Event()
    taken: multiprocessing.Queue[list[tuple[float, float]]] = multiprocessing.Queue()
    process = multiprocessing.Process(target=writer, args=(address, stop, taken))
    process.start()
    found: list[tuple[float, float]] = []
    try:
        yield found
    finally:
        stop.set()
        found += taken.get(timeout=PATIENCE_S)
        process.join(PATIENCE_S)


class Crowd:
    """The clients. Each says its own request as soon as it is connected."""

    def __init__(self, address: Address, requests: list[bytes]) -> None:
        self._address, self._requests = address, requests
        self._sockets: list[socket.socket] = []

    def close(self) -> None:
        """Everybody's connection is reset."""
        for sock in self._sockets:
            sock.close()
        self._sockets = []

    def come(self) -> Gust:
        """Everybody connects now, and waits for the first bytes of an answer."""
        gust, began = Gust(), {}
        with select.epoll() as poll:
            for number in range(len(self._requests)):
                sock = socket.socket()
                sock.setblocking(False)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                began[sock.fileno()] = (sock, number, time.monotonic())
                self._sockets.append(sock)
                with contextlib.suppress(BlockingIOError):
                    sock.connect(self._address)
                poll.register(sock, select.EPOLLOUT)
                self._look(poll, began, gust, 0.0)
            until = time.monotonic() + PATIENCE_S
            while began and time.monotonic() < until:
                self._look(poll, began, gust, 0.1)
        gust.lost += len(began)
        return gust

    def _look(
        self,
        poll: select.epoll,
        began: dict[int, tuple[socket.socket, int, float]],
        gust: Gust,
        wait_s: float,
    ) -> None:
        for fd, events in poll.poll(wait_s):
            sock, number, at = began[fd]
            try:
                if events & select.EPOLLOUT:
                    sock.send(self._requests[number])
                    poll.modify(fd, select.EPOLLIN)
                    continue
                heard = sock.recv(4096)
            except OSError:
                heard = b""
            poll.unregister(fd)
            del began[fd]
            if not heard:
                gust.lost += 1
            elif heard[9:12] != b"200":
                gust.refused += 1
            else:
                gust.first_byte.values.append((time.monotonic() - at) * 1000)


def watch_requests(api: Api, clients: int) -> list[bytes]:
    """GETs of that many sessions, each of one topic."""
    found = []
    for number in range(clients):
        topics = {f"storm.{number % TOPICS}": {"tail": True}}
        made = ok(api.call("POST", "/v0/watch", {"topics": topics, "heartbeat_ms": 60_000}))
        found.append(request("GET", made["stream_url"], None, "Accept: text/event-stream"))
    return found


def campaign(kind: str, clients: int, storms: int) -> bool:
    """Print what one kind of storm does; whether all clients were answered."""
    with tempfile.TemporaryDirectory() as home, Server(Path(home) / "data") as server:
        with Api(server.address) as api:
            for number in range(TOPICS):
                ok(api.call("PUT", f"/v0/topics/storm.{number}", {}), 201)
            ask = request("GET", "/v0/topics/storm.1", None)
            requests = watch_requests(api, clients) if kind == "watch" else [ask] * clients
        crowd, gusts, during = Crowd(server.address, requests), [], []
        with (
            contextlib.closing(crowd),
            writing(server.address) as appends,
        ):  # forked first: its select() takes 1,024 descriptors
            for number in range(storms + 1):  # at first they only come
                time.sleep(CALM_S)
                start = time.monotonic()
                crowd.close()
                if kind == "killed" and number:
                    os.kill(server.roles()["front 0"], signal.SIGKILL)
                gusts.append(crowd.come())
                during.append((start, time.monotonic()))
            time.sleep(CALM_S)
        print(f"{kind}: {clients} clients", flush=True)
        for gust, (start, end) in zip(gusts, during, strict=True):
            beside = Took([took for sent, took in appends if start <= sent <= end])
            print(
                f"  first byte {gust.first_byte}, refused {gust.refused}, lost {gust.lost}, "
                f"over after {end - start:.2f} s; appends beside it {beside}",
                flush=True,
            )
        calm = Took(
            [
                took
                for sent, took in appends
                if not any(start <= sent <= end for start, end in during)
            ]
        )
        print(f"  appends between the storms: {calm}", flush=True)
        return not any(gust.refused or (gust.lost and kind != "killed") for gust in gusts)


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--clients", type=int, default=5000)
    options.add_argument("--storms", type=int, default=3)
    options.add_argument("--kinds", default="watch,ask,killed")
    chosen = options.parse_args()
    print(json.dumps({"file_limit": raise_file_limit()[1]}))
    good = [campaign(kind, chosen.clients, chosen.storms) for kind in chosen.kinds.split(",")]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
