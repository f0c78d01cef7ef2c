"""Measurement: stores the metrics of a process, its event loop and its links in shared memory twice
a second.

The values are stored on the board at each tick, so no request and no record causes a write to
shared memory (`topics.actors.link.counters`).
"""

from __future__ import annotations

import contextlib
import os
import resource
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final

import trio

from topics.actors.link.counters import LAG_BOUNDS_US, CounterCells, Values
from topics.actors.link.link import Link
from topics.actors.link.tick import next_tick, wait_tick
from topics.process import logs

PAGE_BYTES: Final = resource.getpagesize()
# The initial values of the result of `used_files`, in the order in which `used_files` sets them.
UNKNOWN: Final = dict.fromkeys(
    (
        *("topics_process_resident_bytes", "topics_process_own_bytes"),
        "topics_process_open_files",
    ),
    0,
)


async def measure(
    counters: CounterCells, links: Sequence[Link], counts: Callable[[], Values]
) -> None:
    """Store the metrics with each tick until cancelled.

    These are the lag of the loop, the statistics of the links, the resource usage of the process
    and the result of ``counts``. The lag is the time by which a tick of the loop is late.
    """
    lags, lag_us, ticks, known = [0] * (len(LAG_BOUNDS_US) + 1), 0, 0, UNKNOWN
    while True:
        due = next_tick(trio.current_time())
        await wait_tick()
        late_us = int((trio.current_time() - due) * 1e6)
        lags[bisect_left(LAG_BOUNDS_US, late_us)] += 1
        lag_us, ticks = lag_us + late_us, ticks + 1
        known = used_files(known)
        spent = resource.getrusage(resource.RUSAGE_SELF)
        most_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        counters.store(
            {
                "topics_loop_lag_us": [*lags, lag_us, ticks],
                "topics_link_late_bells_total": sum(one.late_bells for one in links),
                "topics_link_backlog_bytes": sum(one.backlog_bytes for one in links),
                "topics_link_unread_bytes": sum(one.unread_bytes for one in links),
                "topics_link_stalls_total": sum(one.stalls for one in links),
                **known,
                "topics_process_cpu_ms_total": int(1000 * (spent.ru_utime + spent.ru_stime)),
                "topics_process_open_files_max": max(0, most_files),  # RLIM_INFINITY is -1
                "topics_log_lines_dropped_total": logs.dropped_count(),
                **counts(),
            }
        )


def used_files(known: dict[str, int], proc: str = "/proc/self") -> dict[str, int]:
    """Return the memory usage and the number of open descriptors of this process.

    Returns ``known``, the previous values, if no descriptor is free to read the new values.
    """
    with contextlib.suppress(OSError):
        # `Path` would take 0.1 ms for each of these calls in a process that was idle.
        with open(f"{proc}/statm", "rb", buffering=0) as statm:  # noqa: PTH123
            _, resident, shared, *_ = map(int, statm.read().split())
        # Since Linux 6.2, the size of this folder is the number of descriptors. Older versions
        # report 0. In that case, the folder is listed, which uses one more descriptor.
        folder = f"{proc}/fd"
        files = os.stat(folder).st_size or len(os.listdir(folder)) - 1  # noqa: PTH116, PTH208
        sizes = (resident * PAGE_BYTES, (resident - shared) * PAGE_BYTES, files)
        return dict(zip(known, sizes, strict=True))
    return known
