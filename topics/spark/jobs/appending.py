"""Appending: appends a job's rows to its topic and reports the counts.

A data source's writer commits in a different process and cannot return counts to the driver, so a
job runs the sender with ``mapInArrow``, which returns the counts of each task to the driver.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from topics.spark.client.servers import Server
from topics.spark.job_errors import JobError, spark_errors, warn
from topics.spark.progress import progress
from topics.spark.rows import map_arrow
from topics.spark.sink.columns import ACCEPTED, Columns
from topics.spark.sink.opening import plan
from topics.spark.sink.options import SinkOptions
from topics.spark.source.connection import Clients, RetryBudget, ServerError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

COUNTS = ("records", "repeated", "requests", "retries")


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """The counts of a job for its topic. An earlier run had already appended ``repeated`` of the
    ``records``. ``head_before`` and ``head_after`` are the topic's heads. ``notes`` contains
    additional counts of the job.
    """

    topic: str
    records: int = 0
    repeated: int = 0
    requests: int = 0
    retries: int = 0
    seconds: float = 0.0
    head_before: int = 0
    head_after: int = 0
    notes: Mapping[str, int] = field(default_factory=dict)

    @property
    def appended(self) -> int:
        """The number of records that this run has appended."""
        return self.records - self.repeated

    @property
    def surplus(self) -> int:
        """The number of seqs that the topic has gained in addition to the seqs of this run. It is
        negative if seqs are missing.

        Eviction and deletion do not lower a topic's head. The head is lower only if the topic was
        created again, or the server was restored or lost records in a crash.
        """
        return self.head_after - self.head_before - self.appended

    @property
    def agrees(self) -> bool:
        """Whether the topic's head covers all records that this run has appended."""
        return self.surplus >= 0

    def and_then(self, later: Appended) -> Appended:
        """Return the sums of two appends, this one and a later one."""
        sums = {name: getattr(self, name) + getattr(later, name) for name in (*COUNTS, "seconds")}
        return replace(later, head_before=self.head_before, **sums)

    def text(self) -> str:
        """Return the counts as a table, and whether the server agrees."""
        from topics.cli.shell import aligned  # local, because executors import this module

        rate = self.records / self.seconds if self.seconds > 0 else 0.0
        rows = {
            "topic": self.topic,
            **{name: f"{count:,}" for name, count in self.notes.items()},
            "records": f"{self.records:,}",
            "appended": f"{self.appended:,}",
            "already there": f"{self.repeated:,}",
            "requests": f"{self.requests:,}",
            "retries": f"{self.retries:,}",
            "seconds": f"{self.seconds:.1f}",
            "rows/s": f"{rate:,.0f}",
            "head before": f"{self.head_before:,}",
            "head after": f"{self.head_after:,}",
            "the server": self._verdict(),
        }
        return "\n".join(aligned([[name, value] for name, value in rows.items()]))

    def _verdict(self) -> str:
        if self.surplus < 0:
            return (
                f"does NOT agree: {-self.surplus:,} fewer than it acknowledged; the topic was"
                " created again, or the server was restored or lost records in a crash"
            )
        if self.surplus == 0:
            return "agrees"
        return (
            f"agrees, and has {self.surplus:,} records by other writers, or by a task whose rows"
            " differed when it was repeated"
        )


def append_partition(
    options: SinkOptions,
    columns: Columns,
    scope: str,
    places: Mapping[str, Server],
    heads: Mapping[str, int],
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Send all rows of a task and return one row of counts. If it fails, Spark runs the task again,
    with the same idempotency keys.
    """
    import pyarrow as pa
    from pyspark import TaskContext

    from topics.spark.sink.sending import Sender, Sent

    context = TaskContext.get()
    assert context is not None, "runs in a task only"
    sender = Sender(options, columns, scope, context.partitionId(), places, heads)
    found = sender.send(batches)
    sent = found.topics.get(options.topic or "", Sent())
    counts = (sent.records, sent.repeated, sent.requests, found.retries)
    yield pa.RecordBatch.from_pylist([dict(zip(COUNTS, counts, strict=True))])


def append(
    df: DataFrame,
    options: SinkOptions,
    scope: str,
    *,
    order: Sequence[str] = (),
    quiet: bool = True,
) -> Appended:
    """Append the rows of ``df``, which have the sink's columns, to the existing topic in
    ``options``, once for each ``scope``. Raise ``ServerError`` or ``JobError``.

    ``order`` names columns that identify each row. If it is given, one partition sends all rows in
    that order, so that the same rows result in the same requests, regardless of their earlier
    partitions. Otherwise, ``df`` must have the same rows in the same partitions and order if Spark
    computes it again.
    """
    topic, started = options.topic, time.monotonic()
    assert topic is not None, "a job has one topic to write to"
    if order:
        df = df.repartition(1).sortWithinPartitions(*order)
    df = df.select(*(name for name in df.columns if name in ACCEPTED))
    with Clients(options.connection) as clients:
        before = clients.head(topic)
        columns = Columns.of(df.schema, topic=topic)
        fixed = options, columns, scope, clients.places, {topic: before}

        def gained() -> int | None:
            # `progress` calls this in its thread while this thread waits for Spark.
            try:
                return clients.head(topic, RetryBudget.QUICK) - before
            except ServerError:
                return None

        try:
            with spark_errors(), progress(gained, quiet=quiet):
                ddl = ", ".join(f"{name} bigint" for name in COUNTS)
                rows = map_arrow(df, partial(append_partition, *fixed), ddl).collect()
        except JobError as error:
            if not (count := gained()):
                raise
            raise JobError(
                f"{error}. The topic gained {count:,} records before that; the same job run again"
                " appends no record twice"
            ) from error
        sums = {name: sum(row[name] for row in rows) for name in COUNTS}
        return Appended(
            topic=topic,
            seconds=time.monotonic() - started,
            head_before=before,
            head_after=clients.head(topic),
            **sums,
        )


def open_dest(options: SinkOptions) -> int:
    """Create the topic if it does not exist, check that this key may append, and return the head.
    An existing topic gets the durability in the options. Raise ``ServerError`` or ``JobError``.
    """
    heads, _ = plan(options, warn, is_job=True)
    return heads[options.topic or ""]
