"""Run seeds, sequentially or in parallel, and print the history of a seed that breaks a
promise.

    python -m tests.simulation --seeds 2000 --jobs 2     a simulated hour each, from seed --first on
    python -m tests.simulation --first 17                only this seed
    python -m tests.simulation --seeds 200 --plant NAME  with a planted fault, until it is found

A run that breaks a promise is reduced to its shortest prefix that breaks one, and printed.
"""

from __future__ import annotations

import argparse
import gc
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

import msgspec

REAL_MONOTONIC = time.monotonic  # before a world replaces it


class SeedResult(msgspec.Struct):
    """The result that a child process reports for its seed."""

    seed: int
    broken: list[str]
    concerned: list[int]
    digest: str
    simulated_s: float
    cpu_s: float
    calls: int
    deaths: int


def forked(task: Callable[[], bytes]) -> tuple[int, BinaryIO]:
    """Run the task in a child process. Return its pid, and the pipe with its output."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(ours)
            with os.fdopen(theirs, "wb") as pipe:
                pipe.write(task())
            code = 0
        finally:
            os._exit(code)
    os.close(theirs)
    return pid, os.fdopen(ours, "rb")


def run_seed(seed: int, options: argparse.Namespace, cut_s: float | None = None) -> bytes:
    """Run a seed in a child process. With ``cut_s`` it stops early."""
    from tests.simulation import planted, run
    from tests.simulation.history import Call, save

    if options.plant:
        planted.PLANTED[options.plant]()
    found = run.run(seed, span_s=options.span, cut_s=cut_s or options.cut)
    if options.save:
        save(Path(options.save) / f"{seed}.jsonl", found.entries)
    calls = sum(isinstance(entry, Call) for entry in found.entries)
    result = SeedResult(
        seed,
        found.broken,
        found.concerned,
        found.digest,
        found.simulated_s,
        found.cpu_s,
        calls,
        run.deaths(found.entries),
    )
    return msgspec.json.encode(result)


def result_of(pid: int, pipe: BinaryIO, seed: int) -> SeedResult:
    with pipe:
        data = pipe.read()
    os.waitpid(pid, 0)
    if not data:
        return SeedResult(seed, ["the process of the world has died"], [], "", 0.0, 0.0, 0, 0)
    return msgspec.json.decode(data, type=SeedResult)


def results(seeds: Iterator[int], options: argparse.Namespace) -> Iterator[SeedResult]:
    """Yield the results of all seeds, ``jobs`` at a time."""
    running: dict[int, tuple[int, BinaryIO, int]] = {}
    while True:
        while len(running) < options.jobs and (seed := next(seeds, None)) is not None:
            pid, pipe = forked(partial(run_seed, seed, options))
            running[pipe.fileno()] = pid, pipe, seed
        if not running:
            return
        ready, _, _ = select.select([*running], [], [])
        for fd in ready:
            yield result_of(*running.pop(fd))


def shrunk(seed: int, options: argparse.Namespace, until_s: float) -> float:
    """Return the shortest prefix, in seconds, that breaks a promise."""
    low, high = 0.0, until_s
    while high - low > max(1.0, 0.02 * high):
        middle = (low + high) / 2
        pid, pipe = forked(partial(run_seed, seed, options, middle))
        if result_of(pid, pipe, seed).broken:
            high = middle
        else:
            low = middle
    return high


def show(seed: int, options: argparse.Namespace) -> None:
    """Print the shortest violating history for people."""
    cut_s = shrunk(seed, options, options.cut or options.span)
    pid, pipe = forked(partial(history_text, seed, options, cut_s))
    with pipe:
        sys.stdout.buffer.write(pipe.read())
    os.waitpid(pid, 0)


def history_text(seed: int, options: argparse.Namespace, cut_s: float) -> bytes:
    """Return the history up to ``cut_s``, computed in a child process."""
    from tests.simulation import planted, run
    from tests.simulation.report import LINE_MAX, lines

    if options.plant:
        planted.PLANTED[options.plant]()
    found = run.run(seed, span_s=options.span, cut_s=cut_s)
    result = [f"--- seed {seed}, its first {cut_s:.1f} s"]
    result += [f"BROKEN {sentence}" for sentence in found.broken[:10]]
    result += lines(found.entries, {*found.concerned})
    for event in found.log[-40:]:
        result.append(f"log {msgspec.json.encode(event, enc_hook=str).decode()}"[:LINE_MAX])
    return "".join(f"{line}\n" for line in result).encode()


def main() -> int:
    """Run the program. Exit code 1 means that a promise is broken."""
    parser = argparse.ArgumentParser(prog="tests.simulation", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--span", type=float, default=3600.0, help="simulated seconds of each seed")
    parser.add_argument("--cut", type=float, help="stop all activity after this number of seconds")
    parser.add_argument("--minutes", type=float, default=0.0, help="time limit for new seeds")
    parser.add_argument("--plant", help="plant a fault; stop when it is found")
    parser.add_argument("--reduce", type=int, default=1, help="number of failed seeds to reduce")
    parser.add_argument("--save", help="a directory for the histories")
    parser.add_argument("--quiet", action="store_true", help="omit seeds without errors")
    options = parser.parse_args()
    import tests.simulation.run  # noqa: F401

    gc.freeze()
    began = REAL_MONOTONIC()
    seeds = iter(range(options.first, options.first + options.seeds))
    failed: list[int] = []
    count, simulated_s, cpu_s = 0, 0.0, 0.0

    def remaining_seeds() -> Iterator[int]:
        for seed in seeds:
            is_over = options.minutes and REAL_MONOTONIC() - began > 60 * options.minutes
            if is_over or (options.plant and failed):
                return
            yield seed

    for result in results(remaining_seeds(), options):
        count, simulated_s, cpu_s = (
            count + 1,
            simulated_s + result.simulated_s,
            cpu_s + result.cpu_s,
        )
        if result.broken:
            failed.append(result.seed)
        if result.broken or not options.quiet:
            facts = f"{result.calls} calls, {result.deaths} deaths, {result.cpu_s:.1f} s"
            print(f"seed {result.seed}: {facts}, {result.digest}", flush=True)
        for sentence in result.broken[:5]:
            print(f"    BROKEN {sentence}", flush=True)
    rate = simulated_s / cpu_s if cpu_s else 0.0
    print(f"{count} seeds, {simulated_s / 3600:.1f} simulated hours, {rate:.0f} s a second of CPU")
    for seed in sorted(failed)[: options.reduce]:
        show(seed, options)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
