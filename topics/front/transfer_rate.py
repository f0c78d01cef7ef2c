"""Transfer rate: how fast a client fills or empties the memory that is held for it."""

from __future__ import annotations

import math

HALF_LIFE_S = 2.0  # a byte counts half as much for the rate after so long


class TransferRate:
    """Bytes of the last seconds, exponentially weighted. A client that has just begun counts as
    slow.
    """

    __slots__ = ("_at", "_recent")

    def __init__(self) -> None:
        self._recent = 0.0  # weighted bytes at time _at
        self._at = 0.0

    def count(self, moved: int, now: float) -> None:
        """So many bytes came or went."""
        self._recent, self._at = self._recent_at(now) + moved, now

    def skip_to(self, now: float) -> None:
        """The time until now does not count: the client could do nothing."""
        self._at = now

    def turnover_s(self, held: int, now: float) -> float:
        """How long ``held`` bytes take at the present rate."""
        rate = self._recent_at(now) * math.log(2) / HALF_LIFE_S
        return held / rate if rate > 0 else math.inf

    def _recent_at(self, now: float) -> float:
        return self._recent * math.exp2((self._at - now) / HALF_LIFE_S)
