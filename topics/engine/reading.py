"""The difference read (§3): which records a cursor gets, and where it stands afterwards."""

from __future__ import annotations

from dataclasses import dataclass, field

from topics.engine.frames import RecordStore
from topics.engine.topic import Topic
from topics.formats.records import json_nodes
from topics.formats.requests import Buffer, Diff

# A read that must skip most of what it sees gives way to others after so many records; one that skips nothing never gets there.
SCAN_RECORDS_MAX = 4000


@dataclass(frozen=True, slots=True)
class Tombstone:
    """Loss, told in band (§3.3). Both ends of the gap are lost."""

    gap_from: int
    gap_to: int
    reason: str
    earliest_seq: int
    head_seq: int


@dataclass(slots=True)
class Page:
    """Answer to one read."""

    from_seq: int
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    tombstone: Tombstone | None
    pieces: list[Buffer] = field(default_factory=list)  # rendered records, to be joined by commas
    count: int = 0
    scanned: int = 0
    unfinished: bool = False  # nothing was found yet and there is more to look at: ask again from next_from_seq

    @property
    def caught_up(self) -> bool:
        """The only sign that there is no more right now."""
        return self.next_from_seq >= self.head_seq

    @property
    def worth_answering(self) -> bool:
        """Whether a long poll ends with this page."""
        return bool(self.count or self.tombstone)


def read(topic: Topic, asked: Diff, store: RecordStore, from_seq: int | None = None) -> Page:
    """Records after the cursor, at most ``limit`` of them and about ``max_batch_bytes``, but at least one.

    ``from_seq`` replaces the cursor of ``asked`` when a read goes on where an unfinished one stopped.
    """
    start = asked.from_seq if from_seq is None else from_seq
    tombstone = _recreated(topic, asked) if from_seq is None else None
    if tombstone:
        start = 0
    page = Page(start, topic.head_seq, topic.head_seq, topic.earliest_seq, tombstone)
    if start < topic.head_seq:
        _collect(topic, asked, store, page)
    return page


def _recreated(topic: Topic, asked: Diff) -> Tombstone | None:
    """The cursor belongs to an earlier topic of this name: its epoch says so, or a seq that this one never had."""
    if asked.epoch == topic.epoch or (asked.epoch is None and asked.from_seq <= topic.head_seq):
        return None
    return Tombstone(1, topic.head_seq, "recreated", topic.earliest_seq, topic.head_seq)


def _collect(topic: Topic, asked: Diff, store: RecordStore, page: Page) -> None:
    nodes = json_nodes(asked.nodes) if asked.nodes and topic.config.dedupe_node else frozenset()
    frames, budget = topic.frames, asked.max_batch_bytes
    seq = page.from_seq + 1
    index = frames.find(seq)
    while index < len(frames):
        if page.scanned >= SCAN_RECORDS_MAX:
            page.unfinished = not page.count
            break
        first_seq, count, place = frames.entry(index)
        view = store.records(place)
        start = max(seq - first_seq, 0)
        stop = view.fit(start, min(count, start + asked.limit - page.count), budget)
        if stop == start:
            if page.count:
                break
            stop = start + 1  # at least one record, whatever its size
        if view.cuts_nothing(nodes, asked.include_tags, asked.include_meta):
            piece = view.slice(start, stop)
            page.pieces.append(piece)
            page.count += stop - start
            budget -= len(piece)
        else:
            found = view.select(start, stop, nodes, asked.include_tags, asked.include_meta)
            page.pieces.extend(record for _, record in found)
            page.count += len(found)
            budget -= sum(len(record) for _, record in found)
        page.scanned += stop - start
        seq = first_seq + stop
        if stop == count:
            index += 1
        if page.count >= asked.limit or budget <= 0:
            break
    if index < len(frames):
        page.next_from_seq = seq - 1
