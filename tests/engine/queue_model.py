"""The obvious queue: a dict of its live jobs, and counters that count (§10)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from topics.engine.now import Now
from topics.formats.api.diff_body import TagMatch
from topics.formats.api.limits import LEASE_MS_BOUNDS
from topics.formats.api.topic_config import TopicConfig

ANYWHERE = -1
State = Literal["waiting", "held", "free", "hidden", "dead", "dying", "acking", "moving"]


@dataclass
class Job:
    """A live record of a queue.

    waiting   never delivered since it came; claimable from ``at_ms`` on
    held      leased up to and with ``at_ms``
    free      claimable since ``at_ms``, delivered before
    hidden    claimable from ``at_ms`` on, delivered before
    dead      exhausted, found by a pass
    dying     on its way to the dead-letter topic
    acking    leased, its ack is on its way
    moving    on its way to another topic
    """

    seq: int
    ts: int
    size: int
    shown: dict[str, Any]
    due_ts: int = 0
    logged: bool = True
    state: State = "waiting"
    at_ms: int = 0
    deliveries: int = 0
    node: str = ""
    stream: int = 0  # names the stream that holds it, 0: a polled claim
    number: int = 0
    until_ts: int = 0  # in the log: its deadline, or when it is claimable again
    doomed: bool = False  # the log says last that it is on its way to the dead-letter topic
    version: int = 0  # changes with every change of its lease

    @property
    def is_anywhere(self) -> bool:
        """It may stand anywhere among the free jobs: nobody is promised a place there."""
        return self.state == "free" and self.at_ms == ANYWHERE

    @property
    def place(self) -> tuple[int, ...]:
        """Where it stands among the claimable ones: free jobs come first (§10.3)."""
        if self.state == "free":
            return 0, self.at_ms
        return 1, self.due_ts or self.ts, self.seq

    @property
    def tag(self) -> str | None:
        tag: str | None = self.shown.get("$tag")
        return tag


class Counters(NamedTuple):
    """As the state of a queue shows them (§10.7)."""

    ready: int
    in_flight: int
    dead_lettered: int
    delayed: int


class Lease(NamedTuple):
    """A job as a claim gives it."""

    seq: int
    number: int
    deadline_ts: int
    deliveries: int


@dataclass
class QueueModel:
    """One incarnation. Records are there once they are committed, leases once they are decided."""

    name: str
    config: TopicConfig
    decided: TopicConfig  # speaks for claims
    jobs: dict[int, Job] = field(default_factory=dict)
    dead_lettered: int = 0
    ahead: dict[int, Job] = field(default_factory=dict)  # a checkpoint tells of records to come

    # Records

    @property
    def bytes(self) -> int:
        return sum(job.size for job in self.jobs.values())

    def append(self, jobs: Iterable[Job], now: Now) -> None:
        """Jobs come, and may push the oldest out."""
        for each in jobs:
            self.jobs[each.seq] = job = replace(self.ahead.pop(each.seq, each))
            job.at_ms = now.ms + max(job.due_ts - now.ts, 0) if job.due_ts else now.ms
        self.apply_caps()

    def apply_caps(self) -> None:
        for job in sorted(self.jobs.values(), key=lambda job: job.seq):
            over_count = self.config.cap_records and len(self.jobs) > self.config.cap_records
            over_bytes = self.config.cap_bytes and self.bytes > self.config.cap_bytes
            if not over_count and not over_bytes:
                break
            del self.jobs[job.seq]

    def configure(self, config: TopicConfig) -> None:
        self.config = config
        self.apply_caps()

    def expire(self, now_ts: int) -> None:
        if self.config.ttl_ms:
            self.delete({s for s, job in self.jobs.items() if now_ts - job.ts > self.config.ttl_ms})

    def matching(self, bound: int, match: TagMatch | None) -> set[int]:
        return {
            job.seq
            for job in self.jobs.values()
            if job.seq < bound and (match is None or _matches(match, job.tag))
        }

    def delete(self, seqs: Iterable[int]) -> None:
        for seq in seqs:
            self.jobs.pop(seq, None)

    def cut(self, start: int) -> None:
        """No record below it is there."""
        self.delete([seq for seq in self.jobs if seq < start])

    # Time

    def advance(self, now_ms: int) -> None:
        """What was to be by now is so."""
        for job in self.jobs.values():
            if job.state == "held" and now_ms > job.at_ms:
                _found(job, "free", job.at_ms + 1)
            elif job.state == "hidden" and now_ms >= job.at_ms:
                _found(job, "free", job.at_ms)

    def next_moment(self, now_ms: int) -> int | None:
        """When the next job becomes claimable by time."""
        moments = [
            job.at_ms + (job.state == "held")
            for job in self.jobs.values()
            if job.state in ("held", "hidden") or (job.state == "waiting" and job.at_ms > now_ms)
        ]
        return min(moments, default=None)

    # Counters

    def is_delayed(self, job: Job, now_ms: int) -> bool:
        return job.state == "waiting" and now_ms < job.at_ms

    def counters(self, now_ms: int) -> Counters:
        self.advance(now_ms)
        jobs = self.jobs.values()
        in_flight = sum(job.state in ("held", "acking") for job in jobs)
        hidden = sum(job.state == "hidden" for job in jobs)
        delayed = sum(self.is_delayed(job, now_ms) for job in jobs)
        moving = sum(job.state in ("dead", "dying", "moving") for job in jobs)
        ready = len(jobs) - in_flight - hidden - delayed - moving
        return Counters(ready, in_flight, self.dead_lettered, delayed)

    def held(self, node: str | None = None) -> list[Job]:
        held = self._in_state("held")
        return sorted((job for job in held if node in (None, job.node)), key=lambda job: job.seq)

    def _in_state(self, *states: State) -> list[Job]:
        return [job for job in self.jobs.values() if job.state in states]

    # Claims

    def is_exhausted(self, job: Job) -> bool:
        config = self.decided
        return bool(config.dead_letter) and 0 < config.max_deliveries <= job.deliveries

    def claimable(self, now_ms: int) -> list[Job]:
        """Jobs in the order of their delivery."""
        self.advance(now_ms)
        free = self._in_state("free")
        waiting = [job for job in self._in_state("waiting") if now_ms >= job.at_ms]
        return sorted([*free, *waiting], key=lambda job: job.place)

    def claim(
        self, leases: Iterable[Lease], node: str, stream: int, lease_ms: int, now: Now
    ) -> None:
        for lease in leases:
            job = self.jobs[lease.seq]
            assert lease.deliveries == job.deliveries + 1
            assert lease.deadline_ts == now.ts + lease_ms
            _change(job, "held", now.ms + lease_ms)
            job.deliveries += 1
            job.node, job.stream, job.number = node, stream, lease.number

    # What holders do

    def matched(
        self, node: str, seqs: Sequence[int], tokens: Sequence[str] | None, now_ms: int
    ) -> tuple[list[int], list[int]]:
        """Seqs that a request of this node is for, and those to be skipped."""
        self.advance(now_ms)
        ours: list[int] = []
        for index, seq in enumerate(seqs):
            job = self.jobs.get(seq)
            fits = (
                job is not None
                and job.state == "held"
                and job.node == node
                and (tokens is None or tokens[index] == f"lease_{job.number:x}")
            )
            if fits and seq not in ours:
                ours.append(seq)
        return ours, [seq for seq in dict.fromkeys(seqs) if seq not in ours]

    def release(self, seqs: Iterable[int], delay_ms: int, now: Now, *, uncounted: int = 0) -> None:
        """``uncounted``: deliveries that have reached nobody."""
        for seq in seqs:
            self.jobs[seq].deliveries -= uncounted
            _change(self.jobs[seq], "hidden" if delay_ms else "free", now.ms + delay_ms)

    def release_anywhere(self, seq: int) -> None:
        """It is claimable, and nobody knows when."""
        _found(self.jobs[seq], "free", ANYWHERE)

    def extend(self, seqs: Iterable[int], lease_ms: int, now: Now) -> None:
        for seq in seqs:
            self.jobs[seq].at_ms = now.ms + lease_ms

    # Jobs that leave

    def ack(self, seqs: Iterable[int]) -> None:
        for seq in seqs:
            _change(self.jobs[seq], "acking", self.jobs[seq].at_ms)

    def die(self, seqs: Iterable[int]) -> None:
        for seq in seqs:
            _found(self.jobs[seq], "dead")

    def begin_move(self, seqs: Iterable[int]) -> None:
        for seq in seqs:
            assert self.jobs[seq].state == "dead"
            _change(self.jobs[seq], "dying")

    def doom(self, seqs: Iterable[int], *, is_doomed: bool) -> None:
        for seq in seqs:
            if seq in self.jobs:
                self.jobs[seq].doomed = is_doomed

    def keep_dead(self, seqs: Iterable[int]) -> None:
        for seq in seqs:
            if seq in self.jobs:
                _change(self.jobs[seq], "dead")

    def revive_dead(self) -> None:
        for job in self._in_state("dead"):
            _found(job, "free", ANYWHERE)

    def set_aside(self, seqs: Iterable[int], now_ms: int) -> dict[int, Job]:
        """Those that nobody has, as they were."""
        self.advance(now_ms)
        ours = {}
        for seq in seqs:
            job = self.jobs.get(seq)
            if job is not None and job.state in ("waiting", "free", "hidden", "dead"):
                is_due = job.state == "waiting" and now_ms >= job.at_ms
                ours[seq] = replace(job, at_ms=0 if is_due else job.at_ms)
                _change(job, "moving")
        return ours

    def put_back(self, jobs: Iterable[Job], now: Now) -> None:
        """Free ones lose their place; a delivery time is one of the wall clock."""
        for job in jobs:
            if job.seq in self.jobs:
                self.jobs[job.seq] = back = replace(job)
                if back.state == "free" or (back.state == "hidden" and back.at_ms <= now.ms):
                    back.state, back.at_ms = "free", ANYWHERE
                elif back.state == "waiting" and back.at_ms:
                    back.at_ms = now.ms + max(back.due_ts - now.ts, 0)

    # Failures and restarts

    def kept(self, seqs: Iterable[int]) -> list[Job]:
        """These jobs as they are."""
        return [replace(self.jobs[seq]) for seq in seqs if seq in self.jobs]

    def restore(self, before: Iterable[Job], after: Iterable[Job]) -> None:
        """A change failed: what it did has not happened, unless something else has since."""
        versions = {job.seq: job.version for job in after}
        for job in before:
            found = self.jobs.get(job.seq)
            if found is not None and found.version == versions[job.seq]:
                self.jobs[job.seq] = replace(job)

    def told(self, seqs: Iterable[int], **fields: Any) -> None:
        """A frame says this of jobs, as far as they are there."""
        for seq in seqs:
            if seq in self.jobs:
                self.jobs[seq] = replace(self.jobs[seq], **{"due_ts": 0, "doomed": False, **fields})

    def told_config(self, config: TopicConfig) -> None:
        """From here on the log has no leases, or has them all."""
        self.decided = config
        self.configure(config)
        if not keeps_leases(config):
            for job in self.jobs.values():
                if not job.doomed:
                    _change(job, "waiting")
                    job.deliveries = 0
            self.ahead = {seq: job for seq, job in self.ahead.items() if job.doomed}

    def kept_rows(
        self, now: Now, aside: Iterable[Mapping[int, Job]], *, is_last: bool
    ) -> dict[int, Job]:
        """Return the jobs as a checkpoint stores them. Reserved jobs are stored as unreserved.

        ``is_last``: the checkpoint is that of an orderly stop, which keeps all but the leases.
        """
        model = self.copy()
        for jobs in aside:
            model.put_back(jobs.values(), now)
        with_leases = keeps_leases(self.config)
        with_counts = is_last and self.config.durability != "ephemeral"
        return {
            seq: _kept(job, now, with_leases=with_leases, with_counts=with_counts)
            for seq, job in model.jobs.items()
        }

    def take_over(self, rows: dict[int, Job], dead_lettered: int) -> None:
        """What a checkpoint tells."""
        self.dead_lettered = dead_lettered
        self.ahead = {
            seq: job for seq, job in rows.items() if seq not in self.jobs and job.state != "waiting"
        }
        for seq, job in self.jobs.items():
            if seq in rows:
                self.jobs[seq] = replace(rows[seq])
            else:
                _change(job, "waiting")
                job.deliveries = 0

    def begin(self, now: Now) -> None:
        """A process takes over: wall times become times of its clock."""
        for job in self.jobs.values():
            left_ms = job.until_ts - now.ts
            job.doomed = job.state == "dying" and self.is_exhausted(job)
            if job.state == "waiting":
                job.at_ms = now.ms + max(job.due_ts - now.ts, 0)
            elif job.doomed:
                job.state = "dying"
            elif (job.state == "held" and left_ms >= 0) or (job.state == "hidden" and left_ms > 0):
                job.at_ms = now.ms + min(left_ms, LEASE_MS_BOUNDS[1])
            else:
                _change(job, "free", ANYWHERE)

    def copy(self) -> QueueModel:
        return replace(self, jobs={seq: replace(job) for seq, job in self.jobs.items()})


def _change(job: Job, state: State, at_ms: int = 0) -> None:
    job.state, job.at_ms = state, at_ms
    job.version += 1
    if state in ("waiting", "free", "hidden", "dead"):
        job.node, job.stream, job.number = "", 0, 0


def keeps_leases(config: TopicConfig) -> bool:
    """Whether leases are as durable as the records."""
    return config.leases_durable and config.durability != "ephemeral"


def _kept(job: Job, now: Now, *, with_leases: bool, with_counts: bool) -> Job:
    """A job as a checkpoint tells of it."""
    kept = replace(job, stream=0, until_ts=now.ts + job.at_ms - now.ms)
    if job.doomed:
        kept.state = "dying"
    elif job.state == "waiting":
        return kept
    elif not with_leases and not with_counts:
        _change(kept, "waiting")
        kept.deliveries = 0
    elif not with_leases and job.state in ("held", "acking"):
        _change(kept, "free")
    elif job.state == "acking":
        kept.state = "held"
    kept.due_ts = 0
    return kept


def _found(job: Job, state: State, at_ms: int = 0) -> None:
    """Time or a pass did it: a change that fails takes it back, too."""
    version = job.version
    _change(job, state, at_ms)
    job.version = version


def _matches(match: TagMatch, tag: str | None) -> bool:
    if tag is None:
        return False
    return tag == match.text if match.op == "Eq" else tag.startswith(match.text)
