"""CSV to rows: parsed by pyarrow, checked and typed by the rules of topics/spark/reading.py.

Arrow's reader checks the number of fields and UTF-8 of every line. Where quotes are, Python's
``csv`` checks the line too, since Arrow repairs some of what it refuses. Every line is a row of its
own then, and both read the same fields.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from topics.spark.kinds import TEXT, kinds_of, type_of
from topics.spark.plain.fractions import double_text
from topics.spark.plain.rows import Block, NotPlain, Rows, block_of
from topics.spark.plain.to_json import records, string_text
from topics.spark.reading import check_csv, refuse_line

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK_BYTES = 4 << 20  # a line is no longer
BLOCK_ROWS = 10_000
SAMPLE_ROWS = 1000
WIDTH_MAX = 20_000  # Spark's reader has room for about as many columns
_FIRST_LINE = re.compile(rb"[^\r\n]+")


@dataclass(frozen=True, slots=True)
class Dialect:
    """How the file is written. ``null`` is the field that stands for null."""

    separator: str = ","
    null: str = ""
    header: bool = True


def read_table(
    path: Path, content: bytes, digest: str, dialect: Dialect, tag_column: str | None
) -> Rows:
    """The rows of a CSV file. Raises ``JobError`` for a broken line."""
    first = _FIRST_LINE.search(content)
    if first is None:
        raise NotPlain("a CSV file without a line")
    names = _names(path, first.group(), dialect)
    if tag_column is not None and tag_column not in names:
        raise NotPlain(f"a tag column that is not there: {tag_column!r}")
    _check(path, content, len(names), dialect.separator)
    table = _parse(path, content, first.end() if dialect.header else 0, len(names), dialect)
    types = [_type_of(column) for column in table.columns]
    tag = None if tag_column is None else names.index(tag_column)
    return Rows(table.num_rows, digest, lambda _first: _blocks(table, names, types, tag))


def _names(path: Path, line: bytes, dialect: Dialect) -> list[str]:
    """Names of the columns. The line is checked with all others later; here it must be readable."""
    try:
        row = next(csv.reader([line.decode()], delimiter=dialect.separator, strict=True))
    except (UnicodeDecodeError, csv.Error):
        reason = check_csv(1, dialect.separator)(line)
        assert reason is not None, "the check reads as this does"
        raise refuse_line(path, line, reason) from None
    if len(row) > WIDTH_MAX:
        raise NotPlain(f"more than {WIDTH_MAX:,} columns")
    if not dialect.header:
        return [f"_c{index}" for index in range(len(row))]
    if len({*row}) < len(row) or {"", dialect.null} & {*row}:
        raise NotPlain("a header with a name twice or an empty name")
    return row


def _check(path: Path, content: bytes, width: int, separator: str) -> None:
    """Check the lines of which Arrow would repair what is broken."""
    if width == 1 or separator <= " ":
        _check_lines(path, content, width, separator)  # rows of spaces, which look like a field
    elif b'"' in content:
        check = check_csv(width, separator)
        if any(check(line) for line in content.splitlines() if b'"' in line):
            _check_lines(path, content, width, separator)


def _check_lines(path: Path, content: bytes, width: int, separator: str) -> None:
    check = check_csv(width, separator)
    for line in content.splitlines():
        if reason := check(line):
            raise refuse_line(path, line, reason)


def _parse(path: Path, content: bytes, start: int, width: int, dialect: Dialect) -> pa.Table:
    """All fields as text or null."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv as reader

    names = [str(index) for index in range(width)]
    try:
        table = reader.read_csv(
            pa.py_buffer(memoryview(content)[start:]),
            reader.ReadOptions(column_names=names, block_size=BLOCK_BYTES),
            reader.ParseOptions(delimiter=dialect.separator),
            reader.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=not dialect.null,
            ),
        )
    except pa.ArrowInvalid as error:
        _check_lines(path, content, width, dialect.separator)
        raise NotPlain(f"pyarrow cannot read it ({error})") from None
    if dialect.null:
        for index, column in enumerate(table.columns):
            kept = pc.if_else(pc.equal(column, dialect.null), None, column)
            table = table.set_column(index, names[index], kept)
    return table


def _type_of(column: pa.ChunkedArray) -> str:
    sample = kinds_of(column.slice(0, SAMPLE_ROWS))
    return type_of(sample if sample & TEXT else kinds_of(column))


def _blocks(
    table: pa.Table, names: list[str], types: list[str], tag: int | None
) -> Iterator[Block]:
    for batch in table.to_batches(max_chunksize=BLOCK_ROWS):
        texts = [
            _json_text(column, kind) for column, kind in zip(batch.columns, types, strict=True)
        ]
        tags = None if tag is None else _tag_text(batch.column(tag), types[tag])
        yield block_of(records(names, texts, tags))


def _json_text(column: pa.Array, kind: str) -> pa.Array:
    import pyarrow as pa

    if kind == "string":
        return string_text(column)
    if kind == "double":
        return double_text(column.cast(pa.float64()))
    return column.fill_null("null")  # integers and truth values are written as in JSON


def _tag_text(column: pa.Array, kind: str) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    if kind != "double":
        return column
    return pc.if_else(column.is_valid(), double_text(column.cast(pa.float64())), None)
