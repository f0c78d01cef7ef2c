"""Check a claim pass against the model: how many jobs each claim gets, and that no job is skipped.

The engine's free choices are checked, not predicted. Jobs that became claimable at the same moment
may be dealt in any order, and a pass may leave exhausted jobs after its last delivery to the next
pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from tests.engine.queue_model import Job, QueueModel


def check_pass(
    model: QueueModel,
    room: Sequence[int],
    taken: Sequence[Sequence[int]],
    found_dead: set[int],
    now_ms: int,
    *,
    evenly: bool,
) -> None:
    """Check a pass. Its claims had the limits ``room``, received ``taken`` and found
    these jobs dead.
    """
    line = model.claimable(now_ms)
    exhausted = {job.seq for job in line if model.is_exhausted(job)}
    fit = [job for job in line if job.seq not in exhausted]
    turns = _turns(room, len(fit), evenly=evenly)
    assert [len(seqs) for seqs in taken] == [turns.count(at) for at in range(len(room))]
    given = {seq: at for at, seqs in enumerate(taken) for seq in seqs}
    assert len(given) == len(turns), "no job is given twice"
    assert given.keys() <= {job.seq for job in fit}, "only jobs that may be claimed"
    assert all(list(seqs) == sorted(seqs) for seqs in taken)
    passed = _passed(line, given)
    assert {job.seq for job in passed} <= given.keys() | exhausted, "nobody is overtaken"
    if not any(job.is_anywhere for job in line):
        _check_turns(fit, turns, given)
    assert found_dead <= exhausted, "only exhausted jobs are dead"
    met = {job.seq for job in (passed if len(turns) == sum(room) else line)}
    assert met & exhausted <= found_dead, "a pass finds the exhausted jobs that it meets"


def _turns(room: Sequence[int], available: int, *, evenly: bool) -> list[int]:
    """Return the index of the claim that receives each delivery, in order."""
    left, turns = list(room), list[int]()
    while any(left):
        for index, count in enumerate(left):
            given = min(count, 1) if evenly else count
            turns += [index] * given
            left[index] -= given
    return turns[:available]


def _check_turns(fit: Sequence[Job], turns: Sequence[int], given: dict[int, int]) -> None:
    """Check the order of the deliveries. Jobs that became claimable together may be dealt in any
    order.
    """
    begin = 0
    for _, group in groupby(fit, key=lambda job: job.place):
        seqs = [job.seq for job in group]
        found = Counter(given[seq] for seq in seqs if seq in given)
        assert found == Counter(turns[begin : begin + len(seqs)]), f"{seqs} are dealt in turn"
        begin += len(seqs)


def _passed(line: Sequence[Job], given: dict[int, int]) -> list[Job]:
    """Return the jobs that precede a delivered job in the line."""
    last = [job for job in line if job.seq in given]
    return [job for job in line if any(_is_before(job, other) for other in last)]


def _is_before(job: Job, other: Job) -> bool:
    if job.state == other.state and (job.is_anywhere or other.is_anywhere):
        return False
    return job.place < other.place
