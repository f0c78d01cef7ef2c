"""Writers: a batch or a stream of rows into topics, as Spark drives them.

Spark makes a writer on the driver when a write is planned, sends it to the executors, calls
``write`` there once for each attempt at a partition, and ``commit`` or ``abort`` on the driver.
Whatever can be refused is refused when the writer is made. ``write`` appends; ``commit`` and
``abort`` only tell of it: a topic takes nothing back.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from topics.spark.client.servers import Server
from topics.spark.job_errors import JobError, warn, without_traceback, write_stderr
from topics.spark.sink.columns import Columns
from topics.spark.sink.opening import Clients, plan
from topics.spark.sink.options import SinkOptions
from topics.spark.sink.report import left_behind, summary_line, warnings_of
from topics.spark.sink.sending import Sender, TaskFigures
from topics.spark.source.connection import BadOption, RetryBudget, ServerError, is_away

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

APPEND_ONLY = 'a topic is only appended to: write .mode("append")'


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task did; the driver gets it in ``commit`` and ``abort``."""

    figures: TaskFigures


class BatchWriter(DataSourceArrowWriter):
    """One ``df.write``. The keys are made of ``jobId``, or of a name made here, on the driver,
    once.
    """

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
        """Tell what was appended, in one line."""
        figures = _figures(messages)
        _warn(self.warnings, figures)
        told = summary_line(figures, seconds=time.time() - self.started)
        write_stderr(f"topics: {told}, job {self.job}")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Tell what stays of a job that failed."""
        stays = left_behind(_figures(messages), self._appended())
        name = "" if self.options.job_id else f" with the option jobId={self.job}"
        again = f"; the same job{name} again appends none of them twice" if stays else ""
        write_stderr(f"topics: the write failed; {stays or 'nothing was appended'}{again}")

    def _appended(self) -> int | None:
        """By how much the heads moved since the write was planned; None when it is not known."""
        try:
            with Clients(self.options, RetryBudget.PLANNING, self.places) as clients:
                moved = [clients.head(topic) - head for topic, head in self.heads.items()]
        except ServerError:
            return None
        return sum(moved) if moved else None


class StreamWriter(DataSourceStreamArrowWriter):
    """One micro-batch of ``df.writeStream``. The keys are made of the query's id, which its
    checkpoint holds, and of the batch's.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise BadOption('a topic is only appended to: write .outputMode("append")')
        self.options = SinkOptions.parse(options)
        if self.options.job_id is not None:
            raise BadOption(
                "option jobId is for df.write; a stream is known by its checkpointLocation"
            )
        self.columns = Columns.of(schema, topic=self.options.topic)
        self.warnings: list[str] = []
        # Spark cannot interrupt this process when a query is stopped, but it can end a task. So if
        # a server is away, the tasks open the topic, and they wait for the server.
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
            raise JobError("this Spark does not tell a task its query and batch; use PySpark 4.2")
        scope, partition = f"stream:{query}:{batch}", task.partitionId()
        sender = Sender(self.options, self.columns, scope, partition, self.places)
        return Written(sender.send(iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batch_id: int) -> None:
        """Tell the warnings once, with the first micro-batch."""
        if batch_id == 0:
            _warn(self.warnings, _figures(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batch_id: int) -> None:
        """Tell what stays of a micro-batch that failed."""
        write_stderr(
            f"topics: micro-batch {batch_id} failed; {left_behind(_figures(messages), None)}; the"
            " query, started again from its checkpoint, appends none of them twice"
        )


def _task() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "runs in a task only"
    return context


def _figures(messages: list[WriterCommitMessage | None]) -> list[TaskFigures]:
    return [message.figures for message in messages if isinstance(message, Written)]


def _warn(planned: list[str], figures: list[TaskFigures]) -> None:
    for warning in warnings_of(planned, figures):
        warn(warning)
