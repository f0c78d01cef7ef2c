"""Many topics: ``python -m tests.bench.topics [BEFORE] [--topics 100000] [--only CELL]``.

A server of this checkout and, if given, one of the checkout BEFORE run all the time, with data of
their own; 16 clients load one of them at a time, turn by turn. Printed are medians of the turns:
operations a second, and the processor time of an operation in the front and in the shards.

    put              topics made by PUT
    first append     topics made by the first append of a record of 200 bytes
    one topic        appends of one such record, all to one topic
    many topics      the same, each to the next of ``--topics`` topics
    share            ``many topics`` to ``one topic``: their rates, and their processor times
    bytes a topic    anonymous memory of the server, for each of these topics, with one record
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.http_load import DATA, Load, drive, post, several
from tests.bench.processes import cpu_s, quiet, rss_mb
from tests.support.server import Server

CLIENTS, FILLERS = 16, 64
_PUT = (
    b"PUT /v0/topics/%b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b"
)

# A machine that does other things meanwhile makes the server refuse writes, which is no figure.
_APPEND = b'{"disable_backpressure":true,"records":[{"data":%b}]}' % DATA


def append(topic: str) -> bytes:
    """An append of one record."""
    return post(f"/v0/topics/{topic}?return_seqs=false", _APPEND)


@dataclass
class Figures:
    """Of one turn: operations a second, and microseconds of each kind of process for one."""

    rate: float
    front_us: float
    shard_us: float

    @property
    def cpu_us(self) -> float:
        return self.front_us + self.shard_us


@dataclass
class Place:
    """A running server, and the numbers of topics that were not made there yet."""

    name: str
    server: Server
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def put(self) -> bytes:
        config = b'{"durability":"fsync"}'
        return _PUT % (b"put-%07d" % next(self.numbers), len(config), config)

    def first_append(self) -> bytes:
        return append(f"new-{next(self.numbers):07}")

    def run(self, next_request: Callable[[], bytes | None], seconds: float | None) -> Figures:
        roles = self.server.roles()
        before = {role: cpu_s(pid) for role, pid in roles.items()}
        load = Load("topics", CLIENTS, next_request)
        took = drive(self.server.address, [load], seconds)
        count = len(load.seconds)
        front_us = shard_us = 0.0
        for role, pid in roles.items():
            used_us = (cpu_s(pid) - before[role]) / count * 1e6
            if role.startswith("front"):
                front_us += used_us
            elif role.startswith("shard"):
                shard_us += used_us
        return Figures(count / took, front_us, shard_us)


def memory_bytes(server: Server) -> float:
    return rss_mb(server.pids())[0] * 1024 * 1024


def fill(place: Place, topics: int) -> float:
    """Make the topics that ``many topics`` writes to, with a record each; the bytes that one
    takes.
    """
    quiet(place.server)
    before, numbers = memory_bytes(place.server), iter(range(topics))
    make = several(lambda: append(f"many-{next(numbers):07}"), topics)
    drive(place.server.address, [Load("fill", FILLERS, make)])
    quiet(place.server)
    return (memory_bytes(place.server) - before) / topics


def many(topics: int) -> Callable[[], bytes]:
    """Appends to each topic in turn, so that no two that follow each other meet the same caches."""
    numbers = itertools.cycle(range(topics))
    steps = 7919  # a prime: neighbours in time are no neighbours in memory

    def give() -> bytes:
        return append(f"many-{next(numbers) * steps % topics:07}")

    return give


def compare(name: str, turns: list[list[Figures]], places: list[Place]) -> list[Figures]:
    """Print the medians of a cell; they are the answer."""
    medians = [
        Figures(
            *(
                statistics.median(getattr(each, part) for each in figures)
                for part in ("rate", "front_us", "shard_us")
            )
        )
        for figures in turns
    ]
    for place, median in zip(places, medians, strict=True):
        print(
            f"{name:<14} {place.name:<7} {median.rate:>8,.0f}/s  front {median.front_us:>6.1f} us"
            f"  shards {median.shard_us:>6.1f} us",
            flush=True,
        )
    return medians


def main() -> int:
    """Print the figures of all cells."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path, nargs="?", help="checkout to compare with")
    parser.add_argument("--topics", type=int, default=100_000)
    parser.add_argument("--shards", type=int, default=0, help="default one for each core")
    parser.add_argument("--only", default="", help="cells whose name has this in it")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one turn")
    parser.add_argument("--dir", type=Path, help="where to write, default the system's for such")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="topics-many-", dir=arguments.dir))
    try:
        with contextlib.ExitStack() as running:
            places = list(_places(arguments, folder, running))
            _run(arguments, places)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def _places(
    arguments: argparse.Namespace, folder: Path, running: contextlib.ExitStack
) -> Iterator[Place]:
    settings = {"shards": arguments.shards} if arguments.shards else {}
    for name, root in (("before", arguments.before), ("now", None)):
        if name == "now" or root is not None:
            server = Server(folder / name, **settings)
            server.root = server.root if root is None else root.resolve()
            yield Place(name, running.enter_context(server))


def _run(arguments: argparse.Namespace, places: list[Place]) -> None:
    one_request = append("one")
    sources: dict[str, Callable[[Place], Callable[[], bytes]]] = {
        "put": lambda place: place.put,
        "first append": lambda place: place.first_append,
        "one topic": lambda _: lambda: one_request,
        "many topics": lambda _: many(arguments.topics),
    }
    names = [name for name in sources if arguments.only in name]
    if "many topics" in names:
        for place in places:
            print(f"bytes a topic  {place.name:<7} {fill(place, arguments.topics):>8,.0f}")
    turns: dict[str, list[list[Figures]]] = {name: [[] for _ in places] for name in names}
    for turn in range(arguments.turns):
        for name in names:
            for index in range(len(places))[:: -1 if turn % 2 else 1]:
                place = places[index]
                figures = place.run(sources[name](place), arguments.seconds)
                turns[name][index].append(figures)
    medians = {name: compare(name, turns[name], places) for name in names}
    if "one topic" in medians and "many topics" in medians:
        for index, place in enumerate(places):
            one, spread = medians["one topic"][index], medians["many topics"][index]
            print(
                f"share          {place.name:<7} rate {spread.rate / one.rate:>6.2f}"
                f"  processor time {one.cpu_us / spread.cpu_us:>6.2f}"
            )


if __name__ == "__main__":
    raise SystemExit(main())
