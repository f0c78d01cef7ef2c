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


class FinishJobs(Change):
    """Jobs that go: ``seqs``, rising."""

    __slots__ = ("runs", "seqs")

    def __init__(
        self,
        topic: Topic,
        seqs: Sequence[int],
        now: Now,
        *,
        dead_lettered: bool = False,
    ) -> None:
        super().__init__(topic, [], False)
        self.seqs = seqs
        self.runs = runs_of_seqs(seqs)
        # No replay needs to be told of what the log does not hold.
        if seqs and seqs[0] <= topic.logged_seq:
            frame = delete_runs_frame(topic.id, self.runs, now.ts, dead_lettered=dead_lettered)
            self.frames.append(frame)
        self.sync = topic.pending_sync > 0 or (bool(self.frames) and topic.config.durable)
        self.note_pending()

    def commit(self, table: TopicTable, /) -> None:
        """As `Change.commit`."""
        self.note_settled()
        if self.runs:
            delete_runs(self.topic, self.runs, table.store)

    def undo(self, _: TopicTable, /) -> None:
        """As `Change.undo`."""
        self.note_settled()


class AckJobs(FinishJobs):
    """Jobs that their holder has done."""

    __slots__ = ("leases",)

    def __init__(self, topic: Topic, leases: Sequence[Lease], now: Now) -> None:
        super().__init__(topic, [lease.seq for lease in leases], now)
        self.leases = leases

    def commit(self, table: TopicTable, /) -> None:
        """As `Change.commit`."""
        self.note_settled()
        jobs_of(self.topic).finish(self.seqs)
        if self.runs:
            delete_runs(self.topic, self.runs, table.store, are_finished=True)

    def undo(self, table: TopicTable, /) -> None:
        """As `Change.undo`."""
        super().undo(table)
        for lease in self.leases:
            jobs_of(self.topic).restore_lease(lease)


class BuryJobs(FinishJobs):
    """Jobs that the dead-letter topic has."""

    __slots__ = ()

    def commit(self, table: TopicTable, /) -> None:
        """As `Change.commit`."""
        jobs_of(self.topic).dead_lettered += len(self.seqs)  # whatever damage there is, as a replay
        super().commit(table)


# Deciding


def begin_ack(
    topic: Topic, node: str, seqs: Sequence[int], tokens: Sequence[str] | None, now: Now
) -> tuple[list[Lease], list[int]]:
    """End the leases of the jobs that ``node`` holds (§10.4): they are for `ack`. ``tokens``: of
    the leases, one for each seq, if they are to be checked. Also gives the seqs that are not held.
    """
    held, skipped = held_by(topic, node, seqs, tokens, now)
    jobs = jobs_of(topic)
    return [jobs.begin_ack(seq) for seq in held], skipped


def ack(topic: Topic, leases: Iterable[Lease], now: Now) -> AckJobs:
    """Delete the jobs of these leases for good, of one ack or of several."""
    return AckJobs(topic, sorted(leases, key=attrgetter("seq")), now)


def bury(topic: Topic, seqs: Sequence[int], now: Now) -> FinishJobs:
    """The dead-letter topic has these jobs: delete them. Those whose record has gone meanwhile are
    not counted.
    """
    dying = jobs_of(topic).dying
    there = sorted(seq for seq in seqs if seq in dying)
    return BuryJobs(topic, there, now, dead_lettered=True)


def remove(topic: Topic, seqs: Sequence[int], now: Now) -> FinishJobs:
    """These records were set aside, and go."""
    return FinishJobs(topic, sorted(seqs), now)
