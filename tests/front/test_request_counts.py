"""The request counts of a front, and the board counters that store them."""

from __future__ import annotations

from topics.actors.link import counters
from topics.actors.link.board import Board
from topics.actors.link.counters import LATENCY_BOUNDS_US, CounterCells
from topics.actors.link.process_id import FRONT
from topics.formats.api.metrics_text import Histogram, MetricFamily, Value
from topics.formats.api.route_names import ROUTE_INDEXES
from topics.front.http.request_counts import RequestCounts

APPEND, DIFF = ROUTE_INDEXES["append"], ROUTE_INDEXES["diff"]


def shown(board: Board) -> dict[str, MetricFamily]:
    return {family.name: family for family in counters.families(board)}


def series(board: Board, name: str) -> dict[tuple[str, ...], Value]:
    found = shown(board)[name].series
    return {tuple(value for _, value in labels): value for labels, value in found}


def flush(counts: RequestCounts, board: Board) -> None:
    CounterCells(board, FRONT).store(counts.values())


def test_requests_are_counted_by_route_and_status_with_their_bytes() -> None:
    counts, board = RequestCounts(), Board(1)
    counts.count(APPEND, 201, 0.001, 300, 200)
    for _ in range(2):
        counts.count(APPEND, 200, 0.001, 100, 50)
    counts.count(DIFF, 429, 0.001, 10, 20)
    flush(counts, board)
    assert series(board, "topics_http_requests_total") == {
        ("append", "200"): 2,
        ("append", "201"): 1,
        ("diff", "429"): 1,
    }
    assert series(board, "topics_http_received_bytes_total") == {("append",): 500, ("diff",): 10}
    assert series(board, "topics_http_sent_bytes_total") == {("append",): 300, ("diff",): 20}


def test_requests_without_a_response_or_with_an_unknown_status_count_as_other() -> None:
    counts, board = RequestCounts(), Board(1)
    for status in (0, 418):
        counts.count(APPEND, status, 0.1, 1, 1)
    flush(counts, board)
    assert series(board, "topics_http_requests_total") == {("append", "other"): 2}


def test_a_duration_counts_in_the_first_bucket_that_includes_it() -> None:
    counts, board = RequestCounts(), Board(1)
    times = (0.0, 0.00025, 0.000251, 10.0, 3600.0)
    for seconds in times:
        counts.count(DIFF, 200, seconds, 0, 0)
    flush(counts, board)
    found = series(board, "topics_http_request_duration_us")[("diff",)]
    assert isinstance(found, Histogram)
    assert found.buckets == [2, 1, *[0] * (len(LATENCY_BOUNDS_US) - 3), 1, 1]
    assert found.sum == int(sum(times) * 1e6)


def test_counts_continue_in_the_counters_of_a_previous_process() -> None:
    board = Board(1)
    for _ in range(2):
        counts = RequestCounts()
        counts.count(APPEND, 200, 0.5, 7, 8)
        flush(counts, board)
    assert series(board, "topics_http_requests_total") == {("append", "200"): 2}
    found = series(board, "topics_http_request_duration_us")[("append",)]
    assert isinstance(found, Histogram)
    assert (found.sum, sum(found.buckets)) == (1_000_000, 2)
