"""Columns: converts the records of a page to an Arrow batch with the columns of a read.

A schema may contain any of the columns in `TYPES`, in any order. Their contents are described in
`topics.spark.interface.COLUMNS`. JSON is copied without creating a Python object for each record.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Final

import msgspec
import pyarrow as pa
from msgspec import Raw
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from topics.spark.client.http import Record
from topics.spark.source.connection import BadOption

# The first type is the default.
TYPES: Final[Mapping[str, tuple[t.DataType, ...]]] = {
    "key": (t.StringType(), t.BinaryType()),
    "value": (t.StringType(), t.BinaryType()),
    "topic": (t.StringType(),),
    "partition": (t.IntegerType(),),
    "offset": (t.LongType(),),
    "timestamp": (t.TimestampType(),),
    "node": (t.StringType(),),
    "headers": (t.StringType(), t.MapType(t.StringType(), t.StringType())),
    "epoch": (t.LongType(),),
}
DEFAULTS: Final = tuple(name for name in TYPES if name != "epoch")  # Kafka has no epoch
NULLABLE: Final = ("key", "node", "headers")
_texts_of = msgspec.json.Decoder(dict[str, Raw]).decode
_text_of = msgspec.json.Decoder(str).decode


def schema_of(names: Sequence[str]) -> t.StructType:
    """Return a schema with these columns, by default with all columns except the epoch. Raises
    `BadOption` for an unknown name.
    """
    for name in names:
        if name not in TYPES:
            raise BadOption(f"option columns names {name!r}; there are: {', '.join(TYPES)}")
    return t.StructType([t.StructField(name, TYPES[name][0]) for name in names or DEFAULTS])


class Columns:
    """The columns of a read. Picklable. With ``text``, values are strings instead of JSON.

    Raise `BadOption` for an unknown column, and for a type that a column cannot have.
    """

    def __init__(self, schema: t.StructType, *, text: bool = False) -> None:
        _check(schema, NULLABLE + ("value",) * text)
        self._arrow = to_arrow_schema(schema, timezone="UTC")
        self._text = text
        names = schema.fieldNames()
        self.needs_tags = "key" in names
        self.needs_meta = "headers" in names

    def batch(
        self, records: Sequence[Record], topic: str, partition: int, epoch: int
    ) -> pa.RecordBatch:
        """Return one row for each record of a page of ``topic``."""
        constants: dict[str, str | int] = {"topic": topic, "partition": partition, "epoch": epoch}
        columns = []
        for name, field in zip(self._arrow.names, self._arrow, strict=True):
            if name in constants:
                columns.append(pa.repeat(pa.scalar(constants[name], field.type), len(records)))
            elif name == "value" and self._text:
                texts = [_as_text(record.data) for record in records]
                columns.append(pa.array(texts, field.type))
            else:
                columns.append(EXTRACT[name](records, field.type))
        return pa.RecordBatch.from_arrays(columns, schema=self._arrow)

    def joined(self, batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        """Return one batch with the rows of all batches, of which there is at least one."""
        (found,) = pa.Table.from_batches(batches, self._arrow).combine_chunks().to_batches()
        return found


def _check(schema: t.StructType, nullable: Sequence[str]) -> None:
    names = schema.fieldNames()
    if not names:  # Arrow cannot represent rows without columns
        raise BadOption("the schema has no column; read at least the offset")
    for field in schema:
        if field.name not in TYPES:
            raise BadOption(
                f"there is no column {field.name}; the columns are {', '.join(TYPES)}, and"
                " Spark's from_json makes others of value"
            )
        if names.count(field.name) > 1:
            raise BadOption(f"the schema has the column {field.name} twice")
        if field.dataType not in TYPES[field.name]:
            expected, given = (
                " or ".join(kind.simpleString().upper() for kind in kinds)
                for kinds in (TYPES[field.name], [field.dataType])
            )
            raise BadOption(
                f"the column {field.name} is {expected}, not {given}; read it as it is and cast it"
            )
        if not field.nullable and field.name in nullable:
            raise BadOption(f"the column {field.name} may be null; leave NOT NULL out")


def _as_text(value: Raw) -> str | None:
    """Return the content of a JSON string, None for null, and other values as JSON."""
    text = bytes(value)
    if text == b"null":
        return None
    return _text_of(text) if text.startswith(b'"') else text.decode()


def _values(records: Sequence[Record], kind: pa.DataType) -> pa.Array:
    """Return the JSON texts as one buffer and offsets into it."""
    raw = [record.data for record in records]
    ends = array("i", [*accumulate(map(len, raw), initial=0)])
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(raw))]
    return pa.Array.from_buffers(kind, len(raw), buffers)


def _numbers(values: Sequence[int], kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(array("q", values))])


def _timestamps(records: Sequence[Record], kind: pa.DataType) -> pa.Array:
    return _numbers([record.ts for record in records], pa.timestamp("ms", "UTC")).cast(kind)


def _headers(records: Sequence[Record], kind: pa.DataType) -> pa.Array:
    found = [record.meta for record in records]
    if not any(found):
        return pa.nulls(len(found), kind)
    if not pa.types.is_map(kind):
        return pa.array([bytes(meta) or None for meta in found], kind)
    return pa.array([_members(meta) if meta else None for meta in found], kind)


def _members(meta: Raw) -> list[tuple[str, str | None]]:
    return [(name, _as_text(value)) for name, value in _texts_of(meta).items()]


EXTRACT: Final[Mapping[str, Callable[[Sequence[Record], pa.DataType], pa.Array]]] = {
    "key": lambda records, kind: pa.array([record.tag for record in records], kind),
    "value": _values,
    "offset": lambda records, kind: _numbers([record.seq for record in records], kind),
    "timestamp": _timestamps,
    "node": lambda records, kind: pa.array([record.node for record in records], kind),
    "headers": _headers,
}
