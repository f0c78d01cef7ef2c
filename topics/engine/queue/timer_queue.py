"""TimerQueue: seqs ordered by the time at which they are due, such as the end of a lease.

    add --> far: lists of seqs, one for each BUCKET_MS --their time is near--> near: a heap
            near --time--> `take_due`

The owner knows the current time of each seq, so an entry is only a hint. When the time of a bucket
begins, its entries whose seq has another time or none are dropped. So changing a time needs
no search, and an entry takes 8 bytes. Times are monotonic milliseconds.

No entry is due before ``next_at``. This is a lower bound, because it is computed without examining
the entries.

Due seqs are taken in bounded steps. A `DueCounter` counts the seqs of an owner by their times, so
that the number of due seqs is known before they are taken.
"""

from __future__ import annotations

import heapq
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence

BUCKET_MS = 256
STALE_MIN = 4096  # a queue with fewer stale entries is not swept
# A sweep examines this number of entries for each new one, so that it is faster than the additions.
SWEEP_STEP = 16
NO_SEQS = array("Q")
SLOT_MS = 16  # width of a slot of a `DueCounter`, which counts a seq as due at most this much later
NEVER = sys.maxsize


class DueCounter:
    """Counts seqs by due time, in slots of `SLOT_MS`."""

    __slots__ = ("_slots",)

    def __init__(self) -> None:
        self._slots: dict[int, int] = {}

    def add(self, at: int, count: int = 1) -> None:
        """Count seqs that are due at ``at``."""
        slot = at // SLOT_MS
        self._slots[slot] = self._slots.get(slot, 0) + count

    def remove(self, at: int, count: int = 1) -> None:
        """Undo `add`."""
        slot = at // SLOT_MS
        left = self._slots[slot] - count
        if left:
            self._slots[slot] = left
        else:
            del self._slots[slot]

    def due(self, first: int, now_ms: int) -> int:
        """Return the number of due seqs, excluding the seqs in the slot of ``now_ms``.

        The caller guarantees that no seq is due before ``first``.
        """
        slots, begin, end = self._slots, first // SLOT_MS, now_ms // SLOT_MS
        if end - begin <= len(slots):
            return sum(slots.get(slot, 0) for slot in range(begin, end))
        return sum(count for slot, count in slots.items() if slot < end)


class TimerQueue:
    """Seqs by the time at which they are due.

    ``time_of`` returns the time of a seq, or None if it is never due. ``count`` is the number of
    entries, including stale ones.
    """

    __slots__ = ("_far", "_near", "_near_until", "_order", "_sweep", "_time_of", "count", "next_at")

    def __init__(self, time_of: Callable[[int], int | None]) -> None:
        self._time_of = time_of
        self._far: dict[int, array[int]] = {}  # by bucket number
        # Heap of the bucket numbers in ``_far``. It may also contain numbers of buckets that a
        # sweep has removed.
        self._order: list[int] = []
        self._near: list[tuple[int, int]] = []  # heap of (time, seq)
        self._near_until = 0  # all entries that are due before this time are in ``_near``
        self._sweep: Iterator[bool] | None = None
        self.count = 0
        self.next_at = NEVER

    def add(self, at: int, seqs: Sequence[int]) -> None:
        """Add seqs that are due at ``at``."""
        self.count += len(seqs)
        if at < self._near_until:
            for seq in seqs:
                heapq.heappush(self._near, (at, seq))
            self.next_at = min(self.next_at, at)
            return
        bucket = self._far.get(at // BUCKET_MS)
        if bucket is None:
            bucket = self._far[at // BUCKET_MS] = array("Q")
            heapq.heappush(self._order, at // BUCKET_MS)
            self.next_at = min(self.next_at, at // BUCKET_MS * BUCKET_MS)
        bucket.extend(seqs)

    def take_due(self, now_ms: int, limit: int = sys.maxsize) -> list[tuple[int, int]]:
        """Remove and return (time, seq) of the seqs that are due by ``now_ms``, sorted.

        A seq may occur twice. ``limit`` bounds the number of entries that are examined. An entry is
        examined when the time of its bucket begins, and again when the entry is due. If ``next_at``
        is still due after the call, entries remain. The next call may return an earlier time than
        this one if a single bucket has more entries than ``limit``.
        """
        due: list[tuple[int, int]] = []
        left = limit
        # First examine the buckets whose time has begun. Their entries are due or go into the heap.
        # Then take the due entries from the heap.
        while self._order and self._order[0] * BUCKET_MS <= now_ms and left > 0:
            left -= self._open_bucket(self._order[0], now_ms, due, left)
        near, time_of = self._near, self._time_of
        for _ in range(min(len(near), limit - len(due))):
            if near[0][0] > now_ms:
                break
            at, seq = heapq.heappop(near)
            self.count -= 1
            if time_of(seq) == at:
                due.append((at, seq))
        far_at = self._order[0] * BUCKET_MS if self._order else NEVER
        self.next_at = min(near[0][0], far_at) if near else far_at
        return due

    def _open_bucket(self, bucket: int, now_ms: int, due: list[tuple[int, int]], limit: int) -> int:
        """Examine up to ``limit`` entries of a bucket, and return their number.

        If the complete bucket is due and the heap is empty, the entries are added to ``due``.
        Otherwise they are added to the heap.
        """
        start, end = bucket * BUCKET_MS, (bucket + 1) * BUCKET_MS
        seqs = self._far.pop(bucket, NO_SEQS)
        # The bucket gets a new array, so that a sweep stops using the old one.
        if len(seqs) > limit:
            self._far[bucket], seqs = seqs[limit:], seqs[:limit]
        else:
            heapq.heappop(self._order)
            self._near_until = max(self._near_until, end)
        # Drop stale entries. A seq whose time was changed has another entry at the new time.
        times = ((self._time_of(seq), seq) for seq in seqs)
        timed = [(at, seq) for at, seq in times if at is not None and start <= at < end]
        # A bucket that is completely due is sorted once, which is cheaper than using the heap.
        if end <= now_ms and not self._near:
            timed.sort()
            due += timed
            self.count -= len(seqs)
            return len(seqs)
        self.count -= len(seqs) - len(timed)
        for entry in timed:
            heapq.heappush(self._near, entry)
        return len(seqs)

    def trim(self, live: int, added: int) -> None:
        """Drop some stale entries if most entries are stale.

        ``live`` is the number of seqs that have a time. ``added`` is the number of entries since
        the last call, and the work is proportional to it.
        """
        if self._sweep is None:
            if self.count <= 2 * live + STALE_MIN:
                return
            self._sweep = self._swept()
        for _ in range(added):
            if next(self._sweep, True):
                self._sweep = None
                return

    def _swept(self) -> Iterator[bool]:
        """Remove stale far entries. Yield False after each `SWEEP_STEP` entries."""
        for bucket, seqs in tuple(self._far.items()):
            read, kept, end = 0, 0, len(seqs)
            while read < end and self._far.get(bucket) is seqs:
                for seq in seqs[read : min(read + SWEEP_STEP, end)]:
                    read += 1
                    if (self._time_of(seq) or 0) // BUCKET_MS == bucket:
                        seqs[kept] = seq
                        kept += 1
                yield False
            if self._far.get(bucket) is seqs:
                self.count -= end - kept
                del seqs[kept:end]
                if not seqs:
                    del self._far[bucket]
        self._order = [*self._far]
        heapq.heapify(self._order)
