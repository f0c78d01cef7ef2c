"""DDL without a JVM, as far as tests write it: ``d STRUCT<`a b`: ARRAY<INT>>, offset BIGINT``."""

from __future__ import annotations

import re

from pyspark.sql import types as t

SCALARS: dict[str, t.DataType] = {
    "BOOLEAN": t.BooleanType(),
    "TINYINT": t.ByteType(),
    "INT": t.IntegerType(),
    "BIGINT": t.LongType(),
    "FLOAT": t.FloatType(),
    "DOUBLE": t.DoubleType(),
    "STRING": t.StringType(),
    "BINARY": t.BinaryType(),
    "DATE": t.DateType(),
    "TIMESTAMP": t.TimestampType(),
    "TIMESTAMP_NTZ": t.TimestampNTZType(),
    "VARIANT": t.VariantType(),
    "INTERVAL DAY": t.DayTimeIntervalType(0, 0),
}
_WRAPPED = re.compile(r"(ARRAY|MAP|STRUCT)<(.*)>")
_DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")
_FIELD = re.compile(r"(`[^`]*`|\w+):? (.*?)( NOT NULL)?")


def type_of(text: str) -> t.DataType:
    """The type of ``ARRAY<INT>`` and the like."""
    if found := _DECIMAL.fullmatch(text):
        return t.DecimalType(int(found[1]), int(found[2]))
    if (found := _WRAPPED.fullmatch(text)) is None:
        return SCALARS[text]
    if found[1] == "STRUCT":
        return struct_of(found[2])
    inner = [type_of(part) for part in _parts(found[2])]
    return t.ArrayType(inner[0]) if found[1] == "ARRAY" else t.MapType(inner[0], inner[1])


def struct_of(text: str) -> t.StructType:
    """The struct of ``a INT, b: STRING NOT NULL``."""
    fields = []
    for part in _parts(text):
        found = _FIELD.fullmatch(part)
        assert found, part
        kind, nullable = type_of(found[2]), found[3] is None
        fields.append(t.StructField(found[1].strip("`"), kind, nullable))
    return t.StructType(fields)


def _parts(text: str) -> list[str]:
    """Split at the commas that are in no brackets."""
    parts, depth, start = [], 0, 0
    for place, character in enumerate(text):
        depth += (character in "<(") - (character in ">)")
        if character == "," and not depth:
            parts.append(text[start:place].strip())
            start = place + 1
    return [*parts, text[start:].strip()] if text else []
