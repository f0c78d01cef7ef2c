"""Counters: the table of all metrics that processes count, and their location on the board.

Each process has COUNTERS cells (`topics.actors.link.board`). A metric has consecutive cells there,
in the order of the table, and one block of cells for each row of label values:

    kind        cells            content
    COUNTER     1                only grows, also across restarts of the process
    GAUGE       1                a current value; 0 if the process is not running
    HISTOGRAM   len(bounds) + 3  the number of observations up to each bound and above the last one,
                                 the sum of all observations, their number; each only grows

A process stores values only in its own cells. A reader combines the cells of all processes as
`Aggregation` specifies. A process counts in ordinary variables and copies them to the cells with
each tick, never once per record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from topics.actors.link.board import COUNTERS, Board
from topics.actors.link.process_id import ProcessId, ProcessKind
from topics.engine.usage import CLASSES
from topics.formats.api.metrics_text import Histogram, MetricFamily, MetricKind, Series, Value
from topics.formats.api.route_names import ROUTE_NAMES, STATUS_NAMES
from topics.storage.wal.log_progress import SYNC_BOUNDS_US

COUNTER, GAUGE, HISTOGRAM = MetricKind
LAG_BOUNDS_US: Final = (1_000, 5_000, 25_000, 100_000, 500_000, 2_500_000)
LATENCY_BOUNDS_US: Final = (
    *(250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000),
    *(1_000_000, 2_500_000, 10_000_000),
)

Values: TypeAlias = Mapping[str, int | Sequence[int]]
"""Values by metric name: the current value of a gauge, or the count since this process started."""


class Aggregation(Enum):
    """How a reader combines the cells of several processes."""

    SUM = "sum"
    MAX = "largest"
    EACH = "each"  # one series per process, with the label ``process``


SUM, MAX, EACH = Aggregation


class Metric(NamedTuple):
    """The declaration of a metric.

    ``rows`` contains the values of ``labels`` for each series. ``bounds`` are the inclusive upper
    bounds of a histogram's buckets. ``is_sparse``: omit a series in which all counts are 0.
    """

    name: str
    kind: MetricKind
    help: str
    aggregation: Aggregation = SUM
    labels: tuple[str, ...] = ()
    rows: Sequence[tuple[str, ...]] = ((),)
    bounds: tuple[int, ...] = ()
    is_sparse: bool = False

    @property
    def row_cells(self) -> int:
        """The number of cells of one row."""
        return len(self.bounds) + 3 if self.kind is HISTOGRAM else 1

    @property
    def cells(self) -> int:
        """The number of cells of the metric."""
        return len(self.rows) * self.row_cells


_ROUTES: Final = [(route,) for route in ROUTE_NAMES]
_STATUSES: Final = [(route, status) for route in ROUTE_NAMES for status in STATUS_NAMES]
_CLASSES: Final = [(name,) for name in CLASSES]
_ENDS: Final = [("finished",), ("failed",)]
_STREAMS: Final = [("watch",), ("work",), ("websocket",)]

# fmt: off
_OF_ALL = (
    Metric("topics_loop_lag_us", HISTOGRAM,
           "Delay of the event loop, measured twice a second.",
           EACH, bounds=LAG_BOUNDS_US),
    Metric("topics_link_late_bells_total", COUNTER,
           "Lost wake-ups between processes. Should be 0."),
    Metric("topics_link_backlog_bytes", GAUGE,
           "Bytes of messages that are waiting for space in a ring."),
    Metric("topics_link_unread_bytes", GAUGE,
           "Bytes in rings that the receiving process has not read yet."),
    Metric("topics_link_stalls_total", COUNTER,
           "Number of times that messages began to wait because a ring was full."),
    Metric("topics_process_resident_bytes", GAUGE,
           "Resident memory, including mapped files and shared memory.", EACH),
    Metric("topics_process_own_bytes", GAUGE,
           "Resident memory that is neither shared nor mapped from a file.", EACH),
    Metric("topics_process_cpu_ms_total", COUNTER, "CPU time, user and system.", EACH),
    Metric("topics_process_open_files", GAUGE, "Open file descriptors.", EACH),
    Metric("topics_process_open_files_max", GAUGE,
           "Maximum number of open file descriptors; 0: no limit.", EACH),
    Metric("topics_log_lines_dropped_total", COUNTER,
           "Log lines dropped because stderr could not be written."),
)
_OF_THE_FRONT = (
    Metric("topics_http_requests_total", COUNTER,
           "Requests by route and response status.",
           SUM, ("route", "status"), _STATUSES, is_sparse=True),
    Metric("topics_http_received_bytes_total", COUNTER,
           "Bytes of received requests, including headers.",
           SUM, ("route",), _ROUTES, is_sparse=True),
    Metric("topics_http_sent_bytes_total", COUNTER,
           "Bytes of sent responses and streams, including headers.",
           SUM, ("route",), _ROUTES, is_sparse=True),
    Metric("topics_http_request_duration_us", HISTOGRAM,
           "Time from a request to the end of its response, including the wait of long polls "
           "and the duration of streams.",
           SUM, ("route",), _ROUTES, LATENCY_BOUNDS_US, is_sparse=True),
    Metric("topics_connections_open", GAUGE, "Open client connections."),
    Metric("topics_connections_refused_total", COUNTER,
           "Connections that were refused or could not be accepted."),
    Metric("topics_streams", GAUGE,
           "Open event streams and WebSockets.", SUM, ("kind",), _STREAMS),
    Metric("topics_held_answer_bytes", GAUGE,
           "Bytes of responses and streams buffered for slow clients."),
    Metric("topics_held_request_bytes", GAUGE,
           "Bytes of requests that are incomplete or are waiting for an earlier request."),
    Metric("topics_backups_total", COUNTER,
           "Backups by outcome, counted once the transfer has started.", SUM, ("end",), _ENDS),
    Metric("topics_backup_finished_ms", GAUGE,
           "Unix time in ms at which the last backup finished; 0: none since the front started."),
)
_OF_SHARDS = (
    Metric("topics_wal_frames_total", COUNTER, "Frames appended to the log."),
    Metric("topics_wal_batches_total", COUNTER, "Groups of frames, each written in one batch."),
    Metric("topics_wal_fsyncs_total", COUNTER, "fsyncs of the log."),
    Metric("topics_wal_loop_fsyncs_total", COUNTER,
           "fsyncs of the log that were executed on the shard's event loop."),
    Metric("topics_wal_bytes_written_total", COUNTER, "Bytes written to the log."),
    Metric("topics_wal_rotations_total", COUNTER, "Log files created."),
    Metric("topics_wal_queue_depth", GAUGE,
           "Changes that are waiting for their write or fsync."),
    Metric("topics_wal_queue_depth_peak", GAUGE,
           "Maximum of topics_wal_queue_depth in a shard since its process started.",
           MAX),
    Metric("topics_wal_submit_full_total", COUNTER,
           "Writes refused because the disk was full or did not respond, or because the log "
           "was broken."),
    Metric("topics_wal_read_only", GAUGE, "Shards that refuse writes because their log is broken."),
    Metric("topics_wal_fsync_latency_us", HISTOGRAM,
           "Duration of log fsyncs in microseconds.", bounds=SYNC_BOUNDS_US),
    Metric("topics_topics", GAUGE, "Topics."),
    Metric("topics_topics_by_class", GAUGE,
           "Topics by durability class.", SUM, ("class",), _CLASSES),
    Metric("topics_topics_ahead_of_clock", GAUGE,
           "Topics whose newest $ts is more than an hour ahead of the clock. Age does not remove "
           "their new records until the clock has caught up."),
    Metric("topics_queue_topics", GAUGE, "Topics of type queue."),
    Metric("topics_routers", GAUGE, "Routers."),
    Metric("topics_records_live", GAUGE,
           "Readable records, and expired records that have not been removed."),
    Metric("topics_bytes_live", GAUGE,
           "Bytes of the records in topics_records_live, as counted by quotas."),
    Metric("topics_idempotency_keys", GAUGE, "Idempotency keys in memory."),
    Metric("topics_queue_leases_in_flight", GAUGE, "Leased jobs in all queues."),
    Metric("topics_queue_delayed", GAUGE, "Delayed jobs in all queues."),
    Metric("topics_seal_backlog_files", GAUGE,
           "Full log files that have not been sealed as segments yet."),
    Metric("topics_segment_files", GAUGE, "Segments."),
    Metric("topics_segments_merged_total", COUNTER,
           "Segments whose live records have been merged into a new segment."),
    Metric("topics_segment_merged_bytes_total", COUNTER,
           "Bytes of segments written by merges."),
    Metric("topics_segment_bytes", GAUGE, "Disk usage of segments."),
    Metric("topics_log_bytes", GAUGE,
           "Disk usage of the logs, including preallocated files."),
    Metric("topics_blob_bytes", GAUGE,
           "Disk usage of streamed appends that have not been sealed yet."),
    Metric("topics_checkpoint_bytes", GAUGE,
           "Disk usage of checkpoints, including the space reserved for the next one."),
    Metric("topics_checkpoint_age_ms", GAUGE,
           "Age of the newest checkpoint, the maximum across all shards; 0: no checkpoint. An idle "
           "shard writes no checkpoints.",
           MAX),
    Metric("topics_disk_free_bytes", GAUGE,
           "Free bytes on the file system of the data directory.", MAX),
    Metric("topics_inbox_messages", GAUGE,
           "Messages that are waiting for the event loop of their shard."),
    Metric("topics_iterations_total", COUNTER, "Iterations of the shards' event loops."),
)
# fmt: on

TABLE: Final[Mapping[ProcessKind, Sequence[Metric]]] = {
    ProcessKind.FRONT: _OF_ALL + _OF_THE_FRONT,
    ProcessKind.SHARD: _OF_ALL + _OF_SHARDS,
}


def _blocks(kind: ProcessKind) -> Iterator[tuple[Metric, slice]]:
    """Yield each metric of a kind of process, and the range of its cells."""
    at = 0
    for metric in TABLE[kind]:
        yield metric, slice(at, at := at + metric.cells)
    assert at <= COUNTERS, "the metrics of a process fit into its counters"


class CounterCells:
    """The counters of this process.

    Gauges start at 0. Other metrics continue from the value of the previous process.
    """

    def __init__(self, board: Board, own: ProcessId) -> None:
        reset_gauges(board, own)
        self._cells = board.process(own).counters
        self._blocks = {
            metric.name: (block, self._cells[block].tolist()) for metric, block in _blocks(own.kind)
        }

    def store(self, values: Values) -> None:
        """Store the values of the process. A sequence has one value for each cell of its metric.

        A negative value is stored as 0, because the cells are unsigned.
        """
        cells = self._cells
        for name, value in values.items():
            block, bases = self._blocks[name]
            own = (value,) if isinstance(value, int) else value
            for at, (base, count) in enumerate(zip(bases, own, strict=True), block.start):
                cells[at] = max(0, base + count)


def reset_gauges(board: Board, process: ProcessId) -> None:
    """Set the gauges of the process to 0. Its counters keep their values."""
    cells = board.process(process).counters
    for metric, block in _blocks(process.kind):
        if metric.kind is GAUGE:
            for at in range(block.start, block.stop):
                cells[at] = 0


def families(board: Board) -> Iterator[MetricFamily]:
    """Yield all metrics of the table in the form in which they are published."""
    found: dict[str, tuple[Metric, list[tuple[ProcessId, list[int]]]]] = {}
    for process in board.processes:
        cells = board.process(process).counters.tolist()
        for metric, block in _blocks(process.kind):
            found.setdefault(metric.name, (metric, []))[1].append((process, cells[block]))
    for name, (metric, parts) in found.items():
        yield MetricFamily(name, metric.kind, metric.help, [*_shown(metric, parts)])


def _shown(metric: Metric, parts: Sequence[tuple[ProcessId, list[int]]]) -> Iterator[Series]:
    if metric.aggregation is EACH:
        for process, cells in parts:
            yield from _series(metric, cells, (("process", str(process)),))
    else:
        cells = parts[0][1]
        if len(parts) > 1:
            together = max if metric.aggregation is MAX else sum
            cells = [*map(together, zip(*(cells for _, cells in parts), strict=True))]
        yield from _series(metric, cells, ())


def _series(
    metric: Metric, cells: list[int], more: tuple[tuple[str, str], ...]
) -> Iterator[Series]:
    """Yield one series per row. For a sparse metric, skip rows in which all counts are 0."""
    names, width, is_sparse = metric.labels, metric.row_cells, metric.is_sparse
    if is_sparse and not any(cells):
        return
    for row, texts in enumerate(metric.rows):
        if width == 1:
            value: Value = cells[row]
            if is_sparse and not value:
                continue
        else:
            found = cells[row * width : (row + 1) * width]
            if is_sparse and not any(found):
                continue
            value = Histogram(metric.bounds, found[:-2], found[-2])
        yield (*zip(names, texts, strict=True), *more), value
