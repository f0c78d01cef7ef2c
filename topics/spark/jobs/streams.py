"""Streams: reads topics for jobs, and runs the jobs' streaming queries."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from topics.spark import register
from topics.spark.source.lag import offsets_of
from topics.spark.source.offsets import Offsets, Position

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

POLL_S = 0.2
UPDATE_S = 5.0  # interval between updates of a query's progress


def read_stream(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """Return a stream of ``format("topics")`` that starts at the earliest record."""
    register(spark)
    reader = spark.readStream.format("topics").option("startingOffsets", "earliest")
    return reader.options(**options).load()


def read_batch(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """Return the current records of ``format("topics")``."""
    register(spark)
    return spark.read.format("topics").options(**options).load()


def run_batches(
    df: DataFrame,
    write: Callable[[DataFrame, int, str], None],
    checkpoint: str,
    follow_s: float | None,
    progress: QueryProgress,
) -> None:
    """Like `run`, but call ``write`` with each batch of a stream, the batch number and the query's
    id. Raise the exceptions of ``write``.
    """
    failures: list[BaseException] = []

    def sink(batch: DataFrame, number: int) -> None:
        try:
            query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
            assert query, "Spark names the query in its threads"
            write(batch, number, query)
        except BaseException as failure:
            failures.append(failure)  # Spark would report only its text
            raise

    try:
        run(df.writeStream.foreachBatch(sink), checkpoint, follow_s, progress)
    except Exception as failure:
        if failures:
            raise failures[0] from failure
        raise


class Span(NamedTuple):
    """The positions between which a query read an incarnation of a topic. ``start`` is None if the
    query began with its first batch.
    """

    start: Position | None
    end: Position


@dataclass(slots=True)
class QueryProgress:
    """The work that a query has done, from the progress that Spark reports: the number of
    ``batches`` and ``records``, and the ``spans`` by server, topic and epoch.
    """

    batches: int = 0
    records: int = 0
    spans: dict[tuple[str, str, int], Span] = field(default_factory=dict)
    _last: int = -1  # the number of the last counted batch

    def update(self, query: StreamingQuery) -> None:
        """Add the batches since the last call. Spark keeps the progress of 100 batches."""
        for report in query.recentProgress:
            if report["batchId"] <= self._last:
                continue
            (source,) = report["sources"]
            self._extend(offsets_of(source["startOffset"]), offsets_of(source["endOffset"]))
            # An idle query also reports, with the number of its next batch.
            if "addBatch" in report["durationMs"]:
                self._last = report["batchId"]
                self.batches += 1
                self.records += report["numInputRows"]

    def _extend(self, start: Offsets, end: Offsets) -> None:
        for server in start | end:
            topics = start.get(server, {})
            for topic, at in (topics | end.get(server, {})).items():
                begin = topics.get(topic)
                if begin is None or begin.epoch != at.epoch:
                    # The batch in which an incarnation appears reads none of its records.
                    begin = at if start else None
                key = server, topic, at.epoch
                first = self.spans[key].start if key in self.spans else begin
                self.spans[key] = Span(first, at)


def run(
    writer: DataStreamWriter,
    checkpoint: str,
    follow_s: float | None,
    progress: QueryProgress,
) -> None:
    """Run a query until it has read all records that exist at its start. If ``follow_s`` is given,
    poll for new records at this interval until the process is interrupted. Update ``progress``.
    """
    trigger: dict[str, Any] = {"availableNow": True}
    if follow_s is not None:
        trigger = {"processingTime": f"{round(follow_s * 1000)} milliseconds"}
    query = writer.option("checkpointLocation", checkpoint).trigger(**trigger).start()
    try:
        _wait(query, progress)
    except KeyboardInterrupt:
        if follow_s is None:
            raise
    finally:
        query.stop()
    progress.update(query)


def _wait(query: StreamingQuery, progress: QueryProgress) -> None:
    """Wait until the query ends. Most of the time is spent in Python's own sleep, because Py4J logs
    stack traces if Ctrl-C interrupts a call to the JVM.
    """
    update_at = time.monotonic() + UPDATE_S
    while query.isActive:
        time.sleep(POLL_S)
        if time.monotonic() >= update_at:
            progress.update(query)
            update_at += UPDATE_S
    query.awaitTermination()  # raises the error that ended the query
