"""Hops: the number of routers that the records of a topic have passed, by ranges of seqs.

A record appended by a client has a hop count of 0. The hop count of a copy is one higher than that
of its original. The hop counts are only in memory, and an unknown hop count is treated as 0. So
after a restart, a record on a cycle may be forwarded up to `HOPS_MAX` more times.
"""

from __future__ import annotations

from bisect import bisect_left

from topics.formats.api.limits import U64_MAX

HOPS_MAX = 8  # a record with this number of hops is not forwarded by a router on a cycle


class Hops:
    """The hop counts of one topic. Ranges with a hop count of 0 are not stored."""

    __slots__ = ("_firsts", "_hops", "_lasts")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self._hops: list[int] = []

    def __len__(self) -> int:
        return len(self._hops)

    def note(self, first: int, last: int, hop: int) -> None:
        """Record that the seqs ``first`` to ``last`` have this hop count. The seqs must be above
        all earlier seqs.
        """
        lasts = self._lasts
        assert not lasts or lasts[-1] < first <= last, "seqs are added in ascending order"
        if not hop:
            return
        if lasts and lasts[-1] + 1 == first and self._hops[-1] == hop:
            lasts[-1] = last
            return
        self._firsts.append(first)
        lasts.append(last)
        self._hops.append(hop)

    def at(self, seq: int) -> tuple[int, int]:
        """Return the hop count of ``seq``, and the last seq of the run around it that has the same
        hop count.
        """
        index = bisect_left(self._lasts, seq)
        if index == len(self._lasts):
            return 0, U64_MAX
        first = self._firsts[index]
        return (self._hops[index], self._lasts[index]) if first <= seq else (0, first - 1)

    def drop_to(self, seq: int) -> None:
        """Drop the hop counts of all seqs up to and including ``seq``."""
        count = bisect_left(self._lasts, seq + 1)
        if count:
            del self._firsts[:count], self._lasts[:count], self._hops[:count]
        if self._firsts and self._firsts[0] <= seq:
            self._firsts[0] = seq + 1
