"""Rows: of any columns to rows of the sink, and to the executors. No Python runs for each row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

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

    whole = f.struct(*(f.col(quoted(name)) for name in df.columns))
    columns = [f.to_json(whole, TO_JSON).alias("value")]
    for name, source in (("key", key), ("topic", topic)):
        if source is not None:
            columns.append(f.col(quoted(source)).cast("string").alias(name))
    return df.select(*columns)


def quoted(name: str) -> str:
    """A column's name as Spark SQL reads it literally, dots included."""
    return "`" + name.replace("`", "``") + "`"


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
