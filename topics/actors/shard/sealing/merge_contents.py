"""Contents of a merged segment: the live records of some segments, by topic.

    live records of a topic, of neighbouring seqs     -> one extent, from however many
    dead ones between them, less than GAP_BYTES       -> carried along, flagged
    longer gaps                                       -> left out; an extent ends before each

Records and whole topics may go while the segment is built, so each extent is looked up when its
turn comes. The delete flags are asked for last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from topics.actors.shard.sealing.contents import current_flags
from topics.engine.locators import Locator, is_extent, split_locator
from topics.engine.record_index import IndexEntry
from topics.engine.topic import Topic
from topics.formats.buffers import Buffer
from topics.formats.disk.extent_build import Piece
from topics.formats.disk.extent_view import ExtentView
from topics.formats.disk.records import live_runs
from topics.formats.disk.segment_build import Source
from topics.formats.ranges import IndexRun
from topics.storage.segments.merge_reader import MergeReader, Wanted

GAP_BYTES: Final = 4096  # fewer dead bytes are not worth another extent, and entry of the index
STEP_RECORDS: Final = 4096


class MergedTopic(NamedTuple):
    """A topic whose records from ``first_seq`` to ``last_seq`` stand in the merged segments, apart
    from those in memory.
    """

    topic: Topic
    first_seq: int
    last_seq: int


class MergeContents:
    """The live records of ``topics`` (by id) in the segments ``numbers``."""

    def __init__(
        self, reader: MergeReader, topics: dict[int, MergedTopic], numbers: Iterable[int]
    ) -> None:
        self._reader, self._topics, self._numbers = reader, topics, frozenset(numbers)

    def is_merged(self, locator: Locator) -> bool:
        """Whether it locates an extent of one of the segments."""
        return is_extent(locator) and split_locator(locator)[0] in self._numbers

    def wanted(self) -> Iterator[Wanted]:
        """What is read of each extent."""
        for merged in self._topics.values():
            for entry in self._entries(merged):
                start = max(merged.topic.start_seq - entry.first_seq, 0)
                yield Wanted(entry.locator, start, self._reader.delete_flags(entry.locator))

    def _entries(self, merged: MergedTopic) -> Iterator[IndexEntry]:
        for entry in merged.topic.index.from_seq(merged.first_seq):
            if entry.first_seq > merged.last_seq:
                return
            if entry.size and self.is_merged(entry.locator):
                yield entry

    def sources(self) -> Iterator[Source]:
        """What the segment is built of. A source without pieces is a step. Raises `Damaged`."""
        for merged in self._topics.values():
            yield from self._stretches(merged)

    def _stretches(self, merged: MergedTopic) -> Iterator[Source]:
        topic_id, pieces = merged.topic.id, list[Piece]()
        first = end = 0
        for entry in self._entries(merged):
            view = self._reader.view(entry.locator)
            start = max(merged.topic.start_seq - entry.first_seq, 0)
            for run in kept_runs(view, self._reader.delete_flags(entry.locator), start):
                if run is None:
                    yield Source(topic_id, first, ())
                    continue
                seq = entry.first_seq + run[0]
                if pieces and seq != end:
                    yield Source(topic_id, first, pieces)
                    pieces = []
                first = first if pieces else seq
                pieces.append((view, *run))
                end = entry.first_seq + run[1]
        yield Source(topic_id, first, pieces)

    def delete_flags(self, topic_id: int, first_seq: int, count: int) -> bytearray:
        """Delete flags of these seqs, as they are now."""
        return current_flags(self._reader, self._topics[topic_id].topic, first_seq, count)


def kept_runs(view: ExtentView, deleted: Buffer | None, start: int) -> Iterator[IndexRun | None]:
    """The runs of records from ``start`` on that are copied; None between two steps."""
    begin = end = start
    for step in range(start, view.count, STEP_RECORDS):
        for run in live_runs(deleted, step, min(step + STEP_RECORDS, view.count)):
            if begin == end:
                begin = run[0]
            elif view.size(end, run[0]) >= GAP_BYTES:
                yield begin, end
                begin = run[0]
            end = run[1]
        yield None
    if begin < end:
        yield begin, end
