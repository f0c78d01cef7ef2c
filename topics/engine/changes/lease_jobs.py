"""Lease jobs: jobs are claimed, released or extended, or begin their move to a dead-letter topic
(§10.2, §10.5, §10.6).

decide   effective at once; a LEASE frame where leases are durable, and for every move
commit   nothing is left to do: the caller answers
undo     the leases are as before, of jobs that nothing else has happened to
replay   LEASE frames go into the ledger (`topics.engine.queue.ledger`)

A change without frames is answered at once. One with frames is answered when they are as durable as
the class of the topic promises; a move is synced before it goes on.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from itertools import islice, repeat

from topics.engine.changes.change import Change
from topics.engine.now import Now
from topics.engine.queue.claims import Ask, Job, Taken, deal, jobs_of
from topics.engine.queue.jobs import Jobs
from topics.engine.queue.leases import Holder, Lease
from topics.engine.queue.ledger import JobRow, JobState, keeps_leases
from topics.engine.topic import Topic
from topics.engine.topic_table import TopicTable
from topics.formats.api.limits import U64_MAX
from topics.formats.api.queue_answers import with_error
from topics.formats.disk.frame_bodies import LeaseOp, LeaseRows, lease_frame
from topics.formats.disk.frames import Frame


class LeaseChange(Change):
    """What has become of leases. ``seqs``: the jobs; ``skipped``: those that were asked for and are
    not held. ``until_ts``: their new deadline (wall ms). ``jobs``: those of a claim.
    """

    __slots__ = ("_doomed", "jobs", "seqs", "skipped", "until_ts")

    def __init__(self, topic: Topic, seqs: Sequence[int], skipped: Sequence[int] = ()) -> None:
        super().__init__(topic, [], False)
        self.seqs, self.skipped = seqs, skipped
        self.jobs: Sequence[Job] = ()
        self.until_ts = 0
        self._doomed: dict[int, str] | None = None  # what the log said of these before

    def log(self, frames: list[Frame], *, sync: bool) -> None:
        """The change is pending until these frames are durable; without any it is not."""
        self.frames = frames
        if frames:
            self.sync = sync or self.topic.config.durable or self.topic.pending_sync > 0
            self.note_pending()

    def doom(self, dead_letter: str | None = None) -> None:
        """The log says now of these jobs that they go to ``dead_letter``, or that they do not."""
        doomed = jobs_of(self.topic).doomed
        if doomed or dead_letter is not None:
            self._doomed = {seq: doomed.pop(seq) for seq in self.seqs if seq in doomed}
            if dead_letter is not None:
                doomed.update(dict.fromkeys(self.seqs, dead_letter))

    def commit(self, _: TopicTable, /) -> None:
        """As `Change.commit`."""
        self.note_settled()

    def undo(self, _: TopicTable, /) -> None:
        """As `Change.undo`."""
        self.note_settled()
        self.take_back()
        if self._doomed is not None:
            jobs = jobs_of(self.topic)
            for seq in self.seqs:
                jobs.doomed.pop(seq, None)
            jobs.doomed.update(item for item in self._doomed.items() if jobs.is_listed(item[0]))

    def take_back(self) -> None:
        """Undo what the change has done to the jobs."""
        raise NotImplementedError


class ClaimJobs(LeaseChange):
    """Jobs that are leased to one holder."""

    __slots__ = ()

    def take_back(self) -> None:
        """The jobs are claimable again, and this delivery is not counted."""
        for job in self.jobs:
            jobs_of(self.topic).take_back(job.seq, job.number)


class EndLeases(LeaseChange):
    """Jobs that are claimable again: now, or after a delay. ``uncounted``: how many of the
    deliveries of each have reached nobody.
    """

    __slots__ = ("_errors", "leases", "uncounted")

    def __init__(self, topic: Topic, leases: Sequence[Lease], skipped: Sequence[int]) -> None:
        super().__init__(topic, [lease.seq for lease in leases], skipped)
        self.leases, self.uncounted = leases, 0
        self._errors: dict[int, str | None] = {}  # of each job, what was said before

    def note(self, error: str) -> None:
        """What the worker says of the jobs."""
        errors = jobs_of(self.topic).errors
        self._errors = {seq: errors.get(seq) for seq in self.seqs}
        errors.update(dict.fromkeys(self.seqs, error))

    def take_back(self) -> None:
        """They are held as before."""
        jobs = jobs_of(self.topic)
        for lease in self.leases:
            jobs.restore_lease(lease, uncounted=self.uncounted)
        for seq, error in self._errors.items():
            jobs.errors.pop(seq, None)
            if error is not None and jobs.is_listed(seq):
                jobs.errors[seq] = error


class ExtendLeases(LeaseChange):
    """Leases with a new deadline."""

    __slots__ = ("leases",)

    def __init__(self, topic: Topic, leases: Sequence[Lease], skipped: Sequence[int]) -> None:
        super().__init__(topic, [lease.seq for lease in leases], skipped)
        self.leases = leases

    def take_back(self) -> None:
        """They have their former deadlines."""
        table = jobs_of(self.topic).leases
        for lease in self.leases:
            if table.has_number(lease.seq, lease.number):
                table.extend((lease.seq,), lease.deadline_ms)


class LogLeases(LeaseChange):
    """Adds the current leases and delivery counts of jobs to a log that lacked them."""

    __slots__ = ()

    def take_back(self) -> None:
        """Do nothing, because this change does not modify the jobs."""


class DyingJobs(LeaseChange):
    """Exhausted jobs on their way to the dead-letter topic."""

    __slots__ = ()

    def take_back(self) -> None:
        """They stay."""
        keep_dead(self.topic, self.seqs)


# Deciding


def claim(
    table: TopicTable,
    topic: Topic,
    asks: Sequence[Ask],
    now: Now,
    *,
    evenly: bool,
    max_bytes: int = U64_MAX,
) -> list[LeaseChange]:
    """Lease jobs to all askers in one pass, free ones first (§10.2); a change for each.

    ``evenly``: dealt round-robin, to a cohort. Otherwise the first asker takes what it may. The
    records of all of them have about ``max_bytes`` at most.
    """
    jobs = jobs_of(topic)
    hands = deal(topic, jobs, table.store, asks, now, evenly=evenly, max_bytes=max_bytes)
    changes = list[LeaseChange]()
    for ask, hand in zip(asks, hands, strict=True):
        changes.append(_leased(table, topic, jobs, ask, hand, now))
    return changes


def _leased(
    table: TopicTable, topic: Topic, jobs: Jobs, ask: Ask, taken: list[Taken], now: Now
) -> LeaseChange:
    if not taken:
        return ClaimJobs(topic, ())
    seqs = [seq for seq, _ in taken]
    change = ClaimJobs(topic, seqs)
    number, deadline_ts = table.take_lease_numbers(len(seqs)), now.ts + ask.lease_ms
    counts = jobs.deliver(seqs, number, now.ms + ask.lease_ms, ask.holder)
    records = [record for _, record in taken]
    if errors := jobs.errors:
        records = [with_error(each, errors[seq]) if seq in errors else each for seq, each in taken]
    change.jobs = [*map(Job, seqs, itertools.count(number), repeat(deadline_ts), counts, records)]
    if keeps_leases(topic.config):
        rows = LeaseRows(
            LeaseOp.CLAIMED,
            seqs,
            counts,
            ask.holder.node,
            deadline_ts,
            range(number, number + len(seqs)),
        )
        change.log([lease_frame(topic.id, now.ts, rows)], sync=False)
        change.doom()
    return change


def release(topic: Topic, holder: Holder, now: Now) -> LeaseChange:
    """End all leases of a stream (§10.8)."""
    assert holder.seqs is not None, "only streams are released"
    jobs_of(topic).advance(now.ms)
    return _end(topic, list(holder.seqs), (), 0, now)


def unclaim(topic: Topic, jobs: Iterable[tuple[int, int]], now: Now) -> LeaseChange:
    """A claim has reached nobody: end these leases, (seq, number), as if they had not been given,
    unless others have taken their place.
    """
    jobs_of(topic).advance(now.ms)
    leases = jobs_of(topic).leases
    seqs = [seq for seq, number in jobs if leases.has_number(seq, number)]
    return _end(topic, seqs, (), 0, now, counts=False)


def nack(
    topic: Topic,
    node: str,
    seqs: Sequence[int],
    tokens: Sequence[str] | None,
    delay_ms: int,
    now: Now,
    error: str | None = None,
) -> LeaseChange:
    """Give back the jobs that ``node`` holds; they are claimable after ``delay_ms`` (§10.5).
    ``error``: why; without one, what an earlier nack has said stays.
    """
    return _end(topic, *held_by(topic, node, seqs, tokens, now), delay_ms, now, error=error)


def _end(
    topic: Topic,
    seqs: Sequence[int],
    skipped: Sequence[int],
    delay_ms: int,
    now: Now,
    *,
    counts: bool = True,
    error: str | None = None,
) -> LeaseChange:
    """``counts``: the delivery has reached somebody."""
    jobs, until_ms = jobs_of(topic), now.ms + delay_ms if delay_ms else None
    change = EndLeases(topic, [jobs.end_lease(seq, until_ms) for seq in seqs], skipped)
    if not counts:
        change.uncounted = 1
        for seq in seqs:
            jobs.uncount(seq)
    if error is not None:
        change.note(error)
    if seqs and keeps_leases(topic.config):
        deliveries = [jobs.deliveries(seq) for seq in seqs]
        until_ts = now.ts + delay_ms
        rows = LeaseRows(LeaseOp.RELEASED, seqs, deliveries, until_ts=until_ts, error=error)
        change.log([lease_frame(topic.id, now.ts, rows)], sync=False)
        change.doom()
    return change


def extend(
    topic: Topic,
    node: str,
    seqs: Sequence[int],
    tokens: Sequence[str] | None,
    lease_ms: int,
    now: Now,
) -> LeaseChange:
    """The leases that ``node`` holds end ``lease_ms`` from now (§10.6)."""
    table = jobs_of(topic).leases
    held, skipped = held_by(topic, node, seqs, tokens, now)
    change = ExtendLeases(topic, [table.held[seq] for seq in held], skipped)
    change.until_ts = now.ts + lease_ms
    table.extend(held, now.ms + lease_ms)
    if held and keeps_leases(topic.config):
        # All of what the leases are now: the log may not know of them, if leases have become
        # durable since.
        counts = [jobs_of(topic).deliveries(seq) for seq in held]
        numbers = [lease.number for lease in change.leases]
        rows = LeaseRows(LeaseOp.CLAIMED, held, counts, node, change.until_ts, numbers)
        change.log([lease_frame(topic.id, now.ts, rows)], sync=False)
        change.doom()
    return change


def dying(topic: Topic, max_jobs: int, now: Now) -> LeaseChange:
    """Begin to move exhausted jobs to the dead-letter topic (§10.6), or go on with the batch that
    is dying. When it is committed, append them there, then `finish_jobs.bury` or `keep_dead`.
    """
    jobs = jobs_of(topic)
    if jobs.dying:  # the log knows
        return DyingJobs(topic, [*islice(jobs.dying, max_jobs)])
    seqs = [*islice(jobs.dead, max_jobs)]
    for seq in seqs:
        del jobs.dead[seq]
        jobs.dying[seq] = None
    change = DyingJobs(topic, seqs)
    if seqs and topic.config.durability != "ephemeral":
        target = topic.config.dead_letter or ""
        rows = LeaseRows(LeaseOp.DYING, seqs, [jobs.deliveries(seq) for seq in seqs], target)
        change.log([lease_frame(topic.id, now.ts, rows)], sync=True)
        change.doom(target)
    return change


def log_leases(topic: Topic, seqs: Iterable[int], now: Now) -> LogLeases:
    """Return frames with the current leases and delivery counts of these jobs.

    They are logged when the leases of a queue become durable. Jobs that were never delivered need
    no frame, and DYING jobs already have one.
    """
    jobs, listed = jobs_of(topic), list[tuple[int, JobRow, str | None]]()
    for seq in seqs:
        row = jobs.row(seq, now)
        if row is not None and row.state is not JobState.DYING:
            listed.append((seq, row, jobs.errors.get(seq)))
    frames = list[Frame]()
    # Group only consecutive jobs, so that free jobs keep their order.
    for (state, until_ts, node, error), some in itertools.groupby(listed, _what_they_share):
        alike = [*some]
        shared = [seq for seq, _, _ in alike], [row.deliveries for _, row, _ in alike]
        if state is JobState.FREE or error is not None:
            rows = LeaseRows(LeaseOp.RELEASED, *shared, until_ts=until_ts, error=error)
            frames.append(lease_frame(topic.id, now.ts, rows))
        if state is JobState.HELD:
            numbers = [row.number for _, row, _ in alike]
            rows = LeaseRows(LeaseOp.CLAIMED, *shared, node, until_ts, numbers)
            frames.append(lease_frame(topic.id, now.ts, rows))
    change = LogLeases(topic, [seq for seq, _, _ in listed])
    change.log(frames, sync=False)
    return change


def _what_they_share(
    job: tuple[int, JobRow, str | None],
) -> tuple[JobState, int, str, str | None]:
    """Return the grouping key: consecutive jobs with equal keys are stored in one frame."""
    _, row, error = job
    return row.state, row.until_ts, row.node, error


def keep_dead(topic: Topic, seqs: Iterable[int]) -> None:
    """The dead-letter topic has refused these jobs: they stay."""
    jobs = jobs_of(topic)
    for seq in seqs:
        if seq in jobs.dying:
            del jobs.dying[seq]
            jobs.dead[seq] = None


def held_by(
    topic: Topic, node: str, seqs: Sequence[int], tokens: Sequence[str] | None, now: Now
) -> tuple[list[int], list[int]]:
    """Of the asked seqs those that ``node`` holds, and the others; each once, in their order. A seq
    that stands there several times is held if one of its tokens is right.
    """
    jobs = jobs_of(topic)
    jobs.advance(now.ms)
    held: dict[int, None] = {}
    for seq, token in zip(seqs, tokens or repeat(None), strict=tokens is not None):
        if jobs.leases.is_held(seq, node, token, now.ms):
            held[seq] = None
    if len(held) == len(seqs):
        return list(held), []
    return list(held), [seq for seq in dict.fromkeys(seqs) if seq not in held]
