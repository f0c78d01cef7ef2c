"""Arrow columns as JSON text: byte by byte what Spark's ``to_json`` writes with the options
``topics.spark.rows.TO_JSON``.

    bool, integers     as they are
    float, double      as Java writes them: 0.001, 1.5, 1.0E7; "NaN", "Infinity" and "-Infinity"
    decimal            all digits of the scale; as Java writes them below 0.000001: 1E-7
    string             escaped where JSON demands it, \\u001F in capitals
    binary             base64
    date               "2024-01-02"
    timestamp          "2024-01-02T03:04:05.123456Z", without the Z when it has no zone
    struct, map        objects, nulls kept; list: array

A whole column is written by a few Arrow calls. Python handles single values only where they need
it: strings with escapes, fractions and binary.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from topics.spark.plain.fractions import double_text
from topics.spark.plain.rows import NotPlain

if TYPE_CHECKING:
    import pyarrow as pa

# As Jackson escapes: these by name, other control characters by number.
_NAMED = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_ESCAPES = str.maketrans({**{chr(code): f"\\u{code:04X}" for code in range(32)}, **_NAMED})
_SPECIAL = r'["\\\x00-\x1f]'


def quote(text: str) -> str:
    """A JSON string."""
    return f'"{text.translate(_ESCAPES)}"'


def records(names: Sequence[str], columns: Sequence[pa.Array], tag: pa.Array | None) -> pa.Array:
    """``{"data":{...},"tag":"..."},`` for each row, as topics/spark/client/chunks.py takes it.

    ``columns`` are JSON text, ``tag`` is plain text; a row without tag has null.
    """
    tail = ["},"]
    if tag is not None:
        tail = [or_text(join(',"tag":', string_text(tag)), tag, ""), "},"]
    return join('{"data":', *_members(names, columns), *tail)


def object_text(names: Sequence[str], columns: Sequence[pa.Array]) -> pa.Array:
    """``{"name":value,...}`` for each row."""
    return join(*_members(names, columns))


def _members(names: Sequence[str], columns: Sequence[pa.Array]) -> list[Any]:
    parts: list[Any] = []
    for name, column in zip(names, columns, strict=True):
        parts += [f"{',' if parts else '{'}{quote(name)}:", column]
    return [*parts, "}"]


def json_text(column: pa.Array) -> pa.Array:
    """The JSON text of each value, ``null`` for a null. Raises ``NotPlain`` for a type that it does
    not know.
    """
    from pyarrow import types

    kind = column.type
    for is_one, write in _writers(types):
        if is_one(kind):
            return write(column)
    raise NotPlain(f"a column of type {kind}")


def _writers(types: Any) -> list[tuple[Callable[[Any], bool], Callable[[Any], Any]]]:
    return [
        (lambda kind: types.is_boolean(kind) or types.is_integer(kind), _cast_text),
        (lambda kind: types.is_float32(kind) or types.is_float64(kind), double_text),
        (types.is_decimal128, _cast_text),
        (types.is_date32, lambda column: _quoted(_cast_text(column), column)),
        (types.is_timestamp, _timestamp_text),
        (types.is_dictionary, lambda column: json_text(column.cast(column.type.value_type))),
        (lambda kind: types.is_string(kind) or types.is_large_string(kind), string_text),
        (lambda kind: types.is_binary(kind) or types.is_large_binary(kind), _binary_text),
        (types.is_struct, _struct_text),
        (lambda kind: types.is_list(kind) or types.is_large_list(kind), _list_text),
        (types.is_map, _map_text),
    ]


def _cast_text(column: pa.Array) -> pa.Array:
    import pyarrow as pa

    return column.cast(pa.string()).fill_null("null")


def string_text(column: pa.Array) -> pa.Array:
    """JSON strings of texts."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = column.cast(pa.string())
    special = pc.match_substring_regex(column, _SPECIAL).fill_null(False)
    if special.true_count:
        escaped = [text.translate(_ESCAPES) for text in column.filter(special).to_pylist()]
        column = pc.replace_with_mask(column, special, pa.array(escaped, pa.string()))
    return _quoted(column, column)


def _timestamp_text(column: pa.Array) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    zone = "Z" if column.type.tz else ""
    # A timestamp with a zone is a moment, kept in UTC; the cast leaves the zone out, nothing else.
    moments = column.cast(pa.timestamp("us", column.type.tz)).view(pa.int64())
    texts = moments.cast(pa.timestamp("us")).cast(pa.string())
    texts = pc.replace_substring(texts, " ", "T", max_replacements=1)
    return _or_null(join('"', texts, f'{zone}"'), column)


def _binary_text(column: pa.Array) -> pa.Array:
    import pyarrow as pa

    texts = [None if value is None else b64encode(value) for value in column.to_pylist()]
    return _quoted(pa.array(texts, pa.binary()).cast(pa.string()), column)


def _struct_text(column: pa.Array) -> pa.Array:
    kind = column.type
    names = [kind.field(index).name for index in range(kind.num_fields)]
    if not names:
        raise NotPlain("a struct without members")
    return _or_null(object_text(names, [*map(json_text, column.flatten())]), column)


def _list_text(column: pa.Array) -> pa.Array:
    return _or_null(_in_brackets("[", column, json_text(column.values), "]"), column)


def _map_text(column: pa.Array) -> pa.Array:
    import pyarrow as pa

    if not pa.types.is_string(column.type.key_type):
        raise NotPlain(f"a map with keys of type {column.type.key_type}")
    members = join(string_text(column.keys), ":", json_text(column.items))
    return _or_null(_in_brackets("{", column, members, "}"), column)


def _in_brackets(opening: str, column: pa.Array, values: pa.Array, closing: str) -> pa.Array:
    """The texts of a list's values, with commas between and brackets around."""
    import pyarrow as pa
    import pyarrow.compute as pc

    large = pa.types.is_large_list(column.type)
    kind = pa.LargeListArray if large else pa.ListArray
    return join(opening, pc.binary_join(kind.from_arrays(column.offsets, values), ","), closing)


def join(*parts: Any) -> pa.Array:
    """Columns and constant texts, joined row by row; null where one of them is."""
    import pyarrow.compute as pc

    return pc.binary_join_element_wise(*parts, "")


def _quoted(texts: pa.Array, column: pa.Array) -> pa.Array:
    return _or_null(join('"', texts, '"'), column)


def _or_null(texts: pa.Array, column: pa.Array) -> pa.Array:
    return or_text(texts, column, "null")


def or_text(texts: pa.Array, column: pa.Array, instead: str) -> pa.Array:
    """``instead`` where ``column`` is null."""
    import pyarrow.compute as pc

    return pc.if_else(column.is_valid(), texts, instead) if column.null_count else texts
