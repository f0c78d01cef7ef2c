"""Reading: the partitions of a read, their records, and the batch reader.

A task runs on an executor. It reads its ranges in order, page by page, and joins small pages into
one batch.

A batch read returns the records that exist when the query is planned. The state of each topic is
requested once, when the ranges are planned. A range contains the topic's epoch, so a task that
Spark repeats reads the same records, or fails if some have been lost since.

`DataSourceReader.pushFilters` is not implemented, because rows would be lost. Spark 4.3 stores one
plan for each DataFrame. So the filters of one query would narrow the ranges of every other query on
the same DataFrame, even if all filters are returned for Spark to evaluate. By default, Spark
refuses a reader that implements the method (``spark.sql.python.filterPushdown.enabled``).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import attrgetter

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from topics.spark.client.http import Record
from topics.spark.client.ranges import Loss, Range, read_range
from topics.spark.job_errors import LOSS_ADVICE, warn
from topics.spark.source.columns import Columns
from topics.spark.source.connection import RetryBudget, errors_of
from topics.spark.source.offsets import Position
from topics.spark.source.options import ReadOptions
from topics.spark.source.plan import DataLost, Step, loss_text, pack
from topics.spark.source.survey import Survey

BATCH_RECORDS = 10_000
BATCH_BYTES = 4 << 20


@dataclass(frozen=True)
class RangePartition(InputPartition):
    """The ranges that one task reads."""

    ranges: tuple[Range, ...]


class BatchReader(DataSourceReader):
    """Spark calls ``partitions`` once, on the driver, and ``read`` in tasks."""

    def __init__(self, options: ReadOptions, columns: Columns) -> None:
        self.options = options
        self.columns = columns

    def partitions(self) -> list[InputPartition]:
        """Return the ranges of all subscribed topics. Raise `ServerError` if a topic cannot be
        read, and `DataLost` for offsets above the end.
        """
        options = self.options
        found: list[Range] = []
        with closing(Survey(options)) as survey:
            for server, topic, head in survey.required():
                after = survey.bound(options.starting, server, topic, head)
                last = survey.bound(options.ending, server, topic, head)
                if last < after:
                    warn(
                        f'topic "{topic}" on server {server.name}: no records are read, because the'
                        f" read starts at offset {after + 1} and ends at {last + 1}"
                    )
                step = Step(server.name, topic, Position(after, head.epoch), last)
                for loss in survey.large_losses(step, last, RetryBudget.PLANNING):
                    report(options, server.name, topic, loss)
                    found.append(Range(server.name, topic, after, loss.first - 1, head.epoch))
                    after = loss.last
                found.append(Range(server.name, topic, after, last, head.epoch))
        return partitions_of(found, options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one partition."""
        return read_partition(partition, self.options, self.columns)


def partitions_of(ranges: list[Range], options: ReadOptions) -> list[InputPartition]:
    """Divide the ranges among the number of tasks that the options require."""
    tasks = pack(ranges, options.max_records_per_partition, options.min_partitions)
    return [RangePartition(task) for task in tasks]


def read_partition(
    partition: InputPartition, options: ReadOptions, columns: Columns
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a partition as Arrow batches. Each batch except the last has at least
    `BATCH_RECORDS` records or `BATCH_BYTES` bytes. Raise `ServerError`, and `DataLost` if the
    options require it.
    """
    if not isinstance(partition, RangePartition):
        return  # Spark creates a partition itself if a read has none
    index = options.connection.servers.index
    held: list[pa.RecordBatch] = []
    rows = size = 0
    with closing(_pages(partition.ranges, options, columns)) as pages:
        for part, records in pages:
            place = index(part.server)
            held.append(columns.batch(records, part.topic, place, part.epoch))
            rows += held[-1].num_rows
            size += held[-1].nbytes
            if rows >= BATCH_RECORDS or size >= BATCH_BYTES:
                yield columns.joined(held)
                held, rows, size = [], 0, 0
    if held:
        yield columns.joined(held)


def _pages(
    ranges: tuple[Range, ...], options: ReadOptions, columns: Columns
) -> Generator[tuple[Range, list[Record]]]:
    """Yield the records of the ranges, over one connection to each server."""
    connection = options.connection
    fields = {"include_tags": columns.needs_tags, "include_meta": columns.needs_meta}
    for name, parts in groupby(ranges, attrgetter("server")):
        server = connection.server(name)
        with errors_of(server), connection.client(server) as client:
            for part in parts:
                on_loss = partial(report, options, name, part.topic)
                for records in read_range(client, part, on_loss, node=options.node, **fields):
                    yield part, records


def report(options: ReadOptions, server: str, topic: str, loss: Loss) -> None:
    """Raise `DataLost`, or warn on stderr with ``failOnDataLoss=false``."""
    text = loss_text(server, topic, loss)
    if options.fail_on_data_loss:
        raise DataLost(f"{text} ({LOSS_ADVICE})")
    warn(text)
