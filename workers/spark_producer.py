"""The Spark producer: a DataFrame, or Parquet, CSV or JSON files, into a topic.

    python -m workers.spark_producer SOURCE TOPIC [options]

Spark encodes each row as JSON, the executors cut the rows into batches and append them, one request a batch. Every batch has
an idempotency key made of job, partition, place and content, so a task that Spark retries, and a whole job that is run again
within the topic's ``idempotency_window_ms``, append nothing twice. What the job id must not hide: other ``--partitions``,
``--batch-records`` or ``--batch-bytes`` make other batches, which are appended again.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from topics.client.errors import RequestError
from topics.client.http import DEFAULT_URL, Target, TopicsClient
from workers.spark_progress import Progress
from workers.spark_rows import fingerprint, map_arrow, record_column
from workers.spark_summary import Summary, summarize
from workers.spark_task import FIGURES_DDL, SendTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

MIB = 1024 * 1024
HOUR_MS = 60 * 60 * 1000
WINDOW_MS = 7 * 24 * HOUR_MS  # of a topic that the producer makes: a job that failed on Friday is run again on Monday
FIRST_CONNECTS = 3
INTERRUPTED = 130  # the exit status that shells give to a Ctrl-C
FORMATS = ("parquet", "csv", "json")
SUFFIXES = {".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet"}


class JobError(Exception):
    """The job did not finish. The text is one line: the server's refusal where there is one."""


def say(line: str) -> None:
    """One line for the user, beside the summary's stream."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def session(*, cores: int = 2, partitions: int = 8, name: str = "topics-producer") -> SparkSession:
    """A local session whose tasks are retried, with executors that find this interpreter and this package.

    ``partitions`` fixes how files are split, so that the number of cores has no part in the keys.
    """
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.executorEnv.PYTHONPATH": str(Path(__file__).resolve().parent.parent),
        "spark.sql.files.minPartitionNum": str(partitions),
        "spark.sql.session.timeZone": "UTC",  # timestamps must not render by the machine's zone
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
        "spark.log.level": "ERROR",
    }
    # local[N] alone never retries a task; the 4 is the number of attempts.
    builder = SparkSession.builder.master(f"local[{cores},4]").appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def read(spark: SparkSession, source: str, form: str | None, options: dict[str, str]) -> DataFrame:
    """The rows of ``source``, a path or URI that Spark can read; ``form`` is one of ``FORMATS``, else the suffix decides.

    Raises ``JobError`` when Spark cannot read it.
    """
    kind = form or format_of(source)
    defaults = {"header": "true", "inferSchema": "true", "sep": "\t" if ".tsv" in source else ","} if kind == "csv" else {}
    with spark_errors():
        return spark.read.format(kind).options(**{**defaults, **options}).load(source)


def format_of(source: str) -> str:
    """By suffix, through ``.gz`` and the like; Parquet when the suffix says nothing."""
    for suffix in reversed(Path(source).suffixes):
        if suffix.lower() in SUFFIXES:
            return SUFFIXES[suffix.lower()]
    return "parquet"


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

    A row becomes ``{"data": {column: value, ...}}`` (nulls kept), with ``tag_column``'s value as tag where it is not null.
    ``job_id`` names the job for idempotency; ``df`` is then computed once, and ``progress`` has a share to show only when the
    number of rows is given as ``total``. By default the job is named after ``source``, the schema and the rows themselves, so
    the same rows are the same job; that computes ``df`` twice. Computed again, it must give the same rows in the same
    partitions and order: what comes out of a shuffle must be sorted within its partitions first. Raises ``RequestError`` when
    the topic cannot be made, ``JobError`` when tasks failed for good.
    """
    target = target or Target(url=os.environ.get("TOPICS_URL", DEFAULT_URL), api_key=os.environ.get("TOPICS_API_KEY"))
    started = time.monotonic()
    # A wrong address is told at once; later, a server that restarts is waited for.
    with TopicsClient(replace(target, connect_retries=FIRST_CONNECTS)) as client:
        before = open_topic(client, topic, durability, warn)
    with TopicsClient(target) as client:
        with spark_errors():
            encoded = df.select(record_column(df, tag_column).alias("record"))
            total, job = (total, job_id) if job_id else fingerprint(encoded, source, df.schema.json())
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
        after = client.state(topic) or {"head_seq": 0}
    return summarize(topic, job, figures, before, after, time.monotonic() - started)


def open_topic(client: TopicsClient, topic: str, durability: str | None, warn: Callable[[str], None]) -> dict[str, Any]:
    """Make the topic if it is absent and return its state. A topic that exists keeps its config, but for a named durability."""
    wanted: dict[str, Any] = {} if durability is None else {"durability": durability}
    state = client.state(topic)
    if state is None:
        client.put_topic(topic, {"idempotency_window_ms": WINDOW_MS, **wanted})
    elif wanted and state["config"]["durability"] != durability:
        client.put_topic(topic, wanted)
    state = client.state(topic)
    if state is None:
        raise RequestError(topic, 404, "topic_not_found", "it was deleted at once after it was made")
    window_ms = state["config"]["idempotency_window_ms"]
    if window_ms < HOUR_MS:
        warn(
            f'topic "{topic}" remembers idempotency keys for {window_ms / 1000:g} s only: a task or job that is repeated later '
            f"appends its records again. Set idempotency_window_ms to an hour or more (PUT /v0/topics/{topic})."
        )
    return state


def run(encoded: DataFrame, task: SendTask, total: int | None, progress: TextIO | None) -> list[Row]:
    """Send all partitions and return their figures, with progress on the way."""
    figures = map_arrow(encoded, task, FIGURES_DDL)
    if progress is None:
        return figures.collect()
    # A monitor of its own: one try, short patience, so that it never holds up the end of the job.
    with TopicsClient(Target(url=task.target.url, api_key=task.target.api_key, retries=0, connect_s=1.0, read_s=2.0)) as monitor:

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


@contextmanager
def spark_errors() -> Iterator[None]:
    """Whatever Spark reports, as a ``JobError`` of one line."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        raise JobError(last_line(error)) from error


def last_line(error: BaseException) -> str:
    """The line that tells the user most: our own refusal inside Spark's text, else the first line of that."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line.split("RequestError: ", 1)[1] for line in lines if "RequestError: " in line]
    return ours[-1] if ours else (lines[0] if lines else type(error).__name__)


def parser() -> argparse.ArgumentParser:
    """The command line; ``--help`` is its manual."""
    build = argparse.ArgumentParser(
        prog="python -m workers.spark_producer",
        description="Append the rows of Parquet, CSV or JSON files to a topic. Running the same job again appends nothing.",
        epilog="Environment: TOPICS_URL, TOPICS_API_KEY. Exit: 0 done, 1 failed or the server's count does not agree, 130 interrupted.",
    )
    add = build.add_argument
    add("source", help="file, directory or URI that Spark can read")
    add("topic")
    add("--url", default=os.environ.get("TOPICS_URL", DEFAULT_URL), help="of the server (default: %(default)s)")
    add("--format", choices=FORMATS, help="default: by the suffix")
    add(
        "--option",
        type=pair,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="for Spark's reader, such as sep=; or multiLine=true",
    )
    add("--durability", choices=("ephemeral", "memory", "disk", "fsync"), help="of the topic; an existing one is changed")
    add("--batch-records", type=positive, default=5000, help="records in a request at most (default: %(default)s)")
    add("--batch-bytes", type=byte_count, default=4 * MIB, help="bytes in a request at most, such as 512KiB (default: 4MiB)")
    add("--job-id", help="name of the job for idempotency (default: made of source path, schema and rows, which reads them twice)")
    add("--total", type=positive, help="how many rows there are, for the progress of a job with --job-id")
    add("--tag-column", help="column whose value becomes the record's tag")
    add("--node", help="origin node of the records; readers with the same node do not get them")
    add("--partitions", type=positive, default=8, help="into how many parts files are split at least (default: %(default)s)")
    add("--cores", type=positive, default=2, help="parts sent at a time (default: %(default)s)")
    add("--retries", type=positive, default=12, help="tries after the first for a busy or absent server (default: %(default)s)")
    add("--quiet", action="store_true", help="no progress")
    return build


def pair(text: str) -> tuple[str, str]:
    """``KEY=VALUE``."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError("must be KEY=VALUE")
    return key, value


def positive(text: str) -> int:
    """An integer from 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def byte_count(text: str) -> int:
    """``4MiB``, ``512KiB`` or plain bytes."""
    for unit, factor in (("MiB", MIB), ("KiB", 1024)):
        if text.endswith(unit):
            return positive(text.removesuffix(unit)) * factor
    return positive(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one job from the command line."""
    options = parser().parse_args(arguments)
    quiet_pyspark()
    try:
        summary = run_job(options)
    except (RequestError, JobError) as error:
        say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted; run the job again, it goes on where it stopped")
        return INTERRUPTED
    sys.stdout.write(summary.text() + "\n")
    return 0 if summary.agrees else 1


def run_job(options: argparse.Namespace) -> Summary:
    """The job that the command line asks for, in a session of its own."""
    target = Target(url=options.url, api_key=os.environ.get("TOPICS_API_KEY"), retries=options.retries)
    source = options.source if "://" in options.source else str(Path(options.source).resolve())
    spark = session(cores=options.cores, partitions=options.partitions)
    try:
        df = read(spark, source, options.format, dict(options.option))
        return produce(
            df,
            options.topic,
            target=target,
            job_id=options.job_id,
            source=source,
            durability=options.durability,
            tag_column=options.tag_column,
            node=options.node,
            batch_records=options.batch_records,
            batch_bytes=options.batch_bytes,
            total=options.total,
            progress=None if options.quiet else sys.stderr,
        )
    finally:
        spark.stop()


def quiet_pyspark() -> None:
    """Keep PySpark's own asides off the user's terminal: what matters of them is in our one line."""
    # pandas may be installed beside us; nothing here uses it.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    # It prints a plan and a Java stack, in JSON, for a misspelt column.
    from pyspark.logger import PySparkLogger

    PySparkLogger.getLogger("DataFrameQueryContextLogger").setLevel(logging.CRITICAL)
    # Py4J logs the stacks of a Ctrl-C, then raises what it logged; one line of ours follows.
    logging.getLogger().addFilter(lambda record: "while sending command" not in record.getMessage())


if __name__ == "__main__":
    raise SystemExit(main())
