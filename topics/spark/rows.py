"""Rows: converts rows with any columns to rows for the sink, and applies functions to Arrow
batches.

No Python code runs for individual rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

# The default patterns of to_json have only milliseconds. A TIMESTAMP is rendered in UTC, and a
# TIMESTAMP_NTZ has no time zone.
TO_JSON = {
    "timeZone": "UTC",
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


class BadColumns(ValueError):
    """The columns cannot be written. The text is one line for the user."""


def records(df: DataFrame, *, key: str | None = None, topic: str | None = None) -> DataFrame:
    """Convert rows of any schema to rows for ``format("topics")``. ``value`` is the complete row as
    a JSON object, with nulls. Times are in UTC with microseconds. Dates, including dates that are
    map keys, have the form ``2026-01-31``.

    ``key`` is the name of the column with the tag, and ``topic`` is the name of the column with the
    topic of a row. Both columns remain members of the value. Raise AnalysisException if a column
    does not exist, and `BadColumns` for map keys that JSON cannot represent.
    """
    from pyspark.sql import functions as f

    members = []
    for field in df.schema:
        kind = _with_json_keys(field.dataType)
        column = f.col(quoted(field.name))
        members.append(column if kind == field.dataType else column.cast(kind).alias(field.name))
    columns = [f.to_json(f.struct(*members), TO_JSON).alias("value")]
    for name, source in (("key", key), ("topic", topic)):
        if source is not None:
            columns.append(f.col(quoted(source)).cast("string").alias(name))
    return df.select(*columns)


def _with_json_keys(kind: DataType) -> DataType:
    """Return the type with STRING for the DATE keys of maps, which to_json writes as numbers."""
    from pyspark.sql import types as t

    if isinstance(kind, t.StructType):
        changed = [
            t.StructField(field.name, _with_json_keys(field.dataType), field.nullable)
            for field in kind
        ]
        return t.StructType(changed)
    if isinstance(kind, t.ArrayType):
        return t.ArrayType(_with_json_keys(kind.elementType), kind.containsNull)
    if not isinstance(kind, t.MapType):
        return kind
    key = t.StringType() if isinstance(kind.keyType, t.DateType) else kind.keyType
    if not isinstance(key, (t.StringType, t.NumericType, t.BooleanType)):
        name = key.simpleString().upper()
        raise BadColumns(f"a map with keys of type {name} has no JSON; cast them to STRING")
    return t.MapType(key, _with_json_keys(kind.valueType), kind.valueContainsNull)


def quoted(name: str) -> str:
    """Return the name of a column, quoted for Spark SQL because it may contain dots."""
    return "`" + name.replace("`", "``") + "`"


def map_arrow(
    df: DataFrame,
    function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    schema: str,
) -> DataFrame:
    """Return ``df.mapInArrow(function, schema)``, without requiring pandas.

    PySpark 4.3 calls ``pandas_udf``, which requires pandas (100 MB) although this function does not
    use it. These are the same two steps without the check.
    """
    from pyspark.sql import DataFrame
    from pyspark.sql.udf import UserDefinedFunction
    from pyspark.util import PythonEvalType

    udf = UserDefinedFunction(
        function, returnType=schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF
    )
    column = udf(*(df[quoted(name)] for name in df.columns))
    return DataFrame(df._jdf.mapInArrow(column._jc, False, None), df.sparkSession)  # noqa: SLF001
