"""Measurements of a process, its loop and its links, stored in its words on the board with each
beat.

Twice a second, so nothing is counted for each request or record (`topics.actors.link.counters`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import trio

from topics.actors.link.counters import CounterWords
from topics.actors.link.link import Link
from topics.process.usage import Usage

BEAT_S: Final = 0.5


async def measure(
    counters: CounterWords,
    links: Sequence[Link],
    counts: Callable[[], Mapping[str, int | Sequence[int]]] = dict,
) -> None:
    """Until cancelled, store the loop's lag, the links' statistics, what the process uses and its
    ``counts``.
    """
    usage = Usage()
    while True:
        due = trio.current_time() + BEAT_S
        await trio.sleep_until(due)
        counters.observe("topics_loop_lag_us", int((trio.current_time() - due) * 1e6))
        seen = [link.statistics() for link in links]
        counters.set("topics_link_late_bells_total", sum(one.late_bells for one in seen))
        counters.set("topics_link_backlog_bytes", sum(one.backlog_bytes for one in seen))
        counters.set("topics_link_unread_bytes", sum(one.unread_bytes for one in seen))
        counters.set("topics_link_stalls_total", sum(one.stalls for one in seen))
        for name, value in {**usage.values(), **counts()}.items():
            counters.set(name, value)
