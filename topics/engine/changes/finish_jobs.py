"""Finish jobs: an ack, or the end of a move to another topic, takes jobs away for good (§10.4).

decide   the jobs are nobody's from now on; a DELETE frame when the log holds any of them
commit   their records are deleted
undo     an acked job is held again; one that was moved stays dying, for the topic has it
replay   a DELETE frame (`delete_records.replay`); its flag DEAD_LETTERED counts its jobs
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter

from topics.engine.changes.change import Change
from topics.engine.changes.lease_jobs import held_by
from topics.engine.now import Now
from topics.engine.queue.claims import jobs_of
from topics.engine.queue.leases import Lease
from topics.engine.removal import delete_runs
from topics.engine.topic import Topic
from topics.engine.topic_table import TopicTable
from topics.formats.disk.frame_bodies import delete_runs_frame
from topics.formats.ranges import runs_of_seqs

SEQ = attrgetter("seq")


class FinishJobs(Change):
    """Jobs that go: ``seqs``, rising. ``leases``: of an ack, those that its holders had.
    ``dead_lettered``: a dead-letter topic has the jobs.
    """

    __slots__ = ("_dead_lettered", "leases", "runs", "seqs")

    def __init__(
        self,
        topic: Topic,
        seqs: Sequence[int],
        now: Now,
        *,
        leases: Sequence[Lease] = (),
        dead_lettered: bool = False,
    ) -> None:
        self.topic, self.seqs, self.leases, self._dead_lettered = topic, seqs, leases, dead_lettered
        self.runs = runs_of_seqs(seqs)
        # No replay needs to be told of what the log does not hold.
        self.frames = (
            [delete_runs_frame(topic.id, self.runs, now.ts, dead_lettered=dead_lettered)]
            if seqs and seqs[0] <= topic.logged_seq
            else []
        )
        self.sync = topic.pending_sync > 0 or (bool(self.frames) and topic.config.durable)
        self.note_pending()

    def commit(self, table: TopicTable, /) -> None:
        """As `Change.commit`."""
        self.note_settled()
        jobs = jobs_of(self.topic) if self.leases or self._dead_lettered else None
        if jobs is not None and self._dead_lettered:
            jobs.dead_lettered += len(self.seqs)  # whatever damage there is, as a replay
        elif jobs is not None:
            jobs.finish(self.seqs)
        if self.runs:
            delete_runs(self.topic, self.runs, table.store, are_finished=bool(self.leases))

    def undo(self, _: TopicTable, /) -> None:
        """As `Change.undo`."""
        self.note_settled()
        for lease in self.leases:
            jobs_of(self.topic).restore_lease(lease)


# Deciding


def begin_ack(
    topic: Topic, node: str, seqs: Sequence[int], tokens: Sequence[str] | None, now: Now
) -> tuple[list[Lease], list[int]]:
    """End the leases of the jobs that ``node`` holds (§10.4): they are for `ack`. ``tokens``: of
    the leases, one for each seq, if they are to be checked. Also gives the seqs that are not held.
    """
    held, skipped = held_by(topic, node, seqs, tokens, now)
    return jobs_of(topic).begin_acks(held), skipped


def ack(topic: Topic, leases: Iterable[Lease], now: Now) -> FinishJobs:
    """Delete the jobs of these leases for good, of one ack or of several."""
    leases = sorted(leases, key=SEQ)
    return FinishJobs(topic, [*map(SEQ, leases)], now, leases=leases)


def bury(topic: Topic, seqs: Sequence[int], now: Now) -> FinishJobs:
    """The dead-letter topic has these jobs: delete them. Those whose record has gone meanwhile are
    not counted.
    """
    dying = jobs_of(topic).dying
    there = sorted(seq for seq in seqs if seq in dying)
    return FinishJobs(topic, there, now, dead_lettered=True)


def remove(topic: Topic, seqs: Sequence[int], now: Now) -> FinishJobs:
    """These records were set aside, and go."""
    return FinishJobs(topic, sorted(seqs), now)
