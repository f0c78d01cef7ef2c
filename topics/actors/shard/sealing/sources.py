"""Sources of a new segment: records by topic, from a full log file or from other segments.

    read from   content                                               how it is handled
    log file    writes with contiguous seqs, including dead records   become one source
    segments    live records with contiguous seqs, from any segment   become one source
    segments    dead records in between, below GAP_BYTES              copied and flagged as deleted
    segments    longer gaps in between                                end the source

Records and entire topics may be deleted while the segment is being built, so each entry is looked
up when it is needed. The delete flags are read last.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from topics.actors.shard.record_store import RecordStore
from topics.engine.locators import Locator, is_extent, split_locator
from topics.engine.record_index import IndexEntry
from topics.engine.topic import Topic
from topics.formats.buffers import Buffer
from topics.formats.disk.extent_build import ViewSlice
from topics.formats.disk.extent_view import ExtentView
from topics.formats.disk.records import RecordsView, live_runs
from topics.formats.disk.segment_build import ExtentSource
from topics.formats.ranges import IndexRun
from topics.storage.segments.maps import MappedSegment
from topics.storage.segments.merge_reader import ExtentRequest, MergeReader

GAP_BYTES: Final = 4096  # a smaller gap does not justify another extent and index entry
STEP_ENTRIES: Final = 512
STEP_RECORDS: Final = 4096


@dataclass(slots=True)
class Span:
    """The entries of a topic to be moved: from ``first_seq`` to ``last_seq``, except in memory.

    There are no entries if ``last_seq`` is less than ``first_seq``.
    """

    topic: Topic
    first_seq: int
    last_seq: int


class LogFile:
    """The unsealed records of a log file from ``base`` to ``end``."""

    def __init__(self, store: RecordStore, base: int, end: int) -> None:
        self._store, self.base, self.end = store, base, end
        self.maps: dict[int, MappedSegment] = {}  # empty, because the source is not a segment
        # Keyed by topic id. ``last_seq`` is final when the extents of the topic have been built.
        self.spans: dict[int, Span] = {}

    def find(self, topics: Iterable[Topic]) -> Iterator[int]:
        """Find the topics with records. Yields the number of entries of each step."""
        for topic in topics:
            if next(self.writes(topic), None) is not None:
                # The span is empty until `sources` has built the topic. It then grows to the last
                # sealed record.
                first_seq = topic.sealed_seq + 1
                self.spans[topic.id] = Span(topic, first_seq, first_seq - 1)
            yield 1

    def writes(self, topic: Topic, seq: int = 0) -> Iterator[IndexEntry]:
        """Return the topic's unsealed writes that contain ``seq`` or later records."""
        seq = max(seq, topic.sealed_seq + 1)
        return topic.index.entries_between(self.base, self.end, seq)

    def sources(self) -> Iterator[ExtentSource]:
        """Yield the sources of the segment."""
        for span in self.spans.values():
            topic, seq = span.topic, 0
            # Look up the next write each time, because writes may be deleted between two steps.
            while (entry := next(self.writes(topic, seq), None)) is not None:
                first = max(entry.first_seq, topic.start_seq, seq)
                span.last_seq = first - 1
                yield ExtentSource(topic.id, first, self._adjacent_writes(span))
                seq = span.last_seq + 1

    def _adjacent_writes(self, span: Span) -> Iterator[ViewSlice]:
        """Yield writes of contiguous seqs, starting after the last seq of the span."""
        seq = span.last_seq + 1
        for first_seq, count, locator, _, _ in self.writes(span.topic, seq):
            # A hole in the seqs ends the extent, because an extent contains contiguous seqs.
            if seq < first_seq:
                break
            view = self._store.records(locator)
            assert isinstance(view, RecordsView), "a write in the log is read through its frame"
            yield view, seq - first_seq, count
            seq = first_seq + count
        # The last seq is known only now, after all slices have been taken.
        span.last_seq = seq - 1


class Segments:
    """The live records of adjacent segments. ``numbers``: the numbers of these segments."""

    def __init__(self, store: RecordStore, reader: MergeReader) -> None:
        self._store, self._reader, self.numbers = store, reader, frozenset(reader.segments)
        self.maps = reader.maps
        headers = [segment.header for segment in reader.segments.values()]
        self.base, self.end = headers[0].base, headers[-1].end
        self.spans: dict[int, Span] = {}  # by topic id

    def find(self, topics: Iterable[Topic]) -> Iterator[int]:
        """Find the topics with records. Yields the number of entries of each step."""
        for topic in topics:
            span = yield from self._span(topic)
            if span is not None:
                self.spans[topic.id] = span

    def _span(self, topic: Topic) -> Generator[int, None, Span | None]:
        first_seq = last_seq = 0
        index = topic.index
        for start, stop in sealed_entries(topic):
            # Scan the sealed entries for entries in the segments to be merged.
            for number, locator in enumerate(index.locators(start, stop), start):
                if self._is_in(locator):
                    first, count, _, _ = index.entry(number)
                    first_seq, last_seq = first_seq or first, first + count - 1
            yield stop - start
        yield 1
        return Span(topic, first_seq, last_seq) if last_seq else None

    def _is_in(self, locator: Locator) -> bool:
        return is_extent(locator) and split_locator(locator)[0] in self.numbers

    def wanted(self) -> Iterator[ExtentRequest]:
        """Yield, for each extent, which of its records will be read."""
        for span in self.spans.values():
            for entry in self._entries(span):
                start = max(span.topic.start_seq - entry.first_seq, 0)
                yield ExtentRequest(entry.locator, start, self._store.delete_flags(entry.locator))

    def _entries(self, span: Span) -> Iterator[IndexEntry]:
        for entry in span.topic.index.from_seq(span.first_seq):
            if entry.first_seq > span.last_seq:
                return
            if entry.size and self._is_in(entry.locator):
                yield entry

    def sources(self) -> Iterator[ExtentSource]:
        """Yield the sources of the segment. An empty source marks a step. Raises `Damaged`."""
        for span in self.spans.values():
            yield from self._adjacent_extents(span)

    def _adjacent_extents(self, span: Span) -> Iterator[ExtentSource]:
        topic_id, slices = span.topic.id, list[ViewSlice]()
        first = end = 0
        for entry in self._entries(span):
            view = self._reader.view(entry.locator)
            start = max(span.topic.start_seq - entry.first_seq, 0)
            for run in kept_runs(view, self._store.delete_flags(entry.locator), start):
                if run is None:
                    yield ExtentSource(topic_id, first, ())
                    continue
                seq = entry.first_seq + run[0]
                # If the run does not directly follow the previous run, yield the source, and begin
                # another source.
                if slices and seq != end:
                    yield ExtentSource(topic_id, first, slices)
                    slices = []
                first = first if slices else seq
                slices.append((view, *run))
                end = entry.first_seq + run[1]
        yield ExtentSource(topic_id, first, slices)


def sealed_entries(topic: Topic) -> Iterator[tuple[int, int]]:
    """Yield the index range ``(start, stop)`` of the next sealed entries of a topic, step by step.

    The topic may change between two steps.
    """
    seq, index = 0, topic.index
    # Find the position again by seq, because entries may have been removed since the last step.
    while True:
        start = index.find(seq)
        stop = min(start + STEP_ENTRIES, index.find(topic.sealed_seq + 1))
        if start >= stop:
            return
        first_seq, count, _, _ = index.entry(stop - 1)
        seq = first_seq + count
        yield start, stop


def kept_runs(view: ExtentView, deleted: Buffer | None, start: int) -> Iterator[IndexRun | None]:
    """Yield the runs of records that are copied, beginning at ``start``, and None between steps."""
    begin = end = start
    for step in range(start, view.count, STEP_RECORDS):
        for run in live_runs(deleted, step, min(step + STEP_RECORDS, view.count)):
            # Join runs across a short gap, and end the run at a longer gap.
            if begin == end:
                begin = run[0]
            elif view.size(end, run[0]) >= GAP_BYTES:
                yield begin, end
                begin = run[0]
            end = run[1]
        yield None
    if begin < end:
        yield begin, end


def current_flags(store: RecordStore, topic: Topic, first_seq: int, count: int) -> bytearray:
    """Return the current delete flags of these seqs.

    Records that were removed by a cap or by age count as deleted.
    """
    flags, end = bytearray(count), first_seq + count
    # A gap in the index has no live records, so all of its seqs count as deleted.
    for seq, length, locator in topic.index.parts_with_gaps(first_seq, end):
        own = b"\1" * length if locator is None else store.delete_flags(locator)
        start, stop = max(seq, first_seq), min(seq + length, end)
        if own is not None:
            flags[start - first_seq : stop - first_seq] = own[start - seq : stop - seq]
    # Records below the start have no delete flags of their own.
    below = min(max(topic.start_seq - first_seq, 0), count)
    flags[:below] = b"\1" * below
    return flags
