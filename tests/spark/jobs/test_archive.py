"""Archives of real topics, also read without Spark."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable

from tests.spark.jobs.test_checkpoint import TEMPORARY
from tests.spark.live import Live
from topics.errors import ExitCode
from topics.spark.job_errors import JobError
from topics.spark.jobs import archive as module
from topics.spark.jobs import archive_table, streams
from topics.spark.jobs.archive import CHECKPOINT, archive, begin
from topics.spark.jobs.archive_table import commit, dated, opened
from topics.spark.jobs.checkpoint import JOB
from topics.spark.jobs.cli import main, parser
from topics.spark.jobs.streams import read_stream
from topics.spark.rows import map_arrow
from topics.spark.source.columns import schema_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def job(live: Live, topic: str, directory: Path, **overrides: Any) -> argparse.Namespace:
    line = ["archive", "--url", f"a={live.url}", "--quiet", topic, str(directory)]
    options = parser().parse_args(line)
    vars(options).update(overrides)
    return options


def offsets(directory: Path) -> list[int]:
    """Return all offsets in a table."""
    table = DeltaTable(str(directory)).to_pyarrow_dataset().to_table(columns=["offset"])
    return sorted(table["offset"].to_pylist())


def delete_commit(directory: Path) -> None:
    """Delete Spark's record of the last batch, which does not exist after a kill between the
    commit of the table and the end of the batch.
    """
    commits = directory / CHECKPOINT / "commits"
    last = max(
        (path for path in commits.iterdir() if path.name.isdigit()), key=lambda p: int(p.name)
    )
    last.unlink()
    (commits / f".{last.name}.crc").unlink(missing_ok=True)


def test_new_records_are_archived_once_and_read_by_duckdb_and_polars(
    unstopped: SparkSession, live: Live, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live.make("orders", 300)
    live.remove("orders", before=11)
    root = tmp_path / "new folder"
    first = archive(unstopped, job(live, "orders", root, batch_records=120))
    assert (first.rows, first.total, first.agrees) == (290, 290, True), first.text()
    assert first.batches >= 3
    again = archive(unstopped, job(live, "orders", root))
    assert (again.rows, again.total, again.topics, again.agrees) == (0, 290, [], True)
    live.append("orders", range(301, 351), tag="late", node="n1", meta={"from": "é"})
    DeltaTable(str(root)).optimize.compact()
    assert main(["archive", "--url", f"a={live.url}", "orders", str(root)]) == ExitCode.DONE
    printed = capsys.readouterr().out
    assert printed.startswith("50 records of 1 topics into ")
    assert "the archive contains 340\n" in printed
    assert printed.endswith("The server agrees.\n")
    ids = range(11, 351)
    table = DeltaTable(str(root)).to_pyarrow_dataset()
    with duckdb.connect() as connection:
        connection.register("orders", table)
        found = connection.sql(
            "select count(*), count(distinct \"offset\"), sum(cast(value->>'$.id' as bigint)),"
            ' count(key), count(node), count(headers), min("offset"), max("offset") from orders'
        ).fetchall()
    assert found == [(340, 340, sum(ids), 50, 50, 50, 11, 350)]
    in_day = pl.col("timestamp").dt.date() == pl.col("date")
    headers = pl.col("headers").drop_nulls().unique().first()
    # Polars reads no path with spaces.
    frame = pl.scan_delta(str(root.rename(tmp_path / "renamed"))).select(
        rows=pl.len(), dated=in_day.all(), headers=headers
    )
    assert frame.collect().to_dicts() == [
        {"rows": 340, "dated": True, "headers": '{"from": "\\u00e9"}'}
    ]


def test_files_of_sparks_sink_contain_each_record_once(
    spark: SparkSession, live: Live, tmp_path: Path
) -> None:
    live.make("files", 50)
    live.remove("files", before=3)
    files = job(live, "files", tmp_path, format="parquet", batch_records=20)
    assert archive(spark, files).agrees
    live.append("files", range(51, 61))
    second = archive(spark, files)
    assert (second.rows, second.total, second.agrees) == (10, 58, True), second.text()
    delete_commit(tmp_path)
    assert archive(spark, files).agrees
    found = spark.read.parquet(str(tmp_path)).select("offset").collect()
    assert sorted(row.offset for row in found) == [*range(3, 61)]


def test_a_batch_that_spark_repeats_is_not_written_again(
    spark: SparkSession, live: Live, tmp_path: Path
) -> None:
    live.make("repeated", 50)
    archive(spark, job(live, "repeated", tmp_path, batch_records=20))
    delete_commit(tmp_path)
    summary = archive(spark, job(live, "repeated", tmp_path, batch_records=20))
    assert (summary.rows, summary.total, summary.agrees) == (10, 50, True), summary.text()
    assert offsets(tmp_path) == [*range(1, 51)]


def test_an_archive_continues_only_in_its_folder_with_its_checkpoint(
    spark: SparkSession, live: Live, tmp_path: Path
) -> None:
    live.make("restored", 10)
    live.make("other", 3)
    root, point = tmp_path / "a", tmp_path / "a" / CHECKPOINT
    (tmp_path / "file").write_text("")
    restored = job(live, "restored", root)

    def refuse(options: argparse.Namespace, message: str) -> None:
        with pytest.raises(JobError, match=message):
            archive(spark, options)

    refuse(job(live, "restored", tmp_path), r"the folder is not empty \(file\)")
    archive(spark, restored)
    refuse(job(live, "other", root), "its topic is 'restored', not 'other'")
    refuse(job(live, "restored", root, format="parquet"), "its format is 'delta', not 'parquet'")
    older = shutil.copytree(point, tmp_path / "older")
    for _ in range(2):
        live.append("restored", range(10))
        archive(spark, restored)
    shutil.rmtree(point)
    refuse(restored, r"not empty .* contains no archive with its checkpoint")
    shutil.copytree(older, point)
    refuse(restored, "the checkpoint is older than the table")
    assert offsets(root) == [*range(1, 31)]
    empty = spark.createDataFrame([], schema_of(archive_table.COLUMNS))
    with pytest.raises(JobError, match="or belongs to another"):
        commit(dated(empty), 3, "another query", f"file://{root}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "file", "older"]


@pytest.mark.parametrize(
    ("directory", "code", "message"),
    [
        ("/proc/nowhere/archive", ExitCode.USAGE, "/archive/_checkpoint: the folder cannot be cr"),
        ("s3a://bucket/archive", ExitCode.FAILED, "add the jar org.apache.hadoop:hadoop-aws, for"),
    ],
)
def test_an_unusable_folder_is_reported_in_one_line(
    unstopped: SparkSession,
    live: Live,
    capsys: pytest.CaptureFixture[str],
    directory: str,
    code: ExitCode,
    message: str,
) -> None:
    live.make("placed", 1)
    assert main(["archive", "placed", directory, "--url", live.url]) == code
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_run_that_was_killed_before_its_first_batch_is_repeated(
    spark: SparkSession, live: Live, tmp_path: Path
) -> None:
    """`tests.campaigns.archive_kills` kills the process at these two moments."""
    live.make("begun", 10)
    begun, point = job(live, "begun", tmp_path), tmp_path / CHECKPOINT
    point.mkdir()
    (point / f"{JOB}.tmp").write_text("{")
    begin(spark, f"file://{tmp_path}", begun)
    (point / "offsets").mkdir()
    (point / "offsets" / TEMPORARY).write_text("v1")
    summary = archive(spark, begun)
    assert (summary.rows, summary.agrees) == (10, True), summary.text()


def test_one_of_two_concurrent_runs_commits(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"file://{tmp_path}/table"
    record = (None, "{}", "t", 0, 1, datetime.now(UTC), None, None, 1)
    rows = dated(spark.createDataFrame([record], schema_of(archive_table.COLUMNS)))
    commit(rows, 0, "q", uri)
    before = opened(uri)
    commit(rows, 1, "q", uri)
    monkeypatch.setattr(DeltaTable, "create", lambda *_, **__: before)
    with pytest.raises(JobError, match="Concurrent transaction failed"):
        commit(rows, 1, "q", uri)
    assert offsets(tmp_path / "table") == [1, 1]


def test_each_record_is_archived_once_despite_a_repeated_task_and_a_killed_server(
    spark: SparkSession, restartable: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    restartable.make("killed", 2000)
    died, killed = tmp_path / "died", tmp_path / "killed"

    def die_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        if not died.exists():
            died.touch()
            raise RuntimeError("a task dies")

    def read(spark: SparkSession, options: dict[str, str]) -> DataFrame:
        return map_arrow(
            plain(spark, options), die_once, schema_of(archive_table.COLUMNS).simpleString()
        )

    def kill(df: DataFrame, batch: int, query: str, uri: str) -> None:
        commit_batch(df, batch, query, uri)
        if not killed.exists():
            restartable.server.kill()
            restartable.server.start()
            killed.touch()

    plain, commit_batch = read_stream, commit
    monkeypatch.setattr(streams, "read_stream", read)
    monkeypatch.setattr(module, "commit", kill)
    summary = archive(spark, job(restartable, "killed", tmp_path / "archive", batch_records=700))
    assert died.exists()
    assert killed.exists()
    assert (summary.rows, summary.agrees) == (2000, True), summary.text()
    assert offsets(tmp_path / "archive") == [*range(1, 2001)]


def test_unread_records_that_were_evicted_or_deleted_fail_the_job_unless_allowed(
    spark: SparkSession, live: Live, tmp_path: Path
) -> None:
    live.make("short", 20, cap_records=10)
    archive(spark, job(live, "short", tmp_path))
    live.append("short", range(21, 61))
    with pytest.raises(JobError, match="short") as message:
        archive(spark, job(live, "short", tmp_path))
    assert "\n" not in str(message.value)
    allowed = job(live, "short", tmp_path, allow_loss=True)
    summary = archive(spark, allowed)
    assert summary.agrees, summary.text()
    (topic,) = summary.topics
    assert (topic.rows, topic.absent) == (10, 30)
    assert "30 seqs without a record: 30 lost" in summary.text()
    live.delete("short")
    live.make("short", 3)
    summary = archive(spark, allowed)
    assert (summary.total, summary.agrees) == (23, True), summary.text()
    assert offsets(tmp_path) == sorted([1, 2, 3, *range(11, 21), *range(51, 61)])


def test_a_topic_that_is_created_again_is_archived_and_replayed_completely(
    unstopped: SparkSession, live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All records have the same date. An earlier version, which stored no epochs, archived the
    first incarnation.
    """
    again = job(live, "again", tmp_path, allow_loss=True)
    live.make("again", 20)
    with monkeypatch.context() as earlier:
        for each in (module, archive_table):
            earlier.setattr(each, "COLUMNS", archive_table.COLUMNS[:-1])
        earlier.setattr(archive_table, "ORDER", ("date", "offset"))
        earlier.setattr(module, "check", lambda *_: [])
        archive(unstopped, again)
    live.append("again", range(21, 24))
    archive(unstopped, again)
    expected = [*range(1, 24)]
    for start, count in ((100, 10), (200, 30)):
        live.delete("again")
        live.make("again")
        live.append("again", range(start, start + count))
        expected += range(start, start + count)
        summary = archive(unstopped, again)
        found = summary.rows, summary.total, summary.agrees
        assert found == (count, len(expected), True), summary.text()
    for _ in range(2):
        assert main(["replay", str(tmp_path), "again.copy", "--url", live.url]) == ExitCode.DONE
        assert [record["data"]["id"] for record in live.read("again.copy")] == expected


def test_a_lost_or_duplicated_record_is_reported(
    spark: SparkSession, live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.make("both", 20)
    live.remove("both", before=3)

    def spoil(df: DataFrame, batch: int, query: str, uri: str) -> None:
        twice = df.unionByName(df.where("offset = 8"))
        commit(twice.where("offset != 9"), batch, query, uri)

    monkeypatch.setattr(module, "commit", spoil)
    summary = archive(spark, job(live, "both", tmp_path))
    assert not summary.agrees
    assert summary.topics[0].fault == (
        "seq 9 is on the server and not in the files, seq 8 is in the files twice"
    )
