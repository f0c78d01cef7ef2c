"""Whatever is repeated, and whoever dies, each row stands in its topic once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.client.stub_server import Fault, StubServer
from tests.spark.killed_server import kill_and_restart, waits_half_way
from tests.spark.reading import read_back
from tests.spark.sink import killed_driver
from tests.support.server import ROOT, Server
from topics.spark.client.http import Target, TopicsClient
from topics.spark.rows import map_arrow

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
WAIT_S = 60
ROWS = 6000


@pytest.fixture
def small_blocks(sink: SparkSession) -> Iterator[None]:
    """Rows pass between the stages of a task in small blocks, so that a stage that waits has let go
    of what came before.
    """
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = sink.conf.get(name) or ""
    sink.conf.set(name, "100")
    yield
    sink.conf.set(name, before)


def numbers(spark: SparkSession, count: int = ROWS) -> DataFrame:
    return killed_driver.batch_rows(spark, count)


def write(df: DataFrame, url: str, **more: str) -> None:
    wanted = {"servers": url, "topic": "rows", "batchRecords": "50", **more}
    df.write.format("topics").mode("append").options(**wanted).save()


def stream(df: DataFrame, url: str, folder: Path, **more: str) -> None:
    """Run the stream over all that is there."""
    wanted = {"servers": url, "topic": "rows", "batchRecords": "50", **more}
    build = df.writeStream.format("topics").options(**wanted)
    query = build.option("checkpointLocation", str(folder)).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(WAIT_S)
    finally:
        query.stop()


def lines(folder: Path, files: int = 1, count: int = ROWS) -> Path:
    """A folder of text files: the numbers from 0."""
    folder.mkdir()
    each = count // files
    for number in range(files):
        texts = [killed_driver.line(value) for value in range(number * each, (number + 1) * each)]
        (folder / f"{number}.txt").write_text("\n".join(texts))
    return folder


def values(url: str, topic: str = "rows") -> list[int]:
    """The numbers of the rows."""
    return sorted(record["data"][0] for record in read_back(url, topic))


def appended(url: str, topic: str) -> int:
    with TopicsClient(Target(url=url)) as client:
        state = client.state(topic)
    return state["head_seq"] if state else 0


def wait_for_records(url: str, topic: str = "rows") -> None:
    """Return as soon as the topic has any."""
    deadline = time.monotonic() + WAIT_S
    while appended(url, topic) == 0:
        assert time.monotonic() < deadline, f"nothing came to {topic}"
        time.sleep(0.01)


@pytest.mark.usefixtures("small_blocks", "server")
@pytest.mark.parametrize("by_column", [True])
def test_a_task_that_dies_in_the_middle_is_repeated_without_a_duplicate(
    sink: SparkSession, url: str, tmp_path: Path, by_column: bool
) -> None:
    died = tmp_path / "died"
    first = "t0" if by_column else "rows"

    def die_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number == 20 and not died.exists():
                wait_for_records(url, first)
                died.touch()
                raise RuntimeError("a task dies")
            yield batch

    df = numbers(sink).selectExpr("value", "if(rand(1) < 0.5, 't0', 't1') as topic")
    failing = map_arrow(df, die_once, "value string, topic string")
    if by_column:
        build = failing.write.format("topics").mode("append")
        build.options(servers=url, batchRecords="70").save()
        found = sorted(values(url, "t0") + values(url, "t1"))
    else:
        write(failing, url, batchRecords="70")
        found = values(url)
    assert died.exists()
    assert found == list(range(ROWS))


@pytest.mark.usefixtures("server")
def test_a_micro_batch_whose_commit_is_lost_is_replayed_without_a_duplicate(
    sink: SparkSession, url: str, tmp_path: Path
) -> None:
    source = lines(tmp_path / "in", files=3, count=3000)
    df = sink.readStream.option("maxFilesPerTrigger", 1).text(str(source))
    point = tmp_path / "point"
    stream(df, url, point)
    commits = sorted(path for path in (point / "commits").iterdir() if path.name.isdigit())
    assert len(commits) == 3
    commits[-1].unlink()
    (point / "commits" / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    stream(df, url, point)
    assert commits[-1].exists(), "it was replayed"
    assert values(url) == list(range(3000))
    (source / "more.txt").write_text(killed_driver.line(3000))
    stream(df, url, point)
    assert values(url) == list(range(3001))


@pytest.mark.usefixtures("server")
def test_two_attempts_at_the_same_time_append_once(url: str) -> None:
    pa = pytest.importorskip("pyarrow")
    from topics.spark.sink.columns import Columns
    from topics.spark.sink.opening import Clients, open_topic
    from topics.spark.sink.options import SinkOptions
    from topics.spark.sink.sending import Sender

    options = SinkOptions.parse({"servers": url, "topic": "rows", "batchRecords": "50"})
    with Clients(options) as clients:
        open_topic(clients, options, "rows", pytest.fail)
    batch = pa.record_batch(
        {"value": pa.array([killed_driver.line(number) for number in range(ROWS)])}
    )
    together = threading.Barrier(3)

    def attempt() -> int:
        columns = Columns(value=0, key=None, topic=None, headers=None, node=None)
        sender = Sender(options, columns, "batch:j", 0)
        together.wait(WAIT_S)
        return sender.send([batch]).topics["rows"].repeated

    with ThreadPoolExecutor(3) as pool:
        repeated = [task.result() for task in [pool.submit(attempt) for _ in range(3)]]
    assert values(url) == list(range(ROWS))
    assert sum(repeated) == 2 * ROWS


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("durability", ["disk"])
@pytest.mark.parametrize("streaming", [False, True])
def test_a_write_outlives_a_kill_of_the_server(
    sink: SparkSession,
    server: Server,
    url: str,
    tmp_path: Path,
    streaming: bool,
    durability: str,
) -> None:
    killed = tmp_path / "killed"

    with ThreadPoolExecutor(1) as pool:
        killer = pool.submit(kill_and_restart, server, killed, lambda: wait_for_records(url))
        if streaming:
            df = sink.readStream.text(str(lines(tmp_path / "in")))
            halted = map_arrow(df, waits_half_way(killed), "value string")
            stream(halted, url, tmp_path / "point", durability=durability)
        else:
            halted = map_arrow(numbers(sink), waits_half_way(killed), "value string")
            write(halted, url, durability=durability)
        killer.result()
    assert values(url) == list(range(ROWS))


@pytest.mark.usefixtures("server")
def test_a_driver_that_is_killed_goes_on_where_it_stopped(
    sink: SparkSession, url: str, tmp_path: Path
) -> None:
    source = lines(tmp_path / "in")
    arguments = [url, str(tmp_path), str(ROWS)]
    driver = subprocess.Popen(
        [sys.executable, "-m", "tests.spark.sink.killed_driver", *arguments],
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
    write(numbers(sink), url, **killed_driver.BATCH)
    stream(sink.readStream.text(str(source)), url, tmp_path / "point", **killed_driver.STREAM)
    assert values(url, "batch") == list(range(ROWS))
    assert values(url, "stream") == list(range(ROWS))


def test_a_server_that_is_busy_or_breaks_connections_gets_each_row_once(
    sink: SparkSession, stub: StubServer
) -> None:
    busy = Fault(status=429, code="throttled", retry_after="0")
    recovering = Fault(status=503, code="not_ready", retry_after="0")
    broken = Fault(cut=True, commit=True)
    failed = Fault(status=500, code="internal", commit=True)
    stub.faults.extend([busy, broken, None, recovering, failed, busy, None, broken, None] * 3)
    write(numbers(sink, 5000), stub.url)
    found = sorted(record["data"][0] for record in stub.topics["rows"].records)
    assert found == list(range(5000))
    assert {429, 503, 500, 0} <= set(stub.statuses("POST"))
