"""A job: rows are appended once, whatever fails on the way."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.client.stub_server import Fault, StubServer
from topics.spark.client.errors import RequestError
from topics.spark.client.http import Target
from topics.spark.errors import JobError
from topics.spark.opening import HOUR_MS, WINDOW_MS
from topics.spark.producer import produce
from topics.spark.reading import format_of, read
from topics.spark.rows import map_arrow

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

# Not repeated by the client: the task fails and Spark runs it again.
CRASH = Fault(status=500, code="internal")


def target(stub: StubServer) -> Target:
    return Target(url=stub.url, retries=4, backoff_s=0.01, backoff_max_s=0.05)


def ids(stub: StubServer, topic: str = "t") -> list[int]:
    return [record["data"]["id"] for record in stub.topics[topic].records]


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_task_that_dies_after_three_of_five_chunks_appends_nothing_twice(
    spark: SparkSession, stub: StubServer
) -> None:
    stub.faults.extend([None, None, None, CRASH])
    summary = produce(
        spark.range(0, 5000, 1, 1), "t", target=target(stub), batch_records=1000, job_id="j"
    )
    assert ids(stub) == list(range(5000))
    assert stub.statuses("POST") == [200, 200, 200, 500, 200, 200, 200, 200, 200]
    assert (summary.records, summary.appended, summary.deduped, summary.repeated) == (
        5000,
        5000,
        0,
        3,
    )
    assert (summary.head_before, summary.head_after, summary.agrees) == (0, 5000, True)


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.parametrize("job_id", ["nightly", None], ids=["named job", "job named by its rows"])
def test_a_job_that_is_run_again_appends_nothing(
    spark: SparkSession, stub: StubServer, job_id: str | None
) -> None:
    df = spark.range(0, 10_000, 1, 4).selectExpr("id", "concat('row ', id) as text")
    first = produce(df, "t", target=target(stub), batch_records=700, job_id=job_id)
    again = produce(df, "t", target=target(stub), batch_records=700, job_id=job_id)
    assert sorted(ids(stub)) == list(range(10_000))
    assert (first.appended, first.deduped, first.agrees) == (10_000, 0, True)
    assert (again.appended, again.deduped, again.repeated, again.agrees) == (
        0,
        10_000,
        again.requests,
        True,
    )
    assert (again.first_seq, again.last_seq, again.job_id) == (1, 10_000, first.job_id)


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_named_job_computes_its_rows_once(spark: SparkSession, stub: StubServer) -> None:
    computed = spark.sparkContext.accumulator(0)

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            computed.add(len(batch))
            yield batch

    out = io.StringIO()
    df = map_arrow(spark.range(0, 1000, 1, 2), count, "id long")
    summary = produce(df, "t", target=target(stub), job_id="j", progress=out)
    assert sorted(ids(stub)) == list(range(1000))
    assert (computed.value, summary.records, summary.agrees) == (1000, 1000, True)
    assert out.getvalue().startswith("1,000 records, ")


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_an_attempt_that_sees_other_rows_duplicates_and_never_loses(
    spark: SparkSession, stub: StubServer
) -> None:
    def stamp(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for batch in batches:
            yield pa.RecordBatch.from_pydict(
                {"id": batch.column(0), "attempt": [context.attemptNumber()] * len(batch)}
            )

    stub.faults.extend([None, None, None, CRASH])
    df = map_arrow(spark.range(0, 5000, 1, 1), stamp, "id long, attempt long")
    summary = produce(df, "t", target=target(stub), batch_records=1000, job_id="j")
    second = [
        record["data"]["id"]
        for record in stub.topics["t"].records
        if record["data"]["attempt"] == 1
    ]
    assert second == list(range(5000))
    assert len(stub.topics["t"].records) == 8000
    # The summary does not hide it.
    assert (summary.appended, summary.head_after, summary.agrees) == (5000, 8000, False)
    assert "3,000 more than this job accounts for" in summary.text()


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_busy_and_broken_answers_are_repeated_within_the_task(
    spark: SparkSession, stub: StubServer
) -> None:
    busy = Fault(status=429, code="throttled")
    stub.faults.extend(
        [
            busy,
            Fault(drop=True),
            None,
            Fault(cut=True, commit=True),
            Fault(status=503, code="not_ready"),
        ]
    )
    summary = produce(
        spark.range(0, 3000, 1, 1), "t", target=target(stub), batch_records=1000, job_id="j"
    )
    assert ids(stub) == list(range(3000))
    assert (summary.requests, summary.retries, summary.repeated, summary.agrees) == (3, 4, 1, True)


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_refusal_fails_the_job_with_code_topic_and_advice_in_one_line(
    spark: SparkSession, stub: StubServer
) -> None:
    stub.faults.extend([Fault(status=422, code="topic_full")] * 100)
    with pytest.raises(JobError) as failure:
        produce(spark.range(0, 10, 1, 1), "t", target=target(stub), job_id="j")
    text = str(failure.value)
    assert text.startswith('topic "t": 422 topic_full: ')
    assert "raise its cap" in text
    assert "\n" not in text
    assert stub.statuses("POST") == [422] * 4  # Spark's four attempts, one request each


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_another_writer_shows_as_a_disagreement(spark: SparkSession, stub: StubServer) -> None:
    class Meddler(io.StringIO):
        """Stands for another client: it appends when the first progress is shown."""

        def write(self, text: str) -> int:
            stub.topics["t"].append("t", [{"data": {"id": -1}}], None)
            return super().write(text)

    progress = Meddler()
    summary = produce(
        spark.range(0, 10, 1, 1), "t", target=target(stub), job_id="j", total=10, progress=progress
    )
    assert "10 of 10 records, 100 %" in progress.getvalue()
    assert not summary.agrees
    assert "Another writer" in summary.text()


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_an_empty_frame_is_a_job_too(spark: SparkSession, stub: StubServer) -> None:
    summary = produce(spark.range(0), "t", target=target(stub))
    assert (summary.records, summary.requests, summary.agrees) == (0, 0, True)
    assert stub.statuses("POST") == []


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_new_topic_gets_a_window_of_a_week_and_the_durability(
    spark: SparkSession, stub: StubServer
) -> None:
    produce(spark.range(1), "t", target=target(stub), durability="fsync", warn=pytest.fail)
    assert stub.topics["t"].config == {"idempotency_window_ms": WINDOW_MS, "durability": "fsync"}


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_an_existing_topic_keeps_its_window_with_a_warning_when_it_is_short(
    spark: SparkSession, stub: StubServer
) -> None:
    stub.make("short")
    stub.make("long", idempotency_window_ms=HOUR_MS)
    lines: list[str] = []
    produce(spark.range(1), "short", target=target(stub), warn=lines.append)
    produce(spark.range(1), "long", target=target(stub), warn=pytest.fail)
    assert stub.topics["short"].config == {"idempotency_window_ms": 120_000, "durability": "disk"}
    assert len(lines) == 1
    assert "120 s only" in lines[0]


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_topic_that_cannot_be_made_fails_before_any_row_is_read(
    spark: SparkSession, stub: StubServer
) -> None:
    closed = Target(url="http://127.0.0.1:9", retries=1, backoff_s=0.01)
    with pytest.raises(RequestError, match="unreachable"):
        produce(spark.range(1), "t", target=closed)


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.parametrize("form", ["csv", "json", "parquet"])
def test_files_have_the_same_keys_in_every_run(
    spark: SparkSession, stub: StubServer, tmp_path: Path, form: str
) -> None:
    source = str(tmp_path / f"rows.{form}")
    options = {"header": "true"} if form == "csv" else {}
    spark.range(0, 2000, 1, 3).selectExpr("id", "id * 2 as twice").write.format(form).options(
        **options
    ).save(source)
    assert format_of(source) == form
    for expected in (2000, 0):
        summary = produce(
            read(spark, source, None, {}),
            "t",
            target=target(stub),
            source=source,
            batch_records=150,
        )
        assert (summary.records, summary.appended, summary.agrees) == (2000, expected, True)
    assert sorted(ids(stub)) == list(range(2000))
    assert all(
        record["data"]["twice"] == 2 * record["data"]["id"] for record in stub.topics["t"].records
    )


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_tabs_separate_the_columns_of_a_tsv_file(
    spark: SparkSession, stub: StubServer, tmp_path: Path
) -> None:
    source = tmp_path / "rows.tsv"
    source.write_text("id\tname\n1\ta,b\n2\tc\n")
    produce(read(spark, str(source), None, {}), "t", target=target(stub))
    assert [record["data"] for record in stub.topics["t"].records] == [
        {"id": 1, "name": "a,b"},
        {"id": 2, "name": "c"},
    ]


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_batches_end_at_the_byte_limit(spark: SparkSession, stub: StubServer) -> None:
    df = spark.range(0, 100, 1, 1).selectExpr("id", "repeat('x', 1000) as pad")
    summary = produce(df, "t", target=target(stub), batch_bytes=10_500, job_id="j")
    assert ids(stub) == list(range(100))
    assert summary.requests == 10
