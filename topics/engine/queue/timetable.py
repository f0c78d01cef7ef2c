"""Timetable: seqs by the time at which something is due for them.

    add --> far: lists of seqs, one for each BUCKET_MS --their time is near--> near: a heap
            near --time--> `take_due`

The owner knows the time of each seq; an entry whose seq has another time by then, or none, is
dropped when its bucket comes near. So nothing is ever searched here, and an entry costs 8 bytes.
Times are monotonic milliseconds.
"""

from __future__ import annotations

import heapq
import sys
from array import array
from collections.abc import Callable, Iterable, Sequence

BUCKET_MS = 256
STALE_MIN = 4096  # a shorter timetable is not rebuilt


class Timetable:
    """``time_of`` tells when a seq is due, None when it is not. ``count``: of entries, dropped ones
    included.
    """

    __slots__ = ("_far", "_near", "_near_until", "_order", "_time_of", "count")

    def __init__(self, time_of: Callable[[int], int | None]) -> None:
        self._time_of = time_of
        self._far: dict[int, array[int]] = {}  # by bucket
        self._order: list[int] = []  # heap of the buckets in ``_far``
        self._near: list[tuple[int, int]] = []  # heap of (time, seq)
        self._near_until = 0  # what is due before it is in ``_near``
        self.count = 0

    @property
    def next_at(self) -> int | None:
        """Nothing is due before it; None when nothing ever is."""
        near, order = self._near, self._order
        if not near:
            return order[0] * BUCKET_MS if order else None
        return min(near[0][0], order[0] * BUCKET_MS) if order else near[0][0]

    def add(self, at: int, seqs: Sequence[int]) -> None:
        """These seqs are due at ``at``."""
        self.count += len(seqs)
        if at < self._near_until:
            for seq in seqs:
                heapq.heappush(self._near, (at, seq))
            return
        bucket = self._far.get(at // BUCKET_MS)
        if bucket is None:
            bucket = self._far[at // BUCKET_MS] = array("Q")
            heapq.heappush(self._order, at // BUCKET_MS)
        bucket.extend(seqs)

    def take_due(self, now_ms: int, limit: int = sys.maxsize) -> list[tuple[int, int]]:
        """(time, seq) of what is due by now, in this order. One may stand there twice.

        ``limit``: how many entries are looked at, once when their bucket comes near and once when
        they are due. `next_at` tells whether that was all. What comes later may have an earlier
        time if one bucket has more entries than that.
        """
        due: list[tuple[int, int]] = []
        left = limit
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
        return due

    def _open_bucket(self, bucket: int, now_ms: int, due: list[tuple[int, int]], limit: int) -> int:
        """Look at up to ``limit`` entries of the bucket; how many."""
        start, end = bucket * BUCKET_MS, (bucket + 1) * BUCKET_MS
        seqs = self._far[bucket][:limit]
        del self._far[bucket][:limit]
        if not self._far[bucket]:
            del self._far[bucket]
            heapq.heappop(self._order)
            self._near_until = max(self._near_until, end)
        # One whose time has changed stands where it is due now, too.
        times = ((self._time_of(seq), seq) for seq in seqs)
        timed = [(at, seq) for at, seq in times if at is not None and start <= at < end]
        if end <= now_ms and not self._near:
            timed.sort()
            due += timed
            self.count -= len(seqs)
            return len(seqs)
        self.count -= len(seqs) - len(timed)
        for entry in timed:
            heapq.heappush(self._near, entry)
        return len(seqs)

    def trim(self, live: int, rows: Callable[[], Iterable[tuple[int, int]]]) -> None:
        """Start anew from ``rows``, of (time, seq), when most entries are dropped ones. ``live``:
        how many seqs have a time.
        """
        if self.count > 2 * live + STALE_MIN:
            self._far, self._order, self._near, self.count = {}, [], [], 0
            for at, seq in rows():
                self.add(at, (seq,))
