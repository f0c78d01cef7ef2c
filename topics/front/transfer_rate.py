"""Transfer rate: the speed at which a client fills or empties the memory that is held for it."""

from __future__ import annotations

import math

HALF_LIFE_S = 2.0  # after this time, a byte counts half as much for the rate


class TransferRate:
    """An exponentially weighted count of the bytes of the last few seconds.

    A client that has just begun counts as slow.
    """

    __slots__ = ("_at", "_recent")

    def __init__(self) -> None:
        self._recent = 0.0  # weighted bytes at time _at
        self._at = 0.0

    def count(self, moved: int, now: float) -> None:
        """Count ``moved`` bytes, received or sent."""
        self._recent, self._at = self._recent_at(now) + moved, now

    def skip_to(self, now: float) -> None:
        """Exclude the time until ``now``, because the client could not transfer anything."""
        self._at = now

    def turnover_s(self, held: int, now: float) -> float:
        """Return the seconds that ``held`` bytes take at the current rate."""
        rate = self._recent_at(now) * math.log(2) / HALF_LIFE_S
        return held / rate if rate > 0 else math.inf

    def _recent_at(self, now: float) -> float:
        return self._recent * math.exp2((self._at - now) / HALF_LIFE_S)
