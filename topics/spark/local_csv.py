"""Local CSV: the check of a plain local file in this process, instead of a job of Spark's.

It accepts exactly what the executors' check accepts (`topics.spark.reading.check_csv`), in a loop
that runs in C. It tells nothing about a file that it does not accept: the executors check that one
again, and say what is wrong where. It also reads the names of the columns, for which Spark would
run a job.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from pathlib import Path

SMALL_BYTES = 256 << 20  # more is checked by all executors together
GLOB = re.compile(r"[*?\[{]")
NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)  # means the same to any reader


def is_small(source: str) -> bool:
    """Whether that is one local file of a size that a job has done in seconds."""
    path = Path(source)
    return not GLOB.search(source) and path.is_file() and path.stat().st_size <= SMALL_BYTES


def checked_names(source: str, separator: str) -> list[str] | None:
    """The names of the columns of a file whose every line is whole; None where this cannot tell.

    Spark reads a file of this suffix without unpacking it, and no file whose name begins with a
    dot or an underscore.
    """
    path = Path(source)
    if path.suffix not in (".csv", ".tsv") or path.name[0] in "._":
        return None
    if separator <= " " or separator.isspace():  # a row of nothing else is blank to Spark
        return None
    try:
        return _checked_names(path, separator) if is_small(source) else None
    except (OSError, UnicodeDecodeError, csv.Error):
        return None


def _checked_names(path: Path, separator: str) -> list[str] | None:
    # Universal newlines: the same ends of lines as Spark's.
    with path.open(encoding="utf-8", newline=None) as lines:
        rows = csv.reader(lines, delimiter=separator, strict=True)
        names = next(rows, [])
        widths = Counter(map(len, rows))
        # A row of several lines has a line break within quotes.
        whole = rows.line_num == 1 + widths.total()
    plain = len(names) > 1 and len({*map(str.lower, names)}) == len(names)
    if plain and whole and widths.keys() <= {0, len(names)} and all(map(NAME.fullmatch, names)):
        return names
    return None
