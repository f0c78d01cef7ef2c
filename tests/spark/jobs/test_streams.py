"""Streams of jobs: their options, progress and end."""

from __future__ import annotations

import argparse
import json
import time
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.spark.live import Live
from topics.spark.client.servers import Servers
from topics.spark.job_errors import JobError
from topics.spark.jobs import streams
from topics.spark.jobs.arguments import options_of, seconds
from topics.spark.jobs.streams import (
    QueryProgress,
    Span,
    read_stream,
    run_batches,
)
from topics.spark.source.connection import Connection
from topics.spark.source.offsets import Position

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.mark.parametrize(
    ("text", "value"), [("500ms", 0.5), ("10s", 10), ("5m", 300), ("1h", 3600)]
)
def test_an_interval_is_a_number_and_a_unit(text: str, value: float) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "10", "0s", "-1s", "1.5s", "1 s", "s"])
def test_other_intervals_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="must be like 500ms"):
        seconds(text)


@pytest.mark.parametrize("servers", ["http://a:1", "a=http://a:1,http://b:2", "a=http://a:1"])
def test_the_options_of_the_source_keep_the_names_of_servers(servers: str) -> None:
    given = argparse.Namespace(url=Servers.parse(servers), retries=3)
    connection = Connection.parse(options_of(given))
    assert connection.servers == Servers.parse(servers)
    assert connection.retries == 3


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_following_job_runs_until_it_is_interrupted(
    spark: SparkSession, live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.make("followed", 3)
    found: list[tuple[int, int]] = []

    def collect(batch: DataFrame, number: int, query: str) -> None:
        assert query
        found.append((number, batch.count()))

    def wait(*_: object) -> None:
        while not found:
            time.sleep(0.05)
        live.append("followed", range(4, 9))
        while len(found) < 2:
            time.sleep(0.05)
        raise KeyboardInterrupt

    monkeypatch.setattr(streams, "_wait", wait)
    source = read_stream(spark, {"servers": live.url, "subscribe": "followed"})
    run_batches(source, collect, str(tmp_path), 0.1, QueryProgress())
    assert found[:2] == [(0, 3), (1, 5)]


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_an_interruption_of_a_job_that_does_not_follow_is_raised(
    spark: SparkSession, live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.make("interrupted", 1)

    def wait(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(streams, "_wait", wait)
    source = read_stream(spark, {"servers": live.url, "subscribe": "interrupted"})
    with pytest.raises(KeyboardInterrupt):
        run_batches(source, lambda batch, number, query: None, str(tmp_path), None, QueryProgress())


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_an_error_of_the_sink_is_raised(spark: SparkSession, live: Live, tmp_path: Path) -> None:
    live.make("refused", 1)

    def collect(batch: DataFrame, number: int, query: str) -> None:
        raise JobError("the sink says no")

    source = read_stream(spark, {"servers": live.url, "subscribe": "refused"})
    with pytest.raises(JobError, match=r"^the sink says no$"):
        run_batches(source, collect, str(tmp_path), None, QueryProgress())


def test_each_batch_is_counted_once_and_idle_reports_are_not_counted() -> None:
    def offset(seq: int) -> str:
        return "null" if seq < 0 else json.dumps({"a": {"t": [seq, 1]}})

    def report(batch: int, *, idle: bool = False) -> dict[str, object]:
        return {
            "batchId": batch,
            "sources": [{"startOffset": offset(batch - 1), "endOffset": offset(batch)}],
            "numInputRows": 5,
            "durationMs": {"triggerExecution": 1} | ({} if idle else {"addBatch": 1}),
        }

    query, run = SimpleNamespace(recentProgress=[report(0), report(1, idle=True)]), QueryProgress()
    for _ in range(2):
        run.update(cast("Any", query))
    assert (run.batches, run.records) == (1, 5)
    query.recentProgress.append(report(1))
    run.update(cast("Any", query))
    assert (run.batches, run.records) == (2, 10)
    assert run.spans == {("a", "t", 1): Span(None, Position(1, 1))}


def test_each_incarnation_of_a_topic_has_a_span() -> None:
    positions = [
        {"t": Position(5, 1), "gone": Position(2, 1)},
        {"t": Position(9, 1)},
        {"t": Position(0, 2), "new": Position(3, 1)},
        {"t": Position(4, 2), "new": Position(3, 1)},
    ]
    offsets = [json.dumps({"a": each}) for each in positions]
    reports = [
        {
            "batchId": batch,
            "sources": [{"startOffset": start, "endOffset": end}],
            "numInputRows": 1,
            "durationMs": {"addBatch": 1},
        }
        for batch, (start, end) in enumerate(pairwise(offsets))
    ]
    run = QueryProgress()
    run.update(cast("Any", SimpleNamespace(recentProgress=reports)))
    assert run.spans == {
        ("a", "t", 1): Span(Position(5, 1), Position(9, 1)),
        ("a", "gone", 1): Span(Position(2, 1), Position(2, 1)),
        ("a", "t", 2): Span(Position(0, 2), Position(4, 2)),
        ("a", "new", 1): Span(Position(3, 1), Position(3, 1)),
    }
