"""Rows of a job are appended once and in their order, despite failures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.spark.client.stub_server import Fault, StubServer
from topics.spark import records
from topics.spark.job_errors import JobError
from topics.spark.jobs.appending import Appended, append, open_dest
from topics.spark.rows import map_arrow
from topics.spark.sink.options import SinkOptions
from topics.spark.source.connection import ServerError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

# The client does not retry this error. The task fails, and Spark retries it.
CRASH = Fault(status=500, code="internal")
WAIT_S = 60.0


def opened(url: str, **more: str) -> SinkOptions:
    """Create the topic, and return the options."""
    given = {"servers": url, "topic": "t", "numRetries": "8", "batchRecords": "1000", **more}
    options = SinkOptions.parse(given)
    open_dest(options)
    return options


def numbers(spark: SparkSession, count: int, partitions: int = 1) -> DataFrame:
    return records(spark.range(0, count, 1, partitions))


def ids(stub: StubServer) -> list[int]:
    return [record["data"]["id"] for record in stub.topics["t"].records]


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_task_that_fails_after_three_of_five_requests_appends_no_record_twice(
    spark: SparkSession, stub: StubServer
) -> None:
    options = opened(stub.url)
    stub.faults.extend([None, None, None, CRASH])
    done = append(numbers(spark, 5000), options, "batch:j")
    assert ids(stub) == list(range(5000))
    assert stub.statuses("POST")[1:] == [200, 200, 200, 500, 200, 200, 200, 200, 200]
    assert (done.records, done.appended, done.head_after, done.agrees) == (5000, 5000, 5000, True)
    again = append(numbers(spark, 5000), options, "batch:j")
    assert (again.records, again.repeated, again.appended, again.agrees) == (5000, 5000, 0, True)
    assert append(numbers(spark, 0), options, "batch:j").records == 0


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_ordered_rows_make_the_same_requests_from_any_partitions(
    spark: SparkSession, stub: StubServer
) -> None:
    options = opened(stub.url, batchRecords="40")
    df = records(spark.range(0, 100, 1, 3)).selectExpr(
        "value", "100 - get_json_object(value, '$.id') as place"
    )
    for cut in (df, df.repartition(5)):
        done = append(cut, options, "batch:j", order=["place"])
        assert (done.records, done.requests, done.agrees) == (100, 3, True)
    assert ids(stub) == list(range(99, -1, -1))


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_task_whose_rows_differ_between_attempts_loses_no_row_and_reports_the_surplus(
    spark: SparkSession, stub: StubServer
) -> None:
    def stamp(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for batch in batches:
            number = context.attemptNumber()
            texts = [f"[{number},{text}" for text in batch.column(0).cast("string").to_pylist()]
            yield pa.RecordBatch.from_pydict({"value": [f"{text}]" for text in texts]})

    options = opened(stub.url)
    stub.faults.extend([None, None, None, CRASH])
    done = append(map_arrow(spark.range(0, 5000, 1, 1), stamp, "value string"), options, "batch:j")
    found = [record["data"] for record in stub.topics["t"].records]
    assert [number for attempt, number in found if attempt == 1] == list(range(5000))
    assert (len(found), done.appended, done.agrees) == (8000, 5000, True)
    assert "agrees, and has 3,000 records by other writers, or by a task" in done.text()


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_refusal_is_one_line_with_code_advice_and_the_number_of_appended_records(
    spark: SparkSession, stub: StubServer
) -> None:
    options = opened(stub.url)
    stub.faults.extend([None, *[Fault(status=422, code="topic_full")] * 100])
    with pytest.raises(JobError) as failure:
        append(numbers(spark, 3000), options, "batch:j")
    text = str(failure.value)
    assert 'topic "t": 422 topic_full: ' in text
    assert "raise its cap" in text
    assert text.endswith(
        ". The topic gained 1,000 records before that; the same job run again appends no record"
        " twice"
    )
    assert "\n" not in text
    # Nothing is sent after a refusal, in none of Spark's four attempts.
    assert stub.statuses("POST")[1:] == [200, 422, 422, 422, 422]


def test_the_report_is_a_table_and_only_missing_records_are_a_failure() -> None:
    done = Appended(
        topic="t", records=3000, repeated=1000, requests=3, seconds=2.0, head_before=7,
        head_after=2007, notes={"batches": 2},
    )  # fmt: skip
    assert [line.split(None, 1) for line in done.text().splitlines() if "head" not in line] == [
        ["topic", "t"],
        ["batches", "2"],
        ["records", "3,000"],
        ["appended", "2,000"],
        ["already", "there  1,000"],
        ["requests", "3"],
        ["retries", "0"],
        ["seconds", "2.0"],
        ["rows/s", "1,500"],
        ["the", "server     agrees"],
    ]
    less = Appended(topic="t", records=10, head_before=5, head_after=14)
    assert not less.agrees
    assert "does NOT agree: 1 fewer than it acknowledged; the topic was created" in less.text()
    more = Appended(topic="t", records=10, repeated=4, head_before=5, head_after=18)
    assert more.agrees
    assert "agrees, and has 7 records by other writers" in more.text()
    both = done.and_then(Appended(topic="t", records=1, head_before=2007, head_after=2008))
    assert (both.records, both.head_before, both.head_after, both.agrees) == (3001, 7, 2008, True)


def test_an_unusable_destination_is_reported_in_one_line(stub: StubServer) -> None:
    stub.make("jobs", type="queue")
    with pytest.raises(JobError, match='topic "jobs" is a queue'):
        opened(stub.url, topic="jobs")
    with pytest.raises(ServerError, match="unreachable"):
        opened("http://127.0.0.1:9", numRetries="0")


def test_a_given_durability_changes_an_existing_topic(stub: StubServer) -> None:
    stub.make("t", idempotency_window_ms=10**8, durability="memory")
    for _ in range(2):
        open_dest(SinkOptions.parse({"servers": stub.url, "topic": "t"}))
        assert stub.topics["t"].config["durability"] == "memory"
    for _ in range(2):
        given = {"servers": stub.url, "topic": "t", "durability": "fsync"}
        open_dest(SinkOptions.parse(given))
        assert stub.topics["t"].config["durability"] == "fsync"
    assert stub.statuses("PUT") == [200], "the second call finds the durability unchanged"
