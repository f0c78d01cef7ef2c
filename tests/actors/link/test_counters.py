"""The registry of counters and the words of the board agree."""

from __future__ import annotations

import pytest

from topics.actors.link import counters
from topics.actors.link.board import COUNTERS, Board
from topics.actors.link.counters import REGISTRY, CounterWords, MetricKind, offsets
from topics.actors.link.process_id import ProcessId, ProcessKind, front_id, shard_id

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


def test_a_reader_sums_over_all_processes_that_count() -> None:
    board = Board.create(shards=2, fronts=1)
    for number, process in enumerate((front_id(0), shard_id(0), shard_id(1)), start=1):
        CounterWords(board, process).add("topics_link_late_bells_total", 10**number)
    CounterWords(board, shard_id(1)).set("topics_wal_fsyncs_total", 7)
    totals = counters.read(board)
    assert totals["topics_link_late_bells_total"] == (1110,)
    assert totals["topics_wal_fsyncs_total"] == (7,)
    assert totals.keys() == {metric.name for declared in REGISTRY.values() for metric in declared}


def test_a_histogram_counts_an_observation_in_the_first_bucket_that_holds_it() -> None:
    board = Board.create(shards=1, fronts=1)
    words = CounterWords(board, front_id(0))
    for value in (0, 1_000, 1_001, 10**9):
        words.observe(LAG, value)
    assert counters.read(board)[LAG] == (2, 1, 0, 0, 0, 0, 1, 10**9 + 2_001, 4)


@pytest.mark.parametrize("process", [front_id(0), shard_id(0)], ids=str)
def test_counters_go_on_after_a_restart_and_gauges_begin_with_0(process: ProcessId) -> None:
    board = Board.create(shards=1, fronts=1)
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
