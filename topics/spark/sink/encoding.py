"""Encodes the rows of Arrow batches as JSON records.

A row is converted to a record and a comma, which is the input format of
`topics.client.chunks.Chunker.cut`:

    {"data":VALUE,"tag":"KEY","node":"NODE","meta":HEADERS,"delay_ms":1,"deliver_at":2},

Values and headers are copied, so each is parsed first: a value such as ``1},{"data":2`` would
become two records. Keys, nodes and texts are escaped only where necessary. One search over the
batch finds these rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from topics.formats.api.surrogates import lone_surrogate
from topics.spark.sink.columns import Columns

EXCERPT_CHARS = 80
TEXT = pa.large_string()  # has 64-bit offsets, because a batch of records may exceed 2 GiB
MUST_ESCAPE = r'[\x00-\x1f"\\]'
HALF_PAIR = r"\\u[dD][89a-fA-F]"
_decode = msgspec.json.Decoder(msgspec.Raw).decode
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class BadRow(ValueError):
    """A row cannot be encoded. ``row`` is its index in the batch."""

    def __init__(self, row: int, reason: str) -> None:
        self.row = row
        self.reason = reason
        super().__init__(reason)


def encode(batch: pa.RecordBatch, columns: Columns, *, text: bool) -> pa.Array:
    """Return one record and a comma for each row, without nulls. With ``text``, values are strings
    instead of JSON. Raises `BadRow`.
    """
    values = checked_text("value", batch.column(columns.value))
    if text:
        values = quoted(values)
    else:
        check_json("value", values, advice="; for plain text set valueFormat=text")
    parts = [_literal('{"data":'), pc.fill_null(values, _literal("null"))]
    members: Sequence[tuple[int | None, str, Callable[[pa.Array], pa.Array]]] = (
        (columns.key, "tag", lambda column: quoted(checked_text("key", column))),
        (columns.node, "node", lambda column: quoted(checked_text("node", column))),
        (columns.headers, "meta", _headers),
        (columns.delay_ms, "delay_ms", _milliseconds),
        (columns.deliver_at, "deliver_at", _milliseconds),
    )
    for index, member, encoded in members:
        if index is not None and (column := batch.column(index)).null_count < len(column):
            start = _literal(f',"{member}":')
            parts.append(pc.binary_join_element_wise(start, encoded(column), _literal("")))
    return pc.binary_join_element_wise(
        *parts, _literal("},"), _literal(""), null_handling="replace", null_replacement=""
    )


def topics_of(batch: pa.RecordBatch, place: int) -> pa.Array:
    """Return the topic of each row. Raises `BadRow` for a null."""
    topics = checked_text("topic", batch.column(place))
    if topics.null_count:
        raise BadRow(pc.index(topics.is_null(), value=True).as_py(), "the column topic is null")
    return topics


def checked_text(name: str, column: pa.Array) -> pa.Array:
    """Return the column as strings of valid UTF-8. Raises `BadRow`."""
    binary = column.cast(pa.large_binary())
    try:
        return binary.cast(TEXT)
    except pa.ArrowInvalid:
        _refuse_first(name, binary, bytes.decode, "is not UTF-8")
        raise  # `_refuse_first` has not found the invalid value


def quoted(texts: pa.Array) -> pa.Array:
    """Return the texts as JSON strings; null remains null."""
    plain = pc.binary_join_element_wise(_literal('"'), texts, _literal('"'), _literal(""))
    escape = pc.fill_null(pc.match_substring_regex(texts, MUST_ESCAPE), fill_value=False)
    if not pc.any(escape).as_py():
        return plain
    lines = msgspec.json.Encoder().encode_lines(texts.filter(escape).to_pylist())
    escaped = pa.array(lines.split(b"\n")[:-1], pa.large_binary()).cast(TEXT)
    return pc.replace_with_mask(plain, escape, escaped)


def check_json(
    name: str,
    texts: pa.Array,
    *,
    decode: Callable[[str], object] = _decode,
    kind: str = "JSON",
    advice: str = "",
) -> None:
    """Raise `BadRow` unless each text is one JSON value that ``decode`` accepts."""
    try:
        deque(map(decode, texts.drop_null().to_pylist()), maxlen=0)
    except (msgspec.DecodeError, RecursionError):
        _refuse_first(name, texts, decode, f"is not {kind}", advice)
        raise  # `_refuse_first` has not found the invalid value
    suspects = pc.fill_null(pc.match_substring_regex(texts, HALF_PAIR), fill_value=False)
    if pc.any(suspects).as_py():
        _refuse_first(name, texts, _check_surrogates, f"is not {kind}")


def _headers(column: pa.Array) -> pa.Array:
    """Return the headers as JSON objects. Raises `BadRow`."""
    if not pa.types.is_map(column.type):
        headers = checked_text("headers", column)
        check_json("headers", headers, decode=_decode_object, kind="a JSON object")
        return headers
    maps = column.cast(pa.map_(pa.large_binary(), pa.large_binary()))
    try:
        lines = msgspec.json.Encoder().encode_lines(map(_object_of, maps.to_pylist()))
    except ValueError:
        _refuse_first("headers", maps, _object_of, "is not UTF-8")
        raise  # `_refuse_first` has not found the invalid value
    texts = pa.array(lines.split(b"\n")[:-1], pa.large_binary()).cast(TEXT)
    return pc.if_else(column.is_valid(), texts, pa.scalar(None, TEXT))


def _object_of(pairs: list[tuple[bytes, bytes | None]] | None) -> dict[str, str | None]:
    return {key.decode(): None if value is None else value.decode() for key, value in pairs or ()}


def _milliseconds(column: pa.Array) -> pa.Array:
    """Return integers or timestamps as strings of milliseconds; null remains null."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
    return column.cast(TEXT)


def _check_surrogates(text: str) -> None:
    if lone_surrogate(text.encode()) is not None:
        raise ValueError("it contains half of a surrogate pair, which is no character")


def _refuse_first(
    name: str, column: pa.Array, check: Callable[..., object], wrong: str, advice: str = ""
) -> None:
    """Raise `BadRow` for the first value for which ``check`` raises ValueError."""
    for row, value in enumerate(column.to_pylist()):
        try:
            if value is not None:
                check(value)
        except (ValueError, RecursionError) as error:
            reason = f"{name} {wrong}: {_excerpt(value)} ({error}){advice}"
            raise BadRow(row, reason) from None


def _literal(text: str) -> pa.Scalar:
    return pa.scalar(text, TEXT)


def _excerpt(value: str | bytes) -> str:
    cut = value[:EXCERPT_CHARS]
    return repr(cut) + ("..." if len(value) > len(cut) else "")


def string_block(column: pa.Array) -> tuple[memoryview, memoryview]:
    """Return the offsets and data of a `TEXT` column for ``Chunker.cut``, without a copy."""
    assert column.null_count == 0, "every row was encoded"
    _, offsets, data = column.buffers()
    first, end = column.offset, column.offset + len(column) + 1
    if len(column) == 0 or offsets is None:
        return memoryview(bytes(8)).cast("q"), memoryview(b"")
    return memoryview(offsets).cast("q")[first:end], memoryview(data if data is not None else b"")
