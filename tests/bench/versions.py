"""Two checkouts side by side: ``python -m tests.bench.versions BEFORE [--only CELL] [--turns 7]``.

A server of each checkout runs all the time, with data of its own; the load goes to one of them at a
time, turn by turn, so that a drift of the machine meets both. Printed for every cell are the
medians, their ratio (this checkout to BEFORE; for delays BEFORE to this, so that more is better
everywhere) and how far the turns of BEFORE spread. ``stolen`` is what the host took away.

    append CLASS N x M   N clients that append M records a request, acknowledged records a second
    read by 1,000        one client reads all records of a topic, records a second
    live 50              from a publish to the last of 50 subscribers, 100 publishes a second, p50
    fan-out 50           deliveries a second to 50 subscribers, publishes as fast as acknowledged
"""

from __future__ import annotations

import argparse
import contextlib
import select
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path

from tests.bench.http_load import Client, Load, append, drive, post
from tests.bench.live_clients import stream
from tests.support.server import Server

APPENDS = ((1, 1), (16, 1), (64, 1), (16, 100), (4, 1000), (1, 10_000))
CLASSES = ("fsync", "disk")
READ_RECORDS, READ_LIMIT = 200_000, 1000
SUBSCRIBERS, PUBLISH_HZ = 50, 100
RATIO_MIN = 0.97

Cell = Callable[[Server, float], float]


def appends(clients: int, records: int, durability: str) -> Cell:
    """Acknowledged records a second."""
    topic = f"append-{durability}-{clients}-{records}"
    config = b'{"durability":"%b","cap_records":200000}' % durability.encode()
    request = append(topic, records, config)

    def run(server: Server, seconds: float) -> float:
        load = Load(topic, clients, repeat(request).__next__)
        took = drive(server.address, [load], seconds)
        return len(load.seconds) * records / took

    return run


def read(server: Server, seconds: float) -> float:
    """Records a second, from the first to the last, again and again."""
    client = Client(server.address)
    head_seq = client.ask_json(append("read", 1000))["head_seq"]
    while head_seq < READ_RECORDS:
        head_seq = client.ask_json(append("read", 1000))["head_seq"]
    began, records, from_seq = time.perf_counter(), 0, 0
    while time.perf_counter() - began < seconds:
        body = b'{"from_seq":%d,"limit":%d}' % (from_seq, READ_LIMIT)
        client.ask(post("/v0/topics/read/diff", body))
        from_seq += READ_LIMIT
        records += READ_LIMIT
        if from_seq >= READ_RECORDS:
            from_seq = 0
    took = time.perf_counter() - began
    client.close()
    return records / took


@contextlib.contextmanager
def subscribers(server: Server, topic: str) -> Iterator[tuple[Client, list[socket.socket]]]:
    """A publisher and so many open streams."""
    client = Client(server.address)
    client.ask(append(topic, 1, b'{"durability":"disk","cap_records":1000}'))
    streams = [stream(server.address, client, topic) for _ in range(SUBSCRIBERS)]
    try:
        yield client, streams
    finally:
        for sock in streams:
            sock.close()
        client.close()


def take(poll: select.epoll, streams: dict[int, socket.socket], wanted: int) -> None:
    """Read until so many events have come to all streams together."""
    got = 0
    while got < wanted:
        ready = poll.poll(10)
        assert ready, "no delivery for 10 s"
        for fd, _ in ready:
            data = streams[fd].recv(1 << 20)
            assert data, "the server hung up"
            got += data.count(b"event: record\n")


def live(server: Server, seconds: float) -> float:
    """Milliseconds from before a publish to its last delivery, p50."""
    delays = []
    with (
        subscribers(server, "live") as (client, streams),
        contextlib.closing(select.epoll()) as poll,
    ):
        by_fd = {sock.fileno(): sock for sock in streams}
        for fd in by_fd:
            poll.register(fd, select.EPOLLIN)
        request = append("live", 1)
        due = time.perf_counter()
        until = due + seconds
        while due < until:
            time.sleep(max(0.0, due - time.perf_counter()))
            began = time.perf_counter()
            client.ask(request)
            take(poll, by_fd, SUBSCRIBERS)
            delays.append(time.perf_counter() - began)
            due += 1 / PUBLISH_HZ
    return statistics.median(delays) * 1000


def fan_out(server: Server, seconds: float) -> float:
    """Deliveries a second."""
    with (
        subscribers(server, "fan") as (client, streams),
        contextlib.closing(select.epoll()) as poll,
    ):
        by_fd = {sock.fileno(): sock for sock in streams}
        for fd in by_fd:
            poll.register(fd, select.EPOLLIN)
        request, delivered = append("fan", 1), 0
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            client.ask(request)
            take(poll, by_fd, SUBSCRIBERS)
            delivered += SUBSCRIBERS
        return delivered / (time.perf_counter() - began)


CELLS: dict[str, Cell] = {
    **{
        f"append {durability} {clients} x {records:,}": appends(clients, records, durability)
        for durability in CLASSES
        for clients, records in APPENDS
    },
    "read by 1,000": read,
    "live 50, ms": live,
    "fan-out 50": fan_out,
}


def _server_of(root: Path, data_dir: Path) -> Server:
    server = Server(data_dir)
    server.root = root
    return server


def stolen_s() -> float:
    """Processor time that the host has taken away since it started."""
    return int(Path("/proc/stat").read_text().split(None, 9)[8]) / 100


def compare(name: str, cell: Cell, servers: list[Server], turns: int, seconds: float) -> bool:
    """Run one cell; whether this checkout holds its ratio."""
    figures: list[list[float]] = [[] for _ in servers]
    stolen = stolen_s()
    for server in servers:
        cell(server, seconds / 2)  # topics are made, caches filled
    for turn in range(turns):
        for index in (0, 1) if turn % 2 else (1, 0):
            figures[index].append(cell(servers[index], seconds))
    before, now = (statistics.median(each) for each in figures)
    ratio = before / now if name.endswith("ms") else now / before
    spread = (max(figures[0]) - min(figures[0])) / before
    print(
        f"{name:<24} before {before:>12,.2f}  now {now:>12,.2f}  ratio {ratio:>5.2f}"
        f"  spread {spread:>4.0%}  stolen {stolen_s() - stolen:.1f} s",
        flush=True,
    )
    return ratio >= RATIO_MIN


def main() -> int:
    """Exit status 1 when a ratio is below `RATIO_MIN`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path, help="checkout of the version to compare with")
    parser.add_argument("--only", default="", help="cells whose name has this in it")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.5, help="of one turn")
    parser.add_argument("--dir", type=Path, help="where to write, default the system's for such")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="topics-versions-", dir=arguments.dir))
    cells = {name: cell for name, cell in CELLS.items() if arguments.only in name}
    try:
        with (
            _server_of(arguments.before.resolve(), folder / "before") as before,
            Server(folder / "now") as now,
        ):
            held = [
                compare(name, cell, [before, now], arguments.turns, arguments.seconds)
                for name, cell in cells.items()
            ]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
