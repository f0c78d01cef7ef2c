"""An archive job that is killed at random moments, or before its first batch, and run again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable

from tests.spark.source.live import Live
from tests.support.jdwp import Debugger
from tests.support.server import ROOT
from topics.spark.jobs.archive import CHECKPOINT, ArchiveJob, archive
from topics.spark.jobs.checkpoint import JOB

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KILLS = int(os.environ.get("ARCHIVE_KILLS", "1"))
TOPICS = {"k:a": 5000, "k:b": 3000, "k:c": 1000}
pytestmark = [pytest.mark.spark, pytest.mark.timeout(300 * (1 + KILLS))]


@contextmanager
def running(
    live: Live, topics: str, directory: Path, **env: str
) -> Iterator[subprocess.Popen[bytes]]:
    """The archive in a process of its own. It is killed at the end, with its JVM and workers."""
    arguments = ["archive", topics, str(directory), "--pattern", "--url", f"a={live.url}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "workers.spark", *arguments, "--batch-records", "200", "--quiet"],
        cwd=ROOT,
        env=os.environ | env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def kill_in_a_batch(live: Live, directory: Path, moment: random.Random) -> bool:
    """Run the archive, and kill it within two seconds after it began a batch. False if it ended by
    itself: a machine may be too busy for it.
    """
    begun = directory / CHECKPOINT / "offsets"
    known = {*begun.glob("*")}
    with running(live, "k:.*", directory) as process:
        while {*begun.glob("*")} <= known and process.poll() is None:
            time.sleep(0.01)
        time.sleep(2 * moment.random())
        return process.poll() is None


def kill_before_the_first_batch(live: Live, topics: str, directory: Path) -> None:
    """Run the archive, and kill it when it has written the offsets of its first batch and not yet
    renamed the file.
    """
    begun = directory / CHECKPOINT / "offsets"
    with (
        Debugger() as debugger,
        running(live, topics, directory, SPARK_SUBMIT_OPTS=debugger.option),
        closing(
            debugger.calls("*CheckpointFileManager$RenameBasedFSDataOutputStream", "close")
        ) as calls,
    ):
        for _ in calls:
            if begun.exists() and any(begun.iterdir()):
                return


def test_an_archive_that_was_killed_before_its_first_batch_begins_again(
    spark: SparkSession, live: Live, tmp_path: Path
) -> None:
    live.make("f:a", 10)
    kill_before_the_first_batch(live, "f:.*", tmp_path)
    left = [path.name for path in (tmp_path / CHECKPOINT / "offsets").iterdir()]
    assert left, "a file of a batch that never began"
    assert all(name.endswith((".tmp", ".tmp.crc")) for name in left)
    job = ArchiveJob(
        subscribe="f:.*",
        directory=str(tmp_path),
        is_pattern=True,
        options={"servers": f"a={live.url}"},
    )
    summary = archive(spark, job)
    assert (summary.rows, summary.agrees) == (10, True), summary.text()


def test_an_archive_that_was_killed_before_it_named_its_job_begins_again(
    spark: SparkSession, live: Live, tmp_path: Path
) -> None:
    live.make("g:a", 10)
    (tmp_path / CHECKPOINT).mkdir()
    (tmp_path / CHECKPOINT / f"{JOB}.tmp").write_text("{")
    job = ArchiveJob(subscribe="g:a", directory=str(tmp_path), options={"servers": f"a={live.url}"})
    summary = archive(spark, job)
    assert (summary.rows, summary.agrees) == (10, True), summary.text()


def test_each_record_is_there_once_after_kills(
    spark: SparkSession, live: Live, tmp_path: Path
) -> None:
    seed = random.randrange(1000)
    moment = random.Random(seed)
    for topic, count in TOPICS.items():
        live.make(topic, count)
    kills = 0
    while kills < KILLS:
        kills += kill_in_a_batch(live, tmp_path, moment)
    job = ArchiveJob(
        subscribe="k:.*",
        directory=str(tmp_path),
        is_pattern=True,
        options={"servers": f"a={live.url}"},
    )
    summary = archive(spark, job)
    assert summary.agrees, f"seed {seed}: {summary.text()}"
    expected = [(topic, count, count) for topic, count in TOPICS.items()]
    by_topic = pl.scan_delta(str(tmp_path)).group_by("topic")
    counts = by_topic.agg(pl.len(), pl.col("offset").n_unique().alias("seqs")).sort("topic")
    assert counts.collect().rows() == expected, f"seed {seed}"
    with duckdb.connect() as connection:
        connection.register("archive", DeltaTable(str(tmp_path)).to_pyarrow_dataset())
        found = connection.sql(
            'select topic, count(*), count(distinct "offset") from archive group by 1 order by 1'
        ).fetchall()
    assert found == expected, f"seed {seed}"
