"""Lease jobs: claims, releases and extends jobs, or starts their move to a dead-letter topic
(§10.2, §10.5, §10.6).

    decide   changes the jobs immediately; writes a LEASE frame if leases are durable or jobs are
             moved, but not for an `ephemeral` queue
    commit   does not change the jobs; the caller replies to the request
    undo     restores the former leases, except for jobs that have changed again since
    replay   LEASE frames change the ledger (`topics.engine.queue.ledger`)

A change without frames is acknowledged immediately. A change with frames is acknowledged when they
are as durable as the durability class of the topic promises. The frames of a move are synced before
the jobs are copied.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from itertools import islice, repeat

from topics.engine.changes.change import Change
from topics.engine.now import Now
from topics.engine.queue.claims import ClaimRequest, Job, Taken, distribute, jobs_of
from topics.engine.queue.jobs import Jobs
from topics.engine.queue.leases import Lease, LeaseHolder
from topics.engine.queue.ledger import JobRow, JobState, keeps_leases
from topics.engine.topic import Topic
from topics.engine.topic_table import TopicTable
from topics.formats.api.limits import U64_MAX
from topics.formats.api.queue_answers import with_error
from topics.formats.disk.frame_bodies import LeaseOp, LeaseRows, lease_frame
from topics.formats.disk.frames import Frame


class LeaseChange(Change):
    """A change of leases.

    ``seqs`` has the changed jobs, and ``skipped`` the requested jobs that the client does not hold.
    ``until_ts`` is the new deadline (wall ms). ``jobs`` has the jobs of a claim.
    """

    __slots__ = ("_logged_dying", "jobs", "seqs", "skipped", "until_ts")

    def __init__(self, topic: Topic, seqs: Sequence[int], skipped: Sequence[int] = ()) -> None:
        # ``sync`` is set by `log`, when it is known whether there are frames.
        super().__init__(topic, [], False)
        self.seqs, self.skipped = seqs, skipped
        self.jobs: Sequence[Job] = ()
        self.until_ts = 0
        # The former entries of these jobs in `Jobs.logged_dying`.
        self._logged_dying: dict[int, str] | None = None

    def log(self, frames: list[Frame], *, sync: bool) -> None:
        """Set the frames. The change is pending until they are durable. If there are no frames, it
        is not pending.
        """
        self.frames = frames
        if frames:
            # The change waits for a sync if the class requires it, or if an earlier change of the
            # topic does, because changes of a topic are committed in order.
            self.sync = sync or self.topic.config.durable or self.topic.pending_sync > 0
            self.count_pending()

    def set_logged_dying(self, dead_letter: str | None = None) -> None:
        """Store whether the last frame of these jobs marks them as DYING.

        ``dead_letter`` is the topic to which they are moved, or None if the frame does not mark
        them.
        """
        # Keep the former marks, so that `undo` can restore them. Most queues have no such jobs.
        marked = jobs_of(self.topic).logged_dying
        if marked or dead_letter is not None:
            self._logged_dying = {seq: marked.pop(seq) for seq in self.seqs if seq in marked}
            if dead_letter is not None:
                marked.update(dict.fromkeys(self.seqs, dead_letter))

    def commit(self, _: TopicTable, /) -> None:
        """Count the change as committed. Its effects are visible already."""
        self.uncount_pending()

    def undo(self, _: TopicTable, /) -> None:
        """Restore the former state of the jobs."""
        self.uncount_pending()
        # Restore the jobs before the marks, because only jobs that still exist get their marks.
        self.revert()
        if self._logged_dying is not None:
            jobs = jobs_of(self.topic)
            for seq in self.seqs:
                jobs.logged_dying.pop(seq, None)
            jobs.logged_dying.update(
                item for item in self._logged_dying.items() if jobs.is_listed(item[0])
            )

    def revert(self) -> None:
        """Undo the effects of the change on the jobs."""
        raise NotImplementedError


class ClaimJobs(LeaseChange):
    """Jobs that are leased to one holder."""

    __slots__ = ()

    def revert(self) -> None:
        """Make the jobs claimable again, and do not count this delivery."""
        # If a job was released and claimed again, its lease has another number, and
        # `undo_delivery` does not change the job.
        for job in self.jobs:
            jobs_of(self.topic).undo_delivery(job.seq, job.number)


class EndLeases(LeaseChange):
    """Jobs that are claimable again, immediately or after a delay.

    ``uncounted`` is the number of deliveries of each job that no client has received.
    """

    __slots__ = ("_errors", "leases", "uncounted")

    def __init__(self, topic: Topic, leases: Sequence[Lease], skipped: Sequence[int]) -> None:
        super().__init__(topic, [lease.seq for lease in leases], skipped)
        self.leases, self.uncounted = leases, 0
        self._errors: dict[int, str | None] = {}  # by seq: the former error text of the job

    def note(self, error: str) -> None:
        """Set the error text of the jobs to the text that the worker has sent."""
        errors = jobs_of(self.topic).errors
        self._errors = {seq: errors.get(seq) for seq in self.seqs}
        errors.update(dict.fromkeys(self.seqs, error))

    def revert(self) -> None:
        """Restore the leases and the former error texts."""
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

    def revert(self) -> None:
        """Restore the former deadlines."""
        table = jobs_of(self.topic).leases
        for lease in self.leases:
            if table.has_number(lease.seq, lease.number):
                table.extend((lease.seq,), lease.deadline_ms)


class LogLeases(LeaseChange):
    """Logs the current leases and delivery counts of jobs, which were not in the log before."""

    __slots__ = ()

    def revert(self) -> None:
        """Do nothing, because this change does not modify the jobs."""


class DeadLetteringJobs(LeaseChange):
    """Exhausted jobs that are being moved to the dead-letter topic."""

    __slots__ = ()

    def revert(self) -> None:
        """Return the jobs to the state dead."""
        return_to_dead(self.topic, self.seqs)


# Decisions


def claim(
    table: TopicTable,
    topic: Topic,
    requests: Sequence[ClaimRequest],
    now: Now,
    *,
    evenly: bool,
    max_bytes: int = U64_MAX,
) -> list[LeaseChange]:
    """Lease jobs to all claimers in one pass, free jobs first (§10.2). Return a change for each
    claimer.

    With ``evenly``, the jobs are distributed round-robin, as for a cohort. Otherwise the first
    claimer gets as many jobs as it requested, then the second, and so on. The total size of the
    records is limited to about ``max_bytes``.

    Raise OSError if records cannot be read because the disk has failed. In that case no job is
    leased.
    """
    jobs = jobs_of(topic)
    shares = distribute(topic, jobs, table.store, requests, now, evenly=evenly, max_bytes=max_bytes)
    changes = list[LeaseChange]()
    for request, share in zip(requests, shares, strict=True):
        changes.append(_leased(table, topic, jobs, request, share, now))
    return changes


def _leased(
    table: TopicTable, topic: Topic, jobs: Jobs, request: ClaimRequest, taken: list[Taken], now: Now
) -> LeaseChange:
    """Lease the taken jobs to one claimer, and return the change."""
    if not taken:
        return ClaimJobs(topic, ())
    seqs = [seq for seq, _ in taken]
    change = ClaimJobs(topic, seqs)
    # Numbers are unique in the shard. They are part of the lease tokens, which distinguish the
    # holders of one job.
    number, deadline_ts = table.take_lease_numbers(len(seqs)), now.ts + request.lease_ms
    # From here on the jobs are leased. The client gets them when the frame is as durable as
    # promised.
    counts = jobs.deliver(seqs, number, now.ms + request.lease_ms, request.holder)
    records = [record for _, record in taken]
    if errors := jobs.errors:
        records = [with_error(each, errors[seq]) if seq in errors else each for seq, each in taken]
    change.jobs = [*map(Job, seqs, itertools.count(number), repeat(deadline_ts), counts, records)]
    # Leases in memory are lost when the process ends, and the jobs are claimable after a restart.
    if keeps_leases(topic.config):
        rows = LeaseRows(
            LeaseOp.CLAIMED,
            seqs,
            counts,
            request.holder.node,
            deadline_ts,
            range(number, number + len(seqs)),
        )
        change.log([lease_frame(topic.id, now.ts, rows)], sync=False)
        change.set_logged_dying()
    return change


def release(topic: Topic, holder: LeaseHolder, now: Now) -> LeaseChange:
    """End all leases of a stream (§10.8)."""
    assert holder.seqs is not None, "only streams are released"
    # Expire first. A lease that has ended already must not be ended a second time by its holder.
    jobs_of(topic).advance(now.ms)
    return _end(topic, list(holder.seqs), (), 0, now)


def unclaim(topic: Topic, jobs: Iterable[tuple[int, int]], now: Now) -> LeaseChange:
    """Undo a claim whose response no client has received.

    ``jobs`` has (seq, number) of the leases. Their deliveries are not counted. A job that has been
    leased again in the meantime is not changed.
    """
    jobs_of(topic).advance(now.ms)
    leases = jobs_of(topic).leases
    # Omit jobs that have been claimed again or deleted.
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
    """Release the jobs that ``node`` holds. They are claimable after ``delay_ms`` (§10.5).

    ``error`` is the error text of the worker. If it is None, the text of an earlier nack is kept.
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
    """End the leases of ``seqs``. ``counts``: a client has received the jobs, so the delivery is
    counted.
    """
    jobs, until_ms = jobs_of(topic), now.ms + delay_ms if delay_ms else None
    change = EndLeases(topic, [jobs.end_lease(seq, until_ms) for seq in seqs], skipped)
    # If no client has received the jobs, counting the delivery would move a job to the dead-letter
    # topic too early.
    if not counts:
        change.uncounted = 1
        for seq in seqs:
            jobs.undo_delivery_count(seq)
    if error is not None:
        change.note(error)
    if seqs and keeps_leases(topic.config):
        # The frame has the counts after the change, so a replay needs no earlier frames.
        deliveries = [jobs.deliveries(seq) for seq in seqs]
        until_ts = now.ts + delay_ms
        rows = LeaseRows(LeaseOp.RELEASED, seqs, deliveries, until_ts=until_ts, error=error)
        change.log([lease_frame(topic.id, now.ts, rows)], sync=False)
        change.set_logged_dying()
    return change


def extend(
    topic: Topic,
    node: str,
    seqs: Sequence[int],
    tokens: Sequence[str] | None,
    lease_ms: int,
    now: Now,
) -> LeaseChange:
    """Set the deadline of the leases that ``node`` holds to ``lease_ms`` from now (§10.6)."""
    table = jobs_of(topic).leases
    # Jobs that the client does not hold are reported and not extended.
    held, skipped = held_by(topic, node, seqs, tokens, now)
    change = ExtendLeases(topic, [table.held[seq] for seq in held], skipped)
    change.until_ts = now.ts + lease_ms
    table.extend(held, now.ms + lease_ms)
    if held and keeps_leases(topic.config):
        # The frame contains the complete leases, because the log has no frame for them if the
        # leases of the topic became durable after the claim.
        counts = [jobs_of(topic).deliveries(seq) for seq in held]
        numbers = [lease.number for lease in change.leases]
        rows = LeaseRows(LeaseOp.CLAIMED, held, counts, node, change.until_ts, numbers)
        change.log([lease_frame(topic.id, now.ts, rows)], sync=False)
        change.set_logged_dying()
    return change


def begin_dead_lettering(topic: Topic, max_jobs: int, now: Now) -> LeaseChange:
    """Start to move exhausted jobs to the dead-letter topic (§10.6), or continue with the batch
    that is already being moved.

    After the commit, the caller appends the jobs to the dead-letter topic, and then calls
    `finish_jobs.remove_dead_lettered` or `return_to_dead`.
    """
    jobs = jobs_of(topic)
    # Move one batch at a time. A restart may repeat only the last batch, and the dead-letter topic
    # stores the keys of this batch (`decisions/0049`).
    if jobs.dead_lettering:  # the log already contains the LEASE frame of these jobs
        return DeadLetteringJobs(topic, [*islice(jobs.dead_lettering, max_jobs)])
    seqs = [*islice(jobs.dead, max_jobs)]
    # No pass delivers jobs that are in `dead_lettering`.
    for seq in seqs:
        del jobs.dead[seq]
        jobs.dead_lettering[seq] = None
    change = DeadLetteringJobs(topic, seqs)
    # An ephemeral queue loses its jobs at a restart, so its moves need no frame.
    if seqs and topic.config.durability != "ephemeral":
        target = topic.config.dead_letter or ""
        rows = LeaseRows(LeaseOp.DYING, seqs, [jobs.deliveries(seq) for seq in seqs], target)
        # The frame is synced before the copies are made, so that after a crash the log shows that
        # the jobs may have been moved.
        change.log([lease_frame(topic.id, now.ts, rows)], sync=True)
        change.set_logged_dying(target)
    return change


def log_leases(topic: Topic, seqs: Iterable[int], now: Now) -> LogLeases:
    """Return a change whose frames contain the current leases and delivery counts of these jobs.

    They are logged when the leases of a queue become durable. Jobs that have never been delivered
    need no frame, and DYING jobs already have one.
    """
    jobs, listed = jobs_of(topic), list[tuple[int, JobRow, str | None]]()
    for seq in seqs:
        row = jobs.row(seq, now)
        if row is not None and row.state is not JobState.DYING:
            listed.append((seq, row, jobs.errors.get(seq)))
    frames = list[Frame]()
    # Group only consecutive jobs, so that free jobs keep their order.
    for (state, until_ts, node, error), some in itertools.groupby(listed, _grouping_key):
        alike = [*some]
        shared = [seq for seq, _, _ in alike], [row.deliveries for _, row, _ in alike]
        # A released row sets the count, the time and the error. A held job with an error needs
        # both rows.
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


def _grouping_key(
    job: tuple[int, JobRow, str | None],
) -> tuple[JobState, int, str, str | None]:
    """Return the grouping key: consecutive jobs with equal keys are stored in one frame."""
    _, row, error = job
    return row.state, row.until_ts, row.node, error


def return_to_dead(topic: Topic, seqs: Iterable[int]) -> None:
    """Return jobs to the state dead, because the dead-letter topic has refused them."""
    jobs = jobs_of(topic)
    for seq in seqs:
        if seq in jobs.dead_lettering:
            del jobs.dead_lettering[seq]
            jobs.dead[seq] = None


def held_by(
    topic: Topic, node: str, seqs: Sequence[int], tokens: Sequence[str] | None, now: Now
) -> tuple[list[int], list[int]]:
    """Split the requested seqs into the jobs that ``node`` holds and the others.

    Each seq is returned once, in the order of the request. A seq that is requested several times is
    held if one of its tokens is valid.
    """
    jobs = jobs_of(topic)
    # Expired leases are no longer held, even if no other client has claimed the job.
    jobs.advance(now.ms)
    held: dict[int, None] = {}
    # If no tokens are given, the name of the node is sufficient.
    for seq, token in zip(seqs, tokens or repeat(None), strict=tokens is not None):
        if jobs.leases.is_held(seq, node, token, now.ms):
            held[seq] = None
    if len(held) == len(seqs):
        return list(held), []
    return list(held), [seq for seq in dict.fromkeys(seqs) if seq not in held]
