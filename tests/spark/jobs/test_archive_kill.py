"""An archive that is killed at random moments, and run again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable

from tests.spark.source.live import Live
from tests.support.server import ROOT
from topics.spark.jobs.archive import CHECKPOINT, ArchiveJob, archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KILLS = int(os.environ.get("ARCHIVE_KILLS", "1"))
TOPICS = {"k:a": 5000, "k:b": 3000, "k:c": 1000}
pytestmark = [pytest.mark.spark, pytest.mark.timeout(300 * (1 + KILLS))]


def kill_in_a_batch(live: Live, directory: Path, moment: random.Random) -> bool:
    """Run the archive, and kill it with its JVM and workers within two seconds after it began a
    batch. False if it ended by itself: a machine may be too busy for it.
    """
    begun = directory / CHECKPOINT / "offsets"
    known = {*begun.glob("*")}
    arguments = ["archive", "k:.*", str(directory), "--pattern", "--url", f"a={live.url}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "workers.spark", *arguments, "--batch-records", "200", "--quiet"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        while {*begun.glob("*")} <= known and process.poll() is None:
            time.sleep(0.01)
        time.sleep(2 * moment.random())
        return process.poll() is None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


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
