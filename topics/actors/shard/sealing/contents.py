"""Contents of a segment: the records of one part of the log, by topic, as the segment is built.

A topic's writes in the part become stretches of contiguous seqs; each stretch becomes one or more
extents. Records and whole topics may go while the segment is built, so each write is looked up when
its turn comes. The delete flags are asked for last.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from topics.actors.shard.record_store import RecordStore
from topics.engine.locators import Locator
from topics.engine.record_index import IndexEntry
from topics.engine.topic import Topic
from topics.formats.buffers import Buffer
from topics.formats.disk.extent_build import Piece
from topics.formats.disk.records import RecordsView
from topics.formats.disk.segment_build import Source


class Contents:
    """The unsealed records of some topics between two LSNs.

    ``topics``: by id; `Sealing` takes those out that are done.
    """

    def __init__(self, store: RecordStore, topics: dict[int, Topic], base: int, end: int) -> None:
        self._store, self.topics, self.base, self.end = store, topics, base, end

    def writes(self, topic: Topic, seq: int = 0) -> Iterator[IndexEntry]:
        """The topic's writes that hold ``seq`` or later records."""
        return unsealed_writes(topic, self.base, self.end, seq)

    def sources(self) -> Iterator[Source]:
        """What the segment is built of."""
        for topic in self.topics.values():
            seq = topic.sealed_seq + 1
            while (entry := next(self.writes(topic, seq), None)) is not None:
                first = seq = max(entry.first_seq, topic.start_seq, seq)
                stretch = _Stretch(self._store, self.writes(topic, first), first)
                yield Source(topic.id, first, stretch)
                seq = stretch.seq

    def delete_flags(self, topic_id: int, first_seq: int, count: int) -> bytearray:
        """Delete flags of these seqs, as they are now."""
        return current_flags(self._store, self.topics[topic_id], first_seq, count)


class _Stretch:
    """Pieces of a stretch of contiguous seqs. ``seq``: the first one not given so far."""

    def __init__(self, store: RecordStore, writes: Iterator[IndexEntry], seq: int) -> None:
        self._store, self._writes, self.seq = store, writes, seq

    def __iter__(self) -> Iterator[Piece]:
        for entry in self._writes:
            start = self.seq - entry.first_seq
            if start < 0:
                return
            self.seq = entry.first_seq + entry.record_count
            view = self._store.records(entry.locator)
            assert isinstance(view, RecordsView), "a write in the log is read through its frame"
            yield view, start, entry.record_count


def unsealed_writes(topic: Topic, base: int, end: int, seq: int = 0) -> Iterator[IndexEntry]:
    """Writes of this part of the log that hold ``seq`` or later records, and are in no segment."""
    return topic.index.entries_between(base, end, max(seq, topic.sealed_seq + 1))


class FlagsStore(Protocol):
    """Whatever knows the delete flags of entries, as `Store.delete_flags`."""

    def delete_flags(self, locator: Locator) -> Buffer | None:
        """A byte for each record, 1: deleted; None when none is."""


def current_flags(store: FlagsStore, topic: Topic, first_seq: int, count: int) -> bytearray:
    """Delete flags of these seqs as they are now. Records that a cap or their age took count as
    deleted.
    """
    flags, end = bytearray(count), first_seq + count
    for seq, length, locator in topic.index.not_whole(first_seq, end):
        own = b"\1" * length if locator is None else store.delete_flags(locator)
        start, stop = max(seq, first_seq), min(seq + length, end)
        if own is not None:
            flags[start - first_seq : stop - first_seq] = own[start - seq : stop - seq]
    below = min(max(topic.start_seq - first_seq, 0), count)
    flags[:below] = b"\1" * below
    return flags
