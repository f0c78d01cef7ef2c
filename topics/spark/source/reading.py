"""Reading: an executor's part. One task reads one range of one topic, page by page."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from topics.spark.client.ranges import Lost, read_range
from topics.spark.source.columns import Columns
from topics.spark.source.connection import errors_of
from topics.spark.source.options import ReadOptions
from topics.spark.source.plan import GO_ON, DataLost, Range, loss_text

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class RangePartition(InputPartition):
    """What one task reads."""

    range: Range


def read_partition(
    partition: InputPartition, options: ReadOptions, columns: Columns
) -> Iterator[pa.RecordBatch]:
    """The records of a partition as Arrow batches; none of a partition that Spark makes of nothing.

    Raises `DataLost`, unless the options say to go on, and `ServerError`.
    """
    if not isinstance(partition, RangePartition):
        return
    wanted = partition.range
    connection = options.connection
    server = connection.server(wanted.server)
    index = connection.servers.index(wanted.server)
    with errors_of(server), connection.client(server) as client:
        pages = read_range(
            client,
            wanted.topic,
            wanted.after,
            wanted.last,
            epoch=wanted.epoch,
            tags=columns.needs_tags,
            meta=columns.needs_meta,
            node=options.node,
            on_loss=lambda lost: report(wanted.server, wanted.topic, lost, options),
        )
        for records in pages:
            yield columns.batch(records, wanted.topic, index)


def report(server: str, topic: str, lost: Lost, options: ReadOptions) -> None:
    """Raise `DataLost`, or warn on stderr when the options say to go on."""
    text = loss_text(server, topic, lost)
    if options.fail_on_data_loss:
        raise DataLost(f"{text} ({GO_ON})")
    warn(text)


def warn(text: str) -> None:
    """A line on the stderr of the process: the executor's log, or the driver's."""
    sys.stderr.write(f"topics: warning: {text}\n")
    sys.stderr.flush()
