"""The Spark producer: a DataFrame into a topic.

Spark encodes each row as JSON; the executors cut the rows into batches and append each with one
request. The idempotency key of a batch is made of job, partition, number and content. So a task
that Spark retries, and a job that is run again within the topic's ``idempotency_window_ms``, append
nothing twice. Other ``--partitions``, ``--batch-records`` or ``--batch-bytes`` make other batches,
which are appended again.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from topics.spark.client.errors import RequestError
from topics.spark.client.http import DEFAULT_URL, Target, TopicsClient
from topics.spark.errors import JobError, spark_errors
from topics.spark.opening import open_topic
from topics.spark.preflight import check_spark
from topics.spark.progress import Progress
from topics.spark.rows import are_lines, fingerprint, map_arrow, member, record_column
from topics.spark.summary import Summary, summarize
from topics.spark.task import FIGURES_DDL, SendTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

MIB = 1024 * 1024
FIRST_CONNECTS = 3
BRIEF_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
TAG_LINES = 1000  # JSON lines in which a tag column is looked for


def say(line: str) -> None:
    """One line for the user on stderr; the summary goes to stdout."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def quiet_pyspark() -> None:
    """Keep PySpark's own messages off the user's terminal: our one line has what matters."""
    # pandas may be installed; nothing here uses it.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    # It prints a plan and a Java stack, in JSON, for a misspelt column.
    from pyspark.logger import PySparkLogger

    PySparkLogger.getLogger("DataFrameQueryContextLogger").setLevel(logging.CRITICAL)
    # Py4J logs the stacks of a Ctrl-C, then raises what it logged; one line of ours follows.
    logging.getLogger().addFilter(lambda record: "while sending command" not in record.getMessage())


def session(
    *, cores: int = 2, partitions: int = 8, name: str = "topics-producer", brief: bool = False
) -> SparkSession:
    """A local session whose tasks are retried, with executors that find this interpreter and this
    package.

    ``partitions`` fixes how files are split, so that the number of cores has no part in the keys.
    ``brief`` is for jobs of seconds: Java compiles quickly instead of well. Raises ``JobError``
    without a Java that Spark can run on.
    """
    check_spark()
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.executorEnv.PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        "spark.sql.files.minPartitionNum": str(partitions),
        "spark.sql.session.timeZone": "UTC",  # timestamps must not render by the machine's zone
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
        "spark.sql.caseSensitive": "true",  # a and A are two columns
        "spark.log.level": "OFF",  # Java stacks; what matters of them is in our one line
    }
    if brief:
        settings["spark.driver.defaultJavaOptions"] = BRIEF_JAVA
    # local[N] alone never retries a task; the 4 is the number of attempts.
    builder = SparkSession.builder.master(f"local[{cores},4]").appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def produce(
    df: DataFrame,
    topic: str,
    *,
    target: Target | None = None,
    job_id: str | None = None,
    source: str = "",
    durability: str | None = None,
    tag_column: str | None = None,
    node: str | None = None,
    batch_records: int = 5000,
    batch_bytes: int = 4 * MIB,
    total: int | None = None,
    progress: TextIO | None = None,
    warn: Callable[[str], None] = lambda line: say(f"warning: {line}"),
) -> Summary:
    """Append every row of ``df`` to ``topic`` and return the figures.

    A row becomes ``{"data": {column: value, ...}}`` (nulls kept), with ``tag_column``'s value as
    tag where it is not null. A TIMESTAMP is shown in UTC, a TIMESTAMP_NTZ without a zone, both with
    microseconds. ``job_id`` names the job for idempotency; ``df`` is then computed once, and
    ``progress`` has a share to show only when the number of rows is given as ``total``. By default
    the job is named after ``source``, the schema and the rows themselves, so the same rows are the
    same job; that computes ``df`` twice. Computed again, it must give the same rows in the same
    partitions and order: what comes out of a shuffle must be sorted within its partitions first.
    Raises ``RequestError`` when the topic cannot be made, ``JobError`` when it is a queue, or tasks
    failed for good: what they had appended stays, and the same job run again does not append it
    twice.
    """
    target = target or Target(
        url=os.environ.get("TOPICS_URL", DEFAULT_URL), api_key=os.environ.get("TOPICS_API_KEY")
    )
    started = time.monotonic()
    # A wrong address fails at once; later, the job waits for a server that restarts.
    with TopicsClient(replace(target, connect_retries=FIRST_CONNECTS)) as client:
        before = open_topic(client, topic, durability, warn)
    try:
        with spark_errors():
            _look_for_tags(df, tag_column, warn)
            encoded = df.select(record_column(df, tag_column).alias("record"))
            total, job = (
                (total, job_id) if job_id else fingerprint(encoded, source, df.schema.json())
            )
            task = SendTask(
                target=target,
                topic=topic,
                scope=f"batch:{job}",
                head_before=before["head_seq"],
                batch_records=batch_records,
                batch_bytes=batch_bytes,
                node=node,
                settled=df.sparkSession.sparkContext.accumulator(0),
            )
            figures = run(encoded, task, total, progress)
    except JobError as error:
        raise JobError(f"{error}{left_behind(target, topic, before)}") from error
    with TopicsClient(target) as client:
        after = client.state(topic) or {"head_seq": 0}
    return summarize(topic, job, figures, before, after, time.monotonic() - started)


def _look_for_tags(df: DataFrame, tag_column: str | None, warn: Callable[[str], None]) -> None:
    """Warn of a name that none of the first JSON lines has: Spark has no columns to check it."""
    if tag_column is None or not are_lines(df):
        return
    if not df.limit(TAG_LINES).where(member(tag_column).isNotNull()).limit(1).collect():
        warn(
            f'none of the first {TAG_LINES:,} lines has a member "{tag_column}": their records have'
            " no tag"
        )


def left_behind(target: Target, topic: str, before: dict[str, Any]) -> str:
    """What a job that failed has appended, as the end of its message."""
    try:
        with TopicsClient(replace(target, retries=0, connect_s=1.0, read_s=2.0)) as client:
            state = client.state(topic) or before
    except RequestError:
        return ""
    moved = state["head_seq"] - before["head_seq"]
    told = f". {moved:,} records were appended before that; the same job run again appends none"
    return f"{told} of them twice" if moved else ""


def run(
    encoded: DataFrame, task: SendTask, total: int | None, progress: TextIO | None
) -> list[Row]:
    """Send all partitions and return their figures, with progress on the way."""
    figures = map_arrow(encoded, task, FIGURES_DDL)
    if progress is None:
        return figures.collect()
    # A monitor of its own: one try, short patience, so that it never holds up the end of the job.
    with TopicsClient(
        Target(
            url=task.target.url, api_key=task.target.api_key, retries=0, connect_s=1.0, read_s=2.0
        )
    ) as monitor:

        def done() -> int | None:
            try:
                state = monitor.state(task.topic)
            except RequestError:
                state = None
            moved = state["head_seq"] - task.head_before if state else 0
            return max(moved, int(task.settled.value))

        with Progress(progress, total, done) as shown:
            rows = figures.collect()
            shown.finish(sum(row["records"] for row in rows))
        return rows
