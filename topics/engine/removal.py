"""Removal: removes records from a topic, and moves the start of the topic to a later seq.

    cut_to        removes all records below a seq
    delete_runs   removes runs of seqs anywhere
    trim          removes the records of a replayed entry that are below the start of the topic
    settle        moves ``start_seq`` to the first live record, and updates the floors
    begin_at      the same, if the first live record is known

Counts, bytes and floors are exact after each call. `delete_runs` flags the records as deleted in
the store. `cut_to` and `trim` only remove records below ``start_seq``, which need no flags. An
entry without live records is removed from the index when it is the first entry.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, cast

from topics.engine.store import Store, Unreadable, first_live, last_live
from topics.engine.topic import Topic
from topics.formats.buffers import Buffer
from topics.formats.disk.records import AbstractView, live_runs
from topics.formats.ranges import IndexRun, SeqRun


def cut_to(topic: Topic, seq: int, store: Store) -> int:
    """Remove all records below ``seq``.

    Return the seq of the last live record among them, or 0 if none was live.
    """
    index = topic.index
    if seq <= topic.start_seq:
        return 0
    # Only a part of the entry that contains ``seq`` is removed. Process this entry first, because
    # `drop` changes its position in the index.
    stop = index.find(seq)
    last = _cut_entry(topic, stop, seq, store) if stop < len(index) else 0
    if stop:
        last = last or _last_live_seq(topic, stop, store)
        # Compute the remaining totals instead of subtracting each removed record, so that no
        # completely removed entry is read.
        topic.count, topic.bytes = _totals_from(topic, stop)
        # Releasing sealed records is cheap. Other records are released later, because there may be
        # many.
        sealed = min(index.find(topic.sealed_seq + 1), stop)
        store.release(index.locators(0, sealed))
        store.release_later(index.locators(sealed, stop))
        index.drop(stop)
    topic.start_seq = seq
    # ``seq`` may be a deleted record or a seq between two entries. `settle` moves the start to the
    # first live record.
    settle(topic, store)
    if topic.jobs is not None:
        topic.jobs.cut(topic.start_seq)
    return last


def count_below(topic: Topic, seq: int, store: Store) -> int:
    """Return the number of live records that `cut_to` would remove."""
    index, start_seq = topic.index, topic.start_seq
    if seq <= start_seq:
        return 0
    stop = index.find(seq)
    # The entries before ``stop`` are removed completely. Only some records of the entry that
    # contains ``seq`` are removed.
    count = topic.count - _totals_from(topic, stop)[0]
    if stop < len(index):
        first_seq, _, _, size = index.entry(stop)
        if size and first_seq < seq:
            start = max(start_seq - first_seq, 0)
            count += live_of(topic, stop, start, seq - first_seq, store).record_count
    return count


def _totals_from(topic: Topic, stop: int) -> tuple[int, int]:
    """Return the count and the bytes of the live records from the entry ``stop`` on."""
    index = topic.index
    if 2 * stop > len(index):  # sum the shorter part of the index
        return index.totals(stop, len(index))
    count, size = index.totals(0, stop)
    return topic.count - count, topic.bytes - size


def _cut_entry(topic: Topic, at: int, seq: int, store: Store) -> int:
    """Remove the records of an entry that are below ``seq``.

    Return the seq of the last live record among them, or 0 if none was live.
    """
    first_seq, _, _, size = topic.index.entry(at)
    if first_seq >= seq or not size:
        return 0
    live = live_of(topic, at, max(topic.start_seq - first_seq, 0), seq - first_seq, store)
    # The caller moves `start_seq` above these records, so they need no delete flags. Only the
    # counters change.
    if live.last_seq:
        _take(topic, at, live.record_count, live.size)
    return live.last_seq


def trim(topic: Topic, at: int, store: Store) -> None:
    """Remove the records of an entry that are below ``start_seq``.

    A replay calls this for each entry that it adds, because the records may have been removed after
    the entry was written.
    """
    first_seq, count, _, size = topic.index.entry(at)
    if size and first_seq < topic.start_seq:
        live = live_of(topic, at, 0, min(topic.start_seq - first_seq, count), store)
        if live.record_count:
            _take(topic, at, live.record_count, live.size)


def _take(topic: Topic, at: int, count: int, size: int) -> None:
    """Subtract removed records of an entry from the counters of the entry and of the topic."""
    topic.bytes -= topic.index.take(at, count, size)
    topic.count -= count


# Live records of an entry


class LiveRecords(NamedTuple):
    """The live records of a part of an entry. ``last_seq`` is 0 if there are none."""

    record_count: int
    size: int
    last_seq: int


def live_of(topic: Topic, at: int, start: int, stop: int, store: Store) -> LiveRecords:
    """Return count, size and last seq of the live records from ``start`` to ``stop`` (exclusive) of
    an entry.
    """
    first_seq, _, _, _ = topic.index.entry(at)
    deleted, view = deleted_in(topic, at, store), sized_view(topic, at, store)
    count = size = last = 0
    for begin, end in live_runs(deleted, start, stop):
        count += end - begin
        size += view.size(begin, end)
        last = first_seq + end - 1
    return LiveRecords(count, size, last)


def deleted_in(topic: Topic, at: int, store: Store) -> Buffer | None:
    """Return the delete flags of an entry, or None if no record is deleted.

    The store is accessed only if the index counts removed records for the entry.
    """
    first_seq, _, locator, _ = topic.index.entry(at)
    return store.delete_flags(locator) if first_seq in topic.index.removed else None


def sized_view(topic: Topic, at: int, store: Store) -> AbstractView:
    """Return a view of the records of an entry that is used for their lengths only.

    If the records cannot be read, their lengths are estimated, so that damage does not prevent the
    removal of other records.
    """
    _, count, locator, size = topic.index.entry(at)
    try:
        return store.records(locator)
    except Unreadable:
        return _EvenView(count, max(size // topic.index.live_count(at), 1))


class _EvenView(AbstractView):
    """Replaces a view whose lengths cannot be read. All records have the same size."""

    def __init__(self, count: int, size: int) -> None:
        super().__init__(0, count)
        self._ends = range(size, size * count + 1, size)

    @property
    def ends(self) -> memoryview:
        """Return the estimated end of each record."""
        return cast("memoryview", self._ends)


def _last_live_seq(topic: Topic, stop: int, store: Store) -> int:
    """Return the seq of the last live record in the entries before ``stop``, or 0 if there is
    none.
    """
    index = topic.index
    for at in range(stop - 1, -1, -1):
        first_seq, count, _, size = index.entry(at)
        if size:
            deleted = deleted_in(topic, at, store)
            return first_seq + (count - 1 if deleted is None else last_live(deleted, 0, count))
    return 0


# Start of the topic


def settle(topic: Topic, store: Store) -> None:
    """Move ``start_seq`` to the first live record. Lost ranges below it become floors."""
    if topic.index.dead_entries:
        _drop_dead_entries(topic, store)
    begin_at(topic, _first_live_seq(topic, store))


def begin_at(topic: Topic, start: int) -> None:
    """Set ``start_seq``. No record below ``start`` is live. Lost ranges below it become floors."""
    # The lists are in ascending order, so only their beginning can be below the start. A range
    # that became a floor is reported to each reader whose cursor is below it.
    topic.start_seq = start
    while topic.losses and topic.losses[0].first < start:
        topic.loss_floor = max(topic.loss_floor, topic.losses[0].last + 1)
        topic.losses = topic.losses[1:]
    while topic.damaged and topic.damaged[0].first < start:
        topic.damage_floor = max(topic.damage_floor, topic.damaged[0].last + 1)
        topic.damaged = topic.damaged[1:]
    while topic.trimmed and topic.trimmed[0].first < start:
        topic.trim_floor = max(topic.trim_floor, topic.trimmed[0].last + 1)
        topic.trimmed = topic.trimmed[1:]
    # Ranges of records in memory are needed only to compute the losses of a restart. A range below
    # the start has no live record that could be lost.
    while topic.resident and topic.resident[0].last < start:
        topic.resident = topic.resident[1:]
    # Drop the tag indexes that only have seqs below the start.
    while topic.tags:
        oldest = next(iter(topic.tags))
        if topic.tags[oldest].last_seq >= start:
            break
        del topic.tags[oldest]


def _drop_dead_entries(topic: Topic, store: Store) -> None:
    """Drop the entries before the first entry with live records."""
    index, stop = topic.index, 0
    while stop < len(index) and not index.entry(stop)[3]:
        stop += 1
    if stop:
        store.release(index.locators(0, stop))
        index.drop(stop)


def _first_live_seq(topic: Topic, store: Store) -> int:
    """Return the first live seq, or the seq after the head."""
    # If there are no entries, all records up to the head were removed.
    if not len(topic.index):
        return max(topic.start_seq, topic.head_seq + 1)
    first_seq, count, locator, _ = topic.index.entry(0)
    start = max(topic.start_seq, first_seq)
    deleted = store.delete_flags(locator) if first_seq in topic.index.removed else None
    return start if deleted is None else first_seq + first_live(deleted, start - first_seq, count)


# Deletes


def delete_runs(
    topic: Topic, runs: Iterable[SeqRun], store: Store, *, are_finished: bool = False
) -> None:
    """Delete runs of seqs, which are in ascending order.

    ``are_finished``: the seqs are jobs whose states have already been removed.
    """
    if topic.jobs is not None and not are_finished:
        runs = tuple(runs)
        topic.jobs.remove_runs(runs)
    # ``of_entry``, ``entry_first`` and ``entry_end`` describe the entry of the last run, so that
    # sorted runs need few searches in the index.
    index, start_seq, of_entry = topic.index, topic.start_seq, -1
    chunks: list[IndexRun] = []
    entry_first = entry_end = 0
    for first, length in runs:
        # Seqs below `start_seq` have already been removed.
        seq, end = max(first, start_seq), first + length
        # Most runs are in the entry of the previous run, because deletes often contain many short
        # runs of one entry.
        if entry_first <= seq < end <= entry_end:
            chunks.append((seq - entry_first, end - entry_first))
            continue
        at = index.find(seq)
        while at < len(index) and seq < end:
            first_seq, count, _, size = index.entry(at)
            if first_seq >= end:
                break
            # Collect all runs of one entry, so that its flags are written once.
            if at != of_entry:
                if chunks:
                    _delete_in_entry(topic, of_entry, chunks, store)
                of_entry, chunks = at, []
                # An entry without live records gets the range 0 to 0, so that no run takes the
                # fast path into it.
                entry_first, entry_end = first_seq, first_seq + count if size else 0
            if size:
                chunks.append((max(seq - first_seq, 0), min(end - first_seq, count)))
            at += 1
    if chunks:
        _delete_in_entry(topic, of_entry, chunks, store)
    # Settle once, after all runs. In between, positions in the index must not change.
    settle(topic, store)


def _delete_in_entry(topic: Topic, at: int, chunks: list[IndexRun], store: Store) -> None:
    """Flag the records of these runs of an entry as deleted, and update the counters."""
    first_seq, total, locator, left = topic.index.entry(at)
    live, count, size = chunks, total, left
    # If all records of the entry are deleted and none was removed before, use the totals of the
    # entry. Otherwise read the lengths of the records.
    if chunks != [(0, total)] or first_seq in topic.index.removed:
        ends = sized_view(topic, at, store).ends
        try:
            deleted = store.delete_flags(locator)
        except Unreadable:  # no reader can read the entry, so its flags do not matter
            deleted = None
        # If some of the records are deleted already, delete only the others.
        if deleted is not None and 1 in bytes(deleted[chunks[0][0] : chunks[-1][1]]):
            live = [run for chunk in chunks for run in live_runs(deleted, *chunk)]
        count = size = 0
        for start, stop in live:
            count += stop - start
            size += ends[stop - 1] - (ends[start - 1] if start else 0)
    # If all of these records had already been deleted, nothing is written, so a repeated delete
    # costs nothing.
    if count:
        store.flag_deleted(locator, total, live, size)
        _take(topic, at, count, size)
