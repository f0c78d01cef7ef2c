"""The class of ``format("topics")``, which creates readers and writers for Spark."""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql import datasource as spark
from pyspark.sql.types import StructType

from topics.spark.job_errors import without_traceback
from topics.spark.sink.writer import BatchWriter, StreamWriter
from topics.spark.source.columns import Columns, schema_of
from topics.spark.source.options import ReadOptions
from topics.spark.source.reading import BatchReader
from topics.spark.source.stream import StreamReader


class TopicsDataSource(spark.DataSource):
    """Topics as DataFrames. Spark creates an instance for each read or write and pickles it."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self.options = dict(options)

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "topics"

    def schema(self) -> StructType:
        """Return the columns for a read if the user has specified no schema."""
        return schema_of(ReadOptions.parse(self.options, "either").columns)

    def reader(self, schema: StructType) -> spark.DataSourceReader:
        """Return the reader for a batch."""
        options = ReadOptions.parse(self.options, "batch")
        return BatchReader(options, Columns(schema, text=options.text))

    def streamReader(self, schema: StructType) -> spark.DataSourceStreamReader:  # noqa: N802
        """Return the reader for a stream."""
        options = ReadOptions.parse(self.options, "stream")
        return StreamReader(options, Columns(schema, text=options.text))

    @without_traceback
    def writer(self, schema: StructType, overwrite: bool) -> spark.DataSourceWriter:
        """Return the writer for a DataFrame."""
        return BatchWriter(self.options, schema, overwrite=overwrite)

    @without_traceback
    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> spark.DataSourceStreamWriter:
        """Return the writer for a stream."""
        return StreamWriter(self.options, schema, overwrite=overwrite)
