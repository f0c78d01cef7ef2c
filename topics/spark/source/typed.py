"""Typed data: JSON values to an Arrow array of a Spark type.

A page of values is decoded by one msgspec decoder that is made of the type, then turned into
columns. A member that the type has and the value has not is null; a member that the type has not is
passed over; the last of two members of one name counts. A STRING takes any value: a JSON string
gives its text, everything else its JSON as it was written. Nothing else is converted: 1.5 is no
BIGINT, "1" is none either.

    BOOLEAN                         true, false
    BYTE, SHORT, INT, BIGINT        numbers without a dot or exponent, within the type's bounds
    FLOAT, DOUBLE, DECIMAL          numbers within the type's bounds; a DECIMAL, from a string too,
                                    is never rounded; "NaN", "Infinity" and "-Infinity", as to_json
                                    writes them, are a FLOAT or DOUBLE
    STRING                          anything
    BINARY                          strings in base64
    DATE                            "2024-12-31", "+10000-01-01"
    TIMESTAMP, TIMESTAMP_NTZ        "2024-12-31T23:59:59.5Z", and the same without a zone
    ARRAY, MAP, STRUCT              arrays and objects; the keys of a MAP are strings or integers
"""

from __future__ import annotations

import datetime
import decimal
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from math import inf
from operator import attrgetter
from types import GenericAlias
from typing import Annotated, Any, Final, Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as t

from topics.spark.source.connection import BadOption

SCALARS: Final[dict[type[t.DataType], Any]] = {
    t.BooleanType: bool,
    t.ByteType: int,
    t.ShortType: int,
    t.IntegerType: int,
    t.LongType: int,
    t.FloatType: float,
    t.DoubleType: float,
    t.DecimalType: decimal.Decimal,
    t.BinaryType: bytes,
    t.DateType: datetime.date,
    t.TimestampType: Annotated[datetime.datetime, msgspec.Meta(tz=True)],
    t.TimestampNTZType: Annotated[datetime.datetime, msgspec.Meta(tz=False)],
}
INTEGERS: Final = (t.ByteType, t.ShortType, t.IntegerType, t.LongType)
MOMENTS: Final = (t.DateType, t.TimestampType, t.TimestampNTZType)
NO_NUMBERS: Final = Literal["NaN", "Infinity", "-Infinity"]
# Python's calendar ends with the year 9999; it repeats after 400 years.
FAR_YEAR: Final = re.compile(rb'"([+-][0-9]{4,6})(?=-)')
CYCLE_YEARS, CYCLE = 400, datetime.timedelta(days=146_097)
MICROSECOND: Final = datetime.timedelta(microseconds=1)
EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
# Arrow refuses what is out of a type's bounds, but for FLOAT, msgspec everything else.
# OverflowError: an integer above 64 bits; UnicodeDecodeError: a half of a surrogate pair.
MISFITS: Final = (
    msgspec.MsgspecError,
    pa.ArrowException,
    OverflowError,
    UnicodeDecodeError,
    RecursionError,
)


class TypedParser:
    """Parses JSON values of one type. Not picklable: each process makes its own.

    Raises ``BadOption`` for a type that JSON values do not have. ``name`` is the column's.
    """

    def __init__(self, name: str, kind: t.DataType, arrow: pa.DataType) -> None:
        self._field = pa.field(name, arrow)
        # Strings are nearly always strings, numbers are numbers and years have four digits: the
        # second decoder takes pages that have others.
        self._plain, self._mixed = (
            msgspec.json.Decoder(_list_of(_or_null(_wire_type(name, kind, text))))
            for text in (str, msgspec.Raw)
        )

    def parse(
        self, values: Sequence[msgspec.Raw], on_misfit: Callable[[int, str], None]
    ) -> pa.Array:
        """One element for each value. ``on_misfit`` gets index and reason of a value that the type
        does not fit, in ascending order, and may raise; if it returns, the element is null.
        """
        try:
            return _array(self._plain.decode(_joined(values)), self._field)
        except MISFITS:
            parts = self._halves(values, 0, on_misfit)
            return pa.concat_arrays([pa.array([], self._field.type), *parts])

    def _halves(
        self, values: Sequence[msgspec.Raw], first: int, on_misfit: Callable[[int, str], None]
    ) -> Iterator[pa.Array]:
        """Find the misfits by halving what has one; few of them cost little more than none."""
        try:
            yield _array(self._mixed.decode(_joined(values)), self._field)
        except MISFITS as error:
            if len(values) == 1:
                on_misfit(first, _reason(error))
                yield pa.nulls(1, self._field.type)
                return
            middle = len(values) // 2
            yield from self._halves(values[:middle], first, on_misfit)
            yield from self._halves(values[middle:], first + middle, on_misfit)


def _joined(values: Sequence[msgspec.Raw]) -> bytes:
    return b"[" + b",".join(values) + b"]"


def _reason(error: Exception) -> str:
    """Why a value is a misfit. It was decoded as the one element of an array."""
    return " ".join(str(error).replace("`$[0]", "`$").split())


def _wire_type(name: str, kind: t.DataType, text: Any) -> Any:
    """The Python type that msgspec decodes; ``text`` stands for a STRING: str, or Raw in a type for
    all values that Spark writes.
    """
    if isinstance(kind, t.StringType):
        return text
    if text is msgspec.Raw and isinstance(kind, MOMENTS):
        return msgspec.Raw
    if text is msgspec.Raw and isinstance(kind, (t.FloatType, t.DoubleType)):
        return float | NO_NUMBERS
    if isinstance(kind, t.StructType):
        return _wire_struct(name, kind, text)
    if isinstance(kind, t.ArrayType):
        item = _wire_type(f"{name}[]", kind.elementType, text)
        return _list_of(_or_null(item) if kind.containsNull else item)
    if isinstance(kind, t.MapType) and isinstance(kind.keyType, (t.StringType, *INTEGERS)):
        item = _wire_type(f"{name}[]", kind.valueType, text)
        key = int if isinstance(kind.keyType, INTEGERS) else str
        return GenericAlias(dict, (key, _or_null(item) if kind.valueContainsNull else item))
    if type(kind) not in SCALARS:
        raise BadOption(
            f"{name} is {kind.simpleString().upper()}, which no JSON value is read as; declare it"
            " STRING, or read the column value and convert that"
        )
    return SCALARS[type(kind)]


def _wire_struct(name: str, kind: t.StructType, text: Any) -> Any:
    names = kind.fieldNames()
    if not names:
        raise BadOption(f"{name} is a STRUCT without fields; declare it STRING")
    if twice := sorted({each for each in names if names.count(each) > 1}):
        raise BadOption(f"{name} has the field {twice[0]} twice")
    members = []
    for number, field in enumerate(kind.fields):
        member = _wire_type(f"{name}.{field.name}", field.dataType, text)
        # A member may have any name, a Python attribute may not.
        members.append(
            (f"f{number}", _or_null(member), msgspec.field(name=field.name, default=None))
            if field.nullable
            else (f"f{number}", member, msgspec.field(name=field.name))
        )
    return msgspec.defstruct("Data", members, eq=False, gc=False, kw_only=True)


def _list_of(item: Any) -> Any:
    return GenericAlias(list, (item,))


def _or_null(kind: Any) -> Any:
    """Raw takes null by itself; in a union, msgspec decodes nothing but null."""
    return kind if kind is msgspec.Raw else kind | None


def _array(rows: list[Any], field: pa.Field) -> pa.Array:
    """Decoded values as an Arrow array; the work for each is done in C."""
    kind = field.type
    if pa.types.is_struct(kind):
        return _struct_array(rows, kind)
    if pa.types.is_list(kind):
        parts = [row for row in rows if row is not None]
        items = _array([item for part in parts for item in part], kind.value_field)
        return pa.ListArray.from_arrays(_offsets(rows), items, type=kind, mask=_mask(rows))
    if pa.types.is_map(kind):
        maps = [row for row in rows if row is not None]
        keys = pa.array([key for each in maps for key in each], kind.key_type)
        items = _array([item for each in maps for item in each.values()], kind.item_field)
        return pa.MapArray.from_arrays(_offsets(rows), keys, items, type=kind, mask=_mask(rows))
    if pa.types.is_string(kind):
        rows = [_text(row, field) if type(row) is msgspec.Raw else row for row in rows]
    elif pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        rows = [_moment(row, field) if type(row) is msgspec.Raw else row for row in rows]
    elif pa.types.is_floating(kind):
        return _number_array(rows, kind)
    return pa.array(rows, kind)


def _number_array(rows: list[Any], kind: pa.DataType) -> pa.Array:
    try:
        found, told = pa.array(rows, kind), 0
    except pa.ArrowException:
        rows = [float(row) if type(row) is str else row for row in rows]
        found, told = pa.array(rows, kind), sum(row in (inf, -inf) for row in rows)
    # Arrow makes an infinity of what a FLOAT cannot hold.
    if pa.types.is_float32(kind) and pc.is_inf(found).true_count > told:
        raise msgspec.ValidationError("Number out of range of a FLOAT")
    return found


def _struct_array(rows: list[Any], kind: pa.DataType) -> pa.Array:
    fields = [kind.field(number) for number in range(kind.num_fields)]
    columns, mask = [], _mask(rows)
    for number, field in enumerate(fields):
        get = attrgetter(f"f{number}")
        column = [row and get(row) for row in rows] if mask is not None else [*map(get, rows)]
        columns.append(_array(column, field))
    return pa.StructArray.from_arrays(columns, fields=fields, mask=mask)


def _offsets(rows: list[Any]) -> pa.Array:
    lengths = (0 if row is None else len(row) for row in rows)
    return pa.array(accumulate(lengths, initial=0), pa.int32())


def _mask(rows: list[Any]) -> pa.Array | None:
    nulls = [row is None for row in rows]
    return pa.array(nulls) if True in nulls else None


def _moment(raw: msgspec.Raw, field: pa.Field) -> int | None:
    """A DATE in days since 1970, a timestamp in microseconds, of any year that Spark has."""
    if (value := _not_null(raw, field)) is None:
        return None
    cycles = 0
    if far := FAR_YEAR.match(value):
        cycles, year = divmod(int(far[1]) - 2000, CYCLE_YEARS)
        value = b'"%d%b' % (2000 + year, value[far.end() :])
    is_date = pa.types.is_date(field.type)
    kind = t.DateType if is_date else t.TimestampType if field.type.tz else t.TimestampNTZType
    try:
        moment = msgspec.json.decode(value, type=SCALARS[kind])
    except msgspec.ValidationError as error:
        raise msgspec.ValidationError(f"{error} - at `{field.name}`") from None
    if is_date:
        return int(moment.toordinal() - EPOCH.toordinal() + cycles * CYCLE.days)
    since = moment - (EPOCH if moment.tzinfo else EPOCH.replace(tzinfo=None))
    micros = since // MICROSECOND
    return int(micros + cycles * (CYCLE // MICROSECOND))


def _text(raw: msgspec.Raw, field: pa.Field) -> str | None:
    """A JSON string's text, null, or any other value's JSON."""
    if (value := _not_null(raw, field)) is None:
        return None
    return msgspec.json.decode(value, type=str) if value.startswith(b'"') else value.decode()


def _not_null(raw: msgspec.Raw, field: pa.Field) -> bytes | None:
    value = bytes(raw)
    if value != b"null":
        return value
    if not field.nullable:
        raise msgspec.ValidationError(f"Expected a value of {field.name}, got `null`")
    return None
