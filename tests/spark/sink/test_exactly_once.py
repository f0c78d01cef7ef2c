"""Each row is appended once despite repeated tasks and killed processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.client.stub_server import Fault, StubServer
from tests.spark.live import Live
from tests.spark.sink import killed_driver
from tests.spark.sink.killed_driver import batch_rows
from tests.support.server import ROOT
from topics.spark.client.http import TopicsClient
from topics.spark.rows import map_arrow

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
WAIT_S = 60
ROWS = 6000
HALF = 20  # blocks of a partition


@pytest.fixture
def small_blocks(spark: SparkSession) -> Iterator[None]:
    """Small blocks between the stages of a task. A waiting stage has passed on earlier blocks."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name) or ""
    spark.conf.set(name, "100")
    yield
    spark.conf.set(name, before)


def write(df: DataFrame, url: str, **more: str) -> None:
    df.write.format("topics").mode("append").options(servers=url, **more).save()


def stream(df: DataFrame, url: str, checkpoint: Path, **more: str) -> None:
    """Run the stream over all available rows."""
    build = df.writeStream.format("topics").options(servers=url, **more)
    query = build.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(WAIT_S)
    finally:
        query.stop()


def lines(folder: Path, files: int = 1, count: int = ROWS) -> Path:
    """Write text files with the numbers from 0 and return their folder."""
    folder.mkdir()
    each = count // files
    for number in range(files):
        texts = [killed_driver.line(value) for value in range(number * each, (number + 1) * each)]
        (folder / f"{number}.txt").write_text("\n".join(texts))
    return folder


def values(live: Live, topic: str = "rows") -> list[int]:
    """Return the numbers of the rows."""
    return sorted(record["data"][0] for record in live.read(topic))


def appended(url: str, topic: str) -> int:
    with TopicsClient(url) as client:
        state = client.state(topic)
    return state.head_seq if state else 0


def wait_for_records(url: str, topic: str) -> None:
    """Wait until the topic has records."""
    deadline = time.monotonic() + WAIT_S
    while appended(url, topic) == 0:
        assert time.monotonic() < deadline, f"nothing was appended to {topic}"
        time.sleep(0.01)


@pytest.mark.usefixtures("small_blocks")
def test_a_task_that_fails_halfway_is_repeated_without_a_duplicate(
    spark: SparkSession, live: Live, tmp_path: Path
) -> None:
    died, url = tmp_path / "died", live.url

    def die_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number == HALF and not died.exists():
                wait_for_records(url, "dies0")
                died.touch()
                raise RuntimeError("a task dies")
            yield batch

    df = batch_rows(spark, ROWS).selectExpr("value", "if(rand(1) < 0.5, 'dies0', 'dies1') as topic")
    write(map_arrow(df, die_once, "value string, topic string"), url, batchRecords="70")
    assert died.exists()
    assert sorted(values(live, "dies0") + values(live, "dies1")) == list(range(ROWS))


def test_a_micro_batch_whose_commit_is_lost_is_replayed_without_a_duplicate(
    spark: SparkSession, live: Live, tmp_path: Path
) -> None:
    source, point = lines(tmp_path / "in", files=3, count=3000), tmp_path / "point"
    df = spark.readStream.option("maxFilesPerTrigger", 1).text(str(source))
    stream(df, live.url, point, topic="replayed")
    commits = sorted(path for path in (point / "commits").iterdir() if path.name.isdigit())
    assert len(commits) == 3
    commits[-1].unlink()
    (point / "commits" / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    (source / "more.txt").write_text(killed_driver.line(3000))
    stream(df, live.url, point, topic="replayed")
    assert commits[-1].exists(), "the lost batch was replayed"
    assert values(live, "replayed") == list(range(3001))


@pytest.mark.usefixtures("small_blocks")
def test_a_write_continues_after_a_kill_of_the_server(
    spark: SparkSession, restartable: Live, tmp_path: Path
) -> None:
    killed = tmp_path / "killed"

    def wait_half_way(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            while number == HALF and not killed.exists():
                time.sleep(0.01)
            yield batch

    def kill_and_restart() -> None:
        try:
            wait_for_records(restartable.url, "rows")
            restartable.server.kill()
        finally:
            killed.touch()  # In any case, so that no task waits forever
        restartable.server.start()

    with ThreadPoolExecutor(1) as pool:
        killer = pool.submit(kill_and_restart)
        df = spark.readStream.text(str(lines(tmp_path / "in")))
        halted = map_arrow(df, wait_half_way, "value string")
        stream(halted, restartable.url, tmp_path / "point", topic="rows", batchRecords="50")
        killer.result()
    assert values(restartable, "rows") == list(range(ROWS))


def test_a_killed_driver_resumes_without_a_duplicate(
    spark: SparkSession, live: Live, tmp_path: Path
) -> None:
    source, url = lines(tmp_path / "in"), live.url
    driver = subprocess.Popen(
        [sys.executable, "-m", "tests.spark.sink.killed_driver", url, str(tmp_path), str(ROWS)],
        cwd=ROOT,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for_records(url, "batch")
        wait_for_records(url, "stream")
    finally:
        os.killpg(driver.pid, signal.SIGKILL)  # the driver and its JVM
        driver.wait(WAIT_S)
    before = appended(url, "batch"), appended(url, "stream")
    assert all(0 < count < ROWS for count in before)
    write(batch_rows(spark, ROWS), url, **killed_driver.BATCH)
    stream(spark.readStream.text(str(source)), url, tmp_path / "point", **killed_driver.STREAM)
    assert values(live, "batch") == list(range(ROWS))
    assert values(live, "stream") == list(range(ROWS))


def test_each_row_is_appended_once_despite_busy_responses_and_lost_connections(
    spark: SparkSession, stub: StubServer
) -> None:
    busy = Fault(status=429, code="throttled", retry_after="0")
    recovering = Fault(status=503, code="not_ready", retry_after="0")
    broken = Fault(cut=True, commit=True)
    failed = Fault(status=500, code="internal", commit=True)
    stub.faults.extend([busy, broken, None, recovering, failed, busy, None, broken, None] * 3)
    write(batch_rows(spark, 5000), stub.url, topic="rows", batchRecords="50")
    found = sorted(record["data"][0] for record in stub.topics["rows"].records)
    assert found == list(range(5000))
    assert {429, 503, 500, 0} <= set(stub.statuses("POST"))


def test_a_query_stops_within_seconds_while_its_server_is_down(
    spark: SparkSession, restartable: Live, tmp_path: Path
) -> None:
    numbers = spark.readStream.format("rate").option("rowsPerSecond", "5").load()
    writer = numbers.selectExpr("to_json(array(value)) AS value").writeStream.format("topics")
    options = {
        "servers": restartable.url,
        "topic": "rows",
        "checkpointLocation": str(tmp_path / "c"),
    }
    query = writer.options(**options).start()

    def wait_for(is_reached: Callable[[], object]) -> None:
        until = time.monotonic() + WAIT_S
        while not is_reached():
            assert query.isActive
            assert time.monotonic() < until
            time.sleep(0.05)

    try:
        wait_for(lambda: appended(restartable.url, "rows"))
        restartable.server.kill()
        seen = len(query.recentProgress)
        wait_for(lambda: query.status["isTriggerActive"] and len(query.recentProgress) == seen)
    finally:
        stopping = ThreadPoolExecutor(1).submit(query.stop)
    stopping.result(WAIT_S)  # Retries would last ten minutes
    assert not query.isActive
