"""Finish jobs: deletes jobs after an ack, or after they were moved to another topic (§10.4).

decide   writes a DELETE frame if the log contains any of the jobs; no client can claim the jobs
commit   deletes the records of the jobs
undo     leases acked jobs again; moved jobs stay dying, because the target has copies of them
replay   `delete_records.replay`, which counts the jobs of a frame with the flag DEAD_LETTERED
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
    """Jobs that are deleted: ``seqs``, in ascending order.

    ``leases`` has the former leases of acked jobs. ``dead_lettered``: the dead-letter topic
    contains the jobs.
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
        # The log needs no frame if it contains none of the jobs.
        self.frames = (
            [delete_runs_frame(topic.id, self.runs, now.ts, dead_lettered=dead_lettered)]
            if seqs and seqs[0] <= topic.logged_seq
            else []
        )
        self.sync = topic.pending_sync > 0 or (bool(self.frames) and topic.config.durable)
        self.count_pending()

    def commit(self, table: TopicTable, /) -> None:
        """Delete the records of the jobs, and count the dead-lettered jobs."""
        self.uncount_pending()
        jobs = jobs_of(self.topic) if self.leases or self._dead_lettered else None
        if jobs is not None and self._dead_lettered:
            jobs.dead_lettered += len(self.seqs)  # includes damaged records, as in a replay
        elif jobs is not None:
            jobs.finish(self.seqs)
        if self.runs:
            delete_runs(self.topic, self.runs, table.store, are_finished=bool(self.leases))

    def undo(self, _: TopicTable, /) -> None:
        """Restore the leases of acked jobs."""
        self.uncount_pending()
        for lease in self.leases:
            jobs_of(self.topic).restore_lease(lease)


# Decisions


def begin_ack(
    topic: Topic, node: str, seqs: Sequence[int], tokens: Sequence[str] | None, now: Now
) -> tuple[list[Lease], list[int]]:
    """End the leases of the jobs that ``node`` holds, and return the leases for `ack` (§10.4).

    ``tokens`` has the lease token of each seq, or is None if tokens are not checked. Also return
    the seqs of the jobs that ``node`` does not hold.
    """
    held, skipped = held_by(topic, node, seqs, tokens, now)
    return jobs_of(topic).begin_acks(held), skipped


def ack(topic: Topic, leases: Iterable[Lease], now: Now) -> FinishJobs:
    """Delete the jobs of these leases permanently. The leases may belong to several ack
    requests.
    """
    leases = sorted(leases, key=SEQ)
    return FinishJobs(topic, [*map(SEQ, leases)], now, leases=leases)


def remove_dead_lettered(topic: Topic, seqs: Sequence[int], now: Now) -> FinishJobs:
    """Delete jobs that the dead-letter topic contains now.

    A job whose record was deleted in the meantime is not counted.
    """
    dead_lettering = jobs_of(topic).dead_lettering
    there = sorted(seq for seq in seqs if seq in dead_lettering)
    return FinishJobs(topic, there, now, dead_lettered=True)


def remove(topic: Topic, seqs: Sequence[int], now: Now) -> FinishJobs:
    """Delete records that were reserved for a move."""
    return FinishJobs(topic, sorted(seqs), now)
