"""Soak: a mixed load on a real server for an hour, at half load, with a restart every ten minutes.

    python -m tests.bench.soak --minutes 60 --restart-every 10 [--load 0.5] [--out soak.svg]

Clients append in all durability classes, with and without keys, one by one and in batches, over
HTTP and WebSocket. They follow topics with event streams, WebSockets and long polls, also behind a
chain and a fan of routers. They read old pages, work on jobs, some of which become dead letters,
delete records, and create and delete topics. Caps and ages bound the data. The log files reach
their final size before the measurement. First all clients run at full speed for some seconds; then
each runs at ``--load`` of its rate. Every other restart kills all processes with SIGKILL.

The exit code is 1 unless these conditions hold:

- no request fails outside restarts; a refusal (429) is retried
- every reader receives each acknowledged record once, and each job is done once; records that are
  kept only in memory may be lost in a restart
- memory, descriptors and files in the last third are not above those in the second third, nor is
  the p99, within the bounds of `FLAT`: medians of samples that are taken every five seconds, but
  not in the first five after a restart; a request during a restart is not timed

A leak that each restart resets is visible in the plot, or with ``--restart-every 0``.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import monotonic, sleep
from typing import Final

from tests.bench.plot import svg
from tests.bench.processes import (
    cpu_s,
    exit_on_request,
    machine_s,
    quantiles_ms,
    stolen_s,
    verdict,
)
from tests.bench.soak_load import Client, Soak, clients, fill, finish
from tests.support.server import Server, open_files, rss_bytes
from topics.config import usable_cores

MB: Final = 1e6
MEMORY, COUNTS, DATA = "resident memory, MB", "descriptors and files", "data directory, MB"
P50, P99, PROCESSOR = "p50, ms", "p99, ms", "processor, % of the machine"
# How many times the second third, and how much more, the last one may have.
FLAT: Final = {MEMORY: (1.05, 8), COUNTS: (1.05, 8), DATA: (1.05, 16), P99: (1.5, 0)}
Sample = dict[str, dict[str, float]]


class Samples:
    """Measurements of a server, one per window. ``minutes``: when each sample was taken."""

    def __init__(self, soak: Soak) -> None:
        self._soak, self._began = soak, monotonic()
        self.minutes, self.samples, self.restarts = list[float](), list[Sample](), list[float]()
        self.begin()

    @property
    def minute(self) -> float:
        return (monotonic() - self._began) / 60

    def begin(self) -> None:
        """Begin a window."""
        self._soak.window()
        self._at, self._used = monotonic(), self._used_s()

    def _used_s(self) -> list[float]:
        return [machine_s(), cpu_s(*self._soak.server.pids()), stolen_s()]

    def restart(self) -> None:
        self.restarts.append(self.minute)
        self._soak.restart()

    def take(self) -> None:
        """Close the window and store its measurements."""
        server = self._soak.server
        pids = {"supervisor": server.pid} | server.roles()
        memory = {role: rss_bytes(pid) / MB for role, pid in sorted(pids.items())}
        sizes = []
        for path in server.data_dir.rglob("*"):
            with contextlib.suppress(FileNotFoundError):
                sizes += [path.stat().st_blocks * 512] if path.is_file() else []
        took = {name: quantiles_ms(took or [0.0]) for name, took in self._soak.window().items()}
        used, self._used, seconds = self._used, self._used_s(), monotonic() - self._at
        shares = [
            (now - then) / seconds / usable_cores() * 100
            for now, then in zip(self._used, used, strict=True)
        ]
        self._at = monotonic()
        self.minutes.append(self.minute)
        self.samples.append(
            {
                MEMORY: {"all": sum(memory.values()), **memory},
                COUNTS: {"descriptors": sum(map(open_files, pids.values())), "files": len(sizes)},
                DATA: {"on disk": sum(sizes) / MB},
                P50: {name: found[0] for name, found in took.items()},
                P99: {name: found[1] for name, found in took.items()},
                PROCESSOR: dict(zip(("all", "server", "stolen by the host"), shares, strict=True)),
            }
        )

    def lines(self) -> dict[str, dict[str, list[float]]]:
        """Return the values of each line of each chart."""
        return {
            chart: {name: [sample[chart][name] for sample in self.samples] for name in lines}
            for chart, lines in self.samples[0].items()
        }


Thirds = dict[tuple[str, str], list[float]]


def thirds(lines: dict[str, dict[str, list[float]]]) -> Thirds:
    """Return the medians of the thirds of a run, by chart and line."""
    return {
        (chart, name): [
            statistics.median(values[part * len(values) // 3 : (part + 1) * len(values) // 3])
            for part in range(3)
        ]
        for chart, named in lines.items()
        for name, values in named.items()
    }


def grown(medians: Thirds) -> list[str]:
    """Return the values of the last third that exceed their limits."""
    return [
        f"{chart}, {name}: {last:.1f} in the last third, {second:.1f} before"
        for (chart, name), (_, second, last) in medians.items()
        if chart in FLAT and last > FLAT[chart][0] * second + FLAT[chart][1]
    ]


def calibrate(running: Sequence[Client], seconds: float, load: float) -> str:
    """Run all clients at full speed, then each at ``load`` of its rate."""
    before = [client.iterations for client in running]
    sleep(seconds)
    done = [
        client.iterations - iterations for client, iterations in zip(running, before, strict=True)
    ]
    for client, iterations in zip(running, done, strict=True):
        client.pause_s = seconds / (load * max(iterations, 1))
    peak = sum(done) / seconds
    return f"{peak:.0f} iterations/s at the peak, {load:.0%} of it from now on"


def run(
    folder: Path,
    *,
    minutes: float,
    restart_every: float,
    load: float,
    out: Path,
    fill_mb: int = 320,
    calibrate_s: float = 20.0,
    sample_s: float = 5.0,
) -> tuple[Soak, Samples]:
    """Soak a server in this folder. Times in minutes, but for ``_s``."""
    with Server(folder, shards=2) as server:
        soak = Soak(server)
        fill(soak.url, fill_mb)
        running = clients(soak)
        for client in running:
            client.start()
        print(calibrate(running, calibrate_s, load), flush=True)
        samples = Samples(soak)
        count, restart_samples, minute = (
            max(1, round(60 * each / sample_s))
            for each in (minutes, restart_every or 2 * minutes, 1.0)
        )
        for number in range(1, count + 1):
            sleep(sample_s)
            samples.take()
            if (number - 1) % minute == 0:
                show(samples, soak)
                draw(samples, soak, load, out)
            if number % restart_samples == 0 and number < count:
                samples.restart()
                sleep(sample_s)  # streams reconnect
                samples.begin()
        finish(soak, running)
        return soak, samples


def show(samples: Samples, soak: Soak) -> None:
    """Print the newest sample as a row of the table."""
    last = samples.samples[-1]
    values = [
        f"{last[MEMORY]['all']:6.1f} MB",
        f"{last[COUNTS]['descriptors']:4.0f} fds {last[COUNTS]['files']:3.0f} files",
        f"{last[DATA]['on disk']:6.1f} MB",
        *(f"{name} {last[P50][name]:5.1f} {last[P99][name]:6.1f} ms" for name in last[P50]),
        f"stolen {last[PROCESSOR]['stolen by the host']:4.1f}%",
        f"{soak.counts['seen']:,} seen, {soak.counts['failed']} failed",
    ]
    print(f"{samples.minutes[-1]:5.1f} min  " + "  ".join(values), flush=True)


def draw(samples: Samples, soak: Soak, load: float, out: Path) -> None:
    title = (
        f"{samples.minutes[-1]:.0f} minutes of everything at {load:.0%} of the peak:"
        f" {soak.counts['seen']:,} records seen, {soak.counts['failed']} failures outside"
        f" {len(samples.restarts)} restarts"
    )
    out.write_text(svg(title, samples.minutes, samples.lines(), samples.restarts))


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--restart-every", type=float, default=10.0, help="minutes; 0: never")
    parser.add_argument("--load", type=float, default=0.5, help="share of the peak")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".svg"))
    args = parser.parse_args()
    exit_on_request()
    sys.setswitchinterval(0.0005)  # threads of clients wait for one another
    with tempfile.TemporaryDirectory(prefix="topics-soak-") as folder:
        soak, samples = run(Path(folder, "data"), **vars(args))
    draw(samples, soak, args.load, args.out)
    medians = thirds(samples.lines())
    for (chart, name), values in medians.items():
        print(f"{chart:<28} {name:<18}" + "".join(f"{value:>10.1f}" for value in values))
    print(", ".join(f"{name} {count:,}" for name, count in sorted(soak.counts.items())))
    problems = soak.problems + grown(medians)
    print("\n".join([*problems[:40], verdict(not problems)]))
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
