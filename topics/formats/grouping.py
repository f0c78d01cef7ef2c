"""Grouping: divides a sequence of items into groups of bounded weight."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def grouped(items: Iterable[T], weight: Callable[[T], int], weight_max: int) -> Iterator[list[T]]:
    """Yield consecutive items in groups whose total weight is at most ``weight_max``. An item that
    exceeds this weight forms a group of its own.
    """
    group: list[T] = []
    total = 0
    for item in items:
        more = weight(item)
        if group and total + more > weight_max:
            yield group
            group, total = [], 0
        group.append(item)
        total += more
    if group:
        yield group
