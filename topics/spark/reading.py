"""Reading: files to a DataFrame in which every value is as written (Parquet, CSV, JSON lines).

Spark's readers guess and repair: a broken JSON line becomes a record, an open quote ends with the
line, ``007`` becomes 7 and ``1d`` becomes 1.0, a time keeps three decimal digits. This module
guesses nothing:

- It checks every line before the first record is sent. A line that Python's ``csv`` or ``json``
  cannot read, or whose number of fields differs from the header's, refuses the job with file, line
  and reason.
- JSON lines are sent unchanged.
- A CSV column holds numbers, or true and false, when each of its values is written as in JSON and
  one type holds them all exactly (integers of 38 digits, fractions of 15); else it holds text.
  Times and dates are text. An empty field is null.

The caller's options go to Spark's reader and override these. An option that changes what a line or
a field is switches the check off; Spark's own ``FAILFAST`` mode remains.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import msgspec

from topics.formats.api.surrogates import lone_surrogate
from topics.spark.errors import BrokenLine, JobError, spark_errors
from topics.spark.kinds import TEXT, kinds_of, type_of
from topics.spark.local_csv import checked_names
from topics.spark.rows import LINE_MARK, map_arrow, quoted

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

FORMATS = ("parquet", "csv", "json")
SUFFIXES = {
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
}
CSV_DEFAULTS = {
    "header": "true",
    "inferSchema": "false",
    "quote": '"',
    "escape": '"',
    "enforceSchema": "false",  # the header of every file is compared, not only of the first
    "mode": "FAILFAST",
}
JSON_DEFAULTS = {
    "mode": "FAILFAST",
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
    "prefersDecimal": "true",  # a double would change digits
}
CHECKED_OPTIONS = {
    "sep",
    "delimiter",
    "nullvalue",
    "header",
    "inferschema",
}  # the check of CSV lines goes with these
LOCAL_OPTIONS = CHECKED_OPTIONS - {"header", "inferschema"}
EXCERPT_CHARS = 80
EXCERPT_BYTES = 1024  # of a broken line, for the message and to find it in the file
FIELD_MAX_CHARS = 1 << 30  # csv's own bound is 128 KiB


def read(spark: SparkSession, source: str, form: str | None, options: dict[str, str]) -> DataFrame:
    """The rows of ``source``, a path or URI that Spark can read.

    ``form`` is one of ``FORMATS``; without it the suffix decides. Raises ``JobError`` when Spark
    cannot read it, or when a line is broken.
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
    if not {"sep", "delimiter"} & given.keys():
        defaults["sep"] = separator
    reader = spark.read.format("csv").options(**defaults, **options)
    if given.keys() <= LOCAL_OPTIONS and (names := checked_names(source, separator)):
        return typed(reader.schema(", ".join(f"{name} string" for name in names)).load(source))
    df = reader.load(source)
    if given.keys() <= CHECKED_OPTIONS and len(separator) == 1:
        width = len(df.columns)
        _check(spark, source, lambda: check_csv(width, separator))
    return df if "inferschema" in given else typed(df)


def _read_json(spark: SparkSession, source: str, options: dict[str, str]) -> DataFrame:
    if options:
        given = {name.lower() for name in options}
        defaults = {
            name: value for name, value in JSON_DEFAULTS.items() if name.lower() not in given
        }
        return spark.read.format("json").options(**defaults, **options).load(source)
    from pyspark.sql import functions as f

    _check(spark, source, lambda: check_json)
    lines = spark.read.text(source).where(f.col("value").rlike(r"\S"))
    return lines.select(f.col("value").alias("value", metadata={LINE_MARK: True}))


def typed(df: DataFrame) -> DataFrame:
    """``df``, all text, with the columns as numbers or truth values that hold only those."""
    from pyspark.sql import functions as f

    if not df.columns:
        return df
    ddl = ", ".join(f"_{index} int" for index in range(len(df.columns)))
    found = map_arrow(df, all_kinds, ddl).collect()
    types = [type_of(reduce(or_, kinds, 0)) for kinds in zip(*found, strict=True)]
    columns = zip(df.columns, types or ["string"] * len(df.columns), strict=True)
    return df.select(*(f.col(quoted(name)).cast(kind).alias(name) for name, kind in columns))


def all_kinds(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One row: the kinds of the values of each column of a partition."""
    import pyarrow as pa

    kinds: list[int] = []
    for batch in batches:
        kinds = kinds or [0] * batch.num_columns
        for index, column in enumerate(batch.columns):
            if not kinds[index] & TEXT:  # text is text, whatever else comes
                kinds[index] |= kinds_of(column)
    if kinds:
        columns = [pa.array([bits], pa.int32()) for bits in kinds]
        yield pa.RecordBatch.from_arrays(columns, [f"_{index}" for index in range(len(kinds))])


# The check of every line, in the executors

Check = Callable[[bytes], str | None]  # what is wrong with a line, if anything
SPACES = bytes(range(33))  # Spark's reader leaves out a line of nothing else
NOT_UTF8 = "it is not UTF-8; --option encoding=... names another encoding"


def check_csv(width: int, separator: str) -> Check:
    """A line is empty, or one row of ``width`` fields for Python's ``csv`` in strict mode."""
    csv.field_size_limit(FIELD_MAX_CHARS)

    def check(line: bytes) -> str | None:
        try:
            row = next(csv.reader([line.decode()], delimiter=separator, strict=True), [])
        except UnicodeDecodeError:
            return NOT_UTF8
        except csv.Error as error:
            advice = "; line breaks within quotes need --option multiLine=true"
            return f"{error}{advice if 'end of data' in str(error) else ''}"
        if row and len(row) != width:
            return f"it has {len(row)} fields, the header has {width}"
        if row and not line.strip(SPACES):
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
        if (offset := lone_surrogate(line)) is not None:
            return f"half of a surrogate pair at byte {offset}, which is no character"
        return f"{error}; a document of several lines needs --option multiLine=true"
    if isinstance(value, dict):
        return None
    return "it is not an object; an array of objects needs --option multiLine=true"


def _check(spark: SparkSession, source: str, make_check: Callable[[], Check]) -> None:
    """Check every line. Raises ``JobError`` with file, line number if local, reason and text."""
    from pyspark.sql import functions as f

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        check = make_check()
        for batch in batches:
            for index, line in enumerate(batch.column(0).to_pylist()):
                if reason := check(line):
                    # As hexadecimal digits, no byte of the line can spoil the message on its way.
                    shown = line[:EXCERPT_BYTES].hex()
                    raise BrokenLine(f"{batch.column(1)[index].as_py()} {shown} {reason}")
        yield pa.RecordBatch.from_pydict({"done": [True]})

    line, file = (
        f.col("value").cast("binary").alias("line"),
        f.col("_metadata.file_path").alias("file"),
    )
    lines = spark.read.text(source).select(line, file)
    try:
        with spark_errors():
            map_arrow(lines, run, "done boolean").collect()
    except JobError as error:
        raise _located(str(error)) from error


def _located(text: str) -> JobError:
    """The message of a broken line for people; any other message as it is."""
    found = re.fullmatch(r"(\w+:\S+) ((?:[0-9a-f]{2})+) (.*)", text)
    if found is None:
        return JobError(text)
    file, line, reason = found.group(1), bytes.fromhex(found.group(2)), found.group(3)
    where = unquote(urlsplit(file).path) if file.startswith("file:") else file
    return refuse_line(where, line, reason)


def refuse_line(file: str | Path, line: bytes, reason: str) -> JobError:
    """A broken line, by file and number if ``file`` is local; ``line`` is it, or its beginning."""
    line = line[:EXCERPT_BYTES]
    where = str(file)
    number = _line_number(Path(where), line)
    shown = line.decode(errors="replace")
    shown = repr(shown if len(shown) <= EXCERPT_CHARS else shown[:EXCERPT_CHARS] + "...")
    if number:
        where += f", line {number}"
    return JobError(f"{where}: {reason}: {shown}. Nothing of this source was appended")


def _line_number(path: Path, start: bytes) -> int | None:
    """The number of the first such line, from 1; None for what is not a plain local file."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.rstrip(b"\r\n")[:EXCERPT_BYTES] == start:
                    return number
    except OSError:
        pass
    return None
