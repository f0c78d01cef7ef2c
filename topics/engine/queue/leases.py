"""Leases: who holds which jobs, until when (§10.2, §10.3).

    grant --> held --drop: ack, nack, release, expiry, the record has gone--> no lease
               ^  |
               '--' extend

A lease is a slot in columns; a dict leads from the seq of a job to its slot. With its place in the
timetable a lease takes about 145 bytes. At ``now == deadline`` a lease holds; one millisecond later
it is over.
"""

from __future__ import annotations

import heapq
import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from topics.engine.queue.timetable import Timetable

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


class Lease(NamedTuple):
    """One lease. ``deadline_ms``: on the monotonic clock."""

    seq: int
    number: int
    deadline_ms: int
    holder: Holder


def lease_id(number: int) -> str:
    """The token of a lease, as clients see it."""
    return f"{_PREFIX}{number:x}"


class LeaseTable:
    """The leases of one queue. ``slots``: by seq, the columns' index of each job that is held.
    ``expiry``: when leases are over. ``loosened``: streams that hold fewer than before; whoever
    serves them takes them out.
    """

    __slots__ = (
        *("_deadlines", "_free_slots", "_holders", "_later", "_numbers", "_order"),
        *("expiry", "loosened", "pollers", "slots"),
    )

    def __init__(self) -> None:
        self.slots: dict[int, int] = {}
        self._deadlines, self._numbers = array("q"), array("Q")
        self._holders: list[Holder | None] = []
        self._free_slots: list[int] = []
        self.expiry = Timetable(self._over_at)
        # While they are listed: all seqs that were held at some time since, in two sorted parts.
        self._order: array[int] | None = None
        self._later: list[int] = []  # those that were leased since, not sorted
        self.pollers: dict[str, Holder] = {}
        self.loosened: list[Holder] = []

    def __len__(self) -> int:
        return len(self.slots)

    def __contains__(self, seq: int) -> bool:
        return seq in self.slots

    def __iter__(self) -> Iterator[int]:
        return iter(self.slots)

    def poller(self, node: str) -> Holder:
        """Who holds what this node claims by polling."""
        return self.pollers.get(node) or Holder(node)

    def lease(self, seq: int) -> Lease:
        """The lease of a job that is held."""
        slot = self.slots[seq]
        holder = self._holders[slot]
        assert holder is not None, "a slot in use has a holder"
        return Lease(seq, self._numbers[slot], self._deadlines[slot], holder)

    def page(self, after: int, limit: int, node: str | None, now_ms: int) -> list[Lease]:
        """The first ``limit`` leases above ``after``, by seq, of ``node`` if one is given.

        The first page of several sorts the seqs of all leases. The last one forgets that, or a
        number of new leases: the next page sorts anew.
        """
        if self._order is None:
            self._order = array("Q", sorted(self.slots))
        at = bisect_right(self._order, after)
        later = sorted({seq for seq in self._later if seq > after})
        found: list[Lease] = []
        last = 0
        for seq in heapq.merge(map(self._order.__getitem__, range(at, len(self._order))), later):
            if seq == last or seq not in self.slots:
                continue
            last, lease = seq, self.lease(seq)
            if lease.deadline_ms >= now_ms and node in (None, lease.holder.node):
                found.append(lease)
                if len(found) == limit:
                    return found
        self._order, self._later = None, []
        return found

    def is_held(self, seq: int, node: str, token: str | None, now_ms: int) -> bool:
        """Whether ``node`` holds the job now; under this token, if one is given."""
        slot = self.slots.get(seq)
        if slot is None or self._deadlines[slot] < now_ms:
            return False
        holder = self._holders[slot]
        assert holder is not None, "a slot in use has a holder"
        return holder.node == node and (token is None or token == lease_id(self._numbers[slot]))

    def has_number(self, seq: int, number: int) -> bool:
        """Whether the job is held under this number."""
        slot = self.slots.get(seq)
        return slot is not None and self._numbers[slot] == number

    def grant(self, seqs: Sequence[int], number: int, deadline_ms: int, holder: Holder) -> None:
        """Lease jobs that nobody holds, under ``number`` and the numbers after it."""
        count = len(seqs)
        if holder.seqs is None:
            holder = self.pollers.setdefault(holder.node, holder)
        slots = self._take_slots(count)
        for offset, slot in enumerate(slots):
            self._deadlines[slot] = deadline_ms
            self._numbers[slot] = number + offset
            self._holders[slot] = holder
        self.slots.update(zip(seqs, slots, strict=True))
        if self._order is not None:
            self._later.extend(seqs)
            if len(self._later) > ORDER_SLACK + len(self._order) // 8:
                self._order, self._later = None, []
        self.expiry.add(deadline_ms + 1, seqs)
        holder.held += count
        if holder.seqs is not None:
            holder.seqs.update(dict.fromkeys(seqs))
        self.expiry.trim(len(self.slots), count)

    def _take_slots(self, count: int) -> Sequence[int]:
        free = self._free_slots
        if len(free) >= count:
            slots = free[len(free) - count :]
            del free[len(free) - count :]
            return slots
        start = len(self._holders)
        self._deadlines.extend(array("q", bytes(8 * count)))
        self._numbers.extend(array("Q", bytes(8 * count)))
        self._holders += [None] * count
        return range(start, start + count)

    def extend(self, seqs: Sequence[int], deadline_ms: int) -> None:
        """Set the deadline of jobs that are held."""
        for seq in seqs:
            self._deadlines[self.slots[seq]] = deadline_ms
        self.expiry.add(deadline_ms + 1, seqs)
        self.expiry.trim(len(self.slots), len(seqs))

    def drop(self, seq: int) -> Lease | None:
        """End a lease; what it was, None when nobody holds the job."""
        slot = self.slots.pop(seq, None)
        if slot is None:
            return None
        holder = self._holders[slot]
        assert holder is not None, "a slot in use has a holder"
        lease = Lease(seq, self._numbers[slot], self._deadlines[slot], holder)
        self._holders[slot] = None
        if self.slots:
            self._free_slots.append(slot)
        else:
            self._reset()
        holder.held -= 1
        if holder.seqs is not None:
            del holder.seqs[seq]
            self.loosened.append(holder)
        elif not holder.held:
            self.pollers.pop(holder.node, None)
        return lease

    def _reset(self) -> None:
        """Nothing is held: give the memory back."""
        self.slots = {}
        self._deadlines, self._numbers = array("q"), array("Q")
        self._holders, self._free_slots = [], []
        self._order, self._later = None, []

    def take_over(self, now_ms: int, limit: int = sys.maxsize) -> list[tuple[int, int]]:
        """End the leases that are over; (time, seq) of each, in this order. ``limit``: as
        `Timetable.take_due`.
        """
        due = self.expiry.take_due(now_ms, limit)
        return [each for each in due if self.drop(each[1]) is not None]

    def _over_at(self, seq: int) -> int | None:
        slot = self.slots.get(seq)
        return None if slot is None else self._deadlines[slot] + 1
