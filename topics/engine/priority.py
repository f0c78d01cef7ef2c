"""Priority: the order of topics while the server is overloaded (§0.10, §11).

The effective priority of a topic is its manual priority, if it has one. Otherwise the effective
priority depends on the time since the last read:

    age of the last read   0    30 s   60 s   90 s   ...   4 min 28 s   later, never
    effective priority     500  250    125    62           1            0

Effective priorities are grouped into bands. The bands that have waiting work share the capacity by
weight, 16:8:4:2:1 from the highest band to the lowest, so that none of them starves. If only one
band has waiting work, it gets all of the capacity. The bands are:

    band   effective priority   usually
    4      750 to 1000          manual
    3      250 to 749           read within the last 30 s
    2      1 to 249             read within the last minutes
    1      0                    not read lately; every new topic
    0      -1000 to -1          manual
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import Final, Generic, TypeVar

T = TypeVar("T")

RECENT: Final = 500  # priority of a topic immediately after a read
HALF_LIFE_MS: Final = 30_000

TOP_BAND: Final = 4
NEW_BAND: Final = 1  # band of a topic that has no manual priority and has never been read
_LOWEST_OF_BAND: Final = (0, 1, 250, 750)  # lowest priority of each band from 1 on
BANDS: Final = len(_LOWEST_OF_BAND) + 1
assert BANDS == TOP_BAND + 1
WEIGHTS: Final = (1, 2, 4, 8, 16)  # by band


def recency_priority(age_ms: int) -> int:
    """Return the priority of a topic whose last read is ``age_ms`` old.

    It halves every 30 s and is rounded down.
    """
    return int(RECENT * 2 ** (-max(0, age_ms) / HALF_LIFE_MS))


def band_of(priority: int) -> int:
    """Return the band of an effective priority, from 0 to `TOP_BAND`."""
    return bisect_right(_LOWEST_OF_BAND, priority)


class WeightedQueues(Generic[T]):
    """Weighted round-robin over one queue for each band.

    ``weights`` may have one more entry, for items that have no band.
    """

    def __init__(self, weights: tuple[int, ...] = WEIGHTS) -> None:
        self._weights = weights
        self._credit = [0] * len(weights)
        self.queues: tuple[deque[T], ...] = tuple(deque() for _ in weights)

    def next(self) -> int | None:
        """Return the number of the queue to serve next, or None if all queues are empty."""
        having = [number for number, queue in enumerate(self.queues) if queue]
        if not having:
            return None
        while True:
            for number in reversed(having):
                if self._credit[number] > 0:
                    return number
            for number, weight in enumerate(self._weights):
                # Each round adds the weight as credit. Debts are carried over, but unused credit is
                # not.
                self._credit[number] = min(self._credit[number], 0)
                if self.queues[number]:
                    self._credit[number] += weight

    def charge(self, number: int, cost: int = 1) -> None:
        """Charge a queue for an item that was taken from it."""
        self._credit[number] -= cost
