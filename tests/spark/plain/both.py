"""The same file by both engines: encoded records, or the line of the refusal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from topics.spark.errors import JobError, spark_errors
from topics.spark.plain.files import read_plain
from topics.spark.reading import read
from topics.spark.rows import record_column

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Result = list[bytes] | str


def by_python(
    path: Path, form: str | None = None, *, tag_column: str | None = None, **options: str
) -> Result:
    """The plain engine's records. Raises ``NotPlain``."""
    try:
        rows = read_plain(str(path), form, options, tag_column)
    except JobError as error:
        return str(error)
    found = [
        bytes(data[offsets[index] : offsets[index + 1]])
        for offsets, data in rows.blocks(0)
        for index in range(len(offsets) - 1)
    ]
    assert len(found) == rows.count
    return found


def by_spark(
    spark: SparkSession,
    path: Path,
    form: str | None = None,
    *,
    tag_column: str | None = None,
    **options: str,
) -> Result:
    """The Spark engine's records."""
    try:
        df = read(spark, str(path), form, options)
        encoded = df.select(record_column(df, tag_column).alias("record"))
        with spark_errors():
            return [row["record"].encode() for row in encoded.collect()]
    except JobError as error:
        return str(error)
