"""Delays: the earliest delivery times of jobs that have never been delivered (§2).

The rows are in ascending order of seqs. They are stored as columns in blocks of up to `BLOCK_ROWS`
rows. A row takes 24 bytes, and a run of seqs is removed in one step.

    column  type  contents
    seqs    u64   seq of the job
    due     i64   earliest delivery time (wall ms)
    until   i64   the same time on the monotonic clock; 0 if the job is due, or during a replay
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, MutableMapping
from typing import NamedTuple

from topics.engine.queue.timer_queue import DueCounter
from topics.formats.ranges import SeqRun

BLOCK_ROWS = 512


class _Block(NamedTuple):
    seqs: array[int]
    due: array[int]
    until: array[int]

    def part(self, start: int, stop: int) -> _Block:
        return _Block(*(column[start:stop] for column in self))


class Delays(MutableMapping[int, int]):
    """Due time of each delayed job (wall ms), by seq, in ascending order.

    ``waiting`` is the number of jobs that are not due, and ``ends`` counts their due times.
    """

    __slots__ = ("_blocks", "_count", "_firsts", "ends", "waiting")

    def __init__(self) -> None:
        # The blocks are in ascending order, and never empty. `_firsts` has an entry for each of
        # them.
        self._blocks: list[_Block] = []
        self._firsts: list[int] = []  # by block: a lower bound of its seqs
        self._count = self.waiting = 0
        self.ends = DueCounter()

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        return (seq for seq, _ in self.rows())

    def __getitem__(self, seq: int) -> int:
        found = self._find(seq)
        if found is None:
            raise KeyError(seq)
        return found[0].due[found[1]]

    def __setitem__(self, seq: int, due_ts: int) -> None:
        self.put(seq, due_ts, 0)

    def __delitem__(self, seq: int) -> None:
        self.drop(seq, seq + 1)

    def __contains__(self, seq: object) -> bool:
        return isinstance(seq, int) and self._find(seq) is not None

    def _find(self, seq: int) -> tuple[_Block, int] | None:
        at = bisect_right(self._firsts, seq) - 1
        if at < 0:
            return None
        block = self._blocks[at]
        row = bisect_left(block.seqs, seq)
        return (block, row) if row < len(block.seqs) and block.seqs[row] == seq else None

    def until_ms(self, seq: int) -> int | None:
        """Return the due time of a job (monotonic ms), or None if it is due or has no delay."""
        found = self._find(seq)
        return found and (found[0].until[found[1]] or None)

    def rows(self, after: int = 0, limit: int = sys.maxsize) -> Iterator[tuple[int, int]]:
        """Yield ``(seq, due_ts)`` of up to ``limit`` jobs above ``after``, in ascending order."""
        at = max(bisect_right(self._firsts, after) - 1, 0)
        while at < len(self._blocks) and limit > 0:
            seqs, due, _ = self._blocks[at]
            start = bisect_right(seqs, after)
            stop = min(start + limit, len(seqs))
            yield from zip(seqs[start:stop], due[start:stop], strict=True)
            limit -= stop - start
            at += 1

    def times(self) -> Iterator[tuple[int, int]]:
        """Yield ``(until_ms, seq)`` of all jobs that are not due."""
        for seqs, _, until in self._blocks:
            yield from ((at, seq) for at, seq in zip(until, seqs, strict=True) if at)

    # Changes

    def put(self, seq: int, due_ts: int, until_ms: int) -> None:
        """Set the delay of a job, and replace its former delay."""
        blocks, firsts = self._blocks, self._firsts
        self._count += 1
        if until_ms:
            self.waiting += 1
            self.ends.add(until_ms)
        if not blocks or seq > blocks[-1].seqs[-1]:
            # Most new seqs are above all existing ones, so they are appended to the last block.
            if not blocks or len(blocks[-1].seqs) == BLOCK_ROWS:
                blocks.append(_Block(array("Q"), array("q"), array("q")))
                firsts.append(seq)
            seqs, due, until = blocks[-1]
            seqs.append(seq)
            due.append(due_ts)
            until.append(until_ms)
            return
        # The seq is below others. Find its block, and replace its row or insert one.
        at = max(bisect_right(firsts, seq) - 1, 0)
        block = blocks[at]
        row = bisect_left(block.seqs, seq)
        if row < len(block.seqs) and block.seqs[row] == seq:
            self._count -= 1
            self._end_wait(block.until[row : row + 1])
            block.due[row], block.until[row] = due_ts, until_ms
            return
        for column, value in zip(block, (seq, due_ts, until_ms), strict=True):
            column.insert(row, value)
        # The inserted seq may be the new first one of the block.
        firsts[at] = block.seqs[0]
        # Split a block that has become too long.
        if len(block.seqs) > BLOCK_ROWS:
            half = BLOCK_ROWS // 2
            blocks[at : at + 1] = [block.part(0, half), block.part(half, len(block.seqs))]
            firsts[at : at + 1] = [blocks[at].seqs[0], blocks[at + 1].seqs[0]]

    def note_due(self, seq: int) -> int | None:
        """Mark a job as due, and return its due time (wall ms).

        Return None if the job is not waiting.
        """
        found = self._find(seq)
        if found is None or not found[0].until[found[1]]:
            return None
        block, row = found
        self._end_wait(block.until[row : row + 1])
        block.until[row] = 0
        return block.due[row]

    def _end_wait(self, times: array[int]) -> None:
        """Count the rows with these ``until`` times as no longer waiting."""
        # Do not create a `Counter` for one row, which is the usual case.
        if len(times) == 1:
            counts = {times[0]: 1}
        elif self.waiting:
            counts = Counter(times)
        else:
            return
        for until_ms, count in counts.items():
            if until_ms:
                self.waiting -= count
                self.ends.remove(until_ms, count)

    def take(self, seq: int) -> tuple[int, bool] | None:
        """Remove the delay of a job. Return its due time (wall ms) and whether it is due, or None
        if the job has no delay.
        """
        found = self._find(seq)
        if found is None:
            return None
        block, row = found
        due_ts, until_ms = block.due[row], block.until[row]
        self.drop(seq, seq + 1)
        return due_ts, not until_ms

    def drop(self, first: int, stop: int) -> None:
        """Remove the delays of the jobs from ``first`` to ``stop`` (exclusive)."""
        blocks, firsts = self._blocks, self._firsts
        # The blocks from ``at`` to ``end`` are dropped at the end.
        at = end = max(bisect_right(firsts, first) - 1, 0)
        while end < len(blocks) and firsts[end] < stop:
            block = blocks[end]
            start, over = bisect_left(block.seqs, first), bisect_left(block.seqs, stop)
            self._count -= over - start
            self._end_wait(block.until[start:over])
            # Complete blocks are dropped together at the end. Other blocks lose some of their rows.
            if over - start == len(block.seqs):
                end += 1
                continue
            for column in block:
                del column[start:over]
            if start:  # some rows before ``first`` remain in the block
                at = end = end + 1
            else:
                break
        del blocks[at:end], firsts[at:end]

    def drop_runs(self, runs: Iterable[SeqRun]) -> None:
        """Remove the delays of the jobs of these runs."""
        for first, length in runs if self._count else ():
            self.drop(first, first + length)
