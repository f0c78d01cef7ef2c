"""Compares topics with all peers in one table: ``python -m tests.bench.table [--quick] [--write]``.

`tests.bench.cells` describes the cells. The peers are Redis, webdis, NATS, beanstalkd and Durable
Streams. The installed peers are measured (`tests.bench.peers.system.find`); the others are listed
as missing. The servers run in turn, each run with a new server. ``--write`` writes
``topics/BENCHMARKS.md``. ``--before CHECKOUT`` adds another version of topics as a peer.

All cells with all peers take half an hour. ``--json FILE`` stores the results. With ``--only``,
some cells are measured again and the others are read from this file; ``--only none`` only renders
it.

The exit status is 1 if a server of topics failed or its counts were wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.bench.cells import CELLS, Cell, Figure, Scale, settle
from tests.bench.peers.beanstalkd import Beanstalkd
from tests.bench.peers.durable_streams import DurableStreams
from tests.bench.peers.nats import Nats
from tests.bench.peers.redis import Redis, Webdis
from tests.bench.peers.replies import BadReply
from tests.bench.peers.system import NotFound, NotStarted, System
from tests.bench.peers.topics import Before, Topics
from tests.bench.processes import exit_on_request, stolen_s
from tests.bench.report import (
    OURS,
    Results,
    Runs,
    median,
    nothing,
    page,
    processor,
    ratio,
    shown,
)
from tests.support.server import ROOT

PAGE = ROOT / "topics/BENCHMARKS.md"
SYSTEMS: tuple[type[System], ...] = (
    *(Topics, Before, Redis, Webdis, Nats, Beanstalkd, DurableStreams),
)
SYNCS = 200
FULL, QUICK = Scale(2.0, 200_000), Scale(0.7, 20_000)
FAILURES = (AssertionError, BadReply, NotStarted, OSError)


def fdatasync_us(folder: Path) -> float:
    """Return the p50 of a write of 300 bytes and its sync in this folder."""
    times = []
    with tempfile.TemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, 1 << 20)
        os.fsync(file.fileno())
        for number in range(SYNCS):
            began = time.perf_counter()
            os.pwrite(file.fileno(), bytes(300), number * 300)
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6


def conditions(folder: Path) -> dict[str, str]:
    """Return the conditions of a run that a reader must know."""
    described = ["git", "describe", "--always", "--dirty=+", "--abbrev=10"]
    revision = subprocess.run(described, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    rows = Path("/proc/cpuinfo").read_text().splitlines()
    models = [row.partition(":")[2].strip() for row in rows if row.startswith("model name")]
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "revision": revision or "?",
        "processor": f"{len(os.sched_getaffinity(0))} cores, {(models or [platform.machine()])[0]}",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "write of 300 bytes and fdatasync": f"{fdatasync_us(folder):.0f} us",
        "load before": f"{os.getloadavg()[0]:.1f}",
    }


def installed(names: Sequence[str], results: Results) -> list[type[System]]:
    """Return the installed servers. Record versions, and missing servers."""
    found = []
    for system in SYSTEMS:
        if system is Before and Before.root is None:
            continue
        if system not in (Topics, Before) and names and system.name not in names:
            continue
        try:
            results["versions"][system.name] = system.version()
            found.append(system)
        except NotFound as missing:
            results["missing"][system.name] = str(missing)
            print(f"left out: {system.name}: {missing}", flush=True)
    return found


def run_once(cell: Cell, kind: type[System], scale: Scale, folder: Path) -> Figure:
    """Run once on a fresh server."""
    server_folder = Path(tempfile.mkdtemp(prefix=f"{kind.name}-", dir=folder))
    system = kind(server_folder)
    try:
        system.start(cell.durability)
        system.make(cell.kind, cell.durability)
        settle(system)
        return cell.run(system, scale)
    finally:
        system.stop()
        shutil.rmtree(server_folder, ignore_errors=True)


def measure(
    cell: Cell, systems: Sequence[type[System]], scale: Scale, rounds: int, folder: Path
) -> dict[str, Runs]:
    """Run the servers of a cell one after the other, ``rounds`` times."""
    part = [system for system in systems if cell.is_supported_by(system)]
    runs: dict[str, Runs] = {each.name: {"values": [], "cpu_us": [], "wrong": []} for each in part}
    for number in range(rounds):
        for system in reversed(part) if number % 2 else part:
            server_runs = runs[system.name]
            try:
                value, cpu_us, wrong = run_once(cell, system, scale, folder)
            except FAILURES as failure:
                server_runs["wrong"].append(f"failed: {type(failure).__name__}: {failure}"[:200])
                continue
            server_runs["values"].append(value)
            server_runs["cpu_us"].append(cpu_us)
            if wrong:
                server_runs["wrong"].append(wrong)
    return runs


def print_cell(cell: str, runs: dict[str, Runs], stolen: float) -> None:
    """Print one line of a cell."""
    ours = median(runs.get(OURS))
    parts = [f"{cell:<24}"]
    for name, each in runs.items():
        in_brackets = "" if name == OURS else f" ({ratio(cell, ours, median(each)) or '-'})"
        parts.append(f"{name} {shown(cell, median(each)) or '-'}{in_brackets}")
        parts += [f"[{wrong}]" for wrong in each["wrong"]]
    print("  ".join(parts) + f"  stolen {stolen:.1f} s", flush=True)


def run_table(args: argparse.Namespace, results: Results, folder: Path) -> None:
    """Measure the cells that the arguments select."""
    scale, rounds = (QUICK, 1) if args.quick else (FULL, 3)
    rounds = args.rounds or rounds
    if args.seconds:
        scale = scale._replace(seconds=args.seconds)
    systems = installed([name for name in args.peers.split(",") if name], results)
    results["conditions"] = conditions(folder)
    parts = [f"{each.name} {results['versions'][each.name]}" for each in systems]
    print(", ".join((*parts, *(f"{k}: {v}" for k, v in results["conditions"].items()))), flush=True)
    stolen = stolen_s()
    for cell in CELLS.values():
        if any(part in cell.name for part in args.only.split(",")):
            before = stolen_s()
            runs = measure(cell, systems, scale, rounds, folder)
            results["cells"][cell.name] = runs
            print_cell(cell.name, runs, stolen_s() - before)
            save(args.json, results)
    results["conditions"] |= {
        "runs": f"{rounds} of {scale.seconds:g} s, {scale.read_records:,} records to read",
        "CPU time stolen": f"{stolen_s() - stolen:.1f} s",
        "load after": f"{os.getloadavg()[0]:.1f}",
    }


def save(path: Path | None, results: Results) -> None:
    """Save the results, also of an interrupted run."""
    if path is not None:
        path.write_text(json.dumps(results, indent=1))


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--quick", action="store_true", help="one round of 0.7 s: does it work?")
    options.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    options.add_argument("--only", default="", help="comma-separated parts of the names of cells")
    options.add_argument("--peers", default="", help="names of peers, comma-separated; default all")
    options.add_argument("--rounds", type=int, default=0)
    options.add_argument("--seconds", type=float, default=0.0, help="duration of one run")
    options.add_argument(
        "--json", type=Path, help="file for the results; results of other cells are read from it"
    )
    options.add_argument(
        "--dir", type=Path, help="folder of the data; default the folder for temporary files"
    )
    options.add_argument("--before", type=Path, help="another checkout")
    args = options.parse_args()
    Before.root = args.before
    exit_on_request()
    results = nothing()
    if args.json and args.json.exists():
        results = json.loads(args.json.read_text())
    folder = Path(tempfile.mkdtemp(prefix="topics-table-", dir=args.dir))
    try:
        if args.only != "none":
            run_table(args, results, folder)
            save(args.json, results)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for row in processor(results)[1:]:
        print("CPU us a record: " + "  ".join(row))
    if args.write:
        PAGE.write_text(page(results))
    bad = [runs[OURS]["wrong"] for runs in results["cells"].values() if OURS in runs]
    return 1 if any(bad) else 0


if __name__ == "__main__":
    sys.exit(main())
