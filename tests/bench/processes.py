"""Shared code of the benchmarks: processor time and memory of a server's processes, servers of
other checkouts, and quantiles.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.support.server import Server

TICK_HZ = os.sysconf("SC_CLK_TCK")


def cpu_s(*pids: int) -> float:
    """Return the total processor time of these processes."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / TICK_HZ


def queued_s(*pids: int) -> float:
    """Return the total time in which threads of these processes were runnable without a
    processor.
    """
    queued_ns = 0
    for row in (row for pid in pids for row in Path(f"/proc/{pid}/task").glob("*/schedstat")):
        with contextlib.suppress(OSError):  # a thread has just ended
            queued_ns += int(row.read_text().split()[1])
    return queued_ns / 1e9


def anon_mb(pids: Sequence[int]) -> float:
    """Return the total anonymous memory of these processes."""
    rows = (row for pid in pids for row in Path(f"/proc/{pid}/status").read_text().splitlines())
    return sum(int(row.split()[1]) for row in rows if row.startswith("RssAnon")) / 1024


def machine_s() -> float:
    """Return the processor time that all processes have used, and the time stolen by the host."""
    user, nice, system, _idle, _wait, irq, softirq, steal = _machine()
    return (user + nice + system + irq + softirq + steal) / TICK_HZ


def stolen_s() -> float:
    """Return the processor time that the host has stolen since its start."""
    return _machine()[7] / TICK_HZ


def _machine() -> list[int]:
    return [*map(int, Path("/proc/stat").read_text().split(None, 9)[1:9])]


def quiet(server: Server) -> None:
    """Wait until the processes of the server are idle, so that no sealing is in progress."""
    pids, before = server.pids(), -1.0
    while (now := cpu_s(*pids)) - before > 0.05:
        before = now
        time.sleep(1)


def server_of(root: Path | None, folder: Path, **env: object) -> Server:
    """Return a server that is not started, of the checkout ``root`` or of this one."""
    server = Server(folder, **env)
    server.root = root.resolve() if root else server.root
    return server


def exit_on_request() -> None:
    """Let SIGTERM raise an exception, so that all started processes are ended."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def quantiles_ms(seconds: Sequence[float]) -> list[float]:
    """Return p50, p99, p99.9 and the maximum in milliseconds."""
    ordered = sorted(seconds)
    return [
        ordered[min(int(len(ordered) * share), len(ordered) - 1)] * 1000
        for share in (0.5, 0.99, 0.999, 1.0)
    ]


def verdict(holds: bool) -> str:
    return "pass" if holds else "FAIL"
