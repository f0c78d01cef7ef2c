"""Parquet to rows, by pyarrow.

Only columns that Spark and Arrow read alike: nanoseconds, INT96 and times of day are not, nor dates
before the Gregorian calendar and timestamps before 1900, which Spark may move by some days or
minutes, depending on who wrote them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topics.spark.plain.fractions import check_fractions, double_text
from topics.spark.plain.rows import Block, NotPlain, Rows, block_of
from topics.spark.plain.to_json import json_text, records

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

BATCH_ROWS = 10_000
DATES = (date(1582, 10, 15), date(9999, 12, 31))
MOMENTS = (datetime(1900, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC))
# Logical types of Parquet, by physical type.
_KNOWN = {
    "BOOLEAN": {"NONE"},
    "INT32": {"NONE", "INT", "DATE", "DECIMAL"},
    "INT64": {"NONE", "INT", "TIMESTAMP", "DECIMAL"},
    "FLOAT": {"NONE"},
    "DOUBLE": {"NONE"},
    "BYTE_ARRAY": {"NONE", "STRING", "DECIMAL"},
    "FIXED_LEN_BYTE_ARRAY": {"DECIMAL"},
}


def read_columns(path: Path, digest: str, tag_column: str | None) -> Rows:
    """The rows of a Parquet file."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            names: list[str] = file.schema_arrow.names
            _check_schema(file, names, tag_column)
            _check_values(file, names)
            count = file.metadata.num_rows
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise NotPlain(f"pyarrow cannot read it ({error})") from None
    return Rows(count, digest, lambda _first: _blocks(path, names, tag_column))


def _check_schema(file: ParquetFile, names: list[str], tag_column: str | None) -> None:
    import pyarrow as pa

    if not names or len({*names}) < len(names):
        raise NotPlain("a schema without columns, or with a name twice")
    for index in range(len(file.schema)):
        leaf = file.schema.column(index)
        logical = json.loads(leaf.logical_type.to_json())
        if logical["Type"].upper() not in _KNOWN.get(leaf.physical_type, set()) or (
            logical.get("timeUnit") == "nanoseconds"
        ):
            raise NotPlain(f"a column of type {leaf.physical_type} {logical['Type']}: {leaf.path}")
    empty = pa.RecordBatch.from_pylist([], file.schema_arrow)
    for column in empty.columns:
        json_text(column)
    if tag_column is not None and tag_column not in names:
        raise NotPlain(f"a tag column that is not there: {tag_column!r}")
    if tag_column is not None:
        tag_text(empty.column(tag_column))


def _check_values(file: ParquetFile, names: list[str]) -> None:
    """Raises ``NotPlain`` for values that the two read differently, ``ArrowInvalid`` for text that
    is not UTF-8.
    """
    import pyarrow as pa

    kinds = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_decimal)
    schema = file.schema_arrow
    doubtful = [name for name in names if not any(fits(schema.field(name).type) for fits in kinds)]
    if doubtful:
        for batch in file.iter_batches(BATCH_ROWS, columns=[_path_of(name) for name in doubtful]):
            batch.validate(full=True)
            for column in batch.columns:
                _check_column(column)


def _path_of(name: str) -> str:
    if "." in name:
        raise NotPlain(f"a column with a dot in its name: {name!r}")
    return name


def _check_column(column: pa.Array) -> None:
    from pyarrow import types

    kind = column.type
    if types.is_floating(kind):
        check_fractions(column)
    elif types.is_date(kind):
        _check_range(column, DATES)
    elif types.is_timestamp(kind):
        _check_range(column, MOMENTS)
    elif types.is_struct(kind):
        for child in column.flatten():
            _check_column(child)
    elif types.is_map(kind):
        _check_column(column.items)
    elif types.is_list(kind) or types.is_large_list(kind):
        _check_column(column.values)


def _check_range(column: pa.Array, bounds: tuple[Any, Any]) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    first, last = bounds
    if pa.types.is_timestamp(column.type) and column.type.tz is None:
        first, last = first.replace(tzinfo=None), last.replace(tzinfo=None)
    found = pc.min_max(column)
    least, most = (found[name].cast(column.type) for name in ("min", "max"))
    bound = pa.array([first, last], column.type)
    if least.is_valid and not (
        pc.less_equal(bound[0], least).as_py() and pc.less_equal(most, bound[1]).as_py()
    ):
        raise NotPlain(f"a date or timestamp before {first} or after {last}")


def _blocks(path: Path, names: list[str], tag_column: str | None) -> Iterator[Block]:
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(BATCH_ROWS):
            tag = None if tag_column is None else tag_text(batch.column(tag_column))
            yield block_of(records(names, [*map(json_text, batch.columns)], tag))


def tag_text(column: pa.Array) -> pa.Array:
    """A column as Spark casts it to text, null where it is null."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import types

    kind = column.type
    if types.is_dictionary(kind):
        return tag_text(column.cast(kind.value_type))
    plain: tuple[Callable[[Any], bool], ...] = (
        types.is_string,
        types.is_large_string,
        types.is_integer,
        types.is_boolean,
        types.is_date,
    )
    if any(fits(kind) for fits in plain):
        return column.cast(pa.string())
    if types.is_float32(kind) or types.is_float64(kind):
        texts = pc.replace_substring(double_text(column), '"', "")
        return pc.if_else(column.is_valid(), texts, pa.scalar(None, pa.string()))
    raise NotPlain(f"a tag column of type {kind}")
