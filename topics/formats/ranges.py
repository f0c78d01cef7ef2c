"""Ranges of seqs and of record indexes: three types that are never mixed.

type      fields          last one    used for
SeqRange  first, last     included    losses, damage, records in memory, gaps
SeqRun    first, length   -           deletes, as in a DELETE frame
IndexRun  start, stop     excluded    indexes of records in one entry
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple, TypeAlias


class SeqRange(NamedTuple):
    """Seqs ``first`` to ``last``, both included."""

    first: int
    last: int


class SeqRun(NamedTuple):
    """``length`` contiguous seqs, starting at ``first``."""

    first: int
    length: int


IndexRun: TypeAlias = tuple[int, int]
"""Records ``start`` to ``stop`` (exclusive) of one entry. A plain tuple, because hot loops create
many of them.
"""


def seq_ranges(pairs: Collection[Iterable[int]]) -> tuple[SeqRange, ...]:
    """Convert pairs of first and last, decoded from a file, to ranges."""
    if not pairs:  # the usual case
        return ()
    return tuple(SeqRange(first, last) for first, last in pairs)


def joined(ranges: tuple[SeqRange, ...], more: SeqRange) -> tuple[SeqRange, ...]:
    """Add a range that does not begin before the last of ``ranges``. It is merged with the last one
    if they overlap or are adjacent.
    """
    if ranges and more.first <= ranges[-1].last + 1:
        return (*ranges[:-1], SeqRange(ranges[-1].first, max(more.last, ranges[-1].last)))
    return (*ranges, more)


def union(ranges: Iterable[SeqRange], more: Iterable[SeqRange]) -> tuple[SeqRange, ...]:
    """Return the union of both in order, with overlapping and adjacent ranges merged."""
    found: tuple[SeqRange, ...] = ()
    for each in sorted((*ranges, *more)):
        found = joined(found, each)
    return found


def runs_of_seqs(seqs: Iterable[int]) -> list[SeqRun]:
    """Combine ascending seqs into as few runs as possible."""
    runs: list[SeqRun] = []
    first = end = 0
    for seq in seqs:
        if seq != end:
            if end > first:
                runs.append(SeqRun(first, end - first))
            first = seq
        end = seq + 1
    if end > first:
        runs.append(SeqRun(first, end - first))
    return runs
