"""Under which conditions figures were taken: machine, disk, versions, what else ran."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import time
from pathlib import Path

from tests.support.server import ROOT

SYNCS = 200


def fdatasync_us(folder: Path) -> float:
    """What a write of 300 bytes and its sync take there, p50."""
    path, times = folder / "sync", []
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.posix_fallocate(fd, 0, 1 << 20)
        os.fsync(fd)
        for number in range(SYNCS):
            began = time.perf_counter()
            os.pwrite(fd, bytes(300), number * 300)
            os.fdatasync(fd)
            times.append(time.perf_counter() - began)
    finally:
        os.close(fd)
        path.unlink()
    return statistics.median(times) * 1e6


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def load_1m() -> float:
    """The load of the last minute."""
    return os.getloadavg()[0]


def revision() -> str:
    """The commit that is checked out, if git tells; ``+`` if there are changes beside it."""
    command = ["git", "describe", "--always", "--dirty=+", "--abbrev=10"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() or "?"


def conditions(folder: Path) -> dict[str, str]:
    """What a reader must know of a run, before it begins."""
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "revision": revision(),
        "processor": f"{len(os.sched_getaffinity(0))} cores, {cpu_model()}",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "write of 300 bytes and fdatasync": f"{fdatasync_us(folder):.0f} us",
        "load before": f"{load_1m():.1f}",
    }
