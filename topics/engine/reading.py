"""Difference read (§3): the records after a cursor, and the position of the cursor afterwards.

A read walks the entries of the topic's index from the cursor on. If the reader gets every record of
an entry unchanged, the entire entry is one slice of rendered bytes. From other entries the read
selects records, and omits the fields that were not requested.

Losses between the cursor and the end of the page are reported by a tombstone. A page has at most
one tombstone, and the tombstone precedes all of its records. So a page with records ends before the
next loss, and the next page begins with its tombstone.
"""

from __future__ import annotations

from typing import NamedTuple

from topics.engine.locators import Locator, in_log
from topics.engine.losses import Loss, next_loss
from topics.engine.page import Page
from topics.engine.store import Store, Unreadable
from topics.engine.topic import Topic
from topics.formats.api.diff_body import Diff
from topics.formats.buffers import Buffer
from topics.formats.disk.records import AbstractView, json_nodes, live_runs
from topics.formats.ranges import SeqRange

# A read stops after it has examined this number of records, so that it does not block the shard. A
# read that skips no records reaches the page limit first.
SCAN_RECORDS_MAX = 4000
_NOWHERE = in_log(0)


def read(
    topic: Topic,
    request: Diff,
    store: Store,
    from_seq: int | None = None,
    head_seq: int | None = None,
) -> Page:
    """Return the records after the cursor: at most ``limit`` of them and about ``max_batch_bytes``,
    but at least one.

    - ``from_seq`` replaces the cursor of ``request`` if the call continues an unfinished read.
    - ``head_seq`` is the head for this reader, if the reader may not see all committed records.
      Neither a page nor a tombstone extends beyond it.
    - ``request.until_seq`` bounds the records of the page. A tombstone may extend beyond it,
      because a loss is always reported completely.

    Implements §3.1 to §3.3. Reading changes nothing in the topic. Damaged records raise no
    exception: the page reports them as lost.
    """
    start = request.from_seq if from_seq is None else from_seq
    # Clamp the bounds first. From here on, ``last`` is at most ``head``, and ``head`` is at most
    # the head of the topic.
    head = topic.head_seq if head_seq is None else min(head_seq, topic.head_seq)
    last = head if request.until_seq is None else min(request.until_seq, head)
    page = Page(start, min(start, topic.head_seq), head, min(topic.start_seq, head + 1), None)
    epoch = request.epoch
    if (
        from_seq is None
        and epoch != topic.epoch
        and (epoch is not None or request.from_seq > topic.head_seq)
    ):
        # The cursor belongs to an earlier topic of this name, because it has another epoch, or a
        # seq that this topic has never reached. The reader starts over at the beginning of this
        # topic.
        page.from_seq = page.next_from_seq = start = 0
        page.report_gap(SeqRange(1, head), "recreated")
    # No floor is above ``start_seq``, so most reads need only the comparison with it.
    elif start < last and start + 1 < topic.start_seq and start + 1 < topic.evict_floor:
        if topic.start_seq > last:
            last = head
        page.report_gap(SeqRange(start + 1, min(topic.start_seq - 1, last)), _cause(topic, start))
    # If the cursor is at the last seq, there is nothing to read. The page then confirms the
    # position.
    if start < last:
        _Reader(topic, request, store, page, last).fill_page()
    return page


def _cause(topic: Topic, from_seq: int) -> str:
    """Return the reason for the loss above a cursor that is below a floor.

    The reason is ``mixed`` if several floors are above the cursor, and for losses at a restart.
    """
    # A floor is the seq below which records were removed for one cause. A cursor below exactly
    # one floor has one cause.
    floors = topic.floors
    causes = {
        "cap": floors.cap,
        "ttl": floors.ttl,
        "mixed": floors.loss,
        "damaged": floors.damage,
        "source_trim": floors.trim,
    }
    met = [cause for cause, floor in causes.items() if from_seq + 1 < floor]
    return met[0] if len(met) == 1 else "mixed"


class _Damage(NamedTuple):
    """Seqs ``first`` to ``last``, which cannot be read.

    ``reported`` is the range among them that the tombstone reports, from the first to the last
    record that the reader would get. It is None if the reader would get no record.
    """

    first: int
    last: int
    reported: SeqRange | None


class _Reader:
    """One read in progress. It walks the index from entry to entry.

        next in the topic               step
        a loss or damage                report the gap; a page with records ends before it
        an entry without live records   skip it
        deleted records                 skip them
        records for the reader          add the records that fit into the page

    ``seq`` is the next seq to examine. ``_at`` is the index of the entry that contains it, or of
    the next entry. ``_end`` is the index after the last entry to examine. ``_cut_at`` is the index
    of an entry that extends beyond ``_last``, or -1.
    """

    __slots__ = (
        *("_topic", "_request", "_store", "_page", "_index", "_nodes", "_budget", "_scanned"),
        *("seq", "_at", "_last", "_end", "_cut_at", "_loss", "_damage", "_may_take_unchanged"),
    )

    def __init__(self, topic: Topic, request: Diff, store: Store, page: Page, last: int) -> None:
        self._topic, self._request, self._store, self._page = topic, request, store, page
        self._index = topic.index
        is_filtered = request.nodes and topic.committed.dedupe_node
        # If ``dedupe_node`` is not set, all readers get all records, and the node filter has no
        # effect (§4).
        self._nodes = json_nodes(request.nodes) if is_filtered else frozenset[bytes]()
        self._budget = request.max_batch_bytes
        self._scanned = 0
        self._damage: _Damage | None = None  # the next damage, in the entry at ``_at``
        # False after the first write from which this reader does not get all fields or all
        # records. Checking each of the following writes would cost more than it saves.
        self._may_take_unchanged = True
        self._seek(max(page.from_seq + 1, topic.start_seq), last)

    def fill_page(self) -> None:
        """Read until the page is full or the last seq is reached."""
        # Alternate between the fast loop and single steps. The fast loop is entered only after
        # `_step` has reached another entry, because it cannot begin in the middle of an entry.
        self._take_complete_entries()
        at = self._at
        while self._step():
            if self._at != at:
                self._take_complete_entries()
                at = self._at
        self._page.next_from_seq = self.seq - 1

    # Movement through the index

    def _seek(self, seq: int, last: int) -> None:
        """Continue the read at ``seq``, up to ``last``."""
        # The last seq may be inside an entry. Such an entry is examined, but never taken
        # completely, so that the page does not extend beyond ``last``.
        topic, index = self._topic, self._index
        self.seq, self._last = min(seq, last + 1), last
        if last == topic.head_seq:
            self._end, self._cut_at = len(index), -1
        else:
            self._end = end = index.find(last + 1)
            is_cut = end < len(index) and index.entry(end)[0] <= last
            if is_cut:
                self._end += 1
            self._cut_at = end if is_cut else -1
        self._at = index.find(self.seq) if self.seq <= last else self._end
        # Most topics have no losses. They skip the search.
        has_losses = topic.losses or topic.damaged or topic.trimmed
        self._loss = next_loss(topic, self.seq, last) if has_losses else None

    def _pass_to(self, seq: int, end: int) -> None:
        """Continue the read at ``seq``. ``end`` is the seq after the current entry."""
        self.seq = seq
        if seq == end:
            self._at += 1

    def _step(self) -> bool:
        """Take one step. Return False if the page is complete and ends before ``seq``."""
        # After the last entry, use an empty entry that begins after the last seq. So a loss
        # between the last entry and the head is also reported.
        first_seq, count, locator, size = (
            self._index.entry(self._at)
            if self._at < self._end
            else (self._last + 1, 0, _NOWHERE, 0)
        )
        # The entry that extends beyond the last seq ends there for this reader.
        end = first_seq + count if self._at != self._cut_at else self._last + 1
        # Seqs between two entries have no live records. Skip them.
        self.seq = max(self.seq, first_seq)
        # Report losses and damage first, because the records after them must not precede their
        # tombstone.
        if self._loss is not None and self._loss.first <= self.seq:
            return self._pass_loss(self._loss)
        if self._damage is not None and self._damage.first <= self.seq:
            return self._pass_damage(self._damage, end)
        if self._at == self._end:
            return False
        # The limit of examined records is reached. A filter may skip any number of records, and
        # the shard must serve other requests in between. If the page has no result yet, the caller
        # continues the read later.
        if self._scanned >= SCAN_RECORDS_MAX:
            self._page.unfinished = not self._page.completes_poll
            return False
        # Skip an entry without live records.
        if not size:
            self._scanned += 1
            self._pass_to(end, end)
            return True
        # Damage is detected only when the entry is read. Find the damaged records, and let the next
        # step report them in order.
        try:
            return self._take_records(first_seq, end, locator)
        except Unreadable:
            self._damage = self._damage_from(first_seq, end, locator)
            return True

    # Records

    def _take_complete_entries(self) -> None:
        """Take complete entries while the reader gets all of their records unchanged.

        Most reads need nothing but this loop. It stops at the first entry that needs more checks,
        and `_step` handles that entry.
        """
        if not self._may_take_unchanged:
            return
        page, at, seq, budget = self._page, self._at, self.seq, self._budget
        count_max, scanned, request, nodes = (
            self._request.limit - page.count,
            0,
            self._request,
            self._nodes,
        )
        records, removed = self._store.records, self._index.removed
        # An entry has at least one record, so at most ``count_max`` entries fit.
        stop = min(self._end if self._cut_at < 0 else self._cut_at, at + count_max)
        known_flags = -1
        # The next loss ends the fast loop, because its tombstone must precede the records after
        # it.
        stop_seq = self._last + 1 if self._loss is None else self._loss.first
        may_scan = SCAN_RECORDS_MAX - self._scanned
        try:
            for first_seq, count, locator, size in self._index.entries(at, stop):
                if (
                    not (seq <= first_seq < stop_seq and 0 < size <= budget and count <= count_max)
                    or scanned >= may_scan
                    or first_seq in removed
                ):
                    break
                view = records(locator)
                # The result of `keeps_all` depends only on the flags. Writes of one topic mostly
                # have equal flags, so it is rarely computed.
                if view.flags != known_flags:
                    if not view.keeps_all(
                        nodes, request.include_tags, request.include_meta, request.include_data
                    ):
                        self._may_take_unchanged = False
                        break
                    known_flags = view.flags
                chunk = view.all_records()
                page.chunks.append(chunk)
                count_max -= count
                scanned += count
                budget -= len(chunk)
                seq = first_seq + count
                at += 1
        except Unreadable:
            pass  # `_step` reads the entry again and reports the damage
        # Update the page and the position once, even after damage, because the chunks that were
        # taken before the damage are intact.
        page.count += scanned
        page.scanned += scanned
        self._scanned += scanned
        self._at, self.seq, self._budget = at, seq, budget

    def _take_records(self, first_seq: int, end: int, locator: Locator) -> bool:
        """Take records of the current entry, or skip deleted ones. Return False if the page is
        full.
        """
        # The step ends before the next damage, at the end of the entry or of a run of live
        # records.
        start, deleted = self.seq - first_seq, None
        stop = bound = (end if self._damage is None else self._damage.first) - first_seq
        if first_seq in self._index.removed:
            deleted = self._store.delete_flags(locator)
        if deleted is not None:
            # Search only a window for live records, because a large extent may contain millions
            # of deleted ones.
            window = min(start + SCAN_RECORDS_MAX, bound)
            start, stop = next(live_runs(deleted, start, window), (window, window))
            # Deleted records count as examined, so that a read that skips many of them stops.
            self._scanned += first_seq + start - self.seq
            self._pass_to(first_seq + start, end)
            if start == stop:
                return True
        page, request = self._page, self._request
        # Check the limits only now, so that trailing deleted records are skipped even if the page
        # is full.
        if page.count >= request.limit or self._budget <= 0:
            return False
        view = self._store.records(locator)
        is_whole = view.keeps_all(
            self._nodes, request.include_tags, request.include_meta, request.include_data
        )
        # `fit` limits the slice to the byte budget, so that a large entry is split over several
        # pages.
        stop_max = start + request.limit - page.count
        stop = view.fit(start, min(stop if is_whole else bound, stop_max), self._budget)
        if stop == start:
            if page.count:
                return False
            stop = start + 1  # at least one record, regardless of its size
        if is_whole:
            self._add_slice(view.slice(start, stop), stop - start)
        else:
            self._add_selected(view, start, stop, deleted)
        self._scanned += stop - start
        self._pass_to(first_seq + stop, end)
        return True

    def _add_slice(self, chunk: memoryview, count: int) -> None:
        page = self._page
        page.chunks.append(chunk)
        page.count += count
        page.scanned += count
        self._budget -= len(chunk)

    def _add_selected(
        self, view: AbstractView, start: int, stop: int, deleted: Buffer | None
    ) -> None:
        request, page = self._request, self._page
        found = view.select(
            start,
            stop,
            self._nodes,
            request.include_tags,
            request.include_meta,
            deleted,
            request.include_data,
        )
        page.chunks.extend(record for _, record in found)
        page.count += len(found)
        deleted_count = 0 if deleted is None else bytes(deleted[start:stop]).count(1)
        page.scanned += stop - start - deleted_count
        self._budget -= sum(len(record) for _, record in found)

    # Losses and damage

    def _pass_loss(self, lost: Loss) -> bool:
        """Report a lost range that begins at ``seq``, and continue after it.

        Return False if the page must end before the loss.
        """
        page = self._page
        if page.completes_poll:  # the next page begins with this tombstone
            self.seq = lost.first
            return False
        # A gap is always reported completely, and the reader continues after it. If it extends
        # beyond the last seq of this read, the read continues up to the head.
        last = page.head_seq if lost.last > self._last else self._last
        gap_to = min(lost.last, page.head_seq)
        if lost.reason != "mixed":
            gap_from = max(lost.first, page.from_seq + 1)
        else:
            # Records that the reader's filter skipped before the loss are not part of the gap.
            gap_from = lost.first if page.scanned else page.from_seq + 1
        page.report_gap(SeqRange(gap_from, gap_to), lost.reason)
        self._seek(gap_to + 1, last)
        return True

    def _pass_damage(self, damage: _Damage, end: int) -> bool:
        """Skip damaged records of an entry, and report the ones that the reader would get.

        Return False if the page must end before them.
        """
        # The damage is reported only if this reader would get one of the records. Otherwise it is
        # skipped like records that the filter excludes.
        page = self._page
        if damage.reported is not None:
            if page.completes_poll:
                return False
            page.report_gap(damage.reported, "damaged")
        page.scanned += damage.last + 1 - self.seq
        self._scanned += 1
        self._damage = None
        self._pass_to(damage.last + 1, end)
        return True

    def _damage_from(self, first_seq: int, end: int, locator: Locator) -> _Damage:
        """Return the first run of records of an entry, from ``seq`` to ``end`` (exclusive), that
        cannot be read.
        """
        start, stop, deleted = self.seq - first_seq, end - first_seq, None
        reported: tuple[int, int] | None
        try:
            # Read the delete flags first. They may be readable even if the records are not, and
            # deleted records are not a loss.
            if first_seq in self._index.removed:
                deleted = self._store.delete_flags(locator)
            view = self._store.records(locator)
            start, stop = view.bad_run(start, stop) or (start, stop)
            reported = view.wanted(start, stop, self._nodes, deleted)
        # Not even the tables can be read. Report all records that are not deleted.
        except Unreadable:
            runs = [*live_runs(deleted, start, stop)]
            reported = (runs[0][0], runs[-1][1] - 1) if runs else None
        return _Damage(
            first_seq + start,
            first_seq + stop - 1,
            reported and SeqRange(first_seq + reported[0], first_seq + reported[1]),
        )
