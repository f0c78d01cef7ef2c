"""``format("topics")``: the class that Spark looks for. Readers are here, writers in the sink."""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from topics.spark.source.batch import BatchReader
from topics.spark.source.columns import Columns, schema_of
from topics.spark.source.options import ReadOptions
from topics.spark.source.stream import StreamReader


class TopicsDataSource(DataSource):
    """Topics as DataFrames. Spark makes one for each read or write, and pickles it."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self.options = dict(options)

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "topics"

    def schema(self) -> StructType:
        """The columns of a read for which the user gave no schema."""
        return schema_of(ReadOptions.parse(self.options, "either").columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads what is there."""
        return BatchReader(ReadOptions.parse(self.options, "batch"), Columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Reads that go on."""
        return StreamReader(ReadOptions.parse(self.options, "stream"), Columns(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Writes of a DataFrame."""
        from topics.spark.sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """Writes of a stream."""
        from topics.spark.sink import stream_writer

        return stream_writer(self.options, schema, overwrite)
