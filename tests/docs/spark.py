"""Generates the tables of options and columns in the page on Spark.

python -m tests.docs.spark --write
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.docs.reference import table
from topics.spark.interface import COLUMNS, OPTIONS
from topics.spark.sink.columns import ACCEPTED
from topics.spark.source.columns import TYPES

PAGE: Final = Path(__file__).resolve().parents[2] / "topics/docs/spark.md"
OPTION_TITLES: Final = ("option", "of", "default", "meaning")
COLUMN_TITLES: Final = ("column", "types in a read", "types in a write", "content")


def options() -> Iterator[Sequence[str]]:
    """Return name, use, default and meaning of each option."""
    for name, use, default, meaning in OPTIONS:
        shown = default if "`" in default or not default else f"`{default}`"
        yield f"`{name}`", use, shown, meaning


def columns() -> Iterator[Sequence[str]]:
    """Return name, types and content of each column."""
    for name, content in COLUMNS.items():
        read = ", ".join(kind.simpleString().upper() for kind in TYPES.get(name, ()))
        written = [kind.upper() for kind in ACCEPTED.get(name, ()) if "char" not in kind]
        yield f"`{name}`", read or "none", ", ".join(written) or "ignored", content


def with_tables(page: str) -> str:
    """Return the page with new tables in the places of those with the same titles."""
    for titles, rows in ((OPTION_TITLES, options()), (COLUMN_TITLES, columns())):
        made = table(titles, rows)
        old = re.compile(rf"{re.escape(made.splitlines()[0])}\n(\|.*\n)*")
        page, count = old.subn(lambda _found, made=made: made, page)  # type: ignore[misc]
        assert count == 1, f"the page has one table of {titles[0]}s"
    return page


if __name__ == "__main__":
    text = with_tables(PAGE.read_text())
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(text)
    else:
        sys.stdout.write(text)
