"""Files as a DataFrame in which every value is what the file says (Parquet, CSV, JSON lines).

Spark's readers guess and repair: a broken JSON line becomes a record, an open quote ends where the line ends, ``007`` becomes 7 and
``1d`` becomes 1.0, a time loses its digits behind the third. Here nothing is guessed:

- Every line is checked before the first record is sent. A line that Python's ``csv`` or ``json`` would not read, or that has another
  number of fields than the header, refuses the job with file, line and reason.
- JSON lines are sent as they stand in the file.
- A CSV column holds numbers, or true and false, when each of its values is written as JSON writes them and fits 64-bit integers, 38
  digits or a double exactly enough to be printed back; else it holds text. Times and dates are text: nothing of them is lost. An empty
  field is null.

Options of the caller go to Spark's reader and win. One that changes what a line or a field is switches the check off, and Spark's own
``FAILFAST`` mode is what is left of it.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import msgspec

from topics.formats.surrogates import lone_surrogate
from topics.spark.errors import BrokenLine, JobError, spark_errors
from topics.spark.rows import LINE_MARK, map_arrow, quoted

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

FORMATS = ("parquet", "csv", "json")
SUFFIXES = {".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet"}
CSV_DEFAULTS = {"header": "true", "inferSchema": "false", "quote": '"', "escape": '"', "enforceSchema": "false", "mode": "FAILFAST"}
JSON_DEFAULTS = {"mode": "FAILFAST", "allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}
CHECKED_OPTIONS = {"sep", "delimiter", "nullvalue", "header", "inferschema", "compression"}  # the check of CSV lines goes with these
EXCERPT_CHARS = 80
FIELD_MAX_CHARS = 1 << 30  # csv's own bound is 128 KiB

# How a value of a CSV column is written; the first that fits. Numbers as JSON writes them, so that 007 and +5 stay text.
_KINDS = (
    (1, r"^(0|-?[1-9][0-9]{0,17})$"),
    (2, r"^-?[1-9][0-9]{18,37}$"),
    (3, r"^-?(?=[0-9.]{1,18}([eE]|$))(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,2})?$"),  # at most 17 digits: a double has them
    (4, r"^(true|false)$"),
)
_TEXT = 5
_TYPES = {(1, 1): "bigint", (1, 2): "decimal(38,0)", (2, 2): "decimal(38,0)", (1, 3): "double", (3, 3): "double", (4, 4): "boolean"}


def read(spark: SparkSession, source: str, form: str | None, options: dict[str, str]) -> DataFrame:
    """The rows of ``source``, a path or URI that Spark can read; ``form`` is one of ``FORMATS``, else the suffix decides.

    Raises ``JobError`` when Spark cannot read it, or when a line is broken.
    """
    kind = form or format_of(source)
    with spark_errors():
        if kind == "csv":
            return _read_csv(spark, source, options)
        if kind == "json":
            return _read_json(spark, source, options)
        return spark.read.format(kind).options(**options).load(source)


def format_of(source: str) -> str:
    """By suffix, through ``.gz`` and the like; Parquet when the suffix says nothing."""
    for suffix in reversed(Path(source).suffixes):
        if suffix.lower() in SUFFIXES:
            return SUFFIXES[suffix.lower()]
    return "parquet"


def _read_csv(spark: SparkSession, source: str, options: dict[str, str]) -> DataFrame:
    given = {name.lower(): value for name, value in options.items()}
    separator = given.get("sep", given.get("delimiter", "\t" if ".tsv" in source else ","))
    defaults = {name: value for name, value in CSV_DEFAULTS.items() if name.lower() not in given}
    rows = spark.read.format("csv").options(**defaults, **options, **({} if {"sep", "delimiter"} & given.keys() else {"sep": separator}))
    df = rows.load(source)
    if given.keys() <= CHECKED_OPTIONS and len(separator) == 1:
        width = len(df.columns)
        _check(spark, source, lambda: check_csv(width, separator))
    return df if "inferschema" in given else typed(df)


def _read_json(spark: SparkSession, source: str, options: dict[str, str]) -> DataFrame:
    if options:
        given = {name.lower() for name in options}
        defaults = {name: value for name, value in JSON_DEFAULTS.items() if name.lower() not in given}
        return spark.read.format("json").options(**defaults, **options).load(source)
    from pyspark.sql import functions as f

    _check(spark, source, lambda: check_json)
    lines = spark.read.text(source)
    return lines.where(f.col("value").rlike(r"\S")).select(f.col("value").alias("value", metadata={LINE_MARK: True}))


def typed(df: DataFrame) -> DataFrame:
    """``df``, all text, with the columns as numbers and truth values that are written so in every row."""
    from pyspark.sql import functions as f

    def kind(column: Column) -> Column:
        first, pattern = _KINDS[0]
        found = f.when(column.rlike(pattern), first)
        for number, pattern in _KINDS[1:]:
            found = found.when(column.rlike(pattern), number)
        return f.when(column.isNotNull(), found.otherwise(_TEXT))

    if not df.columns:
        return df
    columns = [f.col(quoted(name)) for name in df.columns]
    kinds = [kind(column) for column in columns]
    seen = df.agg(*(f.min(k) for k in kinds), *(f.max(k) for k in kinds)).collect()[0]
    types = [_TYPES.get((low, high), "string") for low, high in zip(seen[: len(kinds)], seen[len(kinds) :], strict=True)]
    return df.select(*(c.cast(t).alias(name) for c, t, name in zip(columns, types, df.columns, strict=True)))


# The check of every line, in the executors

Check = Callable[[bytes], str | None]  # what is wrong with a line, if anything
NOT_UTF8 = "it is not UTF-8; --option encoding=... names another encoding"


def check_csv(width: int, separator: str) -> Check:
    """A line is one row of ``width`` fields, as Python's ``csv`` reads it in its strict mode, or empty."""
    csv.field_size_limit(FIELD_MAX_CHARS)

    def check(line: bytes) -> str | None:
        try:
            row = next(csv.reader([line.decode()], delimiter=separator, strict=True), [])
        except UnicodeDecodeError:
            return NOT_UTF8
        except csv.Error as error:
            return f"{error}; line breaks within quotes need --option multiLine=true" if "end of data" in str(error) else str(error)
        if row and len(row) != width:
            return f"it has {len(row)} fields, the header has {width}"
        if row and line.isspace():
            return "it is a row of spaces, which Spark would leave out"
        return None

    return check


def check_json(line: bytes) -> str | None:
    """A line is one JSON object, or blank."""
    try:
        line.decode()
        value = msgspec.json.decode(line) if line.strip() else {}
    except UnicodeDecodeError:
        return NOT_UTF8
    except (msgspec.DecodeError, RecursionError) as error:
        if (place := lone_surrogate(line)) is not None:
            return f"half of a surrogate pair at byte {place}, which stands for no character"
        return f"{error}; a document of several lines needs --option multiLine=true"
    return None if isinstance(value, dict) else "it is not an object; an array of objects needs --option multiLine=true"


def _check(spark: SparkSession, source: str, make_check: Callable[[], Check]) -> None:
    """Look at every line. Raises ``JobError`` with file, line number (of a local file), reason and text."""
    from pyspark.sql import functions as f

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        check = make_check()
        for batch in batches:
            for index, line in enumerate(batch.column(0).to_pylist()):
                if reason := check(line):
                    # As hexadecimal digits, no byte of the line can spoil the message on its way.
                    raise BrokenLine(f"{batch.column(1)[index].as_py()} {line.hex()} {reason}")
        yield pa.RecordBatch.from_pydict({"done": [True]})

    lines = spark.read.text(source).select(f.col("value").cast("binary").alias("line"), f.col("_metadata.file_path").alias("file"))
    try:
        with spark_errors():
            map_arrow(lines, run, "done boolean").collect()
    except JobError as error:
        raise _located(str(error)) from error


def _located(text: str) -> JobError:
    """The message of a broken line for people; any other message as it is."""
    found = re.fullmatch(r"(\S+) ([0-9a-f]+) (.*)", text)
    if found is None:
        return JobError(text)
    file, line, reason = found.group(1), bytes.fromhex(found.group(2)), found.group(3)
    where = unquote(urlsplit(file).path) if file.startswith("file:") else file
    number = _line_number(Path(where), line)
    shown = line.decode(errors="replace")
    shown = repr(shown if len(shown) <= EXCERPT_CHARS else shown[:EXCERPT_CHARS] + "...")
    return JobError(f"{where}{f', line {number}' if number else ''}: {reason}: {shown}. Nothing of this source was appended")


def _line_number(path: Path, line: bytes) -> int | None:
    """Where the line stands first, from 1; None in what is not a plain local file."""
    try:
        with path.open("rb") as file:
            return next((number for number, found in enumerate(file, 1) if found.rstrip(b"\r\n") == line), None)
    except OSError:
        return None
