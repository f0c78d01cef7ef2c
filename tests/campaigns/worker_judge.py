"""Judges what workers of queues saw (`worker_history`) and what was there in the end: pure.

leases      what `worker_leases` says
jobs        each acknowledged job was acked, or stands once in the dead-letter topic, or is
            still there
counters    as many as are there
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.campaigns.worker_history import History
from tests.campaigns.worker_leases import Leases, Verdict


@dataclass(frozen=True, slots=True)
class Counted:
    """The counters of a queue."""

    count: int
    ready: int
    in_flight: int
    delayed: int
    dead_lettered: int


class Copy(NamedTuple):
    """What stands in a dead-letter topic."""

    queue: str
    seq: int
    deliveries: int
    data: Any


class End(NamedTuple):
    """A queue after all leases and delays are over: counted, read, claimed until nothing came,
    acked, and counted again after a restart.
    """

    at: int
    before: Counted
    live: dict[int, Any]
    claimed: int
    held: Counted
    acked: Counted
    left: dict[int, Any]
    restarted: Counted
    copies: list[Copy]


def judge(history: History, ends: dict[str, End]) -> Verdict:
    """What is wrong with a campaign."""
    verdict = Verdict(list(history.wrong))
    Leases(history, verdict).judge()
    for queue, end in ends.items():
        verdict.problems += _miscounted(history, queue, end)
        verdict.problems += _lost_or_doubled(history, queue, end, verdict.counts)
    return verdict


def _miscounted(history: History, queue: str, end: End) -> Iterator[str]:
    """What is wrong with the counters."""
    moved = end.acked.dead_lettered - end.before.dead_lettered
    delayed = sum(history.jobs[queue, seq].due > end.at for seq in end.live)
    wanted = [
        ("in_flight, all leases are over", end.before.in_flight, 0),
        ("count", end.before.count, len(end.live)),
        ("ready + delayed", end.before.ready + end.before.delayed, len(end.live)),
        ("delayed", end.before.delayed, delayed),
        ("claimed and dead-lettered of the ready", end.claimed + moved, end.before.ready),
        ("in_flight, all are claimed", end.held.in_flight, end.claimed),
        ("ready, all are claimed", end.held.ready, 0),
        ("count, all are claimed", end.held.count, end.claimed + delayed),
        ("in_flight, all are acked", end.acked.in_flight, 0),
        ("ready, all are acked", end.acked.ready, 0),
        ("count, all are acked", end.acked.count, len(end.left)),
        ("delayed, all are acked", end.acked.delayed, len(end.left)),
        ("dead_lettered", end.acked.dead_lettered, _copies_of(queue, end.copies)),
    ]
    for what, is_, should in wanted:
        if is_ != should:
            yield f"{queue}: {what}: {is_}, {should} expected"
    if end.restarted != end.acked:
        yield f"{queue}: a restart makes {end.restarted} of {end.acked}"


def _copies_of(queue: str, copies: Iterable[Copy]) -> int:
    return sum(copy.queue == queue for copy in copies)


def _lost_or_doubled(history: History, queue: str, end: End, counts: Counter[str]) -> Iterator[str]:
    """What is wrong with the jobs of a queue, one by one."""
    rules = history.queues[queue]
    acks, tries = Counter[int](), Counter[int]()
    for request in history.requests:
        if request.queue == queue and request.do == "ack":
            taken = [seq for seq in request.seqs if seq not in request.skipped]
            (tries if request.at is None else acks).update(taken)
    copies = Counter(copy.seq for copy in end.copies if copy.queue == queue)
    jobs = {seq: job for (name, seq), job in history.jobs.items() if name == queue}
    counts["jobs"] += len(jobs)
    counts["acked"] += len(acks)
    counts["dead-lettered"] += len(copies)
    for seq, job in jobs.items():
        fates = acks[seq], copies[seq], int(seq in end.left)
        if sum(fates) != 1 and (any(fates) or not tries[seq]):
            yield f"{queue} {seq}: {fates[0]} acks, {fates[1]} dead letters, {fates[2]} left"
        if seq in end.left and end.left[seq] != job.data:
            yield f"{queue} {seq} is {end.left[seq]}, it was {job.data}"
    for copy in end.copies:
        if copy.queue == queue and copy.seq not in jobs:
            yield f"{queue} {copy.seq} is a dead letter, nobody appended it"
        elif copy.queue == queue and (copy.deliveries, copy.data) != (
            rules.max_deliveries,
            jobs[copy.seq].data,
        ):
            yield f"{queue} {copy.seq} is a dead letter as {copy}"
    yield from (f"{queue} {seq} is there, nobody appended it" for seq in {*end.left} - {*jobs})
