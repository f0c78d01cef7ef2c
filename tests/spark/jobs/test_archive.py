"""The archive of real topics, read by those who know nothing of Spark."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable

from tests.spark.killed_server import kill_and_restart
from tests.spark.source.live import Live
from topics.errors import ExitCode
from topics.spark.errors import JobError
from topics.spark.jobs import archive as module
from topics.spark.jobs.archive import ArchiveJob, ArchiveSummary, archive
from topics.spark.jobs.archive_check import Checked
from topics.spark.jobs.archive_table import commit, dated, opened
from topics.spark.jobs.cli import main
from topics.spark.jobs.streams import read_stream
from topics.spark.rows import map_arrow
from topics.spark.source.columns import schema_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def job(live: Live, subscribe: str, directory: Path, **how: Any) -> ArchiveJob:
    options = {"servers": f"a={live.url}"}
    return ArchiveJob(subscribe=subscribe, directory=str(directory), options=options, **how)


def offsets(directory: Path) -> list[int]:
    """All offsets in a table."""
    table = DeltaTable(str(directory)).to_pyarrow_dataset().to_table(columns=["offset"])
    return sorted(table["offset"].to_pylist())


def forget_commit(directory: Path) -> None:
    """Let Spark's own note of the last batch be lost, as a kill right after the table's commit
    does.
    """
    commits = directory / "_checkpoint" / "commits"
    last = max(
        (path for path in commits.iterdir() if path.name.isdigit()), key=lambda p: int(p.name)
    )
    last.unlink()
    (commits / f".{last.name}.crc").unlink(missing_ok=True)


def test_what_is_new_is_archived_once_and_read_by_duckdb_and_polars(
    spark: SparkSession, live: Live, tmp_path: Path
) -> None:
    live.make("orders", 300)
    live.remove("orders", before=11)
    root = tmp_path / "archive"
    first = archive(spark, job(live, "orders", root, batch_records=120))
    assert (first.rows, first.total, first.agrees) == (290, 290, True), first.text()
    assert first.batches >= 3
    again = archive(spark, job(live, "orders", root))
    assert (again.rows, again.total, again.topics, again.agrees) == (0, 290, [], True)
    live.append("orders", range(301, 351), tag="late", node="n1", meta={"from": "é"})
    DeltaTable(str(root)).optimize.compact()
    second = archive(spark, job(live, "orders", root))
    assert (second.rows, second.total, second.agrees) == (50, 340, True), second.text()
    assert second.text().splitlines()[-1] == "The server agrees."
    ids = range(11, 351)
    table = DeltaTable(str(root)).to_pyarrow_dataset()
    with duckdb.connect() as connection:
        connection.register("orders", table)
        found = connection.sql(
            "select count(*), count(distinct \"offset\"), sum(cast(value->>'$.id' as bigint)),"
            ' count(key), count(node), count(headers), min("offset"), max("offset") from orders'
        ).fetchall()
    assert found == [(340, 340, sum(ids), 50, 50, 50, 11, 350)]
    frame = pl.scan_delta(str(root)).select(
        pl.len().alias("rows"),
        pl.col("value").str.json_path_match("$.id").cast(pl.Int64).sum().alias("ids"),
        (pl.col("timestamp").dt.date() == pl.col("date")).all().alias("dated"),
        pl.col("headers").drop_nulls().unique().first().alias("headers"),
    )
    assert frame.collect().to_dicts() == [
        {"rows": 340, "ids": sum(ids), "dated": True, "headers": '{"from": "\\u00e9"}'}
    ]


def test_files_of_sparks_own_sink_hold_each_record_once(
    spark: SparkSession, live: Live, tmp_path: Path
) -> None:
    live.make("files", 50)
    live.remove("files", before=3)
    files = job(live, "files", tmp_path, format="parquet", batch_records=20)
    assert archive(spark, files).agrees
    live.append("files", range(51, 61))
    second = archive(spark, files)
    assert (second.rows, second.total, second.agrees) == (10, 58, True), second.text()
    forget_commit(tmp_path)
    assert archive(spark, files).agrees
    found = spark.read.parquet(str(tmp_path)).select("offset").collect()
    assert sorted(row.offset for row in found) == [*range(3, 61)]


def test_a_batch_that_spark_repeats_is_not_written_again(
    spark: SparkSession, live: Live, tmp_path: Path
) -> None:
    live.make("repeated", 50)
    archive(spark, job(live, "repeated", tmp_path, batch_records=20))
    forget_commit(tmp_path)
    summary = archive(spark, job(live, "repeated", tmp_path, batch_records=20))
    assert (summary.rows, summary.total, summary.agrees) == (10, 50, True), summary.text()
    assert offsets(tmp_path) == [*range(1, 51)]


def test_a_checkpoint_that_is_lost_or_older_than_the_table_is_refused(
    spark: SparkSession, live: Live, tmp_path: Path
) -> None:
    live.make("restored", 10)
    restored = job(live, "restored", tmp_path / "a")
    archive(spark, restored)
    shutil.copytree(tmp_path / "a" / "_checkpoint", tmp_path / "older")
    for _ in range(2):
        live.append("restored", range(10))
        archive(spark, restored)
    shutil.rmtree(tmp_path / "a" / "_checkpoint")
    with pytest.raises(JobError, match=r"not empty .* holds no archive with its checkpoint"):
        archive(spark, restored)
    shutil.copytree(tmp_path / "older", tmp_path / "a" / "_checkpoint")
    with pytest.raises(JobError, match="the checkpoint is older than the table"):
        archive(spark, restored)
    assert offsets(tmp_path / "a") == [*range(1, 31)]
    other = spark.createDataFrame([], schema_of(()))
    with pytest.raises(JobError, match="or of another one"):
        commit(dated(other), 3, "another query", f"file://{tmp_path}/a")


def test_of_two_runs_at_the_same_time_one_commits(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"file://{tmp_path}/table"
    record = (None, "{}", "t", 0, 1, datetime.now(UTC), None, None)
    rows = dated(spark.createDataFrame([record], schema_of(())))
    commit(rows, 0, "q", uri)
    before = opened(uri)
    commit(rows, 1, "q", uri)
    monkeypatch.setattr(DeltaTable, "create", lambda *_, **__: before)
    with pytest.raises(JobError, match="Concurrent transaction failed"):
        commit(rows, 1, "q", uri)
    assert offsets(tmp_path / "table") == [1, 1]


def test_a_task_that_is_repeated_and_a_server_that_is_killed_leave_each_record_once(
    spark: SparkSession, live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.server.env["TOPICS_PORT"] = str(live.server.port)  # the same address after a restart
    live.make("killed", 2000)
    died, killed = tmp_path / "died", tmp_path / "killed"

    def die_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        if not died.exists():
            died.touch()
            raise RuntimeError("a task dies")

    def read(spark: SparkSession, options: dict[str, str]) -> DataFrame:
        return map_arrow(plain(spark, options), die_once, schema_of(()).simpleString())

    def kill(df: DataFrame, batch: int, query: str, uri: str) -> None:
        land(df, batch, query, uri)
        if not killed.exists():
            kill_and_restart(live.server, killed, lambda: None)

    plain, land = read_stream, commit
    monkeypatch.setattr(module, "read_stream", read)
    monkeypatch.setattr(module, "commit", kill)
    summary = archive(spark, job(live, "killed", tmp_path / "archive", batch_records=700))
    assert died.exists()
    assert killed.exists()
    assert (summary.rows, summary.agrees) == (2000, True), summary.text()
    assert offsets(tmp_path / "archive") == [*range(1, 2001)]


def test_folders_of_others_are_refused_before_anything_is_written(
    spark: SparkSession, live: Live, tmp_path: Path
) -> None:
    live.make("mine", 3)
    live.make("other", 3)
    (tmp_path / "file").write_text("")
    with pytest.raises(JobError, match=r"the folder is not empty \(file\)"):
        archive(spark, job(live, "mine", tmp_path))
    archive(spark, job(live, "mine", tmp_path / "a"))
    for how, told in [
        (job(live, "other", tmp_path / "a"), "its topic is 'mine', not 'other'"),
        (
            job(live, "mine", tmp_path / "a", format="parquet"),
            "its format is 'delta', not 'parquet'",
        ),
    ]:
        with pytest.raises(JobError, match=told):
            archive(spark, how)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "file"]


def test_records_that_were_evicted_unread_fail_the_job_unless_allowed(
    spark: SparkSession, live: Live, tmp_path: Path
) -> None:
    live.make("short", 20, cap_records=10)
    archive(spark, job(live, "short", tmp_path))
    live.append("short", range(21, 61))
    with pytest.raises(JobError, match="short") as told:
        archive(spark, job(live, "short", tmp_path))
    assert "\n" not in str(told.value)
    summary = archive(spark, job(live, "short", tmp_path, allow_loss=True))
    assert summary.agrees, summary.text()
    (topic,) = summary.topics
    assert (topic.rows, topic.absent) == (10, 30)
    assert "30 seqs without a record: 30 lost" in summary.text()


@pytest.mark.parametrize(
    ("topic", "spoil", "told"),
    [
        ("lost", lambda df: df.where("offset != 7"), "seq 7 is on the server and not in the files"),
        (
            "doubled",
            lambda df: df.unionByName(df.where("offset = 8")),
            "seq 8 is in the files twice",
        ),
        (
            "both",
            lambda df: df.unionByName(df.where("offset = 8")).where("offset != 9"),
            "seq 9 is on the server and not in the files, seq 8 is in the files twice",
        ),
    ],
)
def test_a_record_that_is_lost_or_doubled_is_told(
    spark: SparkSession,
    live: Live,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    topic: str,
    spoil: Callable[[DataFrame], DataFrame],
    told: str,
) -> None:
    live.make(topic, 20)
    live.remove(topic, before=3)
    monkeypatch.setattr(
        module, "commit", lambda df, batch, query, uri: commit(spoil(df), batch, query, uri)
    )
    summary = archive(spark, job(live, topic, tmp_path))
    assert (summary.agrees, summary.topics[0].fault) == (False, told)


def test_a_topic_that_was_made_again_is_archived_when_loss_is_allowed(
    spark: SparkSession, live: Live, tmp_path: Path
) -> None:
    live.make("again", 5)
    again = job(live, "again", tmp_path, allow_loss=True)
    archive(spark, again)
    live.delete("again")
    live.make("again", 3)
    summary = archive(spark, again)
    assert summary.agrees, summary.text()
    assert offsets(tmp_path) == [1, 1, 2, 2, 3, 3, 4, 5]


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["nothing", "DIR"], ExitCode.FAILED, 'topic "nothing": 404 topic_not_found'),
        (["--pattern", "(", "DIR"], ExitCode.USAGE, "subscribePattern is '('"),
        (["mine", "DIR/file"], ExitCode.USAGE, "it is no folder"),
        (["mine", "DIR/*"], ExitCode.USAGE, "Spark reads * in a path as a pattern"),
    ],
)
def test_mistakes_are_one_line_without_a_jvm(
    live: Live,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    status: ExitCode,
    told: str,
) -> None:
    live.make("mine", 1)
    (tmp_path / "file").write_text("")
    given = [each.replace("DIR", str(tmp_path)) for each in arguments]
    assert main(["archive", "--url", live.url, *given]) == status
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_command_line_prints_the_summary(
    unstopped: SparkSession, live: Live, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live.make("cli", 30)
    given = ["archive", "--url", live.url, "cli", str(tmp_path / "new folder")]
    assert main(given) == ExitCode.DONE
    printed = capsys.readouterr()
    assert printed.out.startswith("30 records of 1 topics into ")
    assert len(offsets(tmp_path / "new folder")) == 30


def test_a_summary_with_a_fault_does_not_agree() -> None:
    topic = Checked(server="a", topic="t", last=9, rows=8, fault="seq 4 is gone")
    summary = ArchiveSummary(directory="d", topics=[topic], batches=1, seconds=0.0, total=8)
    assert not summary.agrees
    assert summary.text().splitlines()[1:] == [
        "1 seqs without a record: 0 lost, the others deleted",
        'a: topic "t": seq 4 is gone',
        "The server does NOT agree.",
    ]
