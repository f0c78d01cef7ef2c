"""What jobs share that read or write topics: options, and streaming queries to their end."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from topics.spark import register
from topics.spark.job_errors import JobError, spark_errors
from topics.spark.jobs.arguments import positive
from topics.spark.sink.options import SinkOptions
from topics.spark.source.offsets import Offsets, decode
from topics.spark.source.plan import LOSS_ADVICE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

POLL_S = 0.2
LOOK_S = 5.0  # between looks at the progress of a query
UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def add_stream(parser: argparse.ArgumentParser) -> None:
    """``--follow``, ``--cores``; for `local_session` and `run`."""
    parser.add_argument(
        "--follow",
        type=seconds,
        metavar="INTERVAL",
        help="do not end: look for new records that often, such as 10s, until Ctrl-C",
    )
    parser.add_argument(
        "--cores", type=positive, default=2, help="tasks at a time (default: %(default)s)"
    )


def options_of(options: argparse.Namespace) -> dict[str, str]:
    """Return the connection options of ``format("topics")``. The key stays in the environment."""
    servers = ",".join(server.entry for server in options.url.members)
    return {"servers": servers, "numRetries": str(options.retries)}


def sink_of(options: argparse.Namespace, topic: str, **more: str) -> SinkOptions:
    """The options of a write to ``topic``. Raises `BadOption`."""
    return SinkOptions.parse({**options_of(options), "topic": topic, **more})


def seconds(text: str) -> float:
    """``500ms``, ``10s``, ``5m`` or ``1h``."""
    found = re.fullmatch(r"([0-9]+)(ms|s|m|h)", text)
    if found is None or int(found.group(1)) == 0:
        raise argparse.ArgumentTypeError("must be like 500ms, 10s, 5m or 1h")
    return int(found.group(1)) * UNITS_S[found.group(2)]


@contextmanager
def job_errors() -> Iterator[None]:
    """Whatever Spark or the source reports, as a `JobError` of one line in the job's own words."""
    try:
        with spark_errors():
            yield
    except JobError as error:
        if LOSS_ADVICE not in str(error):
            raise
        raise JobError(
            str(error).replace(LOSS_ADVICE, "add --allow-loss to continue without them")
        ) from error


def read_stream(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """A stream of ``format("topics")``, from the earliest record on."""
    register(spark)
    reader = spark.readStream.format("topics").option("startingOffsets", "earliest")
    return reader.options(**options).load()


def read_batch(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """The records of ``format("topics")`` that are there now."""
    register(spark)
    return spark.read.format("topics").options(**options).load()


def run_batches(
    df: DataFrame,
    land: Callable[[DataFrame, int, str], None],
    checkpoint: str,
    follow_s: float | None,
    passage: Passage,
) -> None:
    """Give each batch of a stream, its number and the id of the query to ``land``, until all is
    done or, with an interval to follow, until the process is interrupted. What the query goes
    through is noted.

    What ``land`` raises is raised here.
    """
    failures: list[BaseException] = []

    def sink(batch: DataFrame, number: int) -> None:
        try:
            query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
            assert query, "Spark names the query in its threads"
            land(batch, number, query)
        except BaseException as failure:
            failures.append(failure)  # Spark would give its text only
            raise

    run(df.writeStream.foreachBatch(sink), checkpoint, follow_s, passage, failures)


@dataclass(slots=True)
class Passage:
    """What a query went through, from the progress of its ``batches``: from the offsets ``begin``
    to ``end``, ``records``.
    """

    begin: Offsets = field(default_factory=dict)
    end: Offsets = field(default_factory=dict)
    batches: int = 0
    records: int = 0
    _last: int = -1  # batch

    def look(self, query: StreamingQuery) -> None:
        """Count the batches since the last look. Spark keeps the progress of 100 batches."""
        recent = query.recentProgress
        if recent and not self.end:
            self.begin = _offsets(recent[0], "startOffset")
        if recent:
            self.end = _offsets(recent[-1], "endOffset")
        for progress in recent:
            # An idle query reports too, with the number of the batch that is to come.
            if progress["batchId"] <= self._last or "addBatch" not in progress["durationMs"]:
                continue
            self._last = progress["batchId"]
            self.batches += 1
            self.records += progress["numInputRows"]


def _offsets(progress: Mapping[str, Any], name: str) -> Offsets:
    return decode(msgspec.json.decode(progress["sources"][0][name]) or {})


def run(
    writer: DataStreamWriter,
    checkpoint: str,
    follow_s: float | None,
    passage: Passage,
    failures: Sequence[BaseException] = (),
) -> None:
    """Run a query until all is done or, with an interval to follow, until it is interrupted.
    ``passage`` is filled on the way.
    """
    trigger: dict[str, Any] = {"availableNow": True}
    if follow_s is not None:
        trigger = {"processingTime": f"{round(follow_s * 1000)} milliseconds"}
    query = writer.option("checkpointLocation", checkpoint).trigger(**trigger).start()
    try:
        _wait(query, passage)
    except KeyboardInterrupt:
        if follow_s is None:
            raise
    except Exception as failure:
        if failures:
            raise failures[0] from failure
        raise
    finally:
        query.stop()
    passage.look(query)


def _wait(query: StreamingQuery, passage: Passage) -> None:
    """Wait for the end. Almost all of it is Python's own sleep, so Ctrl-C leaves no call to the JVM
    half done, of which Py4J would log the stacks.
    """
    look_at = time.monotonic() + LOOK_S
    while query.isActive:
        time.sleep(POLL_S)
        if time.monotonic() >= look_at:
            passage.look(query)
            look_at += LOOK_S
    query.awaitTermination()  # raises what ended it
