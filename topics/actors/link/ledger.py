"""Limits ledger: counts of topics and bytes, for the caps that all shards share (§11).

A shard stores its counts in its own cells on the board, and sums the cells of all shards. It
increments its count first and sums afterwards, with a full fence in between. If the sum exceeds the
cap, it reverts its count. So if two shards race for the last unit, at least one sees the increment
of the other, and the granted sum never exceeds a cap. A shard that has reverted its count retries,
up to ATTEMPTS times. The last shard that reverts its count finds the unit free when it retries.

The cells of a dead shard keep its usage, because its topics are on the disk. After a restart the
shard stores the usage that it finds. When a shard reports its usage for the first time since the
server started, it sets REPORTED to 1. Until then its usage is unknown, and no cap can be checked.
For a shard that is DAMAGED, the usage that it last reported counts, or 0. A ledger must never write
to the cells of another shard.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from topics.actors.link.board import LIMITS, Board, ShardState
from topics.actors.link.fences import load_fences

ATTEMPTS: Final = 8  # maximum attempts if other shards change their counts at the same time


class Limit(IntEnum):
    """A quantity that has a cap for the entire server. The value is the index of its cell."""

    TOPICS = 0
    TOTAL_BYTES = 1


REPORTED: Final = LIMITS - 1
assert max(Limit) < REPORTED


class LedgerCount:
    """The count of one limit in this shard, and the counts of the same limit in all shards."""

    __slots__ = ("_fence", "_index", "_own", "_rows")

    def __init__(self, own: memoryview, rows: list[memoryview], index: int) -> None:
        self._own, self._rows, self._index = own, rows, index
        self._fence = load_fences().full

    def take(self, most: int, amount: int = 1) -> bool:
        """Increment the count by ``amount``.

        Return False, and change nothing, if the sum would exceed ``most``.

        ``most`` 0 means no cap.
        """
        own, index, fence = self._own, self._index, self._fence
        held = own[index]
        if not most:
            own[index] = held + amount
            return True
        for _ in range(ATTEMPTS):
            # Do not increment if the amount cannot fit, because that would make other shards fail.
            if self.total() + amount > most:
                return False
            # Increment first and check afterwards, so that at least one of two competing shards
            # sees both increments.
            own[index] = held + amount
            with fence:
                pass
            if self.total() <= most:
                return True
            own[index] = held
            with fence:
                pass
        return False

    def release(self, amount: int = 1) -> None:
        """Decrement the count by ``amount``, which was taken before."""
        own, index = self._own, self._index
        assert own[index] >= amount, "only used amounts are released"
        own[index] -= amount

    def total(self) -> int:
        """Return the sum of the counts of all shards."""
        index = self._index
        return sum([row[index] for row in self._rows])


class ShardLedger:
    """The ledger of one shard: its counts of ``topics`` and ``total_bytes``."""

    def __init__(self, board: Board, index: int) -> None:
        shards = [board.shard(other) for other in range(board.shards)]
        rows = [cells.limits for cells in shards]
        self._own = rows[index]
        self._unknown = list(zip(shards, rows, strict=True))
        self.topics = LedgerCount(self._own, rows, Limit.TOPICS)
        self.total_bytes = LedgerCount(self._own, rows, Limit.TOTAL_BYTES)

    def report(self, topics: int, total_bytes: int) -> None:
        """Store the usage found at startup, in place of the usage of the previous process."""
        self._own[Limit.TOPICS], self._own[Limit.TOTAL_BYTES] = topics, total_bytes
        with load_fences().full:
            pass
        self._own[REPORTED] = 1

    def replayed(self) -> float | None:
        """Return the lowest replay progress of the shards that have not reported yet, 0 to 1.

        Return None if every shard has reported or is DAMAGED.
        """
        if not self._unknown:
            return None
        self._unknown = [
            (cells, row)
            for cells, row in self._unknown
            if not row[REPORTED] and cells.state is not ShardState.DAMAGED
        ]
        return min((cells.progress_ppm / 1e6 for cells, _ in self._unknown), default=None)
