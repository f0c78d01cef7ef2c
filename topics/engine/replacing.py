"""Replaced entries: extents of a new segment replace the index entries whose records they contain.
These entries are writes that have been sealed, or extents that have been merged.

An entry may be split over several extents, and an extent may contain many entries. Seqs of a
replaced entry that are in no new extent were not live when the extents were written. Entries of
records in memory are not replaced.
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

# Bounds of one part. A part is longer only if one entry is split over several extents.
STEP_EXTENTS: Final = 256
STEP_ENTRIES: Final = 4096


def replace_entries(
    topic: Topic, extents: Sequence[IndexEntry], first_seq: int, end_seq: int, store: Store
) -> list[Locator]:
    """Replace the entries from ``first_seq`` to ``end_seq`` (exclusive) with ``extents``.

    No entry may contain seqs on both sides of a bound. Return the locators of the extents without
    live records. They are not used.
    """
    rest, unused = [*extents], list[Locator]()
    index = topic.index
    # Replace from the end, so that the indexes of the remaining runs stay valid.
    for start, stop in reversed(_runs_on_disk(index, index.find(first_seq), index.find(end_seq))):
        begin = bisect_left(rest, index.entry(start)[0], key=attrgetter("last_seq"))
        unused += _replace(topic, start, stop, rest[begin:], store)
        del rest[begin:]
    topic.sealed_seq = max(topic.sealed_seq, end_seq - 1)
    return unused + [extent.locator for extent in rest]


def parts(
    topic: Topic, extents: Sequence[IndexEntry], first_seq: int, last_seq: int
) -> Iterator[tuple[Sequence[IndexEntry], int, int]]:
    """Yield the arguments of successive calls of `replace_entries`, which replace a bounded number
    of entries each.

    ``extents`` replace the entries from ``first_seq`` to ``last_seq``. The topic may change between
    two parts.
    """
    start = 0
    while first_seq <= last_seq:
        stop, end_seq = _part_end(topic.index, extents, start, last_seq + 1)
        yield extents[start:stop], first_seq, end_seq
        start, first_seq = stop, end_seq


def _part_end(
    index: RecordIndex, extents: Sequence[IndexEntry], start: int, end_seq: int
) -> tuple[int, int]:
    """Return the end of the next part: the index after its last extent, and the seq after its last
    entry.
    """
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
    """Return the runs of entries from ``start`` to ``stop`` (exclusive) that are not in memory."""
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
    """Replace one run of entries. Return the locators of the extents without live records."""
    index = topic.index
    locators, (live_count, live_bytes) = index.locators(start, stop), index.totals(start, stop)
    used, removed, unused = list[IndexEntry](), list[int](), list[Locator]()
    for extent in extents:
        count, size = _live_between(topic, extent.first_seq, extent.last_seq + 1, store)
        if count:
            used.append(extent._replace(size=size))
            removed.append(extent.record_count - count)
        else:
            unused.append(extent.locator)
    live = sum(extent.record_count for extent in used) - sum(removed)
    # The live records of the old entries must all be in the new extents.
    assert live == live_count, "the new extents have the same number of live records"
    index.replace(start, stop, used, removed)
    # The old sizes may have been estimated, if records could not be read temporarily.
    topic.bytes += sum(extent.size for extent in used) - live_bytes
    store.release(locators)
    return unused


def _live_between(topic: Topic, start: int, end: int, store: Store) -> tuple[int, int]:
    """Return the count and bytes of the live records from seq ``start`` to ``end`` (exclusive)."""
    index = topic.index
    first, stop = index.find(start), index.find(end)
    # Entries that are only partly in the range are counted record by record.
    cut = {at for at in (first, stop) if at < len(index) and _is_cut(index, at, start, end)}
    whole_from = first + (first in cut)
    count, size = index.totals(whole_from, stop) if whole_from < stop else (0, 0)
    for at in cut:
        first_seq, total, _, _ = index.entry(at)
        begin = max(start, topic.start_seq, first_seq) - first_seq
        live = live_of(topic, at, begin, min(end - first_seq, total), store)
        count += live.record_count
        size += live.size
    return count, size


def _is_cut(index: RecordIndex, at: int, start: int, end: int) -> bool:
    """Return whether an entry has live records and a bound is within the entry."""
    first_seq, count, _, size = index.entry(at)
    return size > 0 and (
        first_seq < start < first_seq + count or first_seq < end < first_seq + count
    )
