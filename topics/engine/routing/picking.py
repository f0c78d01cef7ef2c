"""Picking: selects the records of a source that a router forwards next.

    next in the source                            step
    a loss or damage                              trim it; a batch of records ends before it
    records whose hop count differs from the      the batch ends before them
    hop count of the batch
    records or a loss with the maximum hop count  skip them
    records deleted, or rejected by the filter    skip them
    other records                                 pick as many as the bounds allow

A trim reports lost records of the source: the dest skips as many seqs as were lost. Losses are
found in the same order as by a reader (`reading`): first the floors, then the lost ranges above
live records, then bytes that cannot be read. The only difference is that records that have expired
by age are skipped, like deleted records.

Complete entries are picked without reading their records. If the caller finds later that such a
record cannot be read, it must pick again with ``reads_all``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from topics.engine.locators import FIRST_EXTENT, FIRST_MEMORY, Locator
from topics.engine.losses import Loss, next_loss
from topics.engine.removal import deleted_in
from topics.engine.routing.hops import HOPS_MAX, Hops
from topics.engine.store import Store, Unreadable
from topics.engine.tags import json_prefix
from topics.engine.topic import Topic
from topics.formats.api.diff_body import TagMatch
from topics.formats.buffers import Buffer
from topics.formats.disk.extent_view import ExtentView
from topics.formats.disk.records import AbstractView, RecordFlags, live_runs
from topics.formats.json_text import json_string
from topics.formats.ranges import IndexRun

_TAGS = int(RecordFlags.TAGS)


class PickedRun(NamedTuple):
    """Records ``start`` to ``stop`` (exclusive) of the entry that begins at ``first_seq``.

    All of them are live and match the filter.
    """

    locator: Locator
    first_seq: int
    start: int
    stop: int


class Picked(NamedTuple):
    """The next step of a router, up to ``to_seq``.

    It has one of three forms: ``runs`` of records in seq order, a trim, or neither if no record up
    to ``to_seq`` is to be forwarded.

    - ``trimmed``: the number of lost seqs.
    - ``hop``: the hop count of the picked or lost records in the source. The hop count of their
      copies is one higher.
    - ``count``: the number of picked records. ``size``: their rendered bytes, including commas.
    """

    runs: Sequence[PickedRun]
    to_seq: int
    trimmed: int
    hop: int
    count: int  # type: ignore[assignment]
    size: int


def pick(
    topic: Topic,
    store: Store,
    cursor: int,
    match: TagMatch | None,
    hops: Hops,
    *,
    max_records: int,
    max_bytes: int,
    max_runs: int,
    scan_records: int,
    hop_max: int = HOPS_MAX,
    reads_all: bool = False,
) -> Picked:
    """Return the next step of a router whose cursor is at ``cursor``.

    A step that picks records contains as many as the bounds permit, but at least one. If the source
    has nothing after the cursor, ``to_seq`` of the result is the cursor. The caller must have
    removed records that are older than the TTL.

    - ``scan_records`` bounds the number of examined records. Call again from ``to_seq``, even if no
      record was picked.
    - ``hop_max``: records with this number of hops or more are skipped.
    - ``reads_all``: also find the records of the log that cannot be read.
    """
    if cursor >= topic.head_seq:
        return Picked([], cursor, 0, 0, 0, 0)
    # A source has removed the records below its floors. A router whose cursor is below a floor has
    # missed some of them.
    floors = topic.floors
    lost_below = max(floors.cap, floors.loss, floors.damage, floors.trim)
    # If the cursor is below a floor, trim first. The TTL floor is left out, because expired records
    # are skipped.
    if cursor + 1 < lost_below:
        # The hop count of the lost seqs determines whether their records would have been forwarded.
        hop, last = hops.at(cursor + 1)
        last = min(last, lost_below - 1)
        return Picked([], last, last - cursor if hop < hop_max else 0, hop, 0, 0)
    bounds = _Bounds(max_records, max_bytes, max_runs, scan_records)
    return _Picker(topic, store, cursor, match, bounds, hop_max, reads_all).pick(hops)


@dataclass(slots=True)
class _Bounds:
    """The remaining bounds of the call."""

    records: int
    size: int
    runs: int
    scan: int

    @property
    def remain(self) -> bool:
        """Return whether no bound is exhausted."""
        return min(self.records, self.size, self.runs, self.scan) > 0


class _Picker:
    """One call of `pick`.

    ``_seq`` is the next seq to examine. ``_at`` is the index of the entry that contains it, or of
    the next entry.
    """

    __slots__ = (
        *("_topic", "_index", "_store", "_match", "_bounds", "_hop_max", "_reads_all"),
        *("_seq", "_at", "_hop", "_runs", "_count", "_size", "_trimmed"),
    )

    def __init__(
        self,
        topic: Topic,
        store: Store,
        cursor: int,
        match: TagMatch | None,
        bounds: _Bounds,
        hop_max: int,
        reads_all: bool,
    ) -> None:
        self._topic, self._index, self._store = topic, topic.index, store
        self._match, self._bounds = match, bounds
        self._hop_max, self._reads_all = hop_max, reads_all
        # The cursor may be below the start. Deleted and expired records there are skipped.
        self._seq = max(cursor + 1, topic.start_seq)
        self._at = self._index.find(self._seq)
        # ``_hop`` is the hop count of the batch. It is valid only if there are runs or a trim.
        self._hop = self._count = self._size = self._trimmed = 0
        self._runs: list[PickedRun] = []

    def pick(self, hops: Hops) -> Picked:
        """Pick records until a bound, a loss or a different hop count ends the batch."""
        head = self._topic.head_seq
        # Search for a range of lost records only once. Records after that range belong to the next
        # batch.
        loss = next_loss(self._topic, self._seq, head)
        end = head + 1 if loss is None else loss.first
        # All records of a batch must have the same hop count, because the frame stores only one.
        while self._seq < end:
            hop, last = hops.at(self._seq)
            stop = min(last + 1, end)
            if hop >= self._hop_max:
                # These records have the maximum number of hops, and are not forwarded.
                self._seq, self._at = stop, self._index.find(stop)
            # The records of the batch have a different hop count, or `_pick_to` has reached a bound
            # or damage.
            elif (self._runs and hop != self._hop) or not self._pick_to(stop, hop):
                break
        # Trim lost seqs only if the batch is still empty. Otherwise the next batch trims them.
        if loss is not None and self._seq >= loss.first and not (self._runs or self._trimmed):
            self._pass_loss(loss, hops)
        hop = self._hop if self._runs or self._trimmed else 0
        return Picked(self._runs, self._seq - 1, self._trimmed, hop, self._count, self._size)

    def _pass_loss(self, loss: Loss, hops: Hops) -> None:
        """Trim the next lost seqs that have the same hop count, because their records would have
        been forwarded.

        Skip them without a trim if they have the maximum hop count.
        """
        self._hop, last = hops.at(self._seq)
        last = min(last, loss.last)
        if self._hop < self._hop_max:
            self._trimmed = last + 1 - self._seq
        self._seq = last + 1

    def _pick_to(self, stop_seq: int, hop: int) -> bool:
        """Pick records below ``stop_seq``, which all have the same hop count.

        Return False if a bound or damage ends the batch.
        """
        self._hop, index = hop, self._index
        while True:
            # A filter needs the tags, and ``reads_all`` the bytes. If neither is needed, the index
            # is sufficient.
            if self._match is None and not self._reads_all:
                self._take_complete_entries(stop_seq)
            # The next entry begins after the range, so the range has no further live records.
            if self._at == len(index) or index.entry(self._at)[0] >= stop_seq:
                self._seq = stop_seq
                return True
            if not self._bounds.remain or not self._take_records(stop_seq):
                return False
            if self._seq >= stop_seq:
                return True

    # Records

    def _take_complete_entries(self, stop_seq: int) -> None:
        """Pick complete writes while all of their records match. Most calls need nothing but this
        loop.

        The loop stops at entries with deleted records and at extents, which `_take_records`
        handles.
        """
        # Local names are faster, and this loop runs once for each write of the source.
        bounds, at, seq, runs = self._bounds, self._at, self._seq, self._runs
        entry_at, removed, end = self._index.entry, self._index.removed, len(self._index)
        records, budget, scan = bounds.records, bounds.size, bounds.scan
        left = bounds.runs
        while at < end and left > 0 and scan > 0:
            first_seq, count, locator, size = entry_at(at)
            if (
                not (seq <= first_seq <= stop_seq - count and 0 < size <= budget)
                or count > records
                or first_seq in removed
                or FIRST_EXTENT <= locator < FIRST_MEMORY
            ):
                break
            runs.append(PickedRun(locator, first_seq, 0, count))
            records -= count
            budget -= size
            scan -= 1
            left -= 1
            seq = first_seq + count
            at += 1
        # Store the remaining bounds, with which the caller continues.
        self._count += bounds.records - records
        self._size += bounds.size - budget
        bounds.records, bounds.size, bounds.scan, bounds.runs = records, budget, scan, left
        self._at, self._seq = at, seq

    def _take_records(self, stop_seq: int) -> bool:
        """Pick records of the current entry. Return False if the batch ends within it."""
        first_seq, count, locator, size = self._index.entry(self._at)
        start = max(self._seq - first_seq, 0)
        # The range may begin or end in the middle of the entry.
        stop = min(stop_seq - first_seq, count)
        # An entry without live records costs one step.
        if not size:
            cost = 1
        else:
            try:
                deleted = deleted_in(self._topic, self._at, self._store)
                view = self._store.records(locator)
                runs, stop, cost = self._wanted(view, start, stop, deleted)
            except Unreadable:
                return self._pass_unreadable(first_seq, start, stop)
            for begin, end in runs:
                if not self._add(view, PickedRun(locator, first_seq, begin, end)):
                    # The run did not fit. The next batch continues at its first record.
                    self._seq = max(self._seq, first_seq + begin)
                    return False
        self._bounds.scan -= cost
        self._seq = max(self._seq, first_seq + stop)
        if stop == count:
            self._at += 1
        return True

    def _add(self, view: AbstractView, run: PickedRun) -> bool:
        """Pick the first records of a run that fit. Return False if some are left."""
        bounds, begin, end = self._bounds, run.start, run.stop
        # End the batch if a bound is exhausted.
        if not (bounds.runs > 0 and bounds.records > 0 and bounds.size > 0):
            return False
        stop = view.fit(begin, min(end, begin + bounds.records), bounds.size)
        if stop == begin:
            if self._runs:
                return False
            stop = begin + 1  # at least one record, regardless of its size
        # A batch ends before damaged records. If the run begins with them, they are trimmed.
        # Check the bytes now, because the dest would otherwise store damaged records with a new
        # checksum.
        bad = view.bad_run(begin, stop)
        if bad is not None:
            stop = bad[0]
            if stop == begin:
                self._trim(run.first_seq, view.bad_run(begin, end) or bad)
                return False
        size = view.size(begin, stop)
        self._runs.append(run._replace(stop=stop))
        self._count += stop - begin
        self._size += size
        self._seq = run.first_seq + stop
        bounds.records -= stop - begin
        bounds.size -= size
        bounds.runs -= 1
        # If a part of the run is left, the batch ends.
        return stop == end

    # The filter

    def _wanted(
        self, view: AbstractView, start: int, stop: int, deleted: Buffer | None
    ) -> tuple[Iterable[IndexRun], int, int]:
        """Return the matching live records of the range, the end of the examined range, and its
        cost.

        The records are returned as runs. The cost is the number of examined records.
        """
        match, scan = self._match, self._bounds.scan
        if match is None:
            # If there is no filter, all live records match.
            stop = min(stop, start + scan)
            return live_runs(deleted, start, stop), stop, stop - start
        # If no record of the entry has a tag, none matches.
        if not view.flags & _TAGS:
            return (), stop, 1
        # The tag index of an extent finds all matches without reading its records.
        found = _in_extent(view, match, scan) if isinstance(view, ExtentView) else None
        if found is None:
            stop = min(stop, start + scan)
            cost, found = stop - start, [*_in_tags(view, match, start, stop)]
        else:
            low = bisect_left(found, start)
            high = bisect_left(found, stop, low)
            # Examine only as many matches as the budget allows. The rest begins at ``stop``.
            if high - low > scan:
                high = low + scan
                stop = found[high]
            cost, found = high - low + 1, found[low:high]
        # The tag index also contains deleted records.
        live = found if deleted is None else [index for index in found if deleted[index] != 1]
        return _runs_of(live), stop, cost

    # Damage

    def _pass_unreadable(self, first_seq: int, start: int, stop: int) -> bool:
        """Handle an entry that cannot be read: all of its records that are not deleted are lost."""
        try:
            deleted = deleted_in(self._topic, self._at, self._store)
            runs = [*live_runs(deleted, start, stop)]
        except Unreadable:
            runs = [(start, stop)]
        # Records that were picked before the damage are forwarded first. The trim follows in the
        # next call.
        if runs:
            if not self._runs:
                self._trim(first_seq, (runs[0][0], runs[-1][1]))
            else:
                self._seq = first_seq + runs[0][0]
            return False
        # All records of the entry were deleted, so nothing is lost.
        self._bounds.scan -= 1
        self._seq = first_seq + stop
        self._at = self._index.find(self._seq)
        return True

    def _trim(self, first_seq: int, lost: IndexRun) -> None:
        """Trim lost records of an entry.

        If records were picked before them, do nothing: the batch ends here and the next call trims.
        """
        if not self._runs:
            self._trimmed = lost[1] - lost[0]
            self._seq = first_seq + lost[1]


def _in_extent(view: ExtentView, match: TagMatch, scan: int) -> Sequence[int] | None:
    """Return the indexes of all matching records of an extent, in ascending order.

    Return None if there are too many to sort.
    """
    if match.op == "Eq":
        return view.find_tag(json_string(match.text))
    found = view.find_prefix(json_prefix(match.text))
    return sorted(found) if len(found) <= scan else None


def _in_tags(view: AbstractView, match: TagMatch, start: int, stop: int) -> Iterator[int]:
    """Yield the indexes of the matching records in the range."""
    tagged = view.tagged(start, stop)
    if match.op == "Eq":
        text = json_string(match.text)
        return (index for index, tag in tagged if tag == text)
    prefix = json_prefix(match.text)
    return (index for index, tag in tagged if tag.startswith(prefix))


def _runs_of(indexes: Iterable[int]) -> Iterator[IndexRun]:
    """Yield ascending indexes as the fewest possible runs."""
    begin = end = -1
    for index in indexes:
        if index != end:
            if begin < end:
                yield begin, end
            begin = index
        end = index + 1
    if begin < end:
        yield begin, end
