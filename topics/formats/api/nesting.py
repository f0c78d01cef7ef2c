"""Nesting: limits the depth of a record's payload. The limit for clients is `NESTING_MAX` levels
(§2).

A level is an array or an object, so a number has no level and ``[{}]`` has two. Moves between
topics have no limit of their own, so that a record that was accepted is always accepted again.

The decoder is recursive, so the depth that it can decode depends on the number of frames on the
stack. `topics.process` raises the recursion limit of a server, so that there is always space for
`NESTING_MAX` levels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final, Protocol

from msgspec import Raw

from topics.errors import InvalidRequest

NESTING_MAX: Final = 900
STEP_BYTES: Final = 1 << 20  # number of bytes that are checked in one step
BLOCK_BRACKETS: Final = 256

_BRACKETS = bytes.maketrans(b"{}", b"[]")
_OTHERS = bytes(set(range(256)) - set(b"[]{}"))
_CHANGE = {ord("["): 1, ord("]"): -1}


class Payload(Protocol):
    """The fields of a record that may be nested."""

    @property
    def data(self) -> Raw:
        """The JSON text as it was sent."""

    @property
    def meta(self) -> Raw:
        """The JSON text as it was sent; empty if the record has no ``meta``."""


def check_nesting(records: Sequence[Payload], levels: int) -> Iterator[None]:
    """Raise `InvalidRequest` if the data or meta of a record is nested deeper than ``levels``.

    Yield after each step of about `STEP_BYTES`, so that the caller can let other work run.
    """
    size = 0
    least = 2 * levels  # a level has two brackets
    for index, record in enumerate(records):
        if len(record.data) + len(record.meta) <= least:
            continue
        for field, value in (("data", record.data), ("meta", record.meta)):
            if is_deeper(bytes(value), levels):
                raise InvalidRequest(
                    f"record {index}: {field} is nested deeper than {levels} levels",
                    index=index,
                    field=field,
                    max=levels,
                )
            size += len(value)
        if size > STEP_BYTES:
            size = 0
            yield


def is_deeper(value: bytes, levels: int) -> bool:
    """Return whether valid JSON is nested deeper than ``levels``.

    Brackets are counted block by block. They are counted one by one only in a block that may reach
    the limit.
    """
    if value.count(b"[") + value.count(b"{") <= levels:
        return False
    if b"\\" in value:  # the remaining quotes begin or end a string
        value = value.replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets, depth = b"".join(value.split(b'"')[::2]).translate(_BRACKETS, _OTHERS), 0
    for start in range(0, len(brackets), BLOCK_BRACKETS):
        block = brackets[start : start + BLOCK_BRACKETS]
        opened = block.count(b"[")
        if depth + opened > levels:
            changes = map(_CHANGE.__getitem__, block)
            if max(accumulate(changes, initial=depth)) > levels:
                return True
        depth += 2 * opened - len(block)
    return False
