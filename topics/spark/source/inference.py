"""Schema inference: the Spark type that a sample of records has in common.

Members come in the order in which they are first seen. What the sample disagrees on is STRING,
which keeps the JSON of everything that is no string. Integers and other numbers are DOUBLE
together; null goes with everything; text is never guessed to be a date.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    NullType,
    StringType,
    StructField,
    StructType,
)

from topics.spark.client.http import Record
from topics.spark.source.connection import BadOption

DEPTH_MAX: Final = 20  # deeper values are STRING
FIELDS_MAX: Final = 1000  # of one object; a row of Spark has as many columns
INT64: Final = range(-(1 << 63), 1 << 63)
JSON_NAMES: Final = {
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "an array",
}
NULL: Final = NullType()
TEXT: Final = StringType()


def infer_data(sample: Iterable[tuple[str, Record]]) -> StructType:
    """The type of the column ``data``, from topics and their records. Raises ``BadOption`` when
    records have no objects.
    """
    known: DataType = NULL
    for topic, record in sample:
        value = _value(topic, record)
        if value is not None and not isinstance(value, dict):
            raise BadOption(
                f'inferSchema: the data of topic "{topic}" at offset {record.seq} is'
                f" {JSON_NAMES[type(value)]}, not an object; read the column value instead"
            )
        known = _merged(known, _type_of(value, 0), 0)
    if isinstance(known, StructType) and len(known):
        return _settled_struct(known)
    raise BadOption(
        "inferSchema: there is no object with members among the first records; give a schema, such"
        ' as .schema("offset BIGINT, data STRUCT<id: BIGINT>")'
    )


def _value(topic: str, record: Record) -> Any:
    try:
        return msgspec.json.decode(record.data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadOption(
            f'inferSchema: the data of topic "{topic}" at offset {record.seq} cannot be decoded'
            f" ({error}); read the column value instead"
        ) from None


def _type_of(value: Any, depth: int) -> DataType:
    if value is None:
        return NULL
    if isinstance(value, bool):
        return BooleanType()
    if isinstance(value, int):
        return LongType() if value in INT64 else TEXT
    if isinstance(value, float):
        return DoubleType()
    if isinstance(value, str) or depth >= DEPTH_MAX:
        return TEXT
    if isinstance(value, list):
        return _type_of_list(value, depth)
    return _struct({name: _type_of(each, depth + 1) for name, each in value.items()}, depth)


def _type_of_list(value: list[Any], depth: int) -> DataType:
    item: DataType = NULL
    for each in value:
        item = _merged(item, _type_of(each, depth + 1), depth + 1)
    return ArrayType(item)


def _merged(one: DataType, other: DataType, depth: int) -> DataType:
    """What holds values of both types."""
    if one == other or isinstance(other, NullType):
        return one
    if isinstance(one, NullType):
        return other
    if isinstance(one, StructType) and isinstance(other, StructType):
        return _merged_structs(one, other, depth)
    if isinstance(one, ArrayType) and isinstance(other, ArrayType):
        return ArrayType(_merged(one.elementType, other.elementType, depth + 1))
    if {type(one), type(other)} == {LongType, DoubleType}:
        return DoubleType()
    return TEXT


def _merged_structs(one: StructType, other: StructType, depth: int) -> DataType:
    members = {field.name: field.dataType for field in one}
    for field in other:
        known = members.get(field.name, NULL)
        members[field.name] = _merged(known, field.dataType, depth + 1)
    return _struct(members, depth)


def _struct(members: dict[str, DataType], depth: int) -> DataType:
    if len(members) > FIELDS_MAX and depth:
        return TEXT
    return StructType([StructField(name, kind) for name, kind in members.items()])


def _settled_struct(kind: StructType) -> StructType:
    return StructType([StructField(field.name, _settled(field.dataType)) for field in kind])


def _settled(kind: DataType) -> DataType:
    """A member that is always null, or an object without members, is STRING."""
    if isinstance(kind, NullType):
        return TEXT
    if isinstance(kind, ArrayType):
        return ArrayType(_settled(kind.elementType))
    if isinstance(kind, StructType):
        return _settled_struct(kind) if len(kind) else TEXT
    return kind
