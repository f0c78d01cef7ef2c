"""Leases: which node holds which jobs, and until when (§10.2, §10.3).

    grant --> held --drop: ack, nack, release, expiry, record deleted--> no lease
               ^  |
               '--' extend

A lease is valid at ``now == deadline`` and has expired one millisecond later.
"""

from __future__ import annotations

import heapq
import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence

import msgspec

from topics.engine.queue.timer_queue import DueCounter, TimerQueue

_PREFIX = "lease_"
# The sorted list of seqs is dropped when the number of newer leases exceeds this number plus an
# eighth of the list's length.
ORDER_SLACK = 1024


class LeaseHolder:
    """The holder of leases: all polled claims of one node together, or one stream of jobs.

    ``held`` is the number of its leases. ``seqs`` has the jobs of a stream.
    """

    __slots__ = ("held", "node", "seqs")

    def __init__(self, node: str, *, is_stream: bool = False) -> None:
        self.node, self.held = node, 0
        self.seqs: dict[int, None] | None = {} if is_stream else None


class Lease(msgspec.Struct, frozen=True, gc=False):
    """One lease. ``deadline_ms`` is on the monotonic clock."""

    seq: int
    number: int
    deadline_ms: int
    holder: LeaseHolder


def lease_id(number: int) -> str:
    """Return the token with which clients refer to the lease that has this number."""
    return f"{_PREFIX}{number:x}"


class LeaseTable:
    """The leases of one queue.

    ``held`` contains the leases by seq. ``expiry`` orders their seqs by the time at which the lease
    expires, and ``ends`` counts these times. ``loosened`` contains the streams that hold fewer
    leases than before. The caller that serves the streams removes them from it.
    """

    __slots__ = ("_later", "_order", "ends", "expiry", "held", "loosened", "pollers")

    def __init__(self) -> None:
        self.held: dict[int, Lease] = {}
        self.expiry, self.ends = TimerQueue(self._expires_at), DueCounter()
        # Used while a client lists the leases page by page. Together, the lists contain all seqs
        # that have been held at any time since the first page: ``_order`` is sorted, and ``_later``
        # contains the newer seqs.
        self._order: array[int] | None = None
        self._later: list[int] = []  # seqs leased after ``_order`` was created, not sorted
        self.pollers: dict[str, LeaseHolder] = {}
        self.loosened: list[LeaseHolder] = []

    def __len__(self) -> int:
        return len(self.held)

    def __contains__(self, seq: int) -> bool:
        return seq in self.held

    def __iter__(self) -> Iterator[int]:
        return iter(self.held)

    def poller(self, node: str) -> LeaseHolder:
        """Return the holder of the jobs that this node claims by polling."""
        return self.pollers.get(node) or LeaseHolder(node)

    def page(self, after: int, limit: int, node: str | None, now_ms: int) -> list[Lease]:
        """Return the first ``limit`` leases above ``after``, by seq; only leases of ``node`` if it
        is given.

        The first page sorts the seqs of all leases, and the next pages use this list. The list is
        dropped after the last page, or if many leases are granted in the meantime. Then the next
        page sorts again.
        """
        if self._order is None:
            self._order = array("Q", sorted(self.held))
        at = bisect_right(self._order, after)
        later = sorted({seq for seq in self._later if seq > after})
        found: list[Lease] = []
        last = 0
        # Merge the sorted list with the newer leases, and skip leases that have ended since.
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
        """Return whether ``node`` holds the job now, under ``token`` if it is given."""
        lease = self.held.get(seq)
        return (
            lease is not None
            and lease.deadline_ms >= now_ms
            and lease.holder.node == node
            and (token is None or token == lease_id(lease.number))
        )

    def has_number(self, seq: int, number: int) -> bool:
        """Return whether the job is leased under this number."""
        lease = self.held.get(seq)
        return lease is not None and lease.number == number

    def grant(
        self, seqs: Sequence[int], number: int, deadline_ms: int, holder: LeaseHolder
    ) -> None:
        """Lease jobs that are not held, under ``number`` and the numbers after it."""
        if holder.seqs is None:
            holder = self.pollers.setdefault(holder.node, holder)
        else:
            holder.seqs.update(dict.fromkeys(seqs))
        holder.held += len(seqs)
        for each, seq in enumerate(seqs, number):
            self.held[seq] = Lease(seq, each, deadline_ms, holder)
        if self._order is not None:
            self._later.extend(seqs)
            # If too many leases are new, drop both lists. The next page sorts again.
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
        """End and return the lease of a job, or return None if the job is not held."""
        lease = self.held.pop(seq, None)
        if lease is None:
            return None
        self.ends.remove(lease.deadline_ms + 1)
        if not self.held:
            # A dict does not shrink, so free its memory.
            self.held, self._order, self._later = {}, None, []
        holder = lease.holder
        holder.held -= 1
        if holder.seqs is not None:
            del holder.seqs[seq]
            self.loosened.append(holder)
        elif not holder.held:
            self.pollers.pop(holder.node, None)
        return lease

    def expire(self, now_ms: int, limit: int = sys.maxsize) -> list[tuple[int, int]]:
        """End the leases that have expired, and return (time, seq) of each, sorted.

        ``limit`` has the same meaning as in `TimerQueue.take_due`.
        """
        due = self.expiry.take_due(now_ms, limit)
        return [each for each in due if self.drop(each[1]) is not None]

    def _expires_at(self, seq: int) -> int | None:
        lease = self.held.get(seq)
        return None if lease is None else lease.deadline_ms + 1
