"""Replaced entries: extents of a new segment take the place of the entries whose records they hold:
writes that were sealed, or extents that were merged.

An entry may go into several extents, and an extent may hold many entries. Seqs of a replaced entry
that are in no new extent were dead when it was written. Records in memory stay where they are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final

from topics.engine.locators import FIRST_MEMORY, Locator, is_in_memory
from topics.engine.record_index import IndexEntry, RecordIndex
from topics.engine.removal import live_of
from topics.engine.store import Store
from topics.engine.topic import Topic

# A part is no longer, unless an entry goes into several extents.
STEP_EXTENTS: Final = 256
STEP_ENTRIES: Final = 4096


def replace_entries(
    topic: Topic, extents: Sequence[IndexEntry], first_seq: int, end_seq: int, store: Store
) -> list[Locator]:
    """Put ``extents`` where the entries from ``first_seq`` to ``end_seq`` (exclusive) are; no entry
    reaches over one of the bounds. The locators of those in which nothing lives: they are not used.
    """
    rest, unused = [*extents], list[Locator]()
    index = topic.index
    for start, stop in reversed(_runs_on_disk(index, index.find(first_seq), index.find(end_seq))):
        begin = bisect_left(rest, index.entry(start)[0], key=attrgetter("last_seq"))
        unused += _replace(topic, start, stop, rest[begin:], store)
        del rest[begin:]
    topic.sealed_seq = max(topic.sealed_seq, end_seq - 1)
    return unused + [extent.locator for extent in rest]


def parts(
    topic: Topic, extents: Sequence[IndexEntry], first_seq: int, last_seq: int
) -> Iterator[tuple[Sequence[IndexEntry], int, int]]:
    """The arguments of `replace_entries`, some at a time, from a sequence of ``extents`` for the
    entries from ``first_seq`` to ``last_seq``. The topic may change between two parts.
    """
    start = 0
    while first_seq <= last_seq:
        stop, end_seq = _part_end(topic.index, extents, start, last_seq + 1)
        yield extents[start:stop], first_seq, end_seq
        start, first_seq = stop, end_seq


def _part_end(
    index: RecordIndex, extents: Sequence[IndexEntry], start: int, end_seq: int
) -> tuple[int, int]:
    """Where the next part begins: index of its first extent, and seq of its first entry."""
    if len(extents) - start < 2:
        return len(extents), end_seq
    first = index.find(extents[start].first_seq)
    for stop in range(start + 1, len(extents)):
        seq = extents[stop].first_seq
        at = index.find(seq)
        if stop - start >= STEP_EXTENTS or at - first >= STEP_ENTRIES:
            begin = min(seq, index.entry(at)[0]) if at < len(index) else seq
            if begin > extents[stop - 1].last_seq:
                return stop, begin
    return len(extents), end_seq


def _runs_on_disk(index: RecordIndex, start: int, stop: int) -> list[tuple[int, int]]:
    """The entries from ``start`` to ``stop`` (exclusive) that are not in memory."""
    locators = index.locators(start, stop)
    if max(locators, default=0) < FIRST_MEMORY:
        return [(start, stop)] if start < stop else []
    runs = []
    for in_memory, group in groupby(locators, is_in_memory):
        stop = start + len([*group])
        if not in_memory:
            runs.append((start, stop))
        start = stop
    return runs


def _replace(
    topic: Topic, start: int, stop: int, extents: Sequence[IndexEntry], store: Store
) -> list[Locator]:
    index = topic.index
    locators, (live_count, live_bytes) = index.locators(start, stop), index.totals(start, stop)
    used, gone, unused = list[IndexEntry](), list[int](), list[Locator]()
    for extent in extents:
        count, size = _live_between(topic, extent.first_seq, extent.last_seq + 1, store)
        if count:
            used.append(extent._replace(size=size))
            gone.append(extent.record_count - count)
        else:
            unused.append(extent.locator)
    live = sum(extent.record_count for extent in used) - sum(gone)
    assert live == live_count, "as many records live in the new extents"
    index.replace(start, stop, used, gone)
    # Sizes of records that could not be read for a moment may have been guessed.
    topic.bytes += sum(extent.size for extent in used) - live_bytes
    store.release(locators)
    return unused


def _live_between(topic: Topic, start: int, end: int, store: Store) -> tuple[int, int]:
    """Count and bytes of the live records from seq ``start`` to ``end`` (exclusive)."""
    index = topic.index
    first, stop = index.find(start), index.find(end)
    cut = {at for at in (first, stop) if at < len(index) and _is_cut(index, at, start, end)}
    whole_from = first + (first in cut)
    count, size = index.totals(whole_from, stop) if whole_from < stop else (0, 0)
    for at in cut:
        first_seq, whole, _, _ = index.entry(at)
        begin = max(start, topic.start_seq, first_seq) - first_seq
        live = live_of(topic, at, begin, min(end - first_seq, whole), store)
        count += live.record_count
        size += live.size
    return count, size


def _is_cut(index: RecordIndex, at: int, start: int, end: int) -> bool:
    """Whether one of the bounds lies within an entry of which something lives."""
    first_seq, count, _, size = index.entry(at)
    return size > 0 and (
        first_seq < start < first_seq + count or first_seq < end < first_seq + count
    )
