"""Selection: the live records of a topic below a seq, all or those with a tag, oldest first.

They are taken once. What leaves the topic meanwhile is passed over, and so are records of
which it cannot be read whether they live.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import islice

from topics.engine.changes.delete_records import matching_seqs
from topics.engine.removal import deleted_in
from topics.engine.store import Store, Unreadable
from topics.engine.topic import Topic
from topics.formats.api.diff_body import TagMatch
from topics.formats.disk.records import live_runs
from topics.formats.ranges import IndexRun


class Selection:
    """The records below ``bound`` that match, if a match is given. ``at``: no seq below it is left
    to be taken.
    """

    __slots__ = ("_bound", "_seqs", "_store", "_topic", "at")

    def __init__(self, topic: Topic, store: Store, bound: int, match: TagMatch | None) -> None:
        self._topic, self._store = topic, store
        self._bound = min(bound, topic.head_seq + 1)
        self._seqs = None if match is None else matching_seqs(topic, match, self._bound, store)
        self.at = topic.start_seq

    def take(self, count: int) -> list[int]:
        """The next ones, at most ``count``; none: there are no more."""
        taken = [*islice(self._left(), count)]
        self.at = taken[-1] + 1 if taken else self._bound
        return taken

    def left_of(self, seqs: Sequence[int]) -> list[int]:
        """Those of these seqs, rising, that may be left to be taken."""
        found = seqs[bisect_left(seqs, self.at) : bisect_left(seqs, self._bound)]
        return [*found] if self._seqs is None else sorted({*found}.intersection(self._seqs_left()))

    def drop(self) -> int:
        """Take all that are left; how many they are."""
        count, self.at = self.count_left(), self._bound
        return count

    def count_left(self) -> int:
        """How many are left to be taken."""
        if self._seqs is not None:
            return count_live(self._topic, self._store, self._seqs_left())
        topic, index = self._topic, self._topic.index
        start, stop = index.find(max(self.at, topic.start_seq)), index.find(self._bound)
        # The first and the last entry may be meant in part.
        return index.totals(start + 1, max(start + 1, stop))[0] + sum(
            end - begin
            for at in {start, stop}
            if at < len(index)
            for begin, end in _live_in(topic, at, self.at, self._bound, self._store)
        )

    def _seqs_left(self) -> Sequence[int]:
        assert self._seqs is not None, "a match names its seqs"
        return self._seqs[bisect_left(self._seqs, self.at) :]

    def _left(self) -> Iterator[int]:
        if self._seqs is not None:
            for runs in _live(self._topic, self._store, self._seqs_left()):
                yield from runs
            return
        topic, index = self._topic, self._topic.index
        at = index.find(max(self.at, topic.start_seq))
        while at < len(index) and index.entry(at)[0] < self._bound:
            first_seq = index.entry(at)[0]
            for start, stop in _live_in(topic, at, self.at, self._bound, self._store):
                yield from range(first_seq + start, first_seq + stop)
            at += 1


def select(topic: Topic, store: Store, before_seq: int | None, match: TagMatch | None) -> Selection:
    """The records of now that are below ``before_seq`` and match, each if given."""
    bound = topic.head_seq + 1 if before_seq is None else before_seq
    return Selection(topic, store, bound, match)


def count_live(topic: Topic, store: Store, seqs: Sequence[int]) -> int:
    """How many of these seqs, rising, are those of live records."""
    return sum(map(len, _live(topic, store, seqs)))


def _live(topic: Topic, store: Store, seqs: Sequence[int]) -> Iterator[Sequence[int]]:
    """Those of these seqs that live, entry by entry."""
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
    """Runs of live records of an entry, of those from ``from_seq`` on and below ``bound``."""
    first_seq, count, _, size = topic.index.entry(at)
    start = max(from_seq, topic.start_seq) - first_seq
    stop = min(bound - first_seq, count)
    if not size or start >= stop:
        return iter(())
    try:
        return iter([*live_runs(deleted_in(topic, at, store), max(start, 0), stop)])
    except Unreadable:
        return iter(())
