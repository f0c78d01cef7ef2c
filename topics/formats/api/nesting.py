"""Nesting: how deep the payload of a record may be, `NESTING_MAX` levels for clients (§2).

A level is an array or an object, so a number has none and ``[{}]`` has two. Moves between topics
have no limit of their own: a record that was accepted is always accepted again.

The decoder recurses. It could not tell a depth that depends on nothing else from one that depends
on the frames above it on the stack, so this module gives the interpreter room for both.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Final, Protocol

import msgspec
from msgspec import Raw

from topics.errors import InvalidRequest

NESTING_MAX: Final = 900
STACK_FRAMES: Final = 2100  # above a decoder, and the levels around a payload
STEP_BYTES: Final = 1 << 20  # checked at once, about
PEELS: Final = 4  # times its own bytes that a value is decoded

sys.setrecursionlimit(max(sys.getrecursionlimit(), NESTING_MAX + STACK_FRAMES))

_BRACKETS = bytes.maketrans(b"{}", b"[]")
_OTHERS = bytes(set(range(256)) - set(b"[]{}"))
_CHANGE = {ord("["): 1, ord("]"): -1}
_value = msgspec.json.Decoder(list[Raw] | dict[str, Raw] | str | int | float | bool | None)


class Payload(Protocol):
    """A record, as far as its nesting counts."""

    @property
    def data(self) -> Raw:
        """As it was sent."""

    @property
    def meta(self) -> Raw:
        """Empty without one."""


def check_nesting(records: Sequence[Payload], levels: int) -> Iterator[None]:
    """Yields after each step of about a millisecond. Raises `InvalidRequest` for a record whose
    data or meta is nested deeper than ``levels``.
    """
    size = 0
    for index, record in enumerate(records):
        if len(record.data) + len(record.meta) <= 2 * levels:  # a level has two brackets
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
    """Whether valid JSON is nested deeper than ``levels``.

    Most values are wide: below one of their first levels no part has brackets enough. They are
    decoded level by level. In what is narrow each bracket is counted.
    """
    left, budget = [(value, levels)], PEELS * len(value)
    while left:
        text, levels = left.pop()
        if len(text) <= 2 * levels or text.count(b"[") + text.count(b"{") <= levels:
            continue
        if budget < len(text):
            if _depth(text) > levels:
                return True
            continue
        budget -= len(text)
        parts: Any = _value.decode(text)
        if isinstance(parts, dict):
            parts = [*parts.values()]
        if isinstance(parts, list):
            if not levels:
                return True
            least = 2 * (levels - 1)
            left += [(bytes(part), levels - 1) for part in parts if len(part) > least]
    return False


def _depth(text: bytes) -> int:
    """The depth of valid JSON."""
    if b"\\" in text:  # what remains of quotes begins or ends a string
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets = b"".join(text.split(b'"')[::2]).translate(_BRACKETS, _OTHERS)
    return max(accumulate(map(_CHANGE.__getitem__, brackets)), default=0)
