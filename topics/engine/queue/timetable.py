"""Timetable: seqs by the time at which something is due for them.

    add --> far: lists of seqs, one for each BUCKET_MS --their time is near--> near: a heap
            near --time--> `take_due`

The owner knows the time of each seq; an entry whose seq has another time by then, or none, is
dropped when its bucket comes near. So nothing is ever searched here, and an entry costs 8 bytes.
Times are monotonic milliseconds.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Iterable, Sequence

BUCKET_MS = 256
STALE_MIN = 4096  # a shorter timetable is not rebuilt


class Timetable:
    """``time_of`` tells when a seq is due, None when it is not."""

    __slots__ = ("_count", "_far", "_near", "_near_until", "_order", "_time_of")

    def __init__(self, time_of: Callable[[int], int | None]) -> None:
        self._time_of = time_of
        self._far: dict[int, array[int]] = {}  # by bucket
        self._order: list[int] = []  # heap of the buckets in ``_far``
        self._near: list[tuple[int, int]] = []  # heap of (time, seq)
        self._near_until = 0  # what is due before it is in ``_near``
        self._count = 0

    def __len__(self) -> int:
        """How many entries there are, dropped ones included."""
        return self._count

    @property
    def next_at(self) -> int | None:
        """Nothing is due before it; None when nothing ever is."""
        if self._near:
            return self._near[0][0]
        return self._order[0] * BUCKET_MS if self._order else None

    def add(self, at: int, seqs: Sequence[int]) -> None:
        """These seqs are due at ``at``."""
        self._count += len(seqs)
        if at < self._near_until:
            for seq in seqs:
                heapq.heappush(self._near, (at, seq))
            return
        bucket = self._far.get(at // BUCKET_MS)
        if bucket is None:
            bucket = self._far[at // BUCKET_MS] = array("Q")
            heapq.heappush(self._order, at // BUCKET_MS)
        bucket.extend(seqs)

    def take_due(self, now_ms: int) -> list[tuple[int, int]]:
        """(time, seq) of what is due by now, in this order. One may stand there twice."""
        due: list[tuple[int, int]] = []
        while self._order and self._order[0] * BUCKET_MS <= now_ms:
            self._open_bucket(heapq.heappop(self._order), now_ms, due)
        near, time_of = self._near, self._time_of
        while near and near[0][0] <= now_ms:
            at, seq = heapq.heappop(near)
            self._count -= 1
            if time_of(seq) == at:
                due.append((at, seq))
        return due

    def _open_bucket(self, bucket: int, now_ms: int, due: list[tuple[int, int]]) -> None:
        seqs, start, end = self._far.pop(bucket), bucket * BUCKET_MS, (bucket + 1) * BUCKET_MS
        # One whose time has changed stands where it is due now, too.
        times = ((self._time_of(seq), seq) for seq in seqs)
        timed = [(at, seq) for at, seq in times if at is not None and start <= at < end]
        self._near_until = max(self._near_until, end)
        if end <= now_ms and not self._near:
            timed.sort()
            due += timed
            self._count -= len(seqs)
            return
        self._count -= len(seqs) - len(timed)
        self._near += timed
        heapq.heapify(self._near)

    def trim(self, live: int, rows: Callable[[], Iterable[tuple[int, int]]]) -> None:
        """Start anew from ``rows``, of (time, seq), when most entries are dropped ones. ``live``:
        how many seqs have a time.
        """
        if self._count > 2 * live + STALE_MIN:
            self._far, self._order, self._near, self._count = {}, [], [], 0
            for at, seq in rows():
                self.add(at, (seq,))
