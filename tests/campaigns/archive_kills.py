"""An archive job that is killed at random moments and before its first batch, and run again.

Runs as a program: ``python -m tests.campaigns.archive_kills --kills 20 --starts 3``. Each run of
the job is a separate process with a JVM and Python workers, and a kill stops all of them. A kill
before the first batch happens after Spark has written the offsets of the batch, and before it
renames the file.

After the kills the job runs once more and must report that the server agrees. DuckDB and Polars
must find each record in the table once.
"""

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

import duckdb
import polars as pl
from deltalake import DeltaTable

from tests.campaigns.killer import Summary, program
from tests.spark.live import Live
from tests.support.jdwp import Debugger
from tests.support.server import ROOT, Server
from topics.errors import ExitCode
from topics.spark.jobs.archive import CHECKPOINT

TOPICS = {"k:a": 5000, "k:b": 3000, "k:c": 1000}
IN_A_BATCH, AT_THE_START = "kills in a batch", "kills before the first batch"
WANTED = (IN_A_BATCH, AT_THE_START)
KILL_AFTER_MAX_S = 2.0


@contextmanager
def running(live: Live, directory: Path, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the archive in a separate process, which is killed at the end together with its JVM and
    workers.
    """
    arguments = ["archive", "k:.*", str(directory), "--pattern", "--url", f"a={live.url}"]
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


def kill_in_a_batch(live: Live, directory: Path, rng: random.Random) -> bool:
    """Run the archive, and kill it within two seconds after it began a batch. Return whether it was
    killed: on a busy machine it may finish before.
    """
    offsets = directory / CHECKPOINT / "offsets"
    known = {*offsets.glob("*")}
    with running(live, directory) as process:
        while {*offsets.glob("*")} <= known and process.poll() is None:
            time.sleep(0.01)
        time.sleep(KILL_AFTER_MAX_S * rng.random())
        return process.poll() is None


def kill_at_the_start(live: Live, directory: Path) -> None:
    """Run the archive, and kill it when it has written the offsets of its first batch and not yet
    renamed the file.
    """
    offsets = directory / CHECKPOINT / "offsets"
    with (
        Debugger() as debugger,
        running(live, directory, SPARK_SUBMIT_OPTS=debugger.option),
        closing(
            debugger.calls("*CheckpointFileManager$RenameBasedFSDataOutputStream", "close")
        ) as calls,
    ):
        for _ in calls:
            if offsets.exists() and any(offsets.iterdir()):
                break
    remaining = [path.name for path in offsets.iterdir()]
    assert remaining, "the job was killed before it wrote the offsets"
    assert all(name.endswith((".tmp", ".tmp.crc")) for name in remaining), remaining


def check_table(live: Live, directory: Path) -> Iterator[str]:
    """Run the archive to its end, and return the errors in the table."""
    with running(live, directory) as process:
        if (code := process.wait()) != ExitCode.DONE:
            yield f"{directory.name}: the job ends with exit code {code}"
    expected = [(topic, count, count) for topic, count in TOPICS.items()]
    by_topic = pl.scan_delta(str(directory)).group_by("topic")
    counts = by_topic.agg(pl.len(), pl.col("offset").n_unique().alias("seqs")).sort("topic")
    if (found := counts.collect().rows()) != expected:
        yield f"{directory.name}: Polars reads {found}"
    with duckdb.connect() as connection:
        connection.register("archive", DeltaTable(str(directory)).to_pyarrow_dataset())
        found = connection.sql(
            'select topic, count(*), count(distinct "offset") from archive group by 1 order by 1'
        ).fetchall()
    if found != expected:
        yield f"{directory.name}: DuckDB reads {found}"


def campaign(data_dir: Path, *, seed: int, kills: int, starts: int) -> Summary:
    """Run one archive with all kills in batches, and one for each kill before a first batch."""
    summary, rng = Summary(seed), random.Random(seed)
    with Server(data_dir, shards=2) as server:
        live = Live(server)
        for topic, count in TOPICS.items():
            live.make(topic, count)
        for number in range(starts):
            directory = data_dir.parent / f"start-{number}"
            kill_at_the_start(live, directory)
            summary.counts[AT_THE_START] += 1
            summary.problems += check_table(live, directory)
            summary.print_progress(f"start {number + 1} of {starts}")
        directory = data_dir.parent / "batches"
        while summary.counts[IN_A_BATCH] < kills:
            summary.counts[IN_A_BATCH] += kill_in_a_batch(live, directory, rng)
            summary.print_progress(f"{summary.counts[IN_A_BATCH]} of {kills} kills")
        summary.problems += check_table(live, directory)
    return summary


if __name__ == "__main__":
    sys.exit(program(__doc__, campaign, WANTED, kills=20, starts=3))
