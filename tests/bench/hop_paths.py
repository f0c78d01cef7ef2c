"""Hops: how long a request took from one border of its path to the next, out of the time stamps of
the processes (`tests.bench.preload.hop_stamps`).
"""

from __future__ import annotations

import statistics
from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.bench.preload.hop_stamps import BORDER_BITS, BY_A_THREAD, NUMBERS

FRONT, SHARD = "front", "shard"
Span = tuple[int, int]  # of one request at the client: ns before it is sent and after its answer


class Step(NamedTuple):
    """A hop that ends at a border of a process."""

    hop: str
    role: str
    border: str


APPEND = (
    Step("client to front", FRONT, "recv"),
    Step("front", FRONT, "ring write"),
    Step("to shard", SHARD, "ring read"),
    Step("decide", SHARD, "hand over"),
    Step("to the write", SHARD, "write"),
    Step("write", SHARD, "written"),
    Step("sync", SHARD, "synced"),
    Step("back to the loop", SHARD, "settle"),
    Step("commit and answer", SHARD, "ring write"),
    Step("to front", FRONT, "ring read"),
    Step("to the request", FRONT, "reply"),
    Step("send and client", "", ""),
)
LIVE = (
    Step("publisher to front", FRONT, "recv"),
    Step("front", FRONT, "ring write"),
    Step("to shard", SHARD, "ring read"),
    Step("decide", SHARD, "hand over"),
    Step("write", SHARD, "written"),
    Step("settle", SHARD, "settle"),
    Step("page", SHARD, "page"),
    Step("page to the ring", SHARD, "ring write"),
    Step("to front", FRONT, "ring read"),
    Step("to the feed", FRONT, "shown"),
    Step("event", FRONT, "event"),
    Step("send and subscriber", "", ""),
)
BARE_APPEND = (
    Step("client to front", FRONT, "recv"),
    Step("front", FRONT, "bell"),
    Step("to shard", SHARD, "awake"),
    Step("to the write", SHARD, "bare write"),
    Step("write", SHARD, "bare written"),
    Step("sync", SHARD, "synced"),
    Step("commit and answer", SHARD, "bell"),
    Step("to front", FRONT, "awake"),
    Step("send and client", "", ""),
)
BARE_LIVE = (
    Step("publisher to front", FRONT, "recv"),
    Step("front", FRONT, "bell"),
    Step("to shard", SHARD, "awake"),
    Step("page to the ring", SHARD, "bell"),
    Step("to front", FRONT, "awake"),
    Step("send and subscriber", "", ""),
)


class Hops(dict[str, list[float]]):
    """Microseconds of each hop of each request, and ``total``."""

    synced = 0  # requests with a sync
    synced_by_loop = 0

    def median(self, hop: str) -> float | None:
        """None when most requests have no such hop."""
        found = self.get(hop, [])
        return statistics.median(found) if 2 * len(found) > len(self["total"]) else None

    def add(self, other: Hops) -> None:
        for hop, found in other.items():
            self.setdefault(hop, []).extend(found)
        self.synced += other.synced
        self.synced_by_loop += other.synced_by_loop


class Stamped:
    """The stamps of one process, by border and time."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            count = array("Q", file.read(8))[0]
            words = array("Q", file.read(8 * count))
        self._times: dict[int, list[int]] = {}
        self._by_threads = set[int]()
        for word in sorted(words):
            border, time = word & (1 << BORDER_BITS) - 1, word >> BORDER_BITS
            self._times.setdefault(border & ~BY_A_THREAD, []).append(time)
            if border & BY_A_THREAD:
                self._by_threads.add(time)

    def first(self, border: str, since: int, until: int) -> int | None:
        """The first stamp of a border between two times."""
        times = self._times.get(NUMBERS[border], [])
        at = bisect_left(times, since)
        return times[at] if at < len(times) and times[at] <= until else None

    def is_by_loop(self, time: int) -> bool:
        """Whether the stamp of that time was taken by the loop."""
        return time not in self._by_threads

    def count(self, border: str) -> int:
        return len(self._times.get(NUMBERS[border], []))


def hops_of(
    spans: Sequence[Span], steps: Sequence[Step], processes: Mapping[str, Sequence[Stamped]]
) -> Hops:
    """The hops of requests that came one after the other. A border that a request did not come to
    belongs to the next hop.
    """
    hops = Hops(total=[])
    for began, ended in spans:
        at = began
        for hop, role, border in steps:
            if role:
                found = [each.first(border, at, ended) for each in processes[role]]
                reached = min((time for time in found if time is not None), default=None)
            else:
                reached = ended
            if reached is not None:
                if border == "synced":
                    hops.synced += 1
                    hops.synced_by_loop += all(one.is_by_loop(reached) for one in processes[role])
                hops.setdefault(hop, []).append((reached - at) / 1000)
                at = reached
        hops["total"].append((ended - began) / 1000)
    return hops
