"""Batch reader: reads the records that exist when the query is planned.

The state of each topic is requested once, when the ranges are planned. A range contains the topic's
epoch, so a task that Spark repeats reads the same records, or fails if some were lost since.

`DataSourceReader.pushFilters` is not implemented, because rows would be lost. Spark 4.3 stores one
plan for each DataFrame, so the filters of one query narrow the ranges of every other query of the
same DataFrame, even if all filters are returned for Spark to evaluate. By default, Spark refuses a
reader that implements the method (``spark.sql.python.filterPushdown.enabled``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from topics.spark.client.ranges import Range
from topics.spark.job_errors import warn
from topics.spark.source.columns import Columns
from topics.spark.source.options import ReadOptions
from topics.spark.source.reading import partitions_of, read_partition
from topics.spark.source.survey import Survey

if TYPE_CHECKING:
    import pyarrow as pa


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
                found.append(Range(server.name, topic, after, last, head.epoch))
        return partitions_of(found, options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one partition."""
        return read_partition(partition, self.options, self.columns)
