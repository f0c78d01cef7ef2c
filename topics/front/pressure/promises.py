"""Promises: a write that was refused under pressure is told when to come again, and is let in then.

    refused --give--> due at its time --a write of the same key to the same topic--> redeemed
                                    '--LIFE_S later-------------------------------> lapsed

A promise belongs to a key and a topic, not to a request: whichever write of theirs comes first at
or after its time redeems it. Their number is bounded, so a client that collects promises gets none
any more; it is refused and told a time all the same.
"""

from __future__ import annotations

from collections import deque
from typing import Final

PROMISES_MAX: Final = 100_000
OF_ONE_MAX: Final = 4096  # of one key for one topic
LIFE_S: Final = 30.0  # after it was due

Holder = tuple[bytes, str]
"""Digest of the key, and the topic."""


class Promises:
    """The promises of a front. Times in seconds of one clock."""

    def __init__(self) -> None:
        self._count = 0
        self._due: dict[Holder, deque[float]] = {}  # rising
        self._lapsing: dict[int, set[Holder]] = {}  # by the second before which they have lapsed

    def __len__(self) -> int:
        return self._count

    @property
    def holders(self) -> int:
        """How many keys have a promise for how many topics."""
        return len(self._due)

    def last(self, key: bytes, topic: str) -> float:
        """When the last promise of a holder is due; 0 without any."""
        dues = self._due.get((key, topic))
        return dues[-1] if dues else 0.0

    def give(self, key: bytes, topic: str, due: float) -> bool:
        """Promise that a write is let in from ``due`` on, which is not below an earlier ``due`` for
        the same; False when there are too many promises.
        """
        holder = (key, topic)
        dues = self._due.get(holder)
        if self._count >= PROMISES_MAX or (dues is not None and len(dues) >= OF_ONE_MAX):
            return False
        if dues is None:
            dues = self._due[holder] = deque()
        dues.append(due)
        self._count += 1
        self._lapsing.setdefault(int(due + LIFE_S) + 1, set()).add(holder)
        return True

    def redeem(self, key: bytes, topic: str, now: float) -> bool:
        """Use up a promise that is due; False when there is none."""
        holder = (key, topic)
        dues = self._due.get(holder)
        if dues is None:
            return False
        self._drop(holder, dues, now - LIFE_S)
        if not dues or dues[0] > now:
            return False
        self._pop(holder, dues)
        return True

    def expire(self, now: float) -> None:
        """Forget promises that have lapsed. Call it now and then."""
        for second in [second for second in self._lapsing if second <= now]:
            for holder in self._lapsing.pop(second):
                dues = self._due.get(holder)
                if dues is not None:
                    self._drop(holder, dues, now - LIFE_S)

    def _drop(self, holder: Holder, dues: deque[float], before: float) -> None:
        while dues and dues[0] < before:
            self._pop(holder, dues)

    def _pop(self, holder: Holder, dues: deque[float]) -> None:
        dues.popleft()
        self._count -= 1
        if not dues:
            del self._due[holder]
