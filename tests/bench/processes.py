"""Processor time and memory of a server's processes while something runs."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

from tests.support.server import Server

TICK_HZ = os.sysconf("SC_CLK_TCK")


def rss_mb(pids: list[int]) -> tuple[float, float]:
    """Anonymous and mapped memory of some processes, together; shared memory between them is left
    out.
    """
    anon = file = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("RssAnon"):
                    anon += int(line.split()[1])
                elif line.startswith("RssFile"):
                    file += int(line.split()[1])
    return anon / 1024, file / 1024


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK_HZ


def machine_s() -> float:
    """The processor time that all processes have used, and what the host has taken away."""
    user, nice, system, _idle, _wait, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().split(None, 9)[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / TICK_HZ


class Usage:
    """CPU of front, shards, this process and all others from here on, in shares of one core."""

    def __init__(self, server: Server) -> None:
        self._roles = server.roles()
        self._began, self._before, self._own, self._all = (
            time.perf_counter(),
            self._now(),
            time.process_time(),
            machine_s(),
        )

    def _now(self) -> dict[str, float]:
        return {role: cpu_s(pid) for role, pid in sorted(self._roles.items())}

    def __str__(self) -> str:
        took, now = time.perf_counter() - self._began, self._now()
        used: dict[str, float] = {}
        for role, total_s in now.items():  # several shards together
            who = role.split()[0]
            used[who] = used.get(who, 0.0) + total_s - self._before[role]
        used["client"] = time.process_time() - self._own
        used["others"] = max(machine_s() - self._all - sum(used.values()), 0)
        return ", ".join(f"{who} {share / took:.0%}" for who, share in used.items())


def exit_when_told() -> None:
    """SIGTERM ends this process as an exception does: what it has started is ended, too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def quiet(server: Server) -> None:
    """Until nothing is sealed any more: the processes use no time."""
    pids, before = server.pids(), -1.0
    while (now := sum(map(cpu_s, pids))) - before > 0.05:
        before = now
        time.sleep(1)
