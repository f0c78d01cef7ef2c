"""Read the tables in docstrings, so that a test can compare them with the code."""

from __future__ import annotations

import inspect
import re


def table(doc: str, after: str) -> list[dict[str, str]]:
    """Return the rows of the first table after the text ``after``, each by the names in the head
    of the table.

    Columns are at least two spaces apart. A column ends where the next one begins.
    """
    rest = inspect.cleandoc(doc).partition(after)[2]
    assert rest, f"the docstring contains {after!r}"
    block = next(part for part in rest.split("\n\n")[1:] if part.startswith("    "))
    head, *lines = block.splitlines()
    names = re.split(r"\s{2,}", head.strip())
    starts = [head.index(name) for name in names]
    ends = [*starts[1:], None]
    return [
        {
            name: line[start:end].strip()
            for name, start, end in zip(names, starts, ends, strict=True)
        }
        for line in lines
        if line[: starts[0] + 1].strip()
    ]


def byte_rows(doc: str, after: str) -> list[tuple[int, int, str]]:
    """Return ``(offset, size, field)`` of a byte table. Each row must begin where the previous one
    ends.
    """
    rows = [(int(row["offset"]), int(row["size"]), row["field"]) for row in table(doc, after)]
    end = 0
    for offset, size, field in rows:
        assert offset == end, f"{field} begins at the end of the previous field"
        end = offset + size
    return rows
