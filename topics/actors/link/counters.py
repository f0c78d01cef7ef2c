"""Counters: the one registry of what a process counts for the metrics, and where on the board.

Each process has COUNTERS words (`topics.actors.link.board`). A metric has consecutive words there,
in the order of its registry:

    kind        words            content
    COUNTER     1                only grows, over restarts of the process, too
    GAUGE       1                a value of now; 0 when no process is there
    HISTOGRAM   len(bounds) + 3  observations up to each bound, those above the last one, the sum
                                 of all and their number; each only grows

A process stores in its own words only; a reader sums over the processes of the kind. A metric is
counted for each batch, or copied from the process's own numbers with each heartbeat: never once for
each record.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from topics.actors.link.board import COUNTERS, Board
from topics.actors.link.process_id import ProcessId, ProcessKind


class MetricKind(Enum):
    """What the words of a metric hold; the values are the type names of the exposition format."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One declaration. ``bounds`` are the upper ends of a histogram's buckets, ends included."""

    name: str
    help: str
    kind: MetricKind = MetricKind.COUNTER
    bounds: tuple[int, ...] = ()

    @property
    def words(self) -> int:
        """How many words of the board it takes."""
        return len(self.bounds) + 3 if self.kind is MetricKind.HISTOGRAM else 1


_LOOP_LAG = Metric(
    "topics_loop_lag_us",
    "How much later than planned the process's loop was, by its heartbeats.",
    MetricKind.HISTOGRAM,
    bounds=(1_000, 5_000, 25_000, 100_000, 500_000, 2_500_000),
)
_LATE_BELLS = Metric(
    "topics_link_late_bells_total", "Wake-ups between processes that were lost. Ought to be 0."
)
_LINK_BACKLOG = Metric(
    "topics_link_backlog_bytes",
    "Bytes of messages that wait for room in a ring.",
    MetricKind.GAUGE,
)

# In the order of the words. Append only: the words of a process that is restarted go on.
REGISTRY: Final[Mapping[ProcessKind, tuple[Metric, ...]]] = {
    ProcessKind.FRONT: (_LOOP_LAG, _LATE_BELLS, _LINK_BACKLOG),
    ProcessKind.SHARD: (
        _LOOP_LAG,
        _LATE_BELLS,
        _LINK_BACKLOG,
        Metric("topics_wal_frames_total", "Frames put into the log."),
        Metric("topics_wal_batches_total", "Groups of frames written together."),
        Metric("topics_wal_fsyncs_total", "Syncs of the log."),
        Metric("topics_wal_bytes_written_total", "Bytes written to the log."),
        Metric("topics_wal_rotations_total", "Log files begun."),
    ),
}


def offsets(kind: ProcessKind) -> dict[str, int]:
    """The first word of each metric of a kind of process, by its name."""
    found, at = {}, 0
    for metric in REGISTRY[kind]:
        found[metric.name] = at
        at += metric.words
    assert at <= COUNTERS, "the registry fits into the words of a process"
    return found


class CounterWords:
    """The counters of this process. Gauges begin with 0, the others where a predecessor stopped."""

    def __init__(self, board: Board, own: ProcessId) -> None:
        self._words = board.process(own).counters
        self._metrics = {metric.name: metric for metric in REGISTRY[own.kind]}
        self._at = offsets(own.kind)
        forget_gauges(board, own)
        self._bases = {name: int(self._words[at]) for name, at in self._at.items()}

    def add(self, name: str, amount: int = 1) -> None:
        """Count on."""
        self._words[self._at[name]] += amount

    def set(self, name: str, value: int) -> None:
        """Store a gauge's value, or a counter's own count since this process started."""
        assert self._metrics[name].kind is not MetricKind.HISTOGRAM, "a histogram observes"
        self._words[self._at[name]] = self._bases[name] + value

    def observe(self, name: str, value: int) -> None:
        """Count one observation of a histogram."""
        bounds, at, words = self._metrics[name].bounds, self._at[name], self._words
        words[at + bisect_left(bounds, value)] += 1
        words[at + len(bounds) + 1] += value
        words[at + len(bounds) + 2] += 1


def forget_gauges(board: Board, process: ProcessId) -> None:
    """Say that the process has nothing now; what it has counted stays."""
    words, at = board.process(process).counters, offsets(process.kind)
    for metric in REGISTRY[process.kind]:
        if metric.kind is MetricKind.GAUGE:
            words[at[metric.name]] = 0


def read(board: Board) -> dict[str, tuple[int, ...]]:
    """The words of every metric by its name, summed over all processes that count it."""
    totals: dict[str, tuple[int, ...]] = {}
    for kind, metrics in REGISTRY.items():
        at = offsets(kind)
        rows = [board.process(process).counters for process in board.processes(kind)]
        for metric in metrics:
            start = at[metric.name]
            words = [sum(row[word] for row in rows) for word in range(start, start + metric.words)]
            before = totals.get(metric.name, (0,) * metric.words)
            totals[metric.name] = tuple(map(sum, zip(before, words, strict=True)))
    return totals
