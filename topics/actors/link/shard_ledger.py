"""Shard ledger: what each shard holds of the caps that all shards share: topics and bytes (§11).

The words and the protocol are those of `topics.actors.link.ledger`, with two differences.

- The words of a dead shard keep what it held: its topics are on the disk. It stores what it has
  found when it is back.
- A shard is unknown until it has stored that for the first time since the server started (REPORTED
  is 1 from then on). A cap cannot be checked before. A shard that is DAMAGED counts as what it has
  reported before, or as nothing.
"""

from __future__ import annotations

from typing import Final

from topics.actors.link.board import LIMITS, Board, ShardState
from topics.actors.link.fences import load_fences
from topics.actors.link.ledger import Allowance, Limit
from topics.actors.link.process_id import ProcessKind, shard_id

REPORTED: Final = LIMITS - 1
assert max(Limit) < REPORTED


class ShardLedger:
    """The end of one shard: its counts of ``topics`` and ``total_bytes``."""

    def __init__(self, board: Board, index: int) -> None:
        shards = [board.shard(process.index) for process in board.processes(ProcessKind.SHARD)]
        rows = [words.limits for words in shards]
        self._own = board.process(shard_id(index)).limits
        self._unknown = list(zip(shards, rows, strict=True))
        self.topics = Allowance(self._own, rows, Limit.TOPICS)
        self.total_bytes = Allowance(self._own, rows, Limit.TOTAL_BYTES)

    def report(self, topics: int, total_bytes: int) -> None:
        """Store what a start has found, instead of what the process before it held."""
        self._own[Limit.TOPICS], self._own[Limit.TOTAL_BYTES] = topics, total_bytes
        load_fences().full()
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
