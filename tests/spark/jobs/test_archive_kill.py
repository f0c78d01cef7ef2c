"""An archive that is killed, between two renames and at a random moment, and run again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pytest

from tests.spark.jobs import killed_archive
from tests.spark.source.live import Live
from tests.support.server import ROOT
from topics.spark.jobs.archive import ArchiveJob, archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
TOPICS = {"k:a": 500, "k:b": 300, "k:c": 100}
START_S = 120.0


def start(live: Live, directory: Path, renames: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", killed_archive.__name__, live.url, "k:.*", directory, str(renames)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def kill_group(process: subprocess.Popen[bytes]) -> int:
    """The process, its JVM and its workers, which are a session of their own; the exit code."""
    code = process.poll()
    if code is None:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return -1 if code is None else code
    return -1 if code is None else code


def manifests(directory: Path) -> set[str]:
    return {path.name for path in directory.glob("_state/batch-*.json")}


def test_each_record_is_there_once_after_kills(
    spark: SparkSession, live: Live, tmp_path: Path
) -> None:
    seed = random.randrange(1000)
    moment = random.Random(seed)
    for topic, count in TOPICS.items():
        live.make(topic, count)
    directory = tmp_path / "archive"
    ended = start(live, directory, moment.randint(1, 4))  # six batches, each of one or two files
    try:
        assert ended.wait(START_S) == killed_archive.ENDED
    finally:
        kill_group(ended)
    known = manifests(directory)
    killed = start(live, directory, 0)
    try:
        deadline = time.monotonic() + START_S
        while manifests(directory) <= known and killed.poll() is None:
            assert time.monotonic() < deadline, "the second run does not come to a batch"
            time.sleep(0.01)
        time.sleep(moment.random() * 0.5)
    finally:
        kill_group(killed)
    job = ArchiveJob(
        subscribe="k:.*",
        directory=str(directory),
        is_pattern=True,
        options={"servers": f"a={live.url}"},
        batch_records=150,
    )
    summary = archive(spark, job)
    assert summary.agrees, f"seed {seed}: {summary.text()}"
    with duckdb.connect() as connection:
        found = connection.sql(
            'select topic, count(*), count(distinct "offset"),'
            " sum(cast(value->>'$.id' as bigint))"
            f" from read_parquet('{directory}/date=*/*.parquet') group by 1 order by 1"
        ).fetchall()
    expected = [(topic, n, n, n * (n + 1) // 2) for topic, n in TOPICS.items()]
    assert found == expected, f"seed {seed}"
