"""Selection: the live records of a topic below a seq, or only those with a matching tag, from the
oldest to the newest.

    search: the seqs of the next slice --> found --> take: the seqs that are still live
                                             '-----> count_slice: only their number

Finding one slice takes a few milliseconds, regardless of the number of matching records. So a
caller that lets other work run between two slices never blocks its shard. Each record is taken
once. A record is skipped if it is removed from the topic before it is taken, or if its delete flag
cannot be read.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from topics.engine.changes.delete_records import SLICE_ENTRIES, SLICE_SEARCH_MAX, matching_slice
from topics.engine.removal import deleted_in
from topics.engine.store import Store, Unreadable
from topics.engine.topic import Topic
from topics.formats.api.diff_body import TagMatch
from topics.formats.disk.records import live_runs
from topics.formats.ranges import IndexRun


class Selection:
    """The records below ``bound``. If a match is given, only the matching records."""

    __slots__ = ("_bound", "_found", "_match", "_next", "_store", "_taken", "_topic")

    def __init__(self, topic: Topic, store: Store, bound: int, match: TagMatch | None) -> None:
        self._topic, self._store, self._match = topic, store, match
        self._bound = min(bound, topic.head_seq + 1)
        self._next = topic.start_seq  # the search continues here
        self._found: Sequence[int] = ()
        self._taken = 0  # number of found seqs that were taken

    @property
    def is_exhausted(self) -> bool:
        """Return whether all records have been taken."""
        return self._taken == len(self._found) and self._next >= self._bound

    def search(self) -> None:
        """Find the next slice, unless records of the last slice have not been taken yet.

        A slice may contain no matching record.
        """
        if self._taken < len(self._found) or self.is_exhausted:
            return
        self._taken = 0
        if self._match is None:
            self._found, self._next = self._live_slice()
        else:
            self._found, self._next = matching_slice(
                self._topic, self._match, self._next, self._bound, self._store
            )

    def take(self, count: int = sys.maxsize) -> list[int]:
        """Return the next found seqs, at most ``count``. Call `search` again if there are none."""
        while self._taken < len(self._found):
            seqs = self._found[self._taken : self._taken + count]
            self._taken += len(seqs)
            live = [seq for run in _live(self._topic, self._store, seqs) for seq in run]
            if live:
                return live
        return []

    def count_slice(self) -> int:
        """Take the next slice, and return the number of its records."""
        if self._match is not None or self._taken < len(self._found):
            self.search()
            seqs = self._found[self._taken :]
            self._taken = len(self._found)
            return count_live(self._topic, self._store, seqs)
        topic, index = self._topic, self._topic.index
        at = index.find(max(self._next, topic.start_seq))
        if at == len(index):
            self._next = self._bound
            return 0
        # Only a part of the first entry may be selected, so it is counted record by record. An
        # entry that extends beyond the bound becomes the first entry of the next slice.
        first = _live_in(topic, at, self._next, self._bound, self._store)
        stop = max(at + 1, min(index.find(self._bound), at + SLICE_ENTRIES))
        self._next = index.entry(stop)[0] if stop < len(index) else self._bound
        return sum(end - begin for begin, end in first) + index.totals(at + 1, stop)[0]

    def _live_slice(self) -> tuple[list[int], int]:
        """Return the live seqs of a slice, and the seq at which the next slice begins."""
        topic, index, seqs = self._topic, self._topic.index, list[int]()
        begin = max(self._next, topic.start_seq)
        bound = min(self._bound, begin + SLICE_SEARCH_MAX)
        start = index.find(begin)
        stop = min(index.find(bound) + 1, start + SLICE_ENTRIES, len(index))
        for at in range(start, stop):
            first_seq = index.entry(at)[0]
            for low, high in _live_in(topic, at, begin, bound, self._store):
                seqs += range(first_seq + low, first_seq + high)
        return seqs, bound if stop == len(index) else min(bound, index.entry(stop)[0])


def select(topic: Topic, store: Store, before_seq: int | None, match: TagMatch | None) -> Selection:
    """Return a selection of the existing records that are below ``before_seq`` and match. A
    condition that is None is ignored.
    """
    bound = topic.head_seq + 1 if before_seq is None else before_seq
    return Selection(topic, store, bound, match)


def count_live(topic: Topic, store: Store, seqs: Sequence[int]) -> int:
    """Return how many of these seqs, in ascending order, belong to live records."""
    return sum(map(len, _live(topic, store, seqs)))


def _live(topic: Topic, store: Store, seqs: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield the seqs whose records are live, entry by entry."""
    index, position = topic.index, 0
    while position < len(seqs):
        at = index.find(max(seqs[position], topic.start_seq))
        if at == len(index):
            return
        first_seq, count, _, _ = index.entry(at)
        position = bisect_left(seqs, max(first_seq, topic.start_seq), position)
        stop = bisect_left(seqs, first_seq + count, position)
        for begin, end in _live_in(topic, at, 0, first_seq + count, store):
            low = bisect_left(seqs, first_seq + begin, position, stop)
            high = bisect_left(seqs, first_seq + end, low, stop)
            yield seqs[low:high]
        position = stop


def _live_in(topic: Topic, at: int, from_seq: int, bound: int, store: Store) -> Iterator[IndexRun]:
    """Return the runs of live records of an entry, from ``from_seq`` on and below ``bound``."""
    first_seq, count, _, size = topic.index.entry(at)
    start = max(from_seq, topic.start_seq) - first_seq
    stop = min(bound - first_seq, count)
    if not size or start >= stop:
        return iter(())
    try:
        return iter([*live_runs(deleted_in(topic, at, store), max(start, 0), stop)])
    except Unreadable:
        return iter(())
