"""Rows of a job, appended in their order, and once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.spark.source.live import Live
from topics.spark.client.errors import RequestError
from topics.spark.errors import JobError
from topics.spark.jobs.appending import Appended, append_rows, head_of, open_dest
from topics.spark.sink.options import SinkOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def sink(live: Live, topic: str) -> SinkOptions:
    return SinkOptions.parse({"servers": live.url, "topic": topic, "batchRecords": "40"})


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_rows_are_appended_in_order_and_once_for_each_scope(
    spark: SparkSession, live: Live
) -> None:
    options = sink(live, "rows")
    assert open_dest(options, []) == 0
    df = spark.range(0, 100, 1, 3).selectExpr(
        "99 - id as place", "cast(id as string) as key", "cast(id as string) as value"
    )
    first = append_rows(df, options, "one", ["place"])
    assert first == Appended(records=100, requests=3, head_after=100)
    # The same rows, cut otherwise.
    again = append_rows(df.repartition(5), options, "one", ["place"])
    assert (again.records, again.repeated, again.agrees) == (100, 100, True)
    with live.client() as client:
        page = client.diff("rows", from_seq=0, limit=1000)
    assert [record.tag for record in page.records] == [str(id) for id in range(99, -1, -1)]
    assert append_rows(df.limit(0), options, "two", ["place"]).records == 0


def test_heads_that_moved_otherwise_do_not_agree() -> None:
    one = Appended(records=10, repeated=4, requests=1, head_before=5, head_after=11)
    assert one.agrees
    both = one.and_then(Appended(records=1, head_before=11, head_after=12))
    assert (both.records, both.head_before, both.head_after, both.agrees) == (11, 5, 12, True)
    less = Appended(records=10, requests=1, head_before=5, head_after=14)
    assert not less.agrees
    assert "The server does NOT agree: head 5 before, 14 after" in less.text()


def test_a_destination_that_cannot_be_written_is_one_line(live: Live) -> None:
    live.make("jobs", type="queue")
    with pytest.raises(JobError, match='topic "jobs" is a queue'):
        open_dest(sink(live, "jobs"), [])
    with pytest.raises(RequestError, match="topic_not_found"):
        head_of(sink(live, "nothing"), sink(live, "nothing").connection.servers.members[0])
    away = SinkOptions.parse({"servers": "http://127.0.0.1:9", "topic": "t", "numRetries": "0"})
    with pytest.raises(JobError, match="unreachable"):
        open_dest(away, [])
