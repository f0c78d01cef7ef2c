"""The cells that `tests.bench.table` measures for every server, each on a fresh one.

    append CLASS N x M    N clients that append M records a request: acknowledged records a second
    read by 1,000         one client reads all back, appended with fsync: records a second
    live N, ms            from a publish to a delivery to N subscribers, 100 a second, fsync: p50
    deliveries to N       one publisher without pauses, fsync: deliveries a second
    queue CLASS N x M     N workers that claim M jobs and finish them: jobs a second

Records have 200 bytes. Acknowledged records and deliveries are counted afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from tests.bench.peers.load import FanOut, drive
from tests.bench.peers.system import System
from tests.bench.processes import cpu_s

APPENDS = ((1, 1), (16, 1), (64, 1), (16, 100), (4, 1000), (1, 10_000))
QUEUES = ((1, 1), (8, 1), (8, 16))
CPU_CELL = "append fsync 16 x 1"
WARM_UP_S = 0.5
READ_LIMIT = 1000
FILL_BATCH, FILL_MAX_S = 200, 8.0  # some servers sync each record of a batch
JOBS_A_SECOND = 40_000  # number of jobs for each second of work, if there is time to append them
QUIET_S, QUIET_SHARE = 0.3, 0.1  # quiet: for this time, at most this share of a core is used
QUIET_MAX_S = 10.0
SETTLE_S = 0.3  # for a subscriber's request to reach the server


class Scale(NamedTuple):
    """The durations and amounts of a run."""

    seconds: float
    read_records: int


class Figure(NamedTuple):
    """The result of one run: the value, and the CPU microseconds per record of each process.

    ``wrong`` describes a count that differs from the expected count. It is empty if there is none.
    """

    value: float
    cpu_us: dict[str, float]
    wrong: str = ""


class Cell(NamedTuple):
    """One row of the table."""

    name: str
    group: str  # the ability that it requires of a server
    durability: str
    batch: int
    run: Callable[[System, Scale], Figure]

    @property
    def kind(self) -> str:
        return "queue" if self.group == "queue" else "log"

    @property
    def is_delay(self) -> bool:
        """Return whether a lower value is better."""
        return self.name.endswith("ms")

    def is_supported_by(self, system: type[System]) -> bool:
        """Return whether the server has the required ability."""
        return (
            self.group in system.groups
            and self.durability in system.classes
            and self.batch <= system.batch_max
        )


class Cpu:
    """Processor time of a server's processes from now on."""

    def __init__(self, system: System) -> None:
        self._pids = system.pids()
        self._before = {name: cpu_s(pid) for name, pid in self._pids.items()}

    def us_each(self, records: int) -> dict[str, float]:
        return {
            name: (cpu_s(pid) - self._before[name]) / max(records, 1) * 1e6
            for name, pid in self._pids.items()
        }


def settle(system: System) -> None:
    """Wait until its processes are idle, because a server may still load modules when it already
    serves.
    """
    until = time.perf_counter() + QUIET_MAX_S
    before, pids = -1.0, system.pids().values()
    while (now := cpu_s(*pids)) - before > QUIET_SHARE * QUIET_S:
        if time.perf_counter() > until:
            return
        before = now
        time.sleep(QUIET_S)


def difference(found: int, expected: int) -> str:
    """Describe the difference of two counts. The text is empty if they agree."""
    return "" if found == expected else f"holds {found:,}, {expected:,} expected"


def append(clients: int, batch: int) -> Callable[[System, Scale], Figure]:
    def run(system: System, scale: Scale) -> Figure:
        connected = [system.appender(batch) for _ in range(clients)]
        warm = drive(connected, WARM_UP_S)
        for connection, _ in connected:
            connection.close()
        connected = [system.appender(batch) for _ in range(clients)]
        cpu = Cpu(system)
        loaded = drive(connected, scale.seconds)
        used = cpu.us_each(loaded.done)
        wrong = difference(system.count(), warm.done + loaded.done)
        return Figure(loaded.done / loaded.took_s, used, wrong)

    return run


def fill(system: System, records: int) -> int:
    """Append slightly more than that many records, or as many as possible within `FILL_MAX_S`.
    Return their number.
    """
    batch, done, until = min(FILL_BATCH, system.batch_max), 0, time.perf_counter() + FILL_MAX_S
    while done < records and time.perf_counter() < until:
        clients = [system.appender(batch) for _ in range(4)]
        done += drive(clients, 0.5).done
        for connection, _ in clients:
            connection.close()
    return done


def read(system: System, scale: Scale) -> Figure:
    records = fill(system, scale.read_records)
    cpu, began = Cpu(system), time.perf_counter()
    received = sum(system.read(READ_LIMIT))
    took = time.perf_counter() - began
    return Figure(received / took, cpu.us_each(received), difference(received, records))


def live(subscribers: int, *, flood: bool) -> Callable[[System, Scale], Figure]:
    def run(system: System, scale: Scale) -> Figure:
        publisher, request = system.publisher()
        fan_out = FanOut(publisher, [system.subscriber() for _ in range(subscribers)])
        time.sleep(SETTLE_S)
        cpu = Cpu(system)
        measure = fan_out.flood if flood else fan_out.latency_ms
        value = measure(request, scale.seconds)
        wrong = difference(fan_out.delivered, fan_out.published * subscribers)
        return Figure(value, cpu.us_each(fan_out.delivered), wrong)

    return run


def queue(workers: int, batch: int) -> Callable[[System, Scale], Figure]:
    def run(system: System, scale: Scale) -> Figure:
        jobs = fill(system, int(JOBS_A_SECOND * scale.seconds))
        connected = [system.worker(number, batch) for number in range(workers)]
        cpu = Cpu(system)
        loaded = drive(connected, scale.seconds)
        used, left = cpu.us_each(loaded.done), system.count()
        # A worker that was stopped between its claim and its ack still holds these jobs.
        return Figure(loaded.done / loaded.took_s, used, difference(left, jobs - loaded.done))

    return run


CELLS = {
    cell.name: cell
    for cell in (
        *(
            Cell(f"append {kind} {n} x {m:,}", "append", kind, m, append(n, m))
            for kind in ("fsync", "disk")
            for n, m in APPENDS
        ),
        Cell("read by 1,000", "read", "fsync", 1, read),
        *(Cell(f"live {n}, ms", "live", "fsync", 1, live(n, flood=False)) for n in (1, 50)),
        Cell("deliveries to 50", "live", "fsync", 1, live(50, flood=True)),
        *(
            Cell(f"queue {kind} {n} x {m}", "queue", kind, m, queue(n, m))
            for kind in ("fsync", "disk")
            for n, m in QUEUES
        ),
    )
}
