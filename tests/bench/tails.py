"""How long the slowest appends take: ``python -m tests.bench.tails [BEFORE] [--quick]``.

Clients that append one record of 200 bytes, each with the next request as soon as it has its
answer, beside nothing, bodies of 64 MiB, sealing, and 500 streams that are read
(`tests.bench.beside`). The checkout BEFORE and this one take turns, each with a fresh server.

Printed are medians over the turns of p50, p99, p99.9 and the largest, in ms, and what went on
beside a second: a shorter tail beside less work is none. ``ratio`` is p99.9 of BEFORE to this, so
more is better; ``spread`` is how far the turns of the first column's checkout differ. Figures of a
machine with other load, or with stolen time, say little here.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from collections.abc import Mapping
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

from tests.bench.beside import SCENES, Beside, going_on
from tests.bench.http_load import Client, Load, append, drive, quantiles_ms
from tests.bench.processes import exit_when_told
from tests.bench.versions import stolen_s
from tests.support.server import ROOT, Server

CLIENTS = 4
P999 = 2


class Turn(NamedTuple):
    """p50, p99, p99.9 and the largest in ms; how many appends, and how much beside, a second."""

    quantiles: list[float]
    rate: float
    beside: float


def turn(root: Path, scene: Beside, durability: str, seconds: float, folder: Path) -> Turn:
    """One run on a fresh server."""
    data = Path(tempfile.mkdtemp(dir=folder))
    server = Server(data / "data", **scene.env)
    server.root = root
    try:
        with server:
            config = b'{"durability":"%b","cap_records":100000}' % durability.encode()
            client = Client(server.address)
            client.ask(append("small", 1, config))
            client.close()
            with going_on(scene, server.address) as worker:
                load = Load("small", CLIENTS, repeat(append("small", 1)).__next__)
                before = worker.count
                took = drive(server.address, [load], seconds)
                beside = (worker.count - before) / took
            server.kill()
    finally:
        shutil.rmtree(data, ignore_errors=True)
    return Turn(quantiles_ms(load.seconds), len(load.seconds) / took, beside)


def medians(turns: list[Turn]) -> Turn:
    """Of each figure by itself."""
    quantiles = [
        statistics.median(each) for each in zip(*(t.quantiles for t in turns), strict=True)
    ]
    return Turn(
        quantiles,
        statistics.median(each.rate for each in turns),
        statistics.median(each.beside for each in turns),
    )


def compare(
    name: str, checkouts: Mapping[str, Path], chosen: argparse.Namespace, folder: Path
) -> None:
    """All turns of one scene, and its lines."""
    scene, stolen = SCENES[name], stolen_s()
    turns: dict[str, list[Turn]] = {version: [] for version in checkouts}
    for number in range(chosen.turns):
        for version in [*checkouts] if number % 2 else [*checkouts][::-1]:
            root = checkouts[version]
            run = turn(root, scene, chosen.durability, chosen.seconds, folder)
            turns[version].append(run)
    stolen = stolen_s() - stolen
    first = [each.quantiles[P999] for each in next(iter(turns.values()))]
    for version, runs in turns.items():
        middle = medians(runs)
        ratio = statistics.median(first) / middle.quantiles[P999]
        figures = "".join(f"{figure:>9.2f}" for figure in middle.quantiles)
        beside = f"{middle.beside:,.1f} {scene.unit}/s" if scene.unit else ""
        spread = f"spread {(max(first) - min(first)) / statistics.median(first):.0%}"
        print(
            f"{name:<15}{version:<8}{middle.rate:>10,.0f}{figures}{ratio:>7.2f}"
            f"  {spread}, stolen {stolen:.1f} s  {beside}",
            flush=True,
        )


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("before", type=Path, nargs="?", help="another checkout")
    options.add_argument("--only", default="", help="scenes whose name has this in it")
    options.add_argument("--durability", default="fsync")
    options.add_argument("--turns", type=int, default=3)
    options.add_argument("--seconds", type=float, default=8.0, help="of one turn")
    options.add_argument("--quick", action="store_true", help="one turn of 2 s: does it work?")
    options.add_argument("--dir", type=Path, help="where to write, default the system's for such")
    chosen = options.parse_args()
    exit_when_told()
    if chosen.quick:
        chosen.turns, chosen.seconds = 1, 2.0
    checkouts = {"before": chosen.before.resolve()} if chosen.before else {}
    checkouts["now"] = ROOT
    print(
        f"{'':<15}{'':<8}{'appends/s':>10}{'p50 ms':>9}{'p99':>9}{'p99.9':>9}{'max':>9}{'ratio':>7}"
    )
    folder = Path(tempfile.mkdtemp(prefix="topics-tails-", dir=chosen.dir))
    try:
        for name in SCENES:
            if chosen.only in name:
                compare(name, checkouts, chosen, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
