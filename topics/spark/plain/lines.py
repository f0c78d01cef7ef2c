"""JSON lines to rows: each line is checked and sent as it is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import accumulate, repeat
from pathlib import Path
from typing import Any

from topics.spark.plain.rows import Block, NotPlain, Rows
from topics.spark.plain.to_json import quote
from topics.spark.reading import check_json, refuse_line

BLOCK_LINES = 10_000
_NAME = re.compile(r"[\w.-]+")  # Spark reads others as parts of a path
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")


def read_lines(path: Path, content: bytes, digest: str, tag_column: str | None) -> Rows:
    """The rows of JSON lines. Raises ``JobError`` for a broken line."""
    lines = []
    for line in content.splitlines():
        if reason := check_json(line):
            raise refuse_line(path, line, reason)
        if line.strip():
            lines.append(line)
    tags = None if tag_column is None else tags_of(lines, tag_column)
    pairs = [*zip(lines, tags or repeat(None), strict=False)]
    return Rows(len(lines), digest, lambda first: _blocks(lines, tags, first), pairs)


def _blocks(lines: list[bytes], tags: list[str | None] | None, first: int) -> Iterator[Block]:
    for start in range(first, len(lines), BLOCK_LINES):
        some = lines[start : start + BLOCK_LINES]
        if tags is None:
            yield _block([b'{"data":%b},' % line for line in some])
        else:
            yield _block([*map(_tagged, some, tags[start : start + BLOCK_LINES])])


def _tagged(line: bytes, tag: str | None) -> bytes:
    if tag is None:
        return b'{"data":%b},' % line
    return b'{"data":%b,"tag":%b},' % (line, quote(tag).encode())


def _block(records: Sequence[bytes]) -> Block:
    return [*accumulate(map(len, records), initial=0)], memoryview(b"".join(records))


def tags_of(lines: Sequence[bytes], name: str) -> list[str | None]:
    """The member ``name`` of each line as text, as Spark's ``get_json_object`` gives it. Raises
    ``NotPlain`` for values that Spark writes in a way of its own.
    """
    if not _NAME.fullmatch(name):
        raise NotPlain(f"a tag column {name!r} in JSON lines")
    try:
        return [_tag(line, name) for line in lines]
    except (RecursionError, ValueError):
        raise NotPlain("JSON lines that Python's json cannot read") from None


def _tag(line: bytes, name: str) -> str | None:
    # Numbers as their texts in bytes, to be told from strings.
    pairs = json.loads(line, object_pairs_hook=list, parse_int=str.encode, parse_float=str.encode)
    found: list[Any] = [value for key, value in pairs if key == name]
    if len(found) > 1:
        raise NotPlain(f"a line with two members {name!r}")
    match found:
        case [] | [None]:
            return None
        case [str(text)]:
            return text
        case [bool(truth)]:
            return "true" if truth else "false"
        case [bytes(number)] if _INTEGER.fullmatch(number.decode()):
            return number.decode()
    raise NotPlain(f"a tag that is no text, integer or truth value: {name!r}")
