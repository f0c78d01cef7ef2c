"""Hops: how many routers the records of a topic have come through, by ranges of seqs.

A record of a client has hop 0, a copy one more than its original. They are in memory only: what is
not known has hop 0, so after a restart a cycle goes on for a few hops more, and ends.
"""

from __future__ import annotations

from bisect import bisect_left

from topics.formats.api.limits import U64_MAX

HOPS_MAX = 8  # a record with so many is not forwarded by a router on a cycle


class Hops:
    """Of one topic. Ranges with hop 0 are not kept."""

    __slots__ = ("_firsts", "_hops", "_lasts")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self._hops: list[int] = []

    def __len__(self) -> int:
        return len(self._hops)

    def note(self, first: int, last: int, hop: int) -> None:
        """Seqs ``first`` to ``last`` have this hop; they are above all that were noted before."""
        lasts = self._lasts
        assert not lasts or lasts[-1] < first <= last, "seqs rise"
        if not hop:
            return
        if lasts and lasts[-1] + 1 == first and self._hops[-1] == hop:
            lasts[-1] = last
            return
        self._firsts.append(first)
        lasts.append(last)
        self._hops.append(hop)

    def at(self, seq: int) -> tuple[int, int]:
        """Hop of ``seq``, and the last seq in a row that has it too."""
        index = bisect_left(self._lasts, seq)
        if index == len(self._lasts):
            return 0, U64_MAX
        first = self._firsts[index]
        return (self._hops[index], self._lasts[index]) if first <= seq else (0, first - 1)

    def drop_to(self, seq: int) -> None:
        """Forget what is at or below ``seq``."""
        count = bisect_left(self._lasts, seq + 1)
        if count:
            del self._firsts[:count], self._lasts[:count], self._hops[:count]
        if self._firsts and self._firsts[0] <= seq:
            self._firsts[0] = seq + 1
