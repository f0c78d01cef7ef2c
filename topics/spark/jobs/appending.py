"""Appending: the rows of a job to its topic, by the sender in each task, and what that came to.

A DataSource writer commits in another process, so a job runs the sender by ``mapInArrow``, which
gives the figures of each task to the driver.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from topics.spark.client.servers import Server
from topics.spark.job_errors import JobError, spark_errors, warn
from topics.spark.progress import progress
from topics.spark.rows import map_arrow
from topics.spark.sink.columns import ACCEPTED, Columns
from topics.spark.sink.options import SinkOptions
from topics.spark.source.connection import RetryBudget, ServerError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

FIGURES = ("records", "repeated", "requests", "retries")


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """What a job appended to a topic: of its ``records``, ``repeated`` were there before, from an
    earlier run. The heads are the server's own count. ``notes``: other figures of the job.
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
        """Records that this run appended."""
        return self.records - self.repeated

    @property
    def agrees(self) -> bool:
        """Whether the topic's head moved by exactly what was appended."""
        return self.head_after - self.head_before == self.appended

    def and_then(self, later: Appended) -> Appended:
        """Both, one after the other."""
        return Appended(
            topic=self.topic,
            records=self.records + later.records,
            repeated=self.repeated + later.repeated,
            requests=self.requests + later.requests,
            retries=self.retries + later.retries,
            seconds=self.seconds + later.seconds,
            head_before=self.head_before,
            head_after=later.head_after,
        )

    def text(self) -> str:
        """A table for people: the figures, and whether the server agrees."""
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
        return table([[name, value] for name, value in rows.items()])

    def _verdict(self) -> str:
        if self.agrees:
            return "agrees"
        more = self.head_after - self.head_before - self.appended
        if more < 0:
            return f"does NOT agree: {-more:,} fewer than it acknowledged"
        return (
            f"does NOT agree: {more:,} more than this job accounts for, by another writer or by a"
            " task whose rows differed when it was repeated"
        )


def table(rows: list[list[str]]) -> str:
    """Names and values below each other, by rich on a terminal."""
    from topics.cli.shell import aligned  # here: executors import this module

    if not sys.stdout.isatty():
        return "\n".join(aligned(rows))
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table("", "", show_header=False)
    for name, value in rows:
        shown.add_row(Text(name, "bold"), Text(value))
    console = Console()
    with console.capture() as captured:
        console.print(shown)
    return captured.get().rstrip("\n")


@dataclass(frozen=True, slots=True)
class AppendTask:
    """Append a partition. Pickled by the driver, called by ``mapInArrow`` in every task."""

    options: SinkOptions
    columns: Columns
    scope: str
    places: Mapping[str, Server]
    heads: Mapping[str, int]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Send everything and give one row of figures; a failure fails the task, and Spark runs it
        again with the same keys.
        """
        import pyarrow as pa
        from pyspark import TaskContext

        from topics.spark.sink.sending import Sender, Sent

        context = TaskContext.get()
        assert context is not None, "runs in a task only"
        partition = context.partitionId()
        sender = Sender(self.options, self.columns, self.scope, partition, self.places, self.heads)
        figures = sender.send(batches)
        sent = figures.topics.get(self.options.topic or "", Sent())
        counts = (sent.records, sent.repeated, sent.requests, figures.retries)
        columns = {name: [count] for name, count in zip(FIGURES, counts, strict=True)}
        yield pa.RecordBatch.from_pydict(columns)


def append(
    df: DataFrame,
    options: SinkOptions,
    scope: str,
    *,
    order: Sequence[str] = (),
    quiet: bool = True,
) -> Appended:
    """Append the rows of ``df``, which have the sink's columns, to the topic of ``options``, which
    is there; once for each ``scope``. Raises ``ServerError`` or ``JobError``.

    With ``order``, columns that name every row, all rows go through one partition in that order:
    the same rows make the same requests, however Spark cut them before. Without it, ``df`` must
    give the same rows in the same partitions and order when it is computed again.
    """
    from topics.spark.sink.opening import Clients

    topic, started = options.topic, time.monotonic()
    assert topic is not None, "a job has one topic to write to"
    if order:
        df = df.repartition(1).sortWithinPartitions(*order)
    df = df.select(*(name for name in df.columns if name in ACCEPTED))
    with (
        Clients(options) as clients,
        Clients(options, RetryBudget.QUICK) as monitor,  # the progress has a thread of its own
    ):
        before = clients.head(topic)
        monitor.places = clients.places
        columns = Columns.of(df.schema, topic=topic)
        task = AppendTask(options, columns, scope, clients.places, {topic: before})

        def moved() -> int | None:
            try:
                return monitor.head(topic) - before
            except ServerError:
                return None

        try:
            with spark_errors(), progress(moved, quiet=quiet):
                ddl = ", ".join(f"{name} bigint" for name in FIGURES)
                rows = map_arrow(df, task, ddl).collect()
        except JobError as error:
            if not (count := moved()):
                raise
            told = f"{error}. {count:,} records were appended before that; the same job run again"
            raise JobError(f"{told} appends none of them twice") from error
        sums = {name: sum(row[name] for row in rows) for name in FIGURES}
        return Appended(
            topic=topic,
            seconds=time.monotonic() - started,
            head_before=before,
            head_after=clients.head(topic),
            **sums,
        )


def open_dest(options: SinkOptions, *, change: bool = False) -> int:
    """Make the topic if need be, and see that this key may append; its head. With ``change``, a
    topic that exists gets the durability of the options. Raises ``ServerError`` or ``JobError``.
    """
    from topics.spark.sink.opening import plan

    heads, _ = plan(options, warn, change=change)
    return heads[options.topic or ""]
