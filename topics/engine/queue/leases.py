"""Leases: who holds which jobs, until when (§10.2, §10.3).

    grant --> held --drop: ack, nack, release, expiry, the record has gone--> no lease
               ^  |
               '--' extend

At ``now == deadline`` a lease holds; one millisecond later it is over.
"""

from __future__ import annotations

import heapq
import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence

import msgspec

from topics.engine.queue.timetable import Tally, Timetable

_PREFIX = "lease_"
ORDER_SLACK = 1024  # new leases that a sorted list may have beside it, and an eighth of its own


class Holder:
    """Who holds leases: the polled claims of one node together, or one stream of jobs.

    ``held``: how many leases. ``seqs``: of a stream, the jobs that it holds.
    """

    __slots__ = ("held", "node", "seqs")

    def __init__(self, node: str, *, is_stream: bool = False) -> None:
        self.node, self.held = node, 0
        self.seqs: dict[int, None] | None = {} if is_stream else None


class Lease(msgspec.Struct, frozen=True, gc=False):
    """One lease. ``deadline_ms``: on the monotonic clock."""

    seq: int
    number: int
    deadline_ms: int
    holder: Holder


def lease_id(number: int) -> str:
    """The token of a lease, as clients see it."""
    return f"{_PREFIX}{number:x}"


class LeaseTable:
    """The leases of one queue. ``held`` has them by seq. ``expiry`` has the times at which they are
    over, and ``ends`` counts these times. ``loosened`` has the streams that hold fewer leases than
    before; the task that serves the streams removes them.
    """

    __slots__ = ("_later", "_order", "ends", "expiry", "held", "loosened", "pollers")

    def __init__(self) -> None:
        self.held: dict[int, Lease] = {}
        self.expiry, self.ends = Timetable(self._over_at), Tally()
        # While they are listed: all seqs that were held at some time since, in two sorted parts.
        self._order: array[int] | None = None
        self._later: list[int] = []  # those that were leased since, not sorted
        self.pollers: dict[str, Holder] = {}
        self.loosened: list[Holder] = []

    def __len__(self) -> int:
        return len(self.held)

    def __contains__(self, seq: int) -> bool:
        return seq in self.held

    def __iter__(self) -> Iterator[int]:
        return iter(self.held)

    def poller(self, node: str) -> Holder:
        """Who holds what this node claims by polling."""
        return self.pollers.get(node) or Holder(node)

    def page(self, after: int, limit: int, node: str | None, now_ms: int) -> list[Lease]:
        """The first ``limit`` leases above ``after``, by seq, of ``node`` if one is given.

        The first page of several sorts the seqs of all leases. The last one forgets that, or a
        number of new leases: the next page sorts anew.
        """
        if self._order is None:
            self._order = array("Q", sorted(self.held))
        at = bisect_right(self._order, after)
        later = sorted({seq for seq in self._later if seq > after})
        found: list[Lease] = []
        last = 0
        for seq in heapq.merge(map(self._order.__getitem__, range(at, len(self._order))), later):
            lease = self.held.get(seq)
            if seq == last or lease is None:
                continue
            last = seq
            if lease.deadline_ms >= now_ms and node in (None, lease.holder.node):
                found.append(lease)
                if len(found) == limit:
                    return found
        self._order, self._later = None, []
        return found

    def is_held(self, seq: int, node: str, token: str | None, now_ms: int) -> bool:
        """Whether ``node`` holds the job now; under this token, if one is given."""
        lease = self.held.get(seq)
        return (
            lease is not None
            and lease.deadline_ms >= now_ms
            and lease.holder.node == node
            and (token is None or token == lease_id(lease.number))
        )

    def has_number(self, seq: int, number: int) -> bool:
        """Whether the job is held under this number."""
        lease = self.held.get(seq)
        return lease is not None and lease.number == number

    def grant(self, seqs: Sequence[int], number: int, deadline_ms: int, holder: Holder) -> None:
        """Lease jobs that nobody holds, under ``number`` and the numbers after it."""
        if holder.seqs is None:
            holder = self.pollers.setdefault(holder.node, holder)
        else:
            holder.seqs.update(dict.fromkeys(seqs))
        holder.held += len(seqs)
        for each, seq in enumerate(seqs, number):
            self.held[seq] = Lease(seq, each, deadline_ms, holder)
        if self._order is not None:
            self._later.extend(seqs)
            if len(self._later) > ORDER_SLACK + len(self._order) // 8:
                self._order, self._later = None, []
        if seqs:
            self.ends.add(deadline_ms + 1, len(seqs))
        self.expiry.add(deadline_ms + 1, seqs)
        self.expiry.trim(len(self.held), len(seqs))

    def extend(self, seqs: Sequence[int], deadline_ms: int) -> None:
        """Set the deadline of jobs that are held."""
        for seq in seqs:
            lease = self.held[seq]
            self.held[seq] = Lease(seq, lease.number, deadline_ms, lease.holder)
            self.ends.remove(lease.deadline_ms + 1)
            self.ends.add(deadline_ms + 1)
        self.expiry.add(deadline_ms + 1, seqs)
        self.expiry.trim(len(self.held), len(seqs))

    def drop(self, seq: int) -> Lease | None:
        """End a lease; what it was, None when nobody holds the job."""
        lease = self.held.pop(seq, None)
        if lease is None:
            return None
        self.ends.remove(lease.deadline_ms + 1)
        if not self.held:
            self.held, self._order, self._later = {}, None, []  # give the memory back
        holder = lease.holder
        holder.held -= 1
        if holder.seqs is not None:
            del holder.seqs[seq]
            self.loosened.append(holder)
        elif not holder.held:
            self.pollers.pop(holder.node, None)
        return lease

    def take_over(self, now_ms: int, limit: int = sys.maxsize) -> list[tuple[int, int]]:
        """End the leases that are over; (time, seq) of each, in this order. ``limit``: as
        `Timetable.take_due`.
        """
        due = self.expiry.take_due(now_ms, limit)
        return [each for each in due if self.drop(each[1]) is not None]

    def _over_at(self, seq: int) -> int | None:
        lease = self.held.get(seq)
        return None if lease is None else lease.deadline_ms + 1
