"""Columns: the records of a page as an Arrow batch of the wanted columns.

    key        STRING     the tag, null without one
    value      STRING     the data's JSON, as it was written
    topic      STRING
    partition  INT        the server's place among the names of the servers
    offset     BIGINT     the seq
    timestamp  TIMESTAMP  when the server took it, UTC
    node       STRING     the origin node, null without one
    headers    STRING     the meta's JSON, as it was written, null without one
    epoch      BIGINT     the topic's incarnation; only if a schema or the option columns names it

A schema names any of them in any order. The work for each record is done in C.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa
from msgspec import Raw
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from topics.spark.client.http import Record
from topics.spark.source.connection import BadOption

TYPES: Final[dict[str, DataType]] = {
    "key": StringType(),
    "value": StringType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "node": StringType(),
    "headers": StringType(),
    "epoch": LongType(),
}
DEFAULTS: Final = tuple(name for name in TYPES if name != "epoch")  # as Kafka's
NULLABLE: Final = ("key", "node", "headers")


def schema_of(names: Sequence[str]) -> StructType:
    """The columns of these names, by default all but epoch. Raises ``BadOption`` for another."""
    for name in names:
        if name not in TYPES:
            raise BadOption(f"option columns names {name!r}; there are: {', '.join(TYPES)}")
    return StructType([StructField(name, TYPES[name]) for name in names or DEFAULTS])


class Columns:
    """The wanted columns of a read. Picklable.

    Raises ``BadOption`` for a column that there is not, or that has another type.
    """

    def __init__(self, schema: StructType) -> None:
        _check(schema)
        self._arrow = to_arrow_schema(schema, timezone="UTC")
        names = schema.fieldNames()
        self.needs_tags = "key" in names
        self.needs_meta = "headers" in names

    def batch(
        self, records: Sequence[Record], topic: str, partition: int, epoch: int
    ) -> pa.RecordBatch:
        """Records of one page of ``topic``, one row for each."""
        constants: dict[str, str | int] = {"topic": topic, "partition": partition, "epoch": epoch}
        columns = [
            _constant(constants[name], field.type, len(records))
            if name in constants
            else EXTRACT[name](records)
            for name, field in zip(self._arrow.names, self._arrow, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._arrow)

    def joined(self, batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        """Some batches, at least one, as one."""
        (found,) = pa.Table.from_batches(batches, self._arrow).combine_chunks().to_batches()
        return found


def _check(schema: StructType) -> None:
    names = schema.fieldNames()
    if not names:  # Arrow has no rows without columns
        raise BadOption("no column is wanted; read the offset at least")
    for field in schema:
        if field.name not in TYPES:
            raise BadOption(
                f"there is no column {field.name}; the columns are {', '.join(TYPES)}, and"
                " Spark's from_json makes others of value"
            )
        if names.count(field.name) > 1:
            raise BadOption(f"the column {field.name} is wanted twice")
        _check_type(field)


def _check_type(field: StructField) -> None:
    wanted = TYPES[field.name]
    if field.dataType != wanted:
        given = field.dataType.simpleString().upper()
        raise BadOption(
            f"the column {field.name} is {wanted.simpleString().upper()}, not {given}; read it as"
            " it is and cast it"
        )
    if not field.nullable and field.name in NULLABLE:
        raise BadOption(f"the column {field.name} may be null; leave NOT NULL out")


def _constant(value: str | int, kind: pa.DataType, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), count)


def _joined(raw: Sequence[Raw]) -> pa.Array:
    """JSON texts as one buffer and offsets into it: no Python object is made for any of them."""
    ends = array("i", [*accumulate(map(len, raw), initial=0)])
    text = b"".join(raw)
    return pa.StringArray.from_buffers(len(raw), pa.py_buffer(ends), pa.py_buffer(text))


def _numbers(values: Sequence[int], kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(array("q", values))])


def _timestamps(records: Sequence[Record]) -> pa.Array:
    ms = _numbers([record.ts for record in records], pa.timestamp("ms", "UTC"))
    return ms.cast(pa.timestamp("us", "UTC"))


def _headers(records: Sequence[Record]) -> pa.Array:
    found = [record.meta for record in records]
    if not any(found):
        return pa.nulls(len(found), pa.string())
    return pa.array([bytes(meta) or None for meta in found], pa.string())


EXTRACT: Final[dict[str, Callable[[Sequence[Record]], Any]]] = {
    "key": lambda records: pa.array([record.tag for record in records], pa.string()),
    "value": lambda records: _joined([record.data for record in records]),
    "offset": lambda records: _numbers([record.seq for record in records], pa.int64()),
    "timestamp": _timestamps,
    "node": lambda records: pa.array([record.node for record in records], pa.string()),
    "headers": _headers,
}
