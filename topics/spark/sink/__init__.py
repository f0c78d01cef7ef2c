"""The Spark sink: rows of a batch or a stream, appended to topics.

    options.py    what the write was told
    columns.py    which columns make a record
    encoding.py   Arrow batches to JSON records
    opening.py    the servers, and the topics, made or kept
    sending.py    an executor's part: chunks, keys, the server of each topic
    writer.py     the writers that Spark drives
    report.py     the lines at the end

Exactly once. An append cannot be taken back, so nothing waits for Spark's commit: records are there
as soon as their task has sent them. Instead each request carries an idempotency key, and the server
appends once for each key. A key is made of the write (below), the partition, the topic, the number
of the chunk in the partition, and its bytes. The same rows in the same partitions and order are the
same keys, whichever attempt sends them: a task that is retried, a speculative twin, a micro-batch
that is replayed after a lost commit, a driver that starts again.

    df.write         the option jobId; without it each write is another one, so only its own tasks
                     may be repeated
    df.writeStream   the query's id in its checkpoint, and the number of the micro-batch
    foreachBatch     a batch write: .option("jobId", f"{query_name}:{batch_id}")

The limits. None of these loses a record; each may append some twice:

- Rows that differ between attempts (rand(), now(), an unordered shuffle): their chunks have other
  bytes, so other keys. Sort within partitions, or write from a file or a checkpoint.
- Other partitions, other batchRecords, batchBytes, node or valueFormat, or another
  spark.sql.execution.arrow.maxRecordsPerBatch between the attempts.
- A topic whose idempotency_window_ms is over. One that is made here remembers keys for seven days;
  one with less than an hour is warned of.
- A topic that was deleted and made again has forgotten its keys. A task that runs meanwhile fails:
  it never makes a topic that it had found.
- Durability: a topic that is not fsync may forget its last keys with its last records when the
  machine loses power.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from topics.spark.job_errors import without_traceback

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter
    from pyspark.sql.types import StructType


@without_traceback
def batch_writer(
    options: Mapping[str, str],
    schema: StructType,
    overwrite: bool,
) -> DataSourceArrowWriter:
    """The writer of ``df.write``. Raises in one line for what cannot be written."""
    from topics.spark.sink.writer import BatchWriter

    return BatchWriter(options, schema, overwrite=overwrite)


@without_traceback
def stream_writer(
    options: Mapping[str, str],
    schema: StructType,
    overwrite: bool,
) -> DataSourceStreamArrowWriter:
    """The writer of ``df.writeStream``. Raises in one line for what cannot be written."""
    from topics.spark.sink.writer import StreamWriter

    return StreamWriter(options, schema, overwrite=overwrite)
