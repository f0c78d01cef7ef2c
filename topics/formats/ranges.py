"""Ranges of seqs and of record indexes: three types, never mixed.

type      fields          last one    used for
SeqRange  first, last     included    losses, damage, records in memory, gaps
SeqRun    first, length   -           deletes, as a DELETE frame holds them
IndexRun  start, stop     excluded    records of one entry, by their index in it
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple, TypeAlias


class SeqRange(NamedTuple):
    """Seqs ``first`` to ``last``, both included."""

    first: int
    last: int


class SeqRun(NamedTuple):
    """``length`` seqs from ``first`` on."""

    first: int
    length: int


IndexRun: TypeAlias = tuple[int, int]
"""Records ``start`` to ``stop`` (exclusive) of one entry. A plain tuple: hot loops make many."""


def seq_ranges(pairs: Collection[Iterable[int]]) -> tuple[SeqRange, ...]:
    """Ranges as they come back from the disk: pairs of first and last."""
    if not pairs:  # of most topics
        return ()
    return tuple(SeqRange(first, last) for first, last in pairs)


def joined(ranges: tuple[SeqRange, ...], more: SeqRange) -> tuple[SeqRange, ...]:
    """``ranges`` and one that does not begin before their last; adjacent ones become one."""
    if ranges and more.first <= ranges[-1].last + 1:
        return (*ranges[:-1], SeqRange(ranges[-1].first, max(more.last, ranges[-1].last)))
    return (*ranges, more)


def united(ranges: Iterable[SeqRange], more: Iterable[SeqRange]) -> tuple[SeqRange, ...]:
    """The union of both, in order; ranges that overlap or are adjacent become one."""
    found: tuple[SeqRange, ...] = ()
    for each in sorted((*ranges, *more)):
        found = joined(found, each)
    return found


def runs_of_seqs(seqs: Iterable[int]) -> list[SeqRun]:
    """Rising seqs as the fewest runs."""
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
