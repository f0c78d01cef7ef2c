"""Judges the jobs of a queue after a power loss, as `check_state` judges records.

leases_durable true     holders, lease numbers, deadlines and delivery counts are those of the
                        moment that the records are of
leases_durable false    nothing is held, nothing was delivered
all                     a delayed job is due when it was; the moved ones are counted; a job that
                        stands in the dead-letter topic is gone, or will not be delivered
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from topics.engine.queue.ledger import JobRow, JobState

CLOCKS_MS = 50  # each restart reads two clocks, one after the other


class JobModel(NamedTuple):
    """One job that was delivered. ``node`` "": claimable from ``until_ms`` on (wall clock), give or
    take ``about_ms``.
    """

    node: str
    number: int
    until_ms: int
    deliveries: int
    about_ms: int = 0


class FoundJobs(NamedTuple):
    """The jobs of a queue that was opened. ``rows`` and ``delays`` as in a ledger."""

    rows: dict[int, JobRow]
    delays: dict[int, int]
    dead: frozenset[int]  # not delivered any more
    dead_lettered: int


class JobsModel:
    """The jobs of a queue after some step."""

    def __init__(self) -> None:
        self.firm = False  # leases_durable
        self.jobs: dict[int, JobModel] = {}
        self.delays_ms: dict[int, int] = {}
        self.dead_lettered = 0

    def copy(self) -> JobsModel:
        other = JobsModel()
        other.firm, other.dead_lettered = self.firm, self.dead_lettered
        other.jobs, other.delays_ms = dict(self.jobs), dict(self.delays_ms)
        return other

    def apply(self, note: dict[str, Any]) -> None:
        """One step of the load, of any kind."""
        match note["step"]:
            case "put":
                self.firm = note["config"].get("leases_durable", self.firm)
            case "append":
                for seq, record in enumerate(note["records"], note["first_seq"]):
                    if "delay_ms" in record:
                        self.delays_ms[seq] = record["delay_ms"]
            case "claim":
                for seq, number, deadline_ms, deliveries in note["jobs"]:
                    self.jobs[seq] = JobModel(note["node"], number, deadline_ms, deliveries)
                    self.delays_ms.pop(seq, None)
            case "nack":
                self._nack(note)
            case "extend":
                for seq, deadline_ms in note["deadlines"]:
                    self.jobs[seq] = self.jobs[seq]._replace(until_ms=deadline_ms)
            case "ack" | "bury":
                for seq in note["seqs"]:
                    self.jobs.pop(seq, None)
                self.dead_lettered += len(note["seqs"]) * (note["step"] == "bury")

    def _nack(self, note: dict[str, Any]) -> None:
        until_ms = note["sent_ms"] + note["delay_ms"] if note["delay_ms"] else 0
        for seq in note["seqs"]:
            job = self.jobs[seq]
            self.jobs[seq] = JobModel("", 0, until_ms, job.deliveries, note["took_ms"])


def jobs_differ(found: FoundJobs, model: JobsModel, ts: dict[int, int]) -> str | None:
    """What is wrong with the jobs, if the model is of the right moment. ``ts``: of live records."""
    expected = model.jobs if model.firm else {}
    there = {seq: row for seq, row in found.rows.items() if row.state is not JobState.DYING}
    for seq in sorted({*expected} | {*there}):
        job, row = expected.get(seq), there.get(seq)
        if seq in found.dead and job is not None and not job.node:
            continue  # on its way to the dead-letter topic
        if job is None or row is None or not _same(row, job):
            return f"job {seq} is {row}, it was {job}"
    if found.dead_lettered != model.dead_lettered:
        return f"{found.dead_lettered} are counted as dead letters, {model.dead_lettered} are"
    return _delays_differ(found, model, ts)


def _same(row: JobRow, job: JobModel) -> bool:
    state = JobState.HELD if job.node else JobState.FREE
    if (row.state, row.node, row.number) != (state, job.node, job.number):
        return False
    if not job.until_ms and row.state is JobState.FREE:
        return row.deliveries == job.deliveries and not row.until_ts
    apart_ms = row.until_ts - job.until_ms
    return row.deliveries == job.deliveries and (-CLOCKS_MS <= apart_ms <= CLOCKS_MS + job.about_ms)


def _delays_differ(found: FoundJobs, model: JobsModel, ts: dict[int, int]) -> str | None:
    expected = {seq: ts[seq] + delay_ms for seq, delay_ms in model.delays_ms.items() if seq in ts}
    # Where leases are forgotten, whether a delivered job once had a delay does not matter.
    there = {seq: due for seq, due in found.delays.items() if seq in expected or model.firm}
    if there != expected:
        return f"the delays are {there}, they were {expected}"
    return None


def badly_moved(
    notes: list[dict[str, Any]], live: set[int], jobs: FoundJobs, copied: list[int]
) -> Iterator[str]:
    """What is wrong between a queue and its dead-letter topic. ``notes``: the moves before the
    loss; ``copied``: seqs of the jobs that stand in the topic.
    """
    moved = {seq for note in notes for seq in note["seqs"]}
    for seq in sorted(moved - live - {*copied}):
        yield f"job {seq} is neither in its queue nor in the dead-letter topic"
    for seq in sorted({seq for seq in copied if copied.count(seq) > 1}):
        yield f"job {seq} stands in the dead-letter topic twice"
    for seq in sorted(live.intersection(copied) - jobs.dead):
        yield f"job {seq} stands in the dead-letter topic and would be delivered"
