"""Where the time of one request goes: ``python -m tests.bench.hops [BEFORE] [--quick]``.

One client at a time; medians in microseconds of every hop between two borders of the path.

    append   an append of one record of 200 bytes, class fsync
    seldom   the same, with a pause of 10 ms before each
    live     a publish, class disk, to its one subscriber, with the same pause

While all processes sleep, their code leaves the caches, so the same steps take longer afterwards:
``append`` and ``seldom`` differ by that.

The columns: the checkout BEFORE, this one, and ``bare``, the same path with nothing on it
(`tests.bench.bare`). They take turns, each with a fresh server. Time stamps are taken at run time
by functions wrapped from outside (`tests.bench.preload.hop_stamps`), which costs about 1 us a hop;
``unstamped`` is the median of the same requests to a server without them. ``-``: no such border.
The sum of the medians is not the median of the sum. A sync that the loop makes itself spares two
wake-ups; a checkout that does so for a part of the requests has two paths in one column.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.bench.bare import BarePath
from tests.bench.hop_paths import (
    APPEND,
    BARE_APPEND,
    BARE_LIVE,
    LIVE,
    Hops,
    Span,
    Step,
    hops_of,
)
from tests.bench.hop_servers import (
    StampedBarePath,
    StampedServer,
    appender,
    publisher,
    stamped_of,
)
from tests.bench.live_clients import uncollected
from tests.bench.peers.load import PUBLISH_HZ
from tests.bench.processes import exit_when_told
from tests.bench.versions import stolen_s
from tests.support.server import ROOT, Server

WARM_UP = 200
Measured = tuple[Hops, float]  # the hops, and the median of a request without stamps


class Case(NamedTuple):
    """One table."""

    name: str
    steps: tuple[Step, ...]
    bare_steps: tuple[Step, ...]
    durability: str
    pause_s: float = 1 / PUBLISH_HZ


CASES = {
    "append": (appender, Case("append", APPEND, BARE_APPEND, "fsync", 0.0)),
    "seldom": (appender, Case("seldom", APPEND, BARE_APPEND, "fsync")),
    "live": (publisher, Case("live", LIVE, BARE_LIVE, "disk")),
}


class Bench:
    """Measures the columns of one case, each in a folder of its own."""

    def __init__(self, folder: Path, name: str, durability: str, shards: int, count: int) -> None:
        self._folder, self._shards, self._count = folder, shards, count
        self._client, self.case = CASES[name]
        self._durability = durability or self.case.durability
        self._runs = 0

    def server(self, root: Path) -> Measured:
        """A turn of a checkout, with stamps and without."""
        place = self._place()
        plain = Server(place / "plain", **({"shards": self._shards} if self._shards else {}))
        plain.root = root
        with plain:
            unstamped = self._spans(plain.address, server=True)
        server = StampedServer(place / "data", root, place / "stamps", self._shards)
        with server:
            spans = self._spans(server.address, server=True)
            processes = stamped_of(server.roles(), place / "stamps")
        return hops_of(spans, self.case.steps, processes), median_us(unstamped)

    def bare(self) -> Measured:
        """A turn of the bare path."""
        place, synced = self._place(), self._durability == "fsync"
        with BarePath(place, synced=synced) as plain:
            unstamped = self._spans(plain.address, server=False)
        with StampedBarePath(place / "stamps", synced=synced) as bare:
            spans = self._spans(bare.address, server=False)
            processes = bare.processes()
        return hops_of(spans, self.case.bare_steps, processes), median_us(unstamped)

    def _place(self) -> Path:
        self._runs += 1
        place = self._folder / f"{self.case.name}-{self._runs}"
        place.mkdir()
        return place

    def _spans(self, address: tuple[str, int], *, server: bool) -> list[Span]:
        client = self._client(address, self._durability, self.case.pause_s, server)
        with client as ask, uncollected():
            ask(WARM_UP)
            return ask(self._count)


def median_us(spans: Sequence[Span]) -> float:
    return statistics.median(ended - began for began, ended in spans) / 1000


def measure(bench: Bench, checkouts: Mapping[str, Path], turns: int) -> dict[str, Measured]:
    """All columns, in turns."""
    columns: dict[str, Callable[[], Measured]] = {
        name: partial(bench.server, root) for name, root in checkouts.items()
    }
    columns["bare"] = bench.bare
    hops = {name: Hops(total=[]) for name in columns}
    unstamped: dict[str, list[float]] = {name: [] for name in columns}
    for turn in range(turns):
        for name in [*columns] if turn % 2 else [*reversed(columns)]:
            found, median = columns[name]()
            hops[name].add(found)
            unstamped[name].append(median)
    return {name: (hops[name], statistics.median(unstamped[name])) for name in columns}


def rows(case: Case, measured: Mapping[str, Measured]) -> list[tuple[str, ...]]:
    """The table: hop, then a figure for each column."""

    def figure(value: float | None) -> str:
        return "-" if value is None else f"{value:.0f}"

    table = [("hop, us", *measured)]
    names = [step.hop for step in case.steps]
    for name in names:
        medians = [hops.median(name) for hops, _ in measured.values()]
        if any(value is not None for value in medians):
            table.append((name, *map(figure, medians)))
    sums = [sum(hops.median(name) or 0.0 for name in names) for hops, _ in measured.values()]
    table.append(("sum of the medians", *map(figure, sums)))
    table.append(
        ("median of a request", *(figure(h.median("total")) for h, _ in measured.values()))
    )
    if any(hops.synced for hops, _ in measured.values()):
        table.append(("synced by the loop", *(by_loop(hops) for hops, _ in measured.values())))
    table.append(("unstamped", *(figure(median) for _, median in measured.values())))
    return table


def by_loop(hops: Hops) -> str:
    """The share of syncs that no thread was handed."""
    return f"{hops.synced_by_loop / hops.synced:.0%}" if hops.synced else "-"


def hop_table(
    name: str, checkouts: Mapping[str, Path], *, durability: str, shards: int, count: int,
    turns: int, folder: Path | None,
) -> list[tuple[str, ...]]:  # fmt: skip
    """Measure one case."""
    place = Path(tempfile.mkdtemp(prefix="topics-hops-", dir=folder))
    try:
        bench = Bench(place, name, durability, shards, count)
        return rows(bench.case, measure(bench, checkouts, turns))
    finally:
        shutil.rmtree(place)


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("before", type=Path, nargs="?", help="another checkout")
    options.add_argument("--only", default=",".join(CASES))
    options.add_argument("--durability", default="", help="of all cases")
    options.add_argument("--shards", type=int, default=0, help="default: the server's")
    options.add_argument("--count", type=int, default=1000, help="of requests in one turn")
    options.add_argument("--turns", type=int, default=3)
    options.add_argument("--quick", action="store_true", help="300 requests, one turn")
    options.add_argument("--dir", type=Path, help="where to write, default the system's for such")
    chosen = options.parse_args()
    exit_when_told()
    count, turns = (300, 1) if chosen.quick else (chosen.count, chosen.turns)
    checkouts = {"before": chosen.before.resolve()} if chosen.before else {}
    checkouts["now"] = ROOT
    for name in chosen.only.split(","):
        stolen = stolen_s()
        table = hop_table(
            name, checkouts, durability=chosen.durability, shards=chosen.shards, count=count,
            turns=turns, folder=chosen.dir,
        )  # fmt: skip
        print(f"{name}: {turns} x {count} requests, stolen {stolen_s() - stolen:.1f} s")
        for first, *others in table:
            print(f"  {first:<22}" + "".join(f"{each:>9}" for each in others), flush=True)


if __name__ == "__main__":
    main()
