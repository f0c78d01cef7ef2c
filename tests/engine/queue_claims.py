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
    capacities: Sequence[int],
    taken: Sequence[Sequence[int]],
    found_dead: set[int],
    now_ms: int,
    *,
    evenly: bool,
) -> None:
    """Check a pass. Its claims had the limits ``capacities``, received ``taken`` and found
    these jobs dead.
    """
    line = model.claimable(now_ms)
    exhausted = {job.seq for job in line if model.is_exhausted(job)}
    fit = [job for job in line if job.seq not in exhausted]
    order = _delivery_order(capacities, len(fit), evenly=evenly)
    assert [len(seqs) for seqs in taken] == [order.count(at) for at in range(len(capacities))]
    given = {seq: at for at, seqs in enumerate(taken) for seq in seqs}
    assert len(given) == len(order), "no job is given twice"
    assert given.keys() <= {job.seq for job in fit}, "only jobs that may be claimed"
    assert all(list(seqs) == sorted(seqs) for seqs in taken)
    passed = _passed(line, given)
    assert {job.seq for job in passed} <= given.keys() | exhausted, "no job is skipped"
    if not any(job.has_any_position for job in line):
        _check_order(fit, order, given)
    assert found_dead <= exhausted, "only exhausted jobs are dead"
    met = {job.seq for job in (passed if len(order) == sum(capacities) else line)}
    assert met & exhausted <= found_dead, "a pass finds the exhausted jobs that it meets"


def _delivery_order(capacities: Sequence[int], available: int, *, evenly: bool) -> list[int]:
    """Return the index of the claim that receives each delivery, in order."""
    left, order = list(capacities), list[int]()
    while any(left):
        for index, count in enumerate(left):
            given = min(count, 1) if evenly else count
            order += [index] * given
            left[index] -= given
    return order[:available]


def _check_order(fit: Sequence[Job], order: Sequence[int], given: dict[int, int]) -> None:
    """Check the order of the deliveries. Jobs that became claimable together may be dealt in any
    order.
    """
    begin = 0
    for _, group in groupby(fit, key=lambda job: job.order_key):
        seqs = [job.seq for job in group]
        found = Counter(given[seq] for seq in seqs if seq in given)
        assert found == Counter(order[begin : begin + len(seqs)]), f"{seqs} are dealt in order"
        begin += len(seqs)


def _passed(line: Sequence[Job], given: dict[int, int]) -> list[Job]:
    """Return the jobs that precede a delivered job in the line."""
    last = [job for job in line if job.seq in given]
    return [job for job in line if any(_is_before(job, other) for other in last)]


def _is_before(job: Job, other: Job) -> bool:
    if job.state == other.state and (job.has_any_position or other.has_any_position):
        return False
    return job.order_key < other.order_key
