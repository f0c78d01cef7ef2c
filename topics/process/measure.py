"""Measurements of a process, its loop and its links, stored in its words on the board with each
beat.

Twice a second, so nothing is counted for each request or record (`topics.actors.link.counters`).
"""

from __future__ import annotations

import contextlib
import os
import resource
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final

import trio

from topics.actors.link.beat import next_beat, wait_beat
from topics.actors.link.counters import LAG_BOUNDS_US, CounterWords, Values
from topics.actors.link.link import Link
from topics.process import logs

PAGE_BYTES: Final = resource.getpagesize()
UNKNOWN: Final = dict.fromkeys(
    (
        *("topics_process_resident_bytes", "topics_process_own_bytes"),
        "topics_process_open_files",
    ),
    0,
)


async def measure(
    counters: CounterWords, links: Sequence[Link], counts: Callable[[], Values]
) -> None:
    """Until cancelled, store the loop's lag, the links' statistics, what the process uses and its
    ``counts``.
    """
    lags, lag_us, beats, known = [0] * (len(LAG_BOUNDS_US) + 1), 0, 0, UNKNOWN
    while True:
        due = next_beat(trio.current_time())
        await wait_beat()
        late_us = int((trio.current_time() - due) * 1e6)
        lags[bisect_left(LAG_BOUNDS_US, late_us)] += 1
        lag_us, beats = lag_us + late_us, beats + 1
        known = used_files(known)
        spent = resource.getrusage(resource.RUSAGE_SELF)
        most_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        counters.store(
            {
                "topics_loop_lag_us": [*lags, lag_us, beats],
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
    """Memory and descriptors of this process; ``known`` when its descriptors have run out."""
    with contextlib.suppress(OSError):
        # A `Path` costs 0.1 ms for each of these in a process that has slept.
        with open(f"{proc}/statm", "rb", buffering=0) as statm:  # noqa: PTH123
            _, resident, shared, *_ = map(int, statm.read().split())
        # Linux 6.2 and later tell the number as the size of the folder. Else it is listed, which
        # needs a descriptor of its own.
        folder = f"{proc}/fd"
        files = os.stat(folder).st_size or len(os.listdir(folder)) - 1  # noqa: PTH116, PTH208
        sizes = (resident * PAGE_BYTES, (resident - shared) * PAGE_BYTES, files)
        return dict(zip(known, sizes, strict=True))
    return known
