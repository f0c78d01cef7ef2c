"""Which file is loaded without a JVM: one local file, packed in nothing, with options that are
known here.
"""

from __future__ import annotations

from hashlib import blake2b, file_digest
from pathlib import Path

from topics.spark.local_csv import GLOB
from topics.spark.plain.columns import read_columns
from topics.spark.plain.lines import read_lines
from topics.spark.plain.rows import NotPlain, Rows
from topics.spark.plain.table import Dialect, read_table
from topics.spark.reading import format_of

BOM = b"\xef\xbb\xbf"
PACKED = {".bz2", ".deflate", ".gz", ".lz4", ".snappy", ".xz", ".zst", ".zstd"}
DIALECT = {"sep", "delimiter", "nullvalue", "header"}
DIGEST_BYTES = 16


def read_plain(
    source: str, form: str | None, options: dict[str, str], tag_column: str | None
) -> Rows:
    """The rows of ``source``. Raises ``NotPlain`` for what is left to Spark, ``JobError`` for a
    broken line.
    """
    path = one_file(source)
    kind = form or format_of(source)
    dialect = dialect_of(source, options) if kind == "csv" else None
    if options and dialect is None:
        raise NotPlain("options for Spark's reader")
    with path.open("rb") as file:
        content = file_digest(file, "blake2b").digest()
    digest = blake2b(repr((kind, dialect, content)).encode(), digest_size=DIGEST_BYTES).hexdigest()
    if kind == "parquet":
        return read_columns(path, digest, tag_column)
    if path.suffix.lower() in PACKED:
        raise NotPlain("a packed file")
    lines = path.read_bytes().removeprefix(BOM)
    if dialect is None:
        return read_lines(path, lines, digest, tag_column)
    return read_table(path, lines, digest, dialect, tag_column)


def one_file(source: str) -> Path:
    """The path of one local file that Spark would read too."""
    path = Path(source)
    if "://" in source or GLOB.search(source) or not path.is_file():
        raise NotPlain("what is not one local file")
    if path.name.startswith(("_", ".")):
        raise NotPlain("a file whose name begins with _ or .")
    return path


def dialect_of(source: str, options: dict[str, str]) -> Dialect:
    """How a CSV file is written, by the options of Spark's reader."""
    given = {name.lower(): value for name, value in options.items()}
    if unknown := sorted(given.keys() - DIALECT):
        raise NotPlain(f"the option {unknown[0]}")
    separator = given.get("sep", given.get("delimiter", "\t" if ".tsv" in source else ","))
    header = given.get("header", "true").lower()
    if len(separator) != 1 or not separator.isascii() or separator in '"\\\r\n\0':
        raise NotPlain(f"the separator {separator!r}")
    if header not in ("true", "false"):
        raise NotPlain(f"the option header={header}")
    return Dialect(separator, given.get("nullvalue", ""), header == "true")
