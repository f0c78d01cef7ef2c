"""Counters: the one registry of what a process counts for the metrics, and where on the board.

Each process has COUNTERS words (`topics.actors.link.board`). A metric has consecutive words there,
in the order of its registry, and one such block for each row of label values:

    kind        words            content
    COUNTER     1                only grows, over restarts of the process, too
    GAUGE       1                a value of now; 0 when no process is there
    HISTOGRAM   len(bounds) + 3  observations up to each bound, those above the last one, the sum
                                 of all and their number; each only grows

A process stores in its own words only; a reader brings the processes together as `Across` says. A
metric is counted for each batch, or copied from the process's own numbers with each heartbeat:
never once for each record.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from topics.actors.link.board import COUNTERS, Board
from topics.actors.link.process_id import ProcessId, ProcessKind
from topics.engine.usage import CLASSES
from topics.formats.api.metrics_text import Family, Histogram, MetricKind, Series
from topics.formats.api.route_names import ROUTE_NAMES, STATUS_NAMES
from topics.storage.wal.progress import SYNC_BOUNDS_US


class Across(Enum):
    """What a reader makes of the words of several processes."""

    SUM = "sum"
    LARGEST = "largest"
    EACH = "each"  # a series for each process, with the label ``process``


@dataclass(frozen=True, slots=True)
class Metric:
    """One declaration. ``bounds`` are the upper ends of a histogram's buckets, ends included.

    ``rows`` has the values of ``labels`` for each series. ``is_sparse``: a series without any count
    is not shown.
    """

    name: str
    help: str
    kind: MetricKind = MetricKind.COUNTER
    bounds: tuple[int, ...] = ()
    labels: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ((),)
    across: Across = Across.SUM
    is_sparse: bool = False

    @property
    def row_words(self) -> int:
        """How many words of the board one row takes."""
        return len(self.bounds) + 3 if self.kind is MetricKind.HISTOGRAM else 1

    @property
    def words(self) -> int:
        """How many words of the board it takes."""
        return len(self.rows) * self.row_words


LATENCY_BOUNDS_US: Final = (
    *(250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000),
    *(1_000_000, 2_500_000, 10_000_000),
)
_ROUTE_ROWS: Final = tuple((route,) for route in ROUTE_NAMES)

_LOOP_LAG = Metric(
    "topics_loop_lag_us",
    "How much later than planned the process's loop was, by its heartbeats.",
    MetricKind.HISTOGRAM,
    bounds=(1_000, 5_000, 25_000, 100_000, 500_000, 2_500_000),
    across=Across.EACH,
)
_LATE_BELLS = Metric(
    "topics_link_late_bells_total", "Wake-ups between processes that were lost. Ought to be 0."
)
_LINK_BACKLOG = Metric(
    "topics_link_backlog_bytes",
    "Bytes of messages that wait for room in a ring.",
    MetricKind.GAUGE,
)

_RING_UNREAD = Metric(
    "topics_link_unread_bytes",
    "Bytes in rings between processes that the receiver has not read.",
    MetricKind.GAUGE,
)
_RING_STALLS = Metric(
    "topics_link_stalls_total", "How often a message found no room in a ring between processes."
)


def _gauge(
    name: str,
    text: str,
    across: Across = Across.SUM,
    labels: tuple[str, ...] = (),
    rows: tuple[tuple[str, ...], ...] = ((),),
) -> Metric:
    return Metric(name, text, MetricKind.GAUGE, labels=labels, rows=rows, across=across)


_LOG = (
    _gauge(
        "topics_wal_queue_depth",
        "Changes that wait for their write or sync, with whoever waits for their answers.",
    ),
    _gauge(
        "topics_wal_queue_depth_peak",
        "The most changes of a shard that waited at the end of a turn since its process began.",
        Across.LARGEST,
    ),
    Metric(
        "topics_wal_submit_full_total",
        "Writes that a shard refused because its log could not take them: no room on the disk, a"
        " broken log, or a disk that does not answer.",
    ),
    _gauge("topics_wal_read_only", "Shards whose log is broken: they refuse writes."),
    Metric(
        "topics_wal_fsync_latency_us",
        "How long each sync of the log took, in microseconds.",
        MetricKind.HISTOGRAM,
        bounds=SYNC_BOUNDS_US,
    ),
)
_USAGE = (
    _gauge("topics_topics", "Topics."),
    _gauge(
        "topics_topics_by_class",
        "Topics by durability class.",
        labels=("class",),
        rows=tuple((name,) for name in CLASSES),
    ),
    _gauge("topics_queue_topics", "Topics of type queue."),
    _gauge("topics_routers", "Routers."),
    _gauge(
        "topics_records_live",
        "Records that readers can get, and those of topics that nobody uses which are too old.",
    ),
    _gauge("topics_bytes_live", "Bytes of these records, as quotas count them."),
    _gauge("topics_idempotency_keys", "Idempotency keys in memory."),
    _gauge("topics_queue_leases_in_flight", "Jobs of all queues that are leased."),
    _gauge("topics_queue_delayed", "Jobs of all queues whose time has not come."),
)
_FILES = (
    _gauge("topics_seal_backlog_files", "Full log files that wait for their segment."),
    _gauge("topics_segment_files", "Segments."),
    Metric(
        "topics_segments_merged_total",
        "Segments whose live records were copied into another one together with those of others.",
    ),
    Metric("topics_segment_merged_bytes_total", "Bytes of segments written by these merges."),
    _gauge("topics_segment_bytes", "Bytes on the disk of segments."),
    _gauge("topics_log_bytes", "Bytes on the disk of the logs, files for what comes included."),
    _gauge("topics_blob_bytes", "Bytes on the disk of streamed appends that no segment holds."),
    _gauge("topics_checkpoint_bytes", "Bytes on the disk of checkpoints, and kept for the next."),
    _gauge(
        "topics_checkpoint_age_ms",
        "Since the newest checkpoint of a shard, the oldest of all shards; 0 before the first. None"
        " is written while nothing is to be gained from it.",
        Across.LARGEST,
    ),
    _gauge("topics_disk_free_bytes", "Bytes free where the data directory is.", Across.LARGEST),
)
_TURNS = (
    _gauge("topics_inbox_messages", "Messages that wait for a turn of their shard."),
    Metric("topics_turns_total", "Turns of the loops of shards."),
)

_HTTP = (
    Metric(
        "topics_http_requests_total",
        "Requests by route and by the status of the answer.",
        labels=("route", "status"),
        rows=tuple((route, status) for route in ROUTE_NAMES for status in STATUS_NAMES),
        is_sparse=True,
    ),
    Metric(
        "topics_http_received_bytes_total",
        "Bytes of requests, heads included.",
        labels=("route",),
        rows=_ROUTE_ROWS,
        is_sparse=True,
    ),
    Metric(
        "topics_http_sent_bytes_total",
        "Bytes of answers and streams, heads included.",
        labels=("route",),
        rows=_ROUTE_ROWS,
        is_sparse=True,
    ),
    Metric(
        "topics_http_request_duration_us",
        "From a request to the end of its answer. Long polls and streams count as long as they are"
        " open.",
        MetricKind.HISTOGRAM,
        bounds=LATENCY_BOUNDS_US,
        labels=("route",),
        rows=_ROUTE_ROWS,
        is_sparse=True,
    ),
)

_CONNECTIONS = (
    Metric("topics_connections_open", "Connections of clients.", MetricKind.GAUGE),
    Metric("topics_connections_refused_total", "Clients that were refused, or not accepted."),
    Metric(
        "topics_streams",
        "Event streams and WebSockets that are open.",
        MetricKind.GAUGE,
        labels=("kind",),
        rows=(("watch",), ("work",), ("websocket",)),
    ),
    Metric(
        "topics_held_answer_bytes",
        "Bytes of answers and streams that wait for slow clients.",
        MetricKind.GAUGE,
    ),
)
_PROCESS = (
    Metric(
        "topics_process_resident_bytes",
        "Resident memory, with mapped files and memory that processes share.",
        MetricKind.GAUGE,
        across=Across.EACH,
    ),
    Metric(
        "topics_process_own_bytes",
        "Resident memory that no other process and no file has.",
        MetricKind.GAUGE,
        across=Across.EACH,
    ),
    Metric(
        "topics_process_cpu_ms_total",
        "Processor time, of the system included.",
        across=Across.EACH,
    ),
    Metric(
        "topics_process_open_files",
        "Open file descriptors.",
        MetricKind.GAUGE,
        across=Across.EACH,
    ),
    Metric(
        "topics_process_open_files_max",
        "The most that the process may have; 0: no bound.",
        MetricKind.GAUGE,
        across=Across.EACH,
    ),
    Metric(
        "topics_log_lines_dropped_total",
        "Log lines that stderr did not take.",
    ),
)

# In the order of the words. Append only: the words of a process that is restarted go on.
REGISTRY: Final[Mapping[ProcessKind, tuple[Metric, ...]]] = {
    ProcessKind.FRONT: (
        _LOOP_LAG,
        _LATE_BELLS,
        _LINK_BACKLOG,
        *_HTTP,
        _RING_UNREAD,
        _RING_STALLS,
        *_CONNECTIONS,
        *_PROCESS,
    ),
    ProcessKind.SHARD: (
        _LOOP_LAG,
        _LATE_BELLS,
        _LINK_BACKLOG,
        Metric("topics_wal_frames_total", "Frames put into the log."),
        Metric("topics_wal_batches_total", "Groups of frames written together."),
        Metric("topics_wal_fsyncs_total", "Syncs of the log."),
        Metric("topics_wal_loop_fsyncs_total", "Syncs of the log made by the shard's loop itself."),
        Metric("topics_wal_bytes_written_total", "Bytes written to the log."),
        Metric("topics_wal_rotations_total", "Log files begun."),
        _RING_UNREAD,
        _RING_STALLS,
        *_LOG,
        *_USAGE,
        *_FILES,
        *_TURNS,
        *_PROCESS,
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
        self._bases = {
            name: self._words[at : at + self._metrics[name].words].tolist()
            for name, at in self._at.items()
        }

    def add(self, name: str, amount: int = 1, row: int = 0) -> None:
        """Count on. ``row``: an index of `Metric.rows`, here and below."""
        self._words[self._at[name] + row] += amount

    def set(self, name: str, value: int | Sequence[int]) -> None:
        """Store a gauge's value, or a counter's own count since this process started. A sequence
        has a value for each word of the metric.

        Below 0 counts as 0: what two processes store is compared while one of them moves.
        """
        at, bases, words = self._at[name], self._bases[name], self._words
        values = (value,) if isinstance(value, int) else value
        for word, (base, own) in enumerate(zip(bases, values, strict=True), start=at):
            words[word] = max(0, base + own)

    def set_all(self, values: Mapping[str, int | Sequence[int]]) -> None:
        """As `set`, of some metrics by their names."""
        for name, value in values.items():
            self.set(name, value)

    def observe(self, name: str, value: int, row: int = 0) -> None:
        """Count one observation of a histogram."""
        metric, words = self._metrics[name], self._words
        bounds, at = metric.bounds, self._at[name] + row * metric.row_words
        words[at + bisect_left(bounds, value)] += 1
        words[at + len(bounds) + 1] += value
        words[at + len(bounds) + 2] += 1


def forget_gauges(board: Board, process: ProcessId) -> None:
    """Say that the process has nothing now; what it has counted stays."""
    words, at = board.process(process).counters, offsets(process.kind)
    for metric in REGISTRY[process.kind]:
        if metric.kind is MetricKind.GAUGE:
            for word in range(at[metric.name], at[metric.name] + metric.words):
                words[word] = 0


def read(board: Board) -> dict[str, tuple[int, ...]]:
    """The words of every metric by its name, over all processes that count it: the largest of
    LARGEST, the sum of the others.
    """
    return {
        name: _together(metric, [words for _, words in blocks])
        for name, (metric, blocks) in _blocks(board).items()
    }


def families(board: Board) -> Iterator[Family]:
    """All metrics of the registry, as they are shown."""
    for metric, blocks in _blocks(board).values():
        if metric.across is Across.EACH:
            shown = [
                Series((*series.labels, ("process", str(process))), series.value)
                for process, words in blocks
                for series in _series(metric, words)
            ]
        else:
            shown = [*_series(metric, _together(metric, [words for _, words in blocks]))]
        yield Family(metric.name, metric.kind, metric.help, shown)


_Block = tuple[ProcessId, Sequence[int]]  # the words of one metric and process


def _blocks(board: Board) -> dict[str, tuple[Metric, list[_Block]]]:
    """Each metric by its name, with its words of all processes."""
    found: dict[str, tuple[Metric, list[_Block]]] = {}
    for kind, metrics in REGISTRY.items():
        at, used = offsets(kind), sum(metric.words for metric in metrics)
        for process in (one for one in board.processes if one.kind is kind):
            words = board.process(process).counters[:used].tolist()
            for metric in metrics:
                start = at[metric.name]
                block = (process, words[start : start + metric.words])
                found.setdefault(metric.name, (metric, []))[1].append(block)
    return found


def _together(metric: Metric, blocks: Sequence[Sequence[int]]) -> tuple[int, ...]:
    if len(blocks) == 1:
        return tuple(blocks[0])
    return tuple(map(max if metric.across is Across.LARGEST else _sum, *blocks))


def _sum(*values: int) -> int:
    return sum(values)


def _series(metric: Metric, words: Sequence[int]) -> Iterator[Series]:
    """The rows of a metric; of a sparse one those that count something."""
    width, bounds = metric.row_words, metric.bounds
    for row, values in enumerate(metric.rows):
        found = words[row * width : (row + 1) * width]
        if metric.is_sparse and not any(found):
            continue
        labels = tuple(zip(metric.labels, values, strict=True))
        if metric.kind is MetricKind.HISTOGRAM:
            yield Series(labels, Histogram(bounds, found[: len(bounds) + 1], found[-2]))
        else:
            yield Series(labels, found[0])
