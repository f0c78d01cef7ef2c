"""The model of a queue: a dict of its live jobs, and counters that are computed on demand (§10)."""

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

    waiting   not delivered since its append; claimable from ``at_ms`` on
    held      leased up to and including ``at_ms``
    free      delivered before; claimable since ``at_ms``
    hidden    delivered before; claimable from ``at_ms`` on
    dead      exhausted, and found by a claim pass
    dying     its move to the dead-letter topic is in flight
    acking    leased; its ack is in flight
    moving    its move to another topic is in flight
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
    stream: int = 0  # Number of the stream that holds it; 0 for a polled claim
    number: int = 0
    until_ts: int = 0  # In the log: its deadline, or when it is claimable again
    logged_dying: bool = False  # The last frame of the job in the log is DYING
    version: int = 0  # Incremented by each change of its lease

    @property
    def has_any_position(self) -> bool:
        """Return whether the position of the job among the free jobs is unspecified."""
        return self.state == "free" and self.at_ms == ANYWHERE

    @property
    def order_key(self) -> tuple[int, ...]:
        """Return the sort key of a claimable job: free jobs come first (§10.3)."""
        if self.state == "free":
            return 0, self.at_ms
        return 1, self.due_ts or self.ts, self.seq

    @property
    def tag(self) -> str | None:
        tag: str | None = self.shown.get("$tag")
        return tag


class Counters(NamedTuple):
    """The counters that the state of a queue shows (§10.7)."""

    ready: int
    in_flight: int
    dead_lettered: int
    delayed: int


class Lease(NamedTuple):
    """A lease that a claim returns."""

    seq: int
    number: int
    deadline_ts: int
    deliveries: int


@dataclass
class QueueModel:
    """One incarnation of a queue. Records enter it when committed, leases when decided."""

    name: str
    config: TopicConfig
    decided: TopicConfig  # The configuration that claims follow
    jobs: dict[int, Job] = field(default_factory=dict)
    dead_lettered: int = 0
    # Jobs of a checkpoint whose records follow in the log
    ahead: dict[int, Job] = field(default_factory=dict)

    # Records

    @property
    def bytes(self) -> int:
        return sum(job.size for job in self.jobs.values())

    def append(self, jobs: Iterable[Job], now: Now) -> None:
        """Add jobs and apply the caps, which may evict the oldest ones."""
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
        """Delete all records below ``start``."""
        self.delete([seq for seq in self.jobs if seq < start])

    # Time

    def advance(self, now_ms: int) -> None:
        """Free the jobs whose lease or delay has ended by ``now_ms``."""
        for job in self.jobs.values():
            if job.state == "held" and now_ms > job.at_ms:
                _found(job, "free", job.at_ms + 1)
            elif job.state == "hidden" and now_ms >= job.at_ms:
                _found(job, "free", job.at_ms)

    def next_moment(self, now_ms: int) -> int | None:
        """Return when the next job becomes claimable by time, or None."""
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
        """Return the claimable jobs in the order of their delivery."""
        self.advance(now_ms)
        free = self._in_state("free")
        waiting = [job for job in self._in_state("waiting") if now_ms >= job.at_ms]
        return sorted([*free, *waiting], key=lambda job: job.order_key)

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

    # Calls of lease holders

    def matched(
        self, node: str, seqs: Sequence[int], tokens: Sequence[str] | None, now_ms: int
    ) -> tuple[list[int], list[int]]:
        """Return the seqs that this node's request applies to, and the seqs to skip."""
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
        """Release jobs. ``uncounted`` is the number of deliveries to subtract because they reached
        no client.
        """
        for seq in seqs:
            self.jobs[seq].deliveries -= uncounted
            _change(self.jobs[seq], "hidden" if delay_ms else "free", now.ms + delay_ms)

    def release_anywhere(self, seq: int) -> None:
        """Make a job claimable at an unspecified position among the free jobs."""
        _found(self.jobs[seq], "free", ANYWHERE)

    def extend(self, seqs: Iterable[int], lease_ms: int, now: Now) -> None:
        for seq in seqs:
            self.jobs[seq].at_ms = now.ms + lease_ms

    # Jobs that leave the queue

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

    def mark_dying(self, seqs: Iterable[int], *, is_dying: bool) -> None:
        for seq in seqs:
            if seq in self.jobs:
                self.jobs[seq].logged_dying = is_dying

    def keep_dead(self, seqs: Iterable[int]) -> None:
        for seq in seqs:
            if seq in self.jobs:
                _change(self.jobs[seq], "dead")

    def recheck_dead(self) -> None:
        for job in self._in_state("dead"):
            _found(job, "free", ANYWHERE)

    def reserve(self, seqs: Iterable[int], now_ms: int) -> dict[int, Job]:
        """Reserve the jobs that no holder has and return their previous state."""
        self.advance(now_ms)
        ours = {}
        for seq in seqs:
            job = self.jobs.get(seq)
            if job is not None and job.state in ("waiting", "free", "hidden", "dead"):
                is_due = job.state == "waiting" and now_ms >= job.at_ms
                ours[seq] = replace(job, at_ms=0 if is_due else job.at_ms)
                _change(job, "moving")
        return ours

    def unreserve(self, jobs: Iterable[Job], now: Now) -> None:
        """Put reserved jobs back. Free jobs lose their position, and a delay ends by the
        wall clock.
        """
        for job in jobs:
            if job.seq in self.jobs:
                self.jobs[job.seq] = back = replace(job)
                if back.state == "free" or (back.state == "hidden" and back.at_ms <= now.ms):
                    back.state, back.at_ms = "free", ANYWHERE
                elif back.state == "waiting" and back.at_ms:
                    back.at_ms = now.ms + max(back.due_ts - now.ts, 0)

    # Failures and restarts

    def kept(self, seqs: Iterable[int]) -> list[Job]:
        """Return copies of these jobs."""
        return [replace(self.jobs[seq]) for seq in seqs if seq in self.jobs]

    def restore(self, before: Iterable[Job], after: Iterable[Job]) -> None:
        """Restore the state before a failed change, except for jobs that were changed
        again since.
        """
        versions = {job.seq: job.version for job in after}
        for job in before:
            found = self.jobs.get(job.seq)
            if found is not None and found.version == versions[job.seq]:
                self.jobs[job.seq] = replace(job)

    def apply_frame(self, seqs: Iterable[int], **fields: Any) -> None:
        """Apply the contents of a frame to the jobs that exist."""
        for seq in seqs:
            if seq in self.jobs:
                self.jobs[seq] = replace(
                    self.jobs[seq], **{"due_ts": 0, "logged_dying": False, **fields}
                )

    def apply_config(self, config: TopicConfig) -> None:
        """Apply a TOPIC frame. It may end or begin the logging of leases."""
        self.decided = config
        self.configure(config)
        if not keeps_leases(config):
            for job in self.jobs.values():
                if not job.logged_dying:
                    _change(job, "waiting")
                    job.deliveries = 0
            self.ahead = {seq: job for seq, job in self.ahead.items() if job.logged_dying}

    def kept_rows(
        self, now: Now, reserved: Iterable[Mapping[int, Job]], *, is_last: bool
    ) -> dict[int, Job]:
        """Return the jobs as a checkpoint stores them. Reserved jobs are stored as unreserved.

        ``is_last``: the checkpoint is that of an orderly stop, which keeps all but the leases.
        """
        model = self.copy()
        for jobs in reserved:
            model.unreserve(jobs.values(), now)
        with_leases = keeps_leases(self.config)
        with_counts = is_last and self.config.durability != "ephemeral"
        return {
            seq: _kept(job, now, with_leases=with_leases, with_counts=with_counts)
            for seq, job in model.jobs.items()
        }

    def take_over(self, rows: dict[int, Job], dead_lettered: int) -> None:
        """Apply the rows of a checkpoint."""
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
        """Start a process: convert wall-clock times to times of its monotonic clock."""
        for job in self.jobs.values():
            left_ms = job.until_ts - now.ts
            job.logged_dying = job.state == "dying" and self.is_exhausted(job)
            if job.state == "waiting":
                job.at_ms = now.ms + max(job.due_ts - now.ts, 0)
            elif job.logged_dying:
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
    """Return whether leases are as durable as the records."""
    return config.leases_durable and config.durability != "ephemeral"


def _kept(job: Job, now: Now, *, with_leases: bool, with_counts: bool) -> Job:
    """Return the job as a checkpoint stores it."""
    kept = replace(job, stream=0, until_ts=now.ts + job.at_ms - now.ms)
    if job.logged_dying:
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
    """Change the state by time or by a claim pass. Undoing a failed change also undoes this."""
    version = job.version
    _change(job, state, at_ms)
    job.version = version


def _matches(match: TagMatch, tag: str | None) -> bool:
    if tag is None:
        return False
    return tag == match.text if match.op == "Eq" else tag.startswith(match.text)
