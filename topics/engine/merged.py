"""Merged records: extents of a merged segment take the place of the extents that they were copied
from.

Unlike in `sealed`, one extent may become several, with seqs between them that are in none: their
records were dead when the copy was made. Records in memory stay where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from topics.engine.locators import Locator
from topics.engine.record_index import IndexEntry
from topics.engine.store import Store
from topics.engine.topic import Topic


class MergedExtent(NamedTuple):
    """An extent in which records live. ``entry.size``: bytes of the live ones; ``gone``: how many
    records of it are dead.
    """

    entry: IndexEntry
    gone: int


def replace_merged(
    topic: Topic,
    extents: Sequence[MergedExtent],
    first_seq: int,
    last_seq: int,
    is_merged: Callable[[Locator], bool],
    store: Store,
) -> None:
    """Put ``extents`` where the entries with `is_merged` locators are that begin between these
    seqs. What lives is the same before and after.
    """
    index, at, taken = topic.index, topic.index.find(first_seq), 0
    while at < len(index) and index.entry(at)[0] <= last_seq:
        if not is_merged(index.entry(at)[2]):
            at += 1
            continue
        stop = _run_end(topic, at, last_seq, is_merged)
        end = index.whole_entry(stop - 1).last_seq + 1
        begin = taken
        while taken < len(extents) and extents[taken].entry.first_seq < end:
            taken += 1
        _replace(topic, at, stop, extents[begin:taken], store)
        at += taken - begin
    assert taken == len(extents), "every extent takes the place of entries"


def _run_end(topic: Topic, at: int, last_seq: int, is_merged: Callable[[Locator], bool]) -> int:
    index, stop = topic.index, at + 1
    while stop < len(index):
        first_seq, _, locator, _ = index.entry(stop)
        if first_seq > last_seq or not is_merged(locator):
            break
        stop += 1
    return stop


def _replace(
    topic: Topic, at: int, stop: int, extents: Sequence[MergedExtent], store: Store
) -> None:
    index = topic.index
    locators, (count, size) = index.locators(at, stop), index.totals(at, stop)
    entries, gone = [extent.entry for extent in extents], [extent.gone for extent in extents]
    live = sum(entry.record_count for entry in entries) - sum(gone)
    assert live == count, "as many records live in the merged extents"
    index.replace(at, stop, entries, gone)
    # Sizes of an extent that could not be read for a moment may have been guessed.
    topic.bytes += sum(entry.size for entry in entries) - size
    store.release(locators)
