"""Reading: an executor's part. One task reads its ranges one after the other, page by page; small
pages are joined in one batch.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from topics.spark.client.http import Record
from topics.spark.client.ranges import Lost, read_range
from topics.spark.job_errors import warn
from topics.spark.source.columns import Columns
from topics.spark.source.connection import errors_of
from topics.spark.source.options import ReadOptions
from topics.spark.source.plan import GO_ON, DataLost, Range, loss_text, pack

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_RECORDS = 10_000
BATCH_BYTES = 4 << 20


@dataclass(frozen=True)
class RangePartition(InputPartition):
    """What one task reads."""

    ranges: tuple[Range, ...]


def partitions_of(ranges: list[Range], options: ReadOptions) -> list[InputPartition]:
    """The ranges in as many tasks as the options ask for."""
    tasks = pack(ranges, options.max_records_per_partition, options.min_partitions)
    return [RangePartition(task) for task in tasks]


def read_partition(
    partition: InputPartition, options: ReadOptions, columns: Columns
) -> Iterator[pa.RecordBatch]:
    """The records of a partition as Arrow batches; none of a partition that Spark makes of nothing.

    A batch has at least `BATCH_RECORDS` or `BATCH_BYTES`, but for the last one. Raises `DataLost`,
    unless the options say to go on, and `ServerError`.
    """
    if not isinstance(partition, RangePartition):
        return
    index = options.connection.servers.index
    held: list[pa.RecordBatch] = []
    rows = size = 0
    with closing(_pages(partition.ranges, options, columns)) as pages:
        for wanted, records in pages:
            place = index(wanted.server)
            held.append(columns.batch(records, wanted.topic, place, wanted.epoch))
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
    """The records of the ranges over one connection to each server."""
    connection = options.connection
    for name, found in groupby(ranges, attrgetter("server")):
        server = connection.server(name)
        with errors_of(server), connection.client(server) as client:
            for wanted in found:
                pages = read_range(
                    client,
                    wanted.topic,
                    wanted.after,
                    wanted.last,
                    epoch=wanted.epoch,
                    tags=columns.needs_tags,
                    meta=columns.needs_meta,
                    node=options.node,
                    on_loss=partial(report, options, name, wanted.topic),
                )
                for records in pages:
                    yield wanted, records


def report(options: ReadOptions, server: str, topic: str, lost: Lost) -> None:
    """Raise `DataLost`, or warn on stderr when the options say to go on."""
    text = loss_text(server, topic, lost)
    if options.fail_on_data_loss:
        raise DataLost(f"{text} ({GO_ON})")
    warn(text)
