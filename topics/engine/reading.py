"""The difference read (§3): which records a cursor gets, and where it stands afterwards."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from topics.engine.locators import in_log
from topics.engine.store import Store, Unreadable
from topics.engine.topic import Topic
from topics.formats.api.requests import Diff
from topics.formats.buffers import Buffer
from topics.formats.disk.records import json_nodes, live_runs
from topics.formats.ranges import SeqRange

# A read that must skip most of what it sees gives way to others after so many records; one that
# skips nothing never gets there.
SCAN_RECORDS_MAX = 4000
_NOWHERE = in_log(0)


@dataclass(frozen=True, slots=True)
class Tombstone:
    """Loss, told in band (§3.3). Both ends of the gap are lost."""

    gap_from: int
    gap_to: int
    reason: str
    earliest_seq: int
    head_seq: int

    def as_json(self) -> dict[str, Any]:
        """As readers are told."""
        return {
            "gap_from": self.gap_from, "gap_to": self.gap_to, "reason": self.reason,
            "missed_estimate": self.gap_to - self.gap_from + 1, "earliest_seq": self.earliest_seq, "head_seq": self.head_seq,
        }  # fmt: skip


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
    unfinished: bool = (
        False  # nothing was found yet and there is more to look at: ask again from next_from_seq
    )

    @property
    def caught_up(self) -> bool:
        """The only sign that there is no more right now."""
        return self.next_from_seq >= self.head_seq

    @property
    def worth_answering(self) -> bool:
        """Whether a long poll ends with this page."""
        return bool(self.count or self.tombstone)


def read(
    topic: Topic,
    asked: Diff,
    store: Store,
    from_seq: int | None = None,
    head_seq: int | None = None,
) -> Page:
    """Records after the cursor, at most ``limit`` of them and about ``max_batch_bytes``, but at
    least one.

    ``from_seq`` replaces the cursor of ``asked`` when a read goes on where an unfinished one
    stopped. ``head_seq`` is what the reader is to take for the head, if it may not see all that is
    committed. No page goes past that, nor does a gap; past ``asked.until_seq`` only one whose gap
    does: a gap is told whole.
    """
    start = asked.from_seq if from_seq is None else from_seq
    head = topic.head_seq if head_seq is None else min(head_seq, topic.head_seq)
    tombstone = _recreated(topic, asked, head) if from_seq is None else None
    if tombstone:
        start = 0
    last = head if asked.until_seq is None else min(asked.until_seq, head)
    if not tombstone and start < last and start + 1 < topic.evict_floor:
        if topic.start_seq > last:
            last = head
        tombstone = _evicted(topic, start, last, head)
    page = Page(start, min(start, topic.head_seq), head, _earliest(topic, head), tombstone)
    if start < last:
        _collect(topic, asked, store, page, last)
    return page


def _earliest(topic: Topic, head: int) -> int:
    """First live seq as a reader sees it for whom ``head`` is the head."""
    return min(topic.start_seq, head + 1)


def _recreated(topic: Topic, asked: Diff, head: int) -> Tombstone | None:
    """The cursor belongs to an earlier topic of this name: its epoch says so, or a seq that this
    one never had.
    """
    if asked.epoch == topic.epoch or (asked.epoch is None and asked.from_seq <= topic.head_seq):
        return None
    return Tombstone(1, head, "recreated", _earliest(topic, head), head)


def _evicted(topic: Topic, from_seq: int, last: int, head: int) -> Tombstone:
    """The cursor has fallen behind a floor. The reason is the cause that took something above it;
    several, or a restart, are mixed.
    """
    causes = {
        "cap": topic.cap_floor,
        "ttl": topic.ttl_floor,
        "mixed": topic.loss_floor,
        "damaged": topic.damage_floor,
    }
    met = [cause for cause, floor in causes.items() if from_seq + 1 < floor]
    gap_to = min(topic.start_seq - 1, last)
    return Tombstone(
        from_seq + 1, gap_to, met[0] if len(met) == 1 else "mixed", _earliest(topic, head), head
    )


def _lost(topic: Topic, page: Page, lost: SeqRange) -> Tombstone:
    """The reader has come to what a restart took, or to what was damaged, and has got nothing
    before it.

    What its filter dropped is not part of the gap.
    """
    if lost in topic.damaged:
        return _damaged(
            page, SeqRange(max(lost[0], page.from_seq + 1), min(lost[1], page.head_seq))
        )
    gap_from = lost[0] if page.scanned else page.from_seq + 1
    return Tombstone(
        gap_from, min(lost[1], page.head_seq), "mixed", page.earliest_seq, page.head_seq
    )


def _next_loss(topic: Topic, seq: int, last: int) -> SeqRange | None:
    """The first range of lost or damaged seqs that has some from ``seq`` to ``last``."""
    if seq > last or not (topic.losses or topic.damaged):
        return None
    return min(
        (lost for lost in (*topic.losses, *topic.damaged) if lost[1] >= seq and lost[0] <= last),
        default=None,
    )


class Hurt(NamedTuple):
    """Seqs ``first`` to ``last`` cannot be read. ``told``: those that the reader would get, first
    and last.
    """

    first: int
    last: int
    told: SeqRange | None


def _hurt(
    topic: Topic, store: Store, index: int, seq: int, end: int, nodes: frozenset[bytes]
) -> Hurt:
    """Of the seqs from ``seq`` to ``end`` (exclusive) of an entry, the first that cannot be read."""
    first_seq, _, locator, _ = topic.index.entry(index)
    start, stop, dead = seq - first_seq, end - first_seq, None
    try:
        dead = store.delete_flags(locator) if first_seq in topic.index.gone else None
        view = store.records(locator)
        start, stop = view.bad_run(start, stop) or (start, stop)
        told = view.wanted(start, stop, nodes, dead)
    except Unreadable:  # not even the tables: whatever is not deleted
        runs = [*live_runs(dead, start, stop)]
        told = (runs[0][0], runs[-1][1] - 1) if runs else None
    return Hurt(
        first_seq + start,
        first_seq + stop - 1,
        told and SeqRange(first_seq + told[0], first_seq + told[1]),
    )


def _damaged(page: Page, lost: SeqRange) -> Tombstone:
    return Tombstone(lost[0], lost[1], "damaged", page.earliest_seq, page.head_seq)


def _end(topic: Topic, last: int) -> tuple[int, int]:
    """Index past the entries that hold anything up to ``last``, and of the one that goes on behind
    it, -1 for none.
    """
    frames = topic.index
    if last == topic.head_seq:
        return len(frames), -1
    end = frames.find(last + 1)
    cut = end < len(frames) and frames.entry(end)[0] <= last
    return (end + 1, end) if cut else (end, -1)


def _collect(topic: Topic, asked: Diff, store: Store, page: Page, last: int) -> None:
    nodes = json_nodes(asked.nodes) if asked.nodes and topic.committed.dedupe_node else frozenset()
    frames, gone, limit, budget = (
        topic.index,
        topic.index.gone,
        asked.limit,
        asked.max_batch_bytes,
    )
    seq = min(max(page.from_seq + 1, topic.start_seq), last + 1)
    end, cut = _end(topic, last)
    index, lost, looked = frames.find(seq) if seq <= last else end, _next_loss(topic, seq, last), 0
    hurt: Hurt | None = None  # ahead, in the entry that is read
    while True:
        first_seq, count, locator, size = (
            frames.entry(index) if index < end else (last + 1, 0, _NOWHERE, 0)
        )
        if index == cut:
            count = last + 1 - first_seq
        if first_seq > seq:
            seq = first_seq
        if lost is not None and lost[0] <= seq:
            if page.worth_answering:  # the next read gets the tombstone
                seq = lost[0]
                break
            if lost[1] > last:  # a gap is told whole, and the reader goes on behind it
                last = page.head_seq
                end, cut = _end(topic, last)
            page.tombstone = _lost(topic, page, lost)
            seq = page.tombstone.gap_to + 1
            index, lost = frames.find(seq) if seq <= last else end, _next_loss(topic, seq, last)
            continue
        if hurt is not None and hurt.first <= seq:
            if hurt.told is not None:
                if page.worth_answering:
                    break
                page.tombstone = _damaged(page, hurt.told)
            page.scanned += hurt.last + 1 - seq
            index, seq, looked, hurt = (
                index + (hurt.last + 1 == first_seq + count),
                hurt.last + 1,
                looked + 1,
                None,
            )
            continue
        if index == end:
            seq = last + 1
            break
        if looked >= SCAN_RECORDS_MAX:
            page.unfinished = not page.worth_answering
            break
        if not size:  # nothing lives in it
            index, seq, looked = index + 1, first_seq + count, looked + 1
            continue
        bound = (
            count if hurt is None else hurt.first - first_seq
        )  # nothing before it is known as damaged
        start, stop, dead = seq - first_seq, bound, None
        try:
            if first_seq in gone and (dead := store.delete_flags(locator)) is not None:
                window = min(start + SCAN_RECORDS_MAX, bound)
                start, stop = next(live_runs(dead, start, window), (window, window))
                looked += first_seq + start - seq
                seq = first_seq + start
                if start == stop:
                    index += stop == count
                    continue
            if page.count >= limit or budget <= 0:
                break
            view = store.records(locator)
            whole = view.cuts_nothing(
                nodes, asked.include_tags, asked.include_meta, asked.include_data
            )
            room = start + limit - page.count
            stop = view.fit(start, min(stop if whole else bound, room), budget)
            if stop == start:
                if page.count:
                    break
                stop = start + 1  # at least one record, whatever its size
            if whole:
                piece = view.slice(start, stop)
                page.pieces.append(piece)
                page.count += stop - start
                page.scanned += stop - start
                budget -= len(piece)
            else:
                found = view.select(
                    start,
                    stop,
                    nodes,
                    asked.include_tags,
                    asked.include_meta,
                    dead,
                    asked.include_data,
                )
                page.pieces.extend(record for _, record in found)
                page.count += len(found)
                page.scanned += (
                    stop - start - (0 if dead is None else bytes(dead[start:stop]).count(1))
                )
                budget -= sum(len(record) for _, record in found)
        except Unreadable:
            hurt = _hurt(topic, store, index, seq, first_seq + count, nodes)
            continue
        looked += stop - start
        seq = first_seq + stop
        if stop == count:
            index += 1
    page.next_from_seq = seq - 1
