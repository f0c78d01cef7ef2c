"""Limits ledger: what each shard holds of the caps that all shards share: topics and bytes (§11).

A shard counts in words of its own on the board and sums those of all shards. It counts first and
sums afterwards, with a full fence in between, and takes its count back when the sum is above the
cap. So of two shards that race for the last place at least one sees the other: the sum of what was
granted never exceeds a cap. One that took its count back looks once more whether there is room: the
last of those who did finds it, so a place is not left free by a race.

The words of a dead shard keep what it held: its topics are on the disk. It stores what it has found
when it is back. A shard is unknown until it has stored that for the first time since the server
started (REPORTED is 1 from then on). A cap cannot be checked before. A shard that is DAMAGED counts
as what it has reported before, or as nothing. A ledger must never store in the words of another
shard.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from topics.actors.link.board import LIMITS, Board, ShardState
from topics.actors.link.fences import load_fences

ATTEMPTS: Final = 8  # of one that others get in the way of


class Limit(IntEnum):
    """What a cap of the whole server bounds: the index of its count."""

    TOPICS = 0
    TOTAL_BYTES = 1


REPORTED: Final = LIMITS - 1
assert max(Limit) < REPORTED


class Allowance:
    """One count of this shard, among those of the others."""

    __slots__ = ("_fence", "_index", "_own", "_rows")

    def __init__(self, own: memoryview, rows: list[memoryview], index: int) -> None:
        self._own, self._rows, self._index = own, rows, index
        self._fence = load_fences().full

    def take(self, most: int, amount: int = 1) -> bool:
        """Count ``amount`` more; False, and nothing is counted, when the sum would exceed ``most``.

        0 means no cap.
        """
        own, index, fence = self._own, self._index, self._fence
        held = own[index]
        if not most:
            own[index] = held + amount
            return True
        for _ in range(ATTEMPTS):
            # What cannot fit is not counted at all: it would be in the way of others.
            if self.total() + amount > most:
                return False
            own[index] = held + amount
            with fence:
                pass
            if self.total() <= most:
                return True
            own[index] = held
            with fence:
                pass
        return False

    def give_back(self, amount: int = 1) -> None:
        """Count ``amount`` less: what was taken is over."""
        own, index = self._own, self._index
        assert own[index] >= amount, "only what was taken is given back"
        own[index] -= amount

    def total(self) -> int:
        """What all shards hold together."""
        index = self._index
        return sum([row[index] for row in self._rows])


class ShardLedger:
    """The end of one shard: its counts of ``topics`` and ``total_bytes``."""

    def __init__(self, board: Board, index: int) -> None:
        shards = [board.shard(other) for other in range(board.shards)]
        rows = [words.limits for words in shards]
        self._own = rows[index]
        self._unknown = list(zip(shards, rows, strict=True))
        self.topics = Allowance(self._own, rows, Limit.TOPICS)
        self.total_bytes = Allowance(self._own, rows, Limit.TOTAL_BYTES)

    def report(self, topics: int, total_bytes: int) -> None:
        """Store what a start has found, instead of what the process before it held."""
        self._own[Limit.TOPICS], self._own[Limit.TOTAL_BYTES] = topics, total_bytes
        with load_fences().full:
            pass
        self._own[REPORTED] = 1

    def replayed(self) -> float | None:
        """The share of its log that the last shard has replayed which has not reported; None when
        all have, or never will.
        """
        if not self._unknown:
            return None
        self._unknown = [
            (words, row)
            for words, row in self._unknown
            if not row[REPORTED] and words.state is not ShardState.DAMAGED
        ]
        return min((words.progress_ppm / 1e6 for words, _ in self._unknown), default=None)
