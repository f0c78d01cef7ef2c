"""Checked rows of a file, ready to be sent, and what this package leaves to Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from topics.spark.task import string_block

if TYPE_CHECKING:
    import pyarrow as pa

# Offsets and data of encoded records, as topics/spark/client/chunks.py takes them.
Block = tuple[Sequence[int], memoryview]


class NotPlain(Exception):
    """Only Spark does this exactly. The text says what, in a few words."""


@dataclass(frozen=True, slots=True)
class Rows:
    """``count`` rows that can be encoded and sent. ``digest`` is made of all that they depend on.
    ``blocks(n)`` encodes those behind the first n; it may be called several times. ``lines`` are
    the values and tags of JSON lines, empty for other files.
    """

    count: int
    digest: str
    blocks: Callable[[int], Iterator[Block]]
    lines: Sequence[tuple[bytes, str | None]] = ()


def block_of(records: pa.Array) -> Block:
    """A column of encoded records."""
    return string_block(records)
