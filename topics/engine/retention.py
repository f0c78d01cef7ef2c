"""What goes from a topic, and where it begins afterwards (decision 0009). Every function leaves
counts, bytes and floors exact.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, cast

from topics.engine.locators import Locator, is_extent
from topics.engine.record_index import IndexEntry, RecordIndex
from topics.engine.store import Store, Unreadable, first_live, last_live
from topics.engine.topic import Topic
from topics.formats.api.topic_config import TopicConfig
from topics.formats.disk.records import View, live_runs
from topics.formats.ranges import IndexRun, SeqRange, SeqRun, joined, united

ENTRIES_AT_ONCE = 256


def cut_to(topic: Topic, seq: int, store: Store) -> int:
    """Take away all that is below ``seq``. The last live seq among it, 0 when nothing lived there."""
    frames = topic.index
    if seq <= topic.start_seq:
        return 0
    whole, last = frames.find(seq), 0
    if whole < len(frames):
        first_seq, _, _, size = frames.entry(whole)
        if first_seq < seq and size:
            cut = _live_of(
                topic, whole, max(topic.start_seq - first_seq, 0), seq - first_seq, store
            )
            last = cut.last_seq
            if last:
                _take(topic, whole, cut.record_count, cut.size)
    if whole:
        last = last or _last_live(topic, whole, store)
        count, size = frames.totals(0, whole)
        topic.count -= count
        topic.bytes -= size
        store.release(frames.locators(0, whole))
        frames.drop(whole)
    topic.start_seq = seq
    settle(topic, store)
    return last


class Live(NamedTuple):
    """What lives in a part of an entry; ``last_seq`` 0: nothing."""

    record_count: int
    size: int
    last_seq: int


def _live_of(topic: Topic, index: int, start: int, stop: int, store: Store) -> Live:
    first_seq, _, locator, _ = topic.index.entry(index)
    dead = store.delete_flags(locator) if first_seq in topic.index.gone else None
    view, count, size, last = _sized(topic, index, store), 0, 0, 0
    for begin, end in live_runs(dead, start, stop):
        count += end - begin
        size += view.size(begin, end)
        last = first_seq + end - 1
    return Live(count, size, last)


def _take(topic: Topic, index: int, count: int, size: int) -> None:
    topic.bytes -= topic.index.take(index, count, size)
    topic.count -= count


class _Even(View):
    """Stands for records whose lengths cannot be read: all count alike."""

    def __init__(self, count: int, size: int) -> None:
        super().__init__(0, count)
        self._ends = range(size, size * count + 1, size)

    @property
    def ends(self) -> memoryview:
        """As `View.ends`."""
        return cast("memoryview", self._ends)


def _sized(topic: Topic, index: int, store: Store) -> View:
    """The records of an entry, for their lengths: damage does not keep the rest of a topic from
    going.
    """
    _, count, locator, size = topic.index.entry(index)
    try:
        return store.records(locator)
    except Unreadable:
        return _Even(count, max(size // topic.index.live_count(index), 1))


def _last_live(topic: Topic, stop: int, store: Store) -> int:
    """The last live seq of the entries before ``stop``, 0 for none."""
    frames = topic.index
    for index in range(stop - 1, -1, -1):
        first_seq, count, locator, size = frames.entry(index)
        if size:
            dead = store.delete_flags(locator) if first_seq in frames.gone else None
            return first_seq + (count - 1 if dead is None else last_live(dead, 0, count))
    return 0


def settle(topic: Topic, store: Store) -> None:
    """Put ``start_seq`` on the first live record, and let what was lost before it become the floor."""
    frames = topic.index
    if frames.dead_entries:
        whole = 0
        while whole < len(frames) and not frames.entry(whole)[3]:
            whole += 1
        if whole:
            store.release(frames.locators(0, whole))
            frames.drop(whole)
    if len(frames):
        first_seq, count, locator, _ = frames.entry(0)
        start = max(topic.start_seq, first_seq)
        if first_seq in frames.gone:
            dead = store.delete_flags(locator)
            if dead is not None:
                start = first_seq + first_live(dead, start - first_seq, count)
        topic.start_seq = start
    else:
        topic.start_seq = max(topic.start_seq, topic.head_seq + 1)
    start = topic.start_seq
    while topic.losses and topic.losses[0][0] < start:
        topic.loss_floor = max(topic.loss_floor, topic.losses[0][1] + 1)
        topic.losses = topic.losses[1:]
    while topic.damaged and topic.damaged[0][0] < start:
        topic.damage_floor = max(topic.damage_floor, topic.damaged[0][1] + 1)
        topic.damaged = topic.damaged[1:]
    while topic.resident and topic.resident[0][1] < start:
        topic.resident = topic.resident[1:]
    while topic.tags:
        oldest = next(iter(topic.tags))
        if topic.tags[oldest].last_seq >= start:
            break
        del topic.tags[oldest]


def trim(topic: Topic, index: int, store: Store) -> None:
    """Take what an entry that was just added holds below ``start_seq``: a replay comes to what had
    gone before.
    """
    first_seq, count, _, size = topic.index.entry(index)
    if size and first_seq < topic.start_seq:
        gone = _live_of(topic, index, 0, min(topic.start_seq - first_seq, count), store)
        if gone.record_count:
            _take(topic, index, gone.record_count, gone.size)


def lose(topic: Topic, lost: SeqRange) -> None:
    """A restart has taken these seqs, the last of the topic; it goes on behind them."""
    topic.losses = joined(topic.losses, lost)
    topic.head_seq = lost[1]


def lose_damaged(topic: Topic, index: int, store: Store) -> None:
    """A write is damaged: it leaves the index, and readers are told of what lived in it."""
    frames = topic.index
    first_seq, count, locator, size = frames.entry(index)
    if size:
        dead = store.delete_flags(locator) if first_seq in frames.gone else None
        live = live_runs(dead, max(topic.start_seq - first_seq, 0), count)
        topic.damaged = united(
            topic.damaged,
            [SeqRange(first_seq + start, first_seq + stop - 1) for start, stop in live],
        )
    topic.count -= frames.live_count(index)
    topic.bytes -= size
    frames.replace(index, index + 1, (), ())
    store.release((locator,))
    settle(topic, store)


# Caps


def apply_caps(topic: Topic, store: Store) -> None:
    """Take the oldest records until what is left fits the committed caps."""
    config = topic.committed
    over_count = topic.count - config.cap_records if config.cap_records else 0
    over_bytes = topic.bytes - config.cap_bytes if config.cap_bytes else 0
    if over_count <= 0 and over_bytes <= 0:
        return
    unknown_to_log = (
        topic.resident and topic.start_seq <= topic.logged_seq
    )  # a replay finds fewer records, and would take less
    last = cut_to(topic, _cut_point(topic, over_count, over_bytes, store), store)
    topic.cap_floor = max(topic.cap_floor, last + 1)
    if unknown_to_log:
        topic.floor_due = True


def fits(config: TopicConfig, count: int, size: int) -> bool:
    """Whether a topic with so much in it is within its caps."""
    return (not config.cap_records or count <= config.cap_records) and (
        not config.cap_bytes or size <= config.cap_bytes
    )


def _cut_point(topic: Topic, over_count: int, over_bytes: int, store: Store) -> int:
    """The lowest seq that may stay when so many records and so many bytes must go."""
    frames, index = topic.index, 0
    while index < len(frames):
        stop = min(index + ENTRIES_AT_ONCE, len(frames))
        count, size = frames.totals(index, stop)
        if stop - index > 1 and over_count < count and over_bytes < size:
            stop = index + 1
            count, size = frames.live_count(index), frames.entry(index)[3]
        if over_count < count and over_bytes < size:
            return _cut_point_within(topic, index, over_count, over_bytes, store)
        over_count -= count
        over_bytes -= size
        if over_count <= 0 and over_bytes <= 0:
            first_seq, count, _, _ = frames.entry(stop - 1)
            return first_seq + count
        index = stop
    return topic.head_seq + 1


def _cut_point_within(
    topic: Topic, index: int, over_count: int, over_bytes: int, store: Store
) -> int:
    first_seq, count, locator, _ = topic.index.entry(index)
    dead = store.delete_flags(locator) if first_seq in topic.index.gone else None
    view = _sized(topic, index, store)
    for start, stop in live_runs(dead, max(topic.start_seq - first_seq, 0), count):
        size = view.size(start, stop)
        if over_count < stop - start and over_bytes < size:
            by_bytes = view.fit(start, stop, over_bytes - 1) + 1 if over_bytes > 0 else start
            return first_seq + max(start + over_count, by_bytes)
        over_count -= stop - start
        over_bytes -= size
        if over_count <= 0 and over_bytes <= 0:
            return first_seq + stop
    return first_seq + count


# Age


def first_not_before(topic: Topic, ts: int, store: Store) -> int:
    """Seq of the first record of ``ts`` or later."""
    frames = topic.index
    index = frames.find_ts(ts) - 1
    if index < 0:
        return topic.start_seq
    first_seq, count, locator, _ = frames.entry(index)
    if not is_extent(locator):
        return first_seq + count  # a write has one $ts
    start = max(topic.start_seq - first_seq, 0)
    if start >= count:
        return first_seq + count
    try:
        view = store.records(locator)
    except Unreadable:  # it goes when what follows is too old
        return first_seq + start
    if _ts(view, start) >= ts:
        return first_seq + start
    return first_seq + bisect_left(range(count), ts, start, key=lambda at: _ts(view, at))


def _ts(view: View, index: int) -> int:
    """``$ts`` of a record; for a damaged one, of the next that is whole."""
    try:
        return view.ts(index)
    except Unreadable:
        _, index = view.bad_run(index, view.count) or (index, view.count)
        return _ts(view, index) if index < view.count else sys.maxsize


# Deletes


def delete_runs(topic: Topic, runs: Iterable[SeqRun], store: Store) -> None:
    """Delete runs of seqs, each ``(first, length)``, in rising order."""
    frames, index = topic.index, -1
    pieces: list[IndexRun] = []
    for first, length in runs:
        seq, end = max(first, topic.start_seq), first + length
        at = frames.find(seq)
        while at < len(frames):
            first_seq, count, _, size = frames.entry(at)
            if first_seq >= end:
                break
            if at != index:
                _delete_in_entry(topic, index, pieces, store)
                index, pieces = at, []
            if size:
                pieces.append((max(seq - first_seq, 0), min(end - first_seq, count)))
            at += 1
    _delete_in_entry(topic, index, pieces, store)
    settle(topic, store)


def _delete_in_entry(topic: Topic, index: int, pieces: list[IndexRun], store: Store) -> None:
    if not pieces:
        return
    first_seq, whole, locator, left = topic.index.entry(index)
    if pieces == [(0, whole)] and first_seq not in topic.index.gone:
        live, count, size = pieces, whole, left
    else:
        dead, view = store.delete_flags(locator), _sized(topic, index, store)
        live = [run for piece in pieces for run in live_runs(dead, *piece)]
        count = sum(stop - start for start, stop in live)
        size = sum(view.size(start, stop) for start, stop in live)
    if count:
        store.flag_deleted(locator, live)
        _take(topic, index, count, size)


# Sealing


def seal(topic: Topic, extents: Sequence[IndexEntry], store: Store) -> list[Locator]:
    """Let extents take the place of the writes that they hold. Places of those in which nothing
    lives any more: they are not used.

    A write may go into several extents, an extent may hold many writes; records in memory stay
    where they are.
    """
    unused = []
    for group in _contiguous(extents):
        frames = topic.index
        first, stop = frames.find(group[0].first_seq), frames.find(group[-1].last_seq + 1)
        used, gone = [], []
        for extent in group:
            count, size = _live_between(topic, extent.first_seq, extent.last_seq + 1, store)
            if count:
                used.append(extent._replace(size=size))
                gone.append(extent.record_count - count)
            else:
                unused.append(extent.locator)
        if first < stop:
            locators = frames.locators(first, stop)
            frames.replace(first, stop, used, gone)
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
    """Count and bytes of the live records from ``start`` to ``end`` (exclusive)."""
    frames = topic.index
    first, stop = frames.find(start), frames.find(end)
    cut = {
        index
        for index in (first, stop)
        if index < len(frames) and _is_cut(frames, index, start, end)
    }
    whole_from = first + (first in cut)
    count, size = frames.totals(whole_from, stop) if whole_from < stop else (0, 0)
    for index in cut:
        first_seq, whole, _, _ = frames.entry(index)
        begin = max(start, topic.start_seq, first_seq) - first_seq
        live = _live_of(topic, index, begin, min(end - first_seq, whole), store)
        count += live.record_count
        size += live.size
    return count, size


def _is_cut(frames: RecordIndex, index: int, start: int, end: int) -> bool:
    first_seq, count, _, size = frames.entry(index)
    return size > 0 and (
        first_seq < start < first_seq + count or first_seq < end < first_seq + count
    )
