"""Writers: append a batch or a stream.

Spark creates a writer on the driver and sends it to the executors. It calls ``write`` there for
each attempt of a partition, and ``commit`` or ``abort`` on the driver. A writer checks its options,
columns and topic when it is created. ``write`` appends records; ``commit`` and ``abort`` only print
a summary, because appended records remain.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from topics.spark.client.servers import Server
from topics.spark.job_errors import JobError, warn, without_traceback, write_stderr
from topics.spark.sink.columns import Columns
from topics.spark.sink.opening import plan
from topics.spark.sink.options import SinkOptions
from topics.spark.sink.sending import Sender, Sent, TaskFigures
from topics.spark.source.connection import BadOption, Clients, RetryBudget, ServerError, is_away

NAMED_TOPICS = 3
APPEND_ONLY = 'a topic is only appended to: write .mode("append")'


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """The result of a task, which Spark passes to ``commit`` and ``abort``."""

    figures: TaskFigures


class BatchWriter(DataSourceArrowWriter):
    """One ``df.write``. Its keys contain ``jobId``, by default a random id."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise BadOption(f'{APPEND_ONLY}, not .mode("overwrite")')
        self.options = SinkOptions.parse(options)
        self.columns = Columns.of(schema, topic=self.options.topic)
        self.job = self.options.job_id or uuid.uuid4().hex
        self.warnings: list[str] = []
        self.heads, self.places = plan(self.options, self.warnings.append)
        self.started = time.time()

    @without_traceback
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Append the rows of one partition."""
        scope, partition = f"batch:{self.job}", _task().partitionId()
        sender = Sender(self.options, self.columns, scope, partition, self.places)
        return Written(sender.send(iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Print a one-line summary."""
        figures = _figures(messages)
        _warn(self.warnings, figures)
        summary = summary_line(figures, seconds=time.time() - self.started)
        write_stderr(f"topics: {summary}, job {self.job}")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Report the records that a failed write has appended."""
        remaining = remaining_records(_figures(messages), self._appended())
        name = "" if self.options.job_id else f" with the option jobId={self.job}"
        again = f"; the same job{name} again appends none of them twice" if remaining else ""
        write_stderr(f"topics: the write failed; {remaining or 'nothing was appended'}{again}")

    def _appended(self) -> int | None:
        """Return the number of new seqs since the write was planned, or None if it is unknown."""
        try:
            with Clients(self.options.connection, RetryBudget.PLANNING, self.places) as clients:
                moved = [clients.head(topic) - head for topic, head in self.heads.items()]
        except ServerError:
            return None
        return sum(moved) if moved else None


class StreamWriter(DataSourceStreamArrowWriter):
    """One micro-batch of ``df.writeStream``. Its keys contain the ids of the micro-batch and of the
    query, which is stored in the checkpoint.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise BadOption('a topic is only appended to: write .outputMode("append")')
        self.options = SinkOptions.parse(options)
        if self.options.job_id is not None:
            raise BadOption(
                "option jobId is for df.write; the checkpointLocation identifies a stream"
            )
        self.columns = Columns.of(schema, topic=self.options.topic)
        self.warnings: list[str] = []
        # If the server is unreachable, the tasks open the topic and retry, because Spark can stop a
        # task but not this process.
        self.places: Mapping[str, Server] = {}
        try:
            _, self.places = plan(self.options, self.warnings.append, RetryBudget.QUICK)
        except ServerError as error:
            if not is_away(error):
                raise

    @without_traceback
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Append the rows of one partition of one micro-batch."""
        task = _task()
        query = task.getLocalProperty("sql.streaming.queryId")
        batch = task.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            raise JobError("this Spark does not pass query and batch to a task; use PySpark 4.2")
        scope, partition = f"stream:{query}:{batch}", task.partitionId()
        sender = Sender(self.options, self.columns, scope, partition, self.places)
        return Written(sender.send(iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batch_id: int) -> None:
        """Print the warnings of the first micro-batch."""
        if batch_id == 0:
            _warn(self.warnings, _figures(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batch_id: int) -> None:
        """Report the records that a failed micro-batch has appended."""
        remaining = remaining_records(_figures(messages), None)
        write_stderr(
            f"topics: micro-batch {batch_id} failed; {remaining}; the query, started again from its"
            " checkpoint, appends none of them twice"
        )


def _task() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "write is called in a task"
    return context


def _figures(messages: list[WriterCommitMessage | None]) -> list[TaskFigures]:
    return [message.figures for message in messages if isinstance(message, Written)]


def _warn(planned: Iterable[str], figures: Iterable[TaskFigures]) -> None:
    """Write each warning once."""
    found = [*planned, *(warning for task in figures for warning in task.warnings)]
    for warning in dict.fromkeys(found):
        warn(warning)


def total(figures: Iterable[TaskFigures]) -> dict[str, Sent]:
    """Return the sums of all tasks, ordered by topic."""
    sums: dict[str, Sent] = {}
    for task in figures:
        for topic, sent in task.topics.items():
            into = sums.setdefault(topic, Sent())
            into.records += sent.records
            into.repeated += sent.repeated
            into.requests += sent.requests
    return dict(sorted(sums.items()))


def summary_line(figures: Sequence[TaskFigures], *, seconds: float) -> str:
    """Return a summary of a successful write."""
    sums = total(figures)
    records = sum(sent.records for sent in sums.values())
    repeated = sum(sent.repeated for sent in sums.values())
    requests = sum(sent.requests for sent in sums.values())
    summary = (
        f"{records:,} records to {_named(sums)} in {seconds:.1f} s, {requests:,} requests,"
        f" {sum(task.retries for task in figures):,} retries"
    )
    if repeated:
        summary += f", {repeated:,} of the records were there from an earlier attempt or run"
    return summary


def remaining_records(figures: Sequence[TaskFigures], moved: int | None) -> str:
    """Return a description of the records that a failed write has appended, or an empty string if
    there are none. ``moved`` is the number of new seqs in the topic, or None if it is unknown.
    """
    if moved is not None:
        return f"about {moved:,} records that it appended remain" if moved else ""
    done = sum(sent.records for sent in total(figures).values())
    return f"the {done:,} records of its finished tasks remain, and those of its other tasks"


def _named(sums: dict[str, Sent]) -> str:
    names = ", ".join(f'"{topic}"' for topic in list(sums)[:NAMED_TOPICS])
    if len(sums) > NAMED_TOPICS:
        return f"{len(sums):,} topics ({names} and others)"
    return f"{'topics' if len(sums) > 1 else 'topic'} {names}" if sums else "no topic"
