"""The table of counters matches the cells of the board."""

from __future__ import annotations

from itertools import chain

import pytest

from topics.actors.link import counters
from topics.actors.link.board import COUNTERS, Board
from topics.actors.link.counters import (
    COUNTER,
    EACH,
    GAUGE,
    HISTOGRAM,
    MAX,
    SUM,
    TABLE,
    CounterCells,
    Metric,
)
from topics.actors.link.process_id import FRONT, ProcessId, ProcessKind, shard_id
from topics.formats.api.metrics_text import Histogram, MetricFamily, Value


def shown(board: Board) -> dict[str, MetricFamily]:
    return {family.name: family for family in counters.families(board)}


def values(board: Board, name: str) -> list[Value]:
    return [value for _, value in shown(board)[name].series]


def test_declared_names_and_kinds_follow_the_rules_of_metrics() -> None:
    for table in TABLE.values():
        assert len({metric.name for metric in table}) == len(table), "each name is declared once"
        assert sum(metric.cells for metric in table) <= COUNTERS
    for metric in chain(*TABLE.values()):
        assert metric.name.startswith("topics_")
        assert metric.name.endswith("_total") == (metric.kind is COUNTER)
        assert metric.help.endswith(".")
        assert bool(metric.bounds) == (metric.kind is HISTOGRAM)
        assert list(metric.bounds) == sorted(set(metric.bounds))
        assert {len(row) for row in metric.rows} == {len(metric.labels)}
        assert len(set(metric.rows)) == len(metric.rows)


@pytest.mark.parametrize("process", [FRONT, shard_id(0)], ids=str)
def test_counters_continue_after_a_restart_and_gauges_begin_with_0(process: ProcessId) -> None:
    board = Board(1)
    lag = [0] * len(counters.LAG_BOUNDS_US)
    for life in range(2):
        cells = CounterCells(board, process)
        assert values(board, "topics_link_backlog_bytes") == [0]
        for count in (3, 5):
            cells.store(
                {
                    "topics_link_backlog_bytes": 99,
                    "topics_link_late_bells_total": count,
                    "topics_loop_lag_us": [*lag, count, 10 * count, count],
                }
            )
        assert values(board, "topics_link_late_bells_total") == [5 * (life + 1)]
    assert values(board, "topics_link_backlog_bytes") == [99]
    found = dict(shown(board)["topics_loop_lag_us"].series)[(("process", str(process)),)]
    assert found == Histogram(counters.LAG_BOUNDS_US, [*lag, 10], 100)
    counters.reset_gauges(board, process)
    assert values(board, "topics_link_backlog_bytes") == [0]
    assert values(board, "topics_link_late_bells_total") == [10]


TEMPERATURE = Metric("topics_temperature", GAUGE, "Of now.", SUM, ("room",), [("a",), ("b",)])
PEAK = Metric("topics_peak", GAUGE, "Of all.", MAX)
SIZE = Metric("topics_size", GAUGE, "Of each.", EACH)
WAITS = Metric(
    "topics_waits_us",
    HISTOGRAM,
    "By door.",
    SUM,
    ("door",),
    [("in",), ("out",)],
    (10, 20),
    is_sparse=True,
)
NONE_YET = [0] * 5  # The cells of a row of WAITS


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> Board:
    """A board with two shards that count these metrics."""
    table = {ProcessKind.FRONT: (), ProcessKind.SHARD: (TEMPERATURE, PEAK, SIZE, WAITS)}
    monkeypatch.setattr(counters, "TABLE", table)
    return Board(2)


def test_values_of_processes_are_added_compared_or_shown_individually(declared: Board) -> None:
    for index, value in enumerate((7, 5)):
        CounterCells(declared, shard_id(index)).store(
            {"topics_temperature": (value, 1), "topics_peak": value, "topics_size": value}
        )
    assert list(declared.shard(0).counters)[:4] == [7, 1, 7, 7]
    families = shown(declared)
    assert families["topics_temperature"].series == [((("room", "a"),), 12), ((("room", "b"),), 2)]
    assert families["topics_peak"].series == [((), 7)]
    assert families["topics_size"].series == [
        ((("process", "shard 0"),), 7),
        ((("process", "shard 1"),), 5),
    ]


def test_a_sparse_metric_shows_only_the_rows_that_have_counted(declared: Board) -> None:
    assert shown(declared)["topics_waits_us"].series == []
    for index in range(2):
        CounterCells(declared, shard_id(index)).store(
            {"topics_waits_us": [*NONE_YET, 0, 0, 1, 21, 1]}
        )
    expected = Histogram((10, 20), [0, 0, 2], 42)
    assert shown(declared)["topics_waits_us"].series == [((("door", "out"),), expected)]


def test_a_negative_value_stops_no_process(declared: Board) -> None:
    CounterCells(declared, shard_id(0)).store({"topics_temperature": (-1, 5)})
    assert values(declared, "topics_temperature") == [0, 5]


def test_every_metric_is_shown_once_for_all_kinds_of_processes() -> None:
    board = Board(2)
    for process in (FRONT, shard_id(1)):
        CounterCells(board, process).store({"topics_link_late_bells_total": 1})
    found = [family.name for family in counters.families(board)]
    assert found == list(dict.fromkeys(metric.name for metric in chain(*TABLE.values())))
    assert values(board, "topics_link_late_bells_total") == [2]
