"""Segments source: ``format("topics_segments")``, the topics of a data directory without a server.

    spark.read.format("topics_segments").option("subscribe", "orders").load("/backup/data")

The directory is one that no server has: stopped, or a snapshot (``decisions/0038``). Its path must
lead to the same files on the driver and on all executors. The columns are those of
``format("topics")``; ``partition`` is 0. Planning takes what a start of the server takes, the rest
is read by tasks, about 500,000 records each.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from topics.client.http import DEFAULT_URL, Record
from topics.spark.source.columns import Columns
from topics.spark.source.connection import (
    CONNECTION_OPTIONS,
    BadOption,
    flag,
    lowered,
)
from topics.spark.source.options import ReadOptions
from topics.spark.source.plan import Head, range_end, range_start
from topics.spark.source.sample import SAMPLE_RECORDS, columns_of
from topics.storage.offline.directory import OfflineDirectory, OfflineTopic
from topics.storage.offline.pieces import Piece
from topics.storage.offline.reader import PieceReader

if TYPE_CHECKING:
    import pyarrow as pa

OF_A_SERVER = (
    *CONNECTION_OPTIONS,
    "startingTimestamp",
    "endingTimestamp",
    "failOnDataLoss",
    "node",
    "pushdown",
)


@dataclass(frozen=True, slots=True)
class SegmentOptions:
    """What is read from which directory. Picklable."""

    path: Path
    read: ReadOptions
    ignore_damage: bool

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SegmentOptions:
        """Raises `BadOption`."""
        given = lowered(options)
        path = given.pop("path", "")
        ignore_damage = flag(given, "ignoreDamage", default=False)
        given.pop("ignoredamage", None)
        if not path:
            raise BadOption('no directory is named: give its path as .load("/backup/data")')
        for name in OF_A_SERVER:
            if name.lower() in given:
                raise BadOption(f"option {name} is for servers; topics_segments reads files")
        read = ReadOptions.parse(given | {"servers": DEFAULT_URL}, "batch")
        return cls(Path(path.removeprefix("file:")), read, ignore_damage)

    def open(self) -> OfflineDirectory:
        """The directory, with the wanted topics. Raises as `OfflineDirectory`."""
        names = self.read.topics if self.read.pattern is None else None
        return OfflineDirectory(self.path, names=names, ignore_damage=self.ignore_damage)

    def topics(self, directory: OfflineDirectory) -> list[OfflineTopic]:
        """The wanted topics, by name. Raises `BadOption` when one is not there."""
        for name in self.read.topics:
            if name not in directory.topics:
                raise BadOption(f'there is no topic "{name}" in {self.path}')
        for bounds in (self.read.starting, self.read.ending):
            for name in bounds.named:
                bounds.check(name, [0])
        return [topic for name, topic in sorted(directory.topics.items()) if self.read.wants(name)]

    def pieces(self, topic: OfflineTopic, max_records: int) -> Iterator[Piece]:
        """The wanted records of a topic. Raises `DataLost` for offsets beyond its end."""
        head = Head(1, topic.head_seq, 0)
        first = range_start(self.read.starting, topic.name, 0, head) + 1
        last = range_end(self.read.ending, topic.name, 0, head)
        return topic.pieces(first, last, max_records=max_records)


class SegmentsDataSource(DataSource):
    """Topics of a directory as DataFrames. Spark makes one for each read, and pickles it."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self.options = dict(options)

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "topics_segments"

    def schema(self) -> StructType:
        """The columns of a read for which the user gave no schema."""
        options = SegmentOptions.parse(self.options)
        return columns_of(options.read, sample(options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads what is there."""
        options = SegmentOptions.parse(self.options)
        return SegmentsReader(options, Columns(schema, mode=options.read.mode))


@dataclass(frozen=True)
class PiecePartition(InputPartition):
    """What one task reads."""

    piece: Piece


class SegmentsReader(DataSourceReader):
    """Spark calls ``partitions`` once, on the driver, and ``read`` in tasks."""

    def __init__(self, options: SegmentOptions, columns: Columns) -> None:
        self.options, self.columns = options, columns

    def partitions(self) -> list[InputPartition]:
        """Pieces of all wanted topics, fixed from here on."""
        options = self.options
        with options.open() as directory:
            topics = options.topics(directory)
            for damage in directory.damage:
                warn(str(damage))
            share = -(-sum(topic.count for topic in topics) // options.read.min_partitions)
            most = max(1, min(options.read.max_records_per_partition, share))
            return [
                PiecePartition(piece) for topic in topics for piece in options.pieces(topic, most)
            ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one piece; none of a partition that Spark makes of nothing."""
        if not isinstance(partition, PiecePartition):
            return
        piece = partition.piece
        reader = PieceReader(piece, ignore_damage=self.options.ignore_damage)
        for records in reader.pages():
            yield self.columns.batch(records, piece.topic, 0)
        for damage in reader.damage:
            warn(str(damage))
        if reader.lost:
            warn(f'topic "{piece.topic}": {reader.lost} records are lost to damage')


def sample(options: SegmentOptions) -> Iterator[tuple[str, Record]]:
    """The first records of each wanted topic, each with the topic."""
    with options.open() as directory:
        for topic in options.topics(directory):
            pieces = options.pieces(topic, SAMPLE_RECORDS)
            found = (
                (piece.topic, record)
                for piece in pieces
                for page in PieceReader(piece, ignore_damage=options.ignore_damage).pages()
                for record in page
            )
            yield from islice(found, SAMPLE_RECORDS)


def warn(text: str) -> None:
    """A line on the stderr of the process: the executor's log, or the driver's."""
    sys.stderr.write(f"topics_segments: warning: {text}\n")
    sys.stderr.flush()
