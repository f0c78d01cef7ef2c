"""Sealed records: extents of a segment take the place of the writes that they hold.

A write may go into several extents, and an extent may hold many writes. Records in memory stay
where they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from topics.engine.locators import Locator
from topics.engine.record_index import IndexEntry, RecordIndex
from topics.engine.removal import live_of
from topics.engine.store import Store
from topics.engine.topic import Topic


def parts(topic: Topic, extents: Iterable[IndexEntry]) -> Iterator[list[IndexEntry]]:
    """The extents that `seal` has not put into the index, a few at a time: no write reaches from
    one part into the next. The topic may change between two parts.
    """
    part: list[IndexEntry] = []
    for extent in extents:
        if extent.first_seq <= topic.sealed_seq:
            continue
        if part and not topic.index.is_within_entry(extent.first_seq):
            yield part
            part = []
        part.append(extent)
    if part:
        yield part


def seal(topic: Topic, extents: Sequence[IndexEntry], store: Store) -> list[Locator]:
    """Put extents into the index of a topic. The locators of those in which nothing lives: they are
    not used.
    """
    unused = []
    for group in _contiguous(extents):
        index = topic.index
        first, stop = index.find(group[0].first_seq), index.find(group[-1].last_seq + 1)
        used, gone = [], []
        for extent in group:
            count, size = _live_between(topic, extent.first_seq, extent.last_seq + 1, store)
            if count:
                used.append(extent._replace(size=size))
                gone.append(extent.record_count - count)
            else:
                unused.append(extent.locator)
        if first < stop:
            locators = index.locators(first, stop)
            index.replace(first, stop, used, gone)
            store.release(locators)
        topic.sealed_seq = max(topic.sealed_seq, group[-1].last_seq)
    return unused


def _contiguous(extents: Sequence[IndexEntry]) -> Iterator[list[IndexEntry]]:
    group: list[IndexEntry] = []
    for extent in extents:
        if group and group[-1].last_seq + 1 != extent.first_seq:
            yield group
            group = []
        group.append(extent)
    if group:
        yield group


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
