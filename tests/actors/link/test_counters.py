"""The registry of counters and the words of the board agree."""

from __future__ import annotations

import pytest

from topics.actors.link import counters
from topics.actors.link.board import COUNTERS, Board
from topics.actors.link.counters import REGISTRY, Across, CounterWords, Metric, offsets
from topics.actors.link.process_id import FRONT, ProcessId, ProcessKind, shard_id
from topics.formats.api.metrics_text import Family, Histogram, MetricKind, Series

LAG = "topics_loop_lag_us"


@pytest.mark.parametrize("kind", ProcessKind)
def test_the_metrics_of_a_process_fill_its_words_from_the_first_without_a_hole(
    kind: ProcessKind,
) -> None:
    at, next_word = offsets(kind), 0
    for metric in REGISTRY[kind]:
        assert at[metric.name] == next_word
        next_word += metric.words
    assert next_word <= COUNTERS
    assert len(at) == len(REGISTRY[kind]), "a name stands there once"


def test_declarations_read_as_metrics_do() -> None:
    metrics = {metric for declared in REGISTRY.values() for metric in declared}
    assert len({metric.name for metric in metrics}) == len(metrics), "one meaning for each name"
    for metric in metrics:
        assert metric.name.startswith("topics_")
        assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER)
        assert metric.help.endswith(".")
        assert bool(metric.bounds) == (metric.kind is MetricKind.HISTOGRAM)
        assert list(metric.bounds) == sorted(set(metric.bounds))
        assert {len(row) for row in metric.rows} == {len(metric.labels)}
        assert len(set(metric.rows)) == len(metric.rows)


def test_a_reader_sums_over_all_processes_that_count() -> None:
    board = Board(2)
    for number, process in enumerate((FRONT, shard_id(0), shard_id(1)), start=1):
        CounterWords(board, process).add("topics_link_late_bells_total", 10**number)
    CounterWords(board, shard_id(1)).set("topics_wal_fsyncs_total", 7)
    totals = counters.read(board)
    assert totals["topics_link_late_bells_total"] == (1110,)
    assert totals["topics_wal_fsyncs_total"] == (7,)
    assert totals.keys() == {metric.name for declared in REGISTRY.values() for metric in declared}


def test_a_histogram_counts_an_observation_in_the_first_bucket_that_holds_it() -> None:
    board = Board(1)
    words = CounterWords(board, FRONT)
    for value in (0, 1_000, 1_001, 10**9):
        words.observe(LAG, value)
    assert counters.read(board)[LAG] == (2, 1, 0, 0, 0, 0, 1, 10**9 + 2_001, 4)


@pytest.mark.parametrize("process", [FRONT, shard_id(0)], ids=str)
def test_counters_go_on_after_a_restart_and_gauges_begin_with_0(process: ProcessId) -> None:
    board = Board(1)
    for _ in range(2):
        words = CounterWords(board, process)
        assert counters.read(board)["topics_link_backlog_bytes"] == (0,)
        words.observe(LAG, 1)
        words.set("topics_link_backlog_bytes", 99)
        for count in (3, 5):
            words.set("topics_link_late_bells_total", count)
    totals = counters.read(board)
    assert totals["topics_link_late_bells_total"] == (10,)
    assert totals["topics_link_backlog_bytes"] == (99,)
    assert totals[LAG][-1] == 2
    counters.forget_gauges(board, process)
    assert counters.read(board) == totals | {"topics_link_backlog_bytes": (0,)}


TEMPERATURE = Metric(
    "topics_temperature", "Of now.", MetricKind.GAUGE, labels=("room",), rows=(("a",), ("b",))
)
PEAK = Metric("topics_peak", "Of all.", MetricKind.GAUGE, across=Across.LARGEST)
SIZE = Metric("topics_size", "Of each.", MetricKind.GAUGE, across=Across.EACH)
WAITS = Metric(
    "topics_waits_us",
    "By door.",
    MetricKind.HISTOGRAM,
    bounds=(10, 20),
    labels=("door",),
    rows=(("in",), ("out",)),
    is_sparse=True,
)


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> Board:
    """A board with two shards, of which these metrics are counted."""
    registry = {
        ProcessKind.FRONT: (),
        ProcessKind.SHARD: (TEMPERATURE, PEAK, SIZE, WAITS),
    }
    monkeypatch.setattr(counters, "REGISTRY", registry)
    return Board(2)


def shown(board: Board) -> dict[str, Family]:
    return {family.name: family for family in counters.families(board)}


def test_a_metric_with_labels_has_a_word_or_a_histogram_for_each_row(declared: Board) -> None:
    words = CounterWords(declared, shard_id(0))
    words.add("topics_temperature", 3)
    words.add("topics_temperature", 4, row=1)
    words.observe("topics_waits_us", 20, row=1)
    assert offsets(ProcessKind.SHARD)["topics_waits_us"] == 4
    assert list(declared.shard(0).counters)[:15] == [3, 4, 0, 0, *[0] * 5, 0, 1, 0, 20, 1, 0]


def test_processes_are_added_up_compared_or_shown_one_by_one(declared: Board) -> None:
    for index, value in enumerate((7, 5)):
        words = CounterWords(declared, shard_id(index))
        words.set("topics_temperature", (value, 1))
        words.set("topics_peak", value)
        words.set("topics_size", value)
    families = shown(declared)
    assert families["topics_temperature"].series == [
        Series((("room", "a"),), 12),
        Series((("room", "b"),), 2),
    ]
    assert families["topics_peak"].series == [Series((), 7)]
    assert families["topics_size"].series == [
        Series((("process", "shard 0"),), 7),
        Series((("process", "shard 1"),), 5),
    ]


def test_a_sparse_metric_shows_the_rows_that_have_counted(declared: Board) -> None:
    assert shown(declared)["topics_waits_us"].series == []
    for index in range(2):
        CounterWords(declared, shard_id(index)).observe("topics_waits_us", 21, row=1)
    expected = Histogram((10, 20), (0, 0, 2), 42)
    assert [(labels, value) for labels, value in shown(declared)["topics_waits_us"].series] == [
        ((("door", "out"),), expected)
    ]


def test_own_counts_of_a_metric_with_labels_go_on_after_a_restart(declared: Board) -> None:
    for _ in range(2):
        words = CounterWords(declared, shard_id(0))
        for times in (1, 2):
            words.set("topics_waits_us", [0] * 5 + [times, 0, 0, 9 * times, times])
    assert counters.read(declared)["topics_waits_us"][5:] == (4, 0, 0, 36, 4)


def test_a_value_below_0_stops_no_process(declared: Board) -> None:
    words = CounterWords(declared, shard_id(0))
    words.set("topics_temperature", (-1, 5))
    assert counters.read(declared)["topics_temperature"] == (0, 5)


def test_a_dead_process_has_no_gauge_in_any_row(declared: Board) -> None:
    CounterWords(declared, shard_id(0)).set("topics_temperature", (7, 8))
    counters.forget_gauges(declared, shard_id(0))
    assert counters.read(declared)["topics_temperature"] == (0, 0)


def test_every_metric_is_shown_once_and_of_all_kinds_of_processes() -> None:
    board = Board(2)
    for process in (FRONT, shard_id(1)):
        CounterWords(board, process).add("topics_link_late_bells_total")
    found = [*counters.families(board)]
    assert [family.name for family in found] == list(dict.fromkeys(offsets_of_all()))
    assert shown(board)["topics_link_late_bells_total"].series == [Series((), 2)]


def offsets_of_all() -> list[str]:
    return [metric.name for metrics in REGISTRY.values() for metric in metrics]
