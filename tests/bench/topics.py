"""Many topics: ``python -m tests.bench.topics [BEFORE] [--topics 100000] [--only CELL]``.

A server of this checkout and, if given, one of the checkout BEFORE run all the time, with data of
their own; 16 clients load one of them at a time, alternately. Printed are medians of the rounds:
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
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.bench.peers.load import Connection, Script, Step, append, drive
from tests.bench.peers.replies import Http, http
from tests.bench.processes import anon_mb, cpu_s, quiet, server_of
from tests.support.server import Server

CLIENTS, FILLERS = 16, 64
STRIDE = 7919  # a prime, so that consecutive requests use topics that are not adjacent in memory
# Otherwise the server refuses writes while other programs load the machine.
PUSHED = b'"disable_backpressure":true,'
Make = Callable[[int], bytes]  # the request with this number


class Figures(NamedTuple):
    """Results of one run: operations per second, and CPU microseconds per operation of each kind of
    process.
    """

    rate: float
    front_us: float
    shard_us: float

    @property
    def cpu_us(self) -> float:
        return self.front_us + self.shard_us


def script(make: Make, numbers: Iterator[int]) -> Script:
    """Yield a request for each of the numbers."""
    reply, done = Http(), 0
    for number in numbers:
        yield Step(make(number), reply, done)
        done = 1


class RunningServer:
    """A running server, and the numbers of requests that were not sent to it yet."""

    def __init__(self, name: str, server: Server) -> None:
        self.name, self.server, self._numbers = name, server, itertools.count()

    def run(self, make: Make, seconds: float) -> Figures:
        before = self._used_s()
        clients = [
            (Connection(self.server.address), script(make, self._numbers)) for _ in range(CLIENTS)
        ]
        loaded = drive(clients, seconds)
        used_us = [
            (now - then) / loaded.done * 1e6
            for now, then in zip(self._used_s(), before, strict=True)
        ]
        for connection, _ in clients:
            connection.close()
        return Figures(loaded.done / loaded.took_s, *used_us)

    def _used_s(self) -> tuple[float, float]:
        roles = self.server.roles()
        front, shards = (
            [pid for role, pid in roles.items() if role.startswith(kind)]
            for kind in ("front", "shard")
        )
        return cpu_s(*front), cpu_s(*shards)

    def fill(self, topics: int) -> float:
        """Create the topics that ``many topics`` writes to, with one record each. Return the bytes
        per topic.
        """
        quiet(self.server)
        before, numbers = anon_mb(self.server.pids()), iter(range(topics))
        drive(
            [
                (Connection(self.server.address), script(_many(topics), numbers))
                for _ in range(FILLERS)
            ],
            1e6,
        )
        quiet(self.server)
        return (anon_mb(self.server.pids()) - before) * 2**20 / topics


def _many(topics: int) -> Make:
    return lambda number: append(f"many-{number * STRIDE % topics:07}", 1, PUSHED)


def main() -> int:
    """Print the results of all cells."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path, nargs="?", help="checkout to compare with")
    parser.add_argument("--topics", type=int, default=100_000)
    parser.add_argument(
        "--shards", type=int, default=0, help="number of shards; default one for each core"
    )
    parser.add_argument("--only", default="", help="part of the names of cells")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="duration of one run")
    parser.add_argument(
        "--dir", type=Path, help="folder of the data; default the folder for temporary files"
    )
    args = parser.parse_args()
    settings = {"shards": args.shards} if args.shards else {}
    roots = {"before": args.before} if args.before else {}
    with (
        tempfile.TemporaryDirectory(prefix="topics-many-", dir=args.dir) as folder,
        contextlib.ExitStack() as running,
    ):
        _run(
            args,
            [
                RunningServer(
                    name, running.enter_context(server_of(root, Path(folder, name), **settings))
                )
                for name, root in (roots | {"now": None}).items()
            ],
        )
    return 0


def _run(args: argparse.Namespace, servers: list[RunningServer]) -> None:
    config = b'{"durability":"fsync"}'
    one = append("one", 1, PUSHED)
    makes: dict[str, Make] = {
        "put": lambda number: http("PUT", f"/v0/topics/put-{number:07}", config),
        "first append": lambda number: append(f"new-{number:07}", 1, PUSHED),
        "one topic": lambda _: one,
        "many topics": _many(args.topics),
    }
    makes = {name: make for name, make in makes.items() if args.only in name}
    if "many topics" in makes:
        for server in servers:
            print(f"bytes a topic  {server.name:<7} {server.fill(args.topics):>8,.0f}")
    rounds: dict[tuple[str, str], list[Figures]] = {}
    for number in range(args.rounds):
        for name, make in makes.items():
            for server in servers[:: -1 if number % 2 else 1]:
                found = server.run(make, args.seconds)
                rounds.setdefault((name, server.name), []).append(found)
    medians = {
        key: Figures(*map(statistics.median, zip(*found, strict=True)))
        for key, found in rounds.items()
    }
    for (name, server_name), found in medians.items():
        print(
            f"{name:<14} {server_name:<7} {found.rate:>8,.0f}/s  front {found.front_us:>6.1f} us"
            f"  shards {found.shard_us:>6.1f} us"
        )
    for server in servers if {"one topic", "many topics"} <= makes.keys() else ():
        one_topic, many = (medians[name, server.name] for name in ("one topic", "many topics"))
        print(
            f"share          {server.name:<7} rate {many.rate / one_topic.rate:>6.2f}"
            f"  processor time {one_topic.cpu_us / many.cpu_us:>6.2f}"
        )


if __name__ == "__main__":
    raise SystemExit(main())
