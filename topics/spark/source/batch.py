"""Batch read: what the topics hold when the query is planned, in ranges that stay as they are.

Planning asks every topic for its state once. Each range has the topic's epoch and goes to a task;
a task that is repeated reads the same records, or fails for what was lost meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from topics.spark.client.servers import Server
from topics.spark.source.columns import Columns
from topics.spark.source.connection import Patience
from topics.spark.source.options import ReadOptions
from topics.spark.source.plan import DataLost, Head, Range, range_end, range_start, split
from topics.spark.source.reading import RangePartition, read_partition, warn
from topics.spark.source.survey import Survey

if TYPE_CHECKING:
    import pyarrow as pa


class BatchReader(DataSourceReader):
    """Reads what is there: ``partitions`` is called once, on the driver, and ``read`` in tasks."""

    def __init__(self, options: ReadOptions, columns: Columns) -> None:
        self.options = options
        self.columns = columns

    def partitions(self) -> list[InputPartition]:
        """Ranges of all wanted topics, fixed from here on."""
        options = self.options
        pieces = split(
            plan_ranges(options), options.max_records_per_partition, options.min_partitions
        )
        return [RangePartition(piece) for piece in pieces]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one range."""
        return read_partition(partition, self.options, self.columns)


def plan_ranges(options: ReadOptions) -> list[Range]:
    """One range for each topic on each server. Raises `ServerError` for what cannot be read, and
    `DataLost` for offsets beyond the end.
    """
    found: list[Range] = []
    with closing(Survey(options)) as survey:
        heads = survey.heads(Patience.PLANNING)
        survey.require(heads)
        for server in survey.servers:
            for topic, head in heads[server.name].items():
                after = start_of(options, survey, server, topic, head)
                last = _end_of(options, survey, server, topic, head)
                found.append(Range(server.name, topic, after, last, head.epoch))
    return found


def start_of(options: ReadOptions, survey: Survey, server: Server, topic: str, head: Head) -> int:
    """The exclusive start in a topic, by time or by offset."""
    if options.starting_ts is not None:
        return survey.seq_before(server, topic, head, options.starting_ts)
    index = options.connection.servers.index(server.name)
    try:
        return range_start(options.starting, topic, index, head)
    except DataLost as error:
        _go_on(options, error)
        return head.head


def _end_of(options: ReadOptions, survey: Survey, server: Server, topic: str, head: Head) -> int:
    if options.ending_ts is not None:
        return survey.seq_before(server, topic, head, options.ending_ts)
    index = options.connection.servers.index(server.name)
    try:
        return range_end(options.ending, topic, index, head)
    except DataLost as error:
        _go_on(options, error)
        return head.head


def _go_on(options: ReadOptions, error: DataLost) -> None:
    if options.fail_on_data_loss:
        raise DataLost(
            f"{error}: was it deleted and made again? Give failOnDataLoss=false to read what is"
            " there"
        ) from error
    warn(str(error))
