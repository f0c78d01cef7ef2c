"""The archive of real topics, read by those who know nothing of Spark."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import polars as pl
import pytest

from tests.spark.source.live import Live
from topics.errors import ExitCode
from topics.spark.client.errors import RequestError
from topics.spark.errors import JobError
from topics.spark.jobs.archive import ArchiveJob, ArchiveSummary, archive
from topics.spark.jobs.archive_check import Checked
from topics.spark.jobs.cli import main

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def job(live: Live, subscribe: str, directory: Path, **how: object) -> ArchiveJob:
    return ArchiveJob(
        subscribe=subscribe,
        directory=str(directory),
        options={"servers": f"a={live.url}"},
        **how,  # type: ignore[arg-type]
    )


def ask(directory: Path, question: str) -> list[tuple[object, ...]]:
    """DuckDB's answer about the files."""
    files = f"read_parquet('{directory}/date=*/*.parquet', hive_partitioning=true)"
    with duckdb.connect() as connection:
        return connection.sql(question.replace("FILES", files)).fetchall()


def test_what_is_new_is_archived_once_and_read_by_duckdb_and_polars(
    spark: SparkSession, live: Live, tmp_path: Path
) -> None:
    live.make("orders", 300)
    live.remove("orders", before=11)
    first = archive(spark, job(live, "orders", tmp_path / "archive", batch_records=120))
    assert (first.rows, first.total, first.agrees) == (290, 290, True)
    assert first.batches >= 3
    again = archive(spark, job(live, "orders", tmp_path / "archive"))
    assert (again.rows, again.total, again.topics, again.agrees) == (0, 290, [], True)
    live.append("orders", range(301, 351), tag="late", node="n1", meta={"from": "é"})
    second = archive(
        spark, job(live, "orders", tmp_path / "archive", files_max=2, merge_today=True)
    )
    assert (second.rows, second.total, second.merged, second.agrees) == (50, 340, 1, True)
    assert second.text().splitlines()[-1] == "The server agrees."
    ids = range(11, 351)
    assert ask(
        tmp_path / "archive",
        "select count(*), count(distinct \"offset\"), sum(cast(value->>'$.id' as bigint)),"
        ' count(key), count(node), count(headers), min("offset"), max("offset") from FILES',
    ) == [(340, 340, sum(ids), 50, 50, 50, 11, 350)]
    frame = pl.scan_parquet(f"{tmp_path}/archive/date=*/*.parquet", hive_partitioning=True)
    found = frame.select(
        pl.len().alias("rows"),
        pl.col("value").str.json_path_match("$.id").cast(pl.Int64).sum().alias("ids"),
        (pl.col("timestamp").dt.date() == pl.col("date")).all().alias("dated"),
        pl.col("headers").drop_nulls().unique().first().alias("headers"),
    ).collect()
    assert found.to_dicts() == [
        {"rows": 340, "ids": sum(ids), "dated": True, "headers": '{"from": "\\u00e9"}'}
    ]


def test_a_pattern_archives_all_that_match_and_what_comes_later(
    spark: SparkSession, live: Live, tmp_path: Path
) -> None:
    live.make("p:a", 20)
    live.make("p:b", 10)
    live.make("q:a", 5)
    pattern = job(live, "p:.*", tmp_path, is_pattern=True)
    assert archive(spark, pattern).agrees
    live.make("p:c", 7)
    second = archive(spark, pattern)
    assert (second.rows, second.total, second.agrees) == (7, 37, True)
    assert ask(tmp_path, "select topic, count(*) from FILES group by 1 order by 1") == [
        ("p:a", 20),
        ("p:b", 10),
        ("p:c", 7),
    ]


def test_a_delta_table_has_each_record_once(
    spark: SparkSession, live: Live, tmp_path: Path
) -> None:
    from deltalake import DeltaTable

    live.make("table", 50)
    live.remove("table", before=3)
    table = job(live, "table", tmp_path, format="delta")
    assert archive(spark, table).agrees
    live.append("table", range(51, 61))
    second = archive(spark, table)
    assert (second.rows, second.total, second.agrees) == (10, 58, True)
    found = DeltaTable(tmp_path).to_pyarrow_table(columns=["offset"])
    assert sorted(found["offset"].to_pylist()) == [*range(3, 61)]
    shutil.rmtree(tmp_path / "_checkpoint")
    with pytest.raises(JobError, match="the checkpoint is gone"):
        archive(spark, table)


def test_a_wrong_folder_is_told_before_anything_is_written(
    spark: SparkSession, live: Live, tmp_path: Path
) -> None:
    live.make("mine", 3)
    (tmp_path / "file").write_text("")
    with pytest.raises(JobError, match="the folder is not empty"):
        archive(spark, job(live, "mine", tmp_path))
    archive(spark, job(live, "mine", tmp_path / "a"))
    live.make("other", 3)
    with pytest.raises(JobError, match='is the archive of topic "mine" of a'):
        archive(spark, job(live, "other", tmp_path / "a"))
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
    ("arguments", "status", "told"),
    [
        (["nothing", "DIR"], ExitCode.FAILED, 'topic "nothing": 404 topic_not_found'),
        (["--pattern", "(", "DIR"], ExitCode.USAGE, "the pattern '(' is no regex"),
        (["mine", "DIR/file"], ExitCode.USAGE, "it is no folder"),
        (["mine", "DIR/*"], ExitCode.USAGE, "Spark reads * in a path as a pattern"),
        (["mine", "DIR"], ExitCode.FAILED, "the folder is not empty (file)"),
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
    assert "30 records" in printed.err
    assert len([*tmp_path.glob("new folder/date=*/*.parquet")]) >= 1


def test_a_summary_with_a_fault_does_not_agree() -> None:
    topic = Checked(server="a", topic="t", after=0, last=9, rows=8, lost=0, fault="seq 4 is gone")
    summary = ArchiveSummary(
        directory="d", topics=[topic], batches=1, merged=0, seconds=0.0, total=8
    )
    assert not summary.agrees
    assert summary.text().splitlines()[1:] == [
        "1 batches, 0 dates merged",
        "1 seqs without a record: 0 lost, the others deleted",
        'a: topic "t": seq 4 is gone',
        "The server does NOT agree.",
    ]


def test_a_topic_that_is_not_there_is_refused(
    spark: SparkSession, live: Live, tmp_path: Path
) -> None:
    with pytest.raises(RequestError, match="topic_not_found"):
        archive(spark, job(live, "nowhere", tmp_path))
