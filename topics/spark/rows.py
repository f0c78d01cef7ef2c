"""Rows: to append records, to a job id, and to the executors. No Python runs for each row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame


# In the metadata of a column that holds whole JSON objects, to be sent as they are.
LINE_MARK = "topics.json_lines"
# to_json's own patterns keep three decimal digits of times. A TIMESTAMP is a moment and is shown in
# UTC; a TIMESTAMP_NTZ has no zone.
TO_JSON = {
    "timeZone": "UTC",
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


def records(df: DataFrame, *, key: str | None = None, topic: str | None = None) -> DataFrame:
    """Rows of any columns as rows for ``format("topics")``: ``value`` is the whole row as a JSON
    object, nulls kept, times in UTC with microseconds.

    ``key`` names the column whose value is the tag, ``topic`` the one that says where the row goes;
    both stay members of the value. Raises AnalysisException for a column that is not there.
    """
    from pyspark.sql import functions as f

    columns = [row_json(df).alias("value")]
    for name, source in (("key", key), ("topic", topic)):
        if source is not None:
            columns.append(f.col(quoted(source)).cast("string").alias(name))
    return df.select(*columns)


def row_json(df: DataFrame) -> Column:
    """The whole row as a JSON object."""
    from pyspark.sql import functions as f

    return f.to_json(f.struct(*(f.col(quoted(name)) for name in df.columns)), TO_JSON)


def record_column(df: DataFrame, tag_column: str | None) -> Column:
    """``{"data":{...},"tag":"..."},`` for each row: a record and a comma, as
    topics/spark/client/chunks.py takes it.
    """
    from pyspark.sql import functions as f

    lines = are_lines(df)
    data = f.col("value") if lines else row_json(df)
    plain = f.concat(f.lit('{"data":'), data, f.lit("},"))
    if tag_column is None:
        return plain
    tag = member(tag_column) if lines else f.col(quoted(tag_column)).cast("string")
    # {"tag":"..."} without its first brace: to_json does the escaping.
    tail = f.substring(f.to_json(f.struct(tag.alias("tag"))), 2, 2**31 - 1)
    return f.when(tag.isNull(), plain).otherwise(
        f.concat(f.lit('{"data":'), data, f.lit(","), tail, f.lit(","))
    )


def are_lines(df: DataFrame) -> bool:
    """Whether the rows are JSON objects already, as ``reading.read`` gives them."""
    return len(df.columns) == 1 and bool(df.schema[0].metadata.get(LINE_MARK))


def member(name: str) -> Column:
    """A member of the JSON object in ``value``, as text; null where it is null or not there."""
    from pyspark.sql import functions as f

    return f.get_json_object(f.col("value"), f"$['{name}']")


def quoted(name: str) -> str:
    """A column's name as Spark SQL reads it literally, dots included."""
    return "`" + name.replace("`", "``") + "`"


def fingerprint(encoded: DataFrame, source: str, schema: str) -> tuple[int, str]:
    """How many rows there are, and a job id of source, schema and rows, whatever their order. One
    pass over the rows.
    """
    from pyspark.sql import functions as f

    digest = f.xxhash64("record")
    # Two sums of independent halves: a plain sum of 64 bit hashes would overflow, which Spark's
    # ANSI mode refuses.
    low, high = f.sum(digest.bitwiseAND(0xFFFFFFFF)), f.sum(f.shiftrightunsigned(digest, 32))
    count, *sums = encoded.agg(f.count("*"), low, high).collect()[0]
    job = blake2b(repr((source, schema, count, sums)).encode(), digest_size=8).hexdigest()
    return count, job


def map_arrow(
    df: DataFrame,
    function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    schema: str,
) -> DataFrame:
    """``df.mapInArrow(function, schema)`` without its demand for pandas.

    PySpark 4.3 builds the function through ``pandas_udf``, which refuses to work where pandas is
    not installed, though nothing on this path uses it: 100 MB for an import check. These are the
    same two steps without the check.
    """
    from pyspark.sql import DataFrame
    from pyspark.sql.udf import UserDefinedFunction
    from pyspark.util import PythonEvalType

    udf = UserDefinedFunction(
        function, returnType=schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF
    )
    column = udf(*(df[quoted(name)] for name in df.columns))
    return DataFrame(df._jdf.mapInArrow(column._jc, False, None), df.sparkSession)  # noqa: SLF001
