"""Batch read: what the topics hold when the query is planned, in ranges that stay as they are.

Planning asks for the state of all topics once. Each range has the topic's epoch and goes to a task;
a task that is repeated reads the same records, or fails for what was lost meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from topics.spark.job_errors import warn
from topics.spark.source.columns import Columns
from topics.spark.source.options import ReadOptions
from topics.spark.source.plan import Range
from topics.spark.source.reading import partitions_of, read_partition
from topics.spark.source.survey import Survey

if TYPE_CHECKING:
    import pyarrow as pa


class BatchReader(DataSourceReader):
    """Reads what is there: ``partitions`` is called once, on the driver, and ``read`` in tasks."""

    def __init__(self, options: ReadOptions, columns: Columns) -> None:
        self.options = options
        self.columns = columns

    def partitions(self) -> list[InputPartition]:
        """Ranges of all wanted topics, fixed from here on. Raises `ServerError` for what cannot be
        read, and `DataLost` for offsets beyond the end.
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
        """The records of one task."""
        return read_partition(partition, self.options, self.columns)
