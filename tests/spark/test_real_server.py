"""The producer against the real server, also across a SIGKILL of all its processes in the middle of
a job.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.killed_server import kill_and_restart, waits_half_way
from tests.spark.reading import read_back
from tests.support.server import Server
from topics.spark.client.http import Target, TopicsClient
from topics.spark.producer import produce
from topics.spark.rows import map_arrow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
WAIT_S = 60.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / "data", shards=2) as server:
        server.env["TOPICS_PORT"] = str(server.port)  # the same address after a restart
        yield server


def target(server: Server) -> Target:
    return Target(url=url(server), backoff_max_s=1.0)


def url(server: Server) -> str:
    return f"http://{server.host}:{server.port}"


def test_rows_come_back_as_they_were_sent(spark: SparkSession, server: Server) -> None:
    df = spark.range(0, 12_000, 1, 3).selectExpr(
        "id", "concat('é\"\\\\', id) as text", "if(id % 2 = 0, 'even', null) as tag"
    )
    summary = produce(
        df, "rows", target=target(server), batch_records=1000, tag_column="tag", node="n"
    )
    assert (summary.appended, summary.requests, summary.retries, summary.agrees) == (
        12_000,
        12,
        0,
        True,
    )
    records = read_back(url(server), "rows")
    assert [record["$seq"] for record in records] == list(range(1, 12_001))
    for record in records:
        number = record["data"]["id"]
        even = {"$tag": "even"} if number % 2 == 0 else {}
        assert record["data"] == {"id": number, "text": f'é"\\{number}', "tag": even.get("$tag")}
        assert {"$node": "n", **even}.items() <= record.items()
        assert ("$tag" in record) is bool(even)
    assert sorted(record["data"]["id"] for record in records) == list(range(12_000))


def test_a_job_is_not_repeated_after_a_restart_of_the_server(
    spark: SparkSession, server: Server
) -> None:
    df = spark.range(0, 10_000, 1, 2)
    assert produce(df, "rows", target=target(server), job_id="j").appended == 10_000
    server.stop()
    server.start()
    again = produce(df, "rows", target=target(server), job_id="j")
    assert (again.appended, again.deduped, again.head_after, again.agrees) == (
        0,
        10_000,
        10_000,
        True,
    )


@pytest.fixture
def small_blocks(spark: SparkSession) -> Iterator[None]:
    """Rows pass between the stages of a task in small blocks, so that a stage that waits has let go
    of what came before.
    """
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name) or ""
    spark.conf.set(name, "500")
    yield
    spark.conf.set(name, before)


@pytest.mark.parametrize("durability", ["disk", "fsync"])
@pytest.mark.usefixtures("small_blocks")
def test_a_job_outlives_a_kill_of_the_server_and_every_row_stands_once(
    spark: SparkSession, server: Server, tmp_path: Path, durability: str
) -> None:
    killed = tmp_path / "killed"

    # Two partitions of 40 blocks. The server dies while the first half is being appended, the
    # second meets it dead, then back.
    df = map_arrow(spark.range(0, 40_000, 1, 2), waits_half_way(killed), "id long")
    with ThreadPoolExecutor(1) as pool:
        killer = pool.submit(
            kill_and_restart, server, killed, lambda: wait_for_records(server, "rows")
        )
        summary = produce(
            df, "rows", target=target(server), batch_records=100, job_id="j", durability=durability
        )
        killer.result()
    assert sorted(record["data"]["id"] for record in read_back(url(server), "rows")) == list(
        range(40_000)
    )
    assert (summary.records, summary.appended, summary.agrees) == (40_000, 40_000, True)
    assert summary.retries > 0
    again = produce(df, "rows", target=target(server), batch_records=100, job_id="j")
    assert (again.appended, again.agrees) == (0, True)


def wait_for_records(server: Server, topic: str) -> None:
    """Return as soon as the topic has any."""
    with TopicsClient(target(server)) as client:
        deadline = time.monotonic() + WAIT_S
        while (state := client.state(topic)) is None or state["head_seq"] == 0:
            assert time.monotonic() < deadline, "the job never began"
            time.sleep(0.005)
