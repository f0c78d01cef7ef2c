"""Harness for a shard's rules with one queue. Changes are decided immediately, and the test commits
or undoes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.engine.shard_support import EngineHarness
from topics.engine.changes import finish_jobs, lease_jobs
from topics.engine.changes.finish_jobs import FinishJobs
from topics.engine.changes.lease_jobs import LeaseChange
from topics.engine.queue.claims import ClaimRequest, jobs_of
from topics.engine.queue.jobs import Jobs, QueueCounters
from topics.engine.queue.leases import LeaseHolder
from topics.engine.store import Unreadable
from topics.engine.topic import Topic
from topics.formats.disk.records import RecordsView

NO_BOUND = 1 << 30


class JobHarness(EngineHarness):
    """An engine with the queue ``q`` and ``jobs`` jobs. Leases belong to node ``n`` and last one
    second by default.
    """

    def __init__(self, jobs: int = 0, **config: Any) -> None:
        super().__init__()
        self.put("q", type="queue", **{"lease_ms": 1000, **config})
        self.unreadable: set[int] = set()
        self.add(*range(jobs))

    @property
    def topic(self) -> Topic:
        return self.engine.queue("q")

    @property
    def jobs(self) -> Jobs:
        assert self.topic.jobs is not None
        return self.topic.jobs

    @property
    def counters(self) -> QueueCounters:
        self.jobs.advance(self.now.ms)
        return self.jobs.counters(self.topic.count)

    def records(self, locator: int) -> RecordsView:
        if locator in self.unreadable:
            raise Unreadable
        return super().records(locator)

    def add(self, *datas: Any, **fields: Any) -> None:
        """Append one write of records with these values, each with the members ``fields``, and
        commit it.
        """
        if datas:
            self.append("q", records=[{"data": data, **fields} for data in datas])
        self.commit()

    # Changes stay pending until the test commits or undoes them.

    def _note(self, change: LeaseChange) -> LeaseChange:
        if change.frames:
            self.pending.append(change)
        return change

    def claims(
        self, *requests: ClaimRequest, evenly: bool = False, max_bytes: int = NO_BOUND
    ) -> list[LeaseChange]:
        """Run one claim pass and return a change for each request."""
        changes = lease_jobs.claim(
            self.engine.table, self.topic, requests, self.now, evenly=evenly, max_bytes=max_bytes
        )
        return [self._note(change) for change in changes]

    def poll(self, node: str = "n") -> LeaseHolder:
        return jobs_of(self.topic).leases.poller(node)

    def claim(self, max_jobs: int = 1, node: str = "n", lease_ms: int = 1000) -> list[int]:
        """Claim jobs for a node and return their seqs."""
        (change,) = self.claims(ClaimRequest(self.poll(node), max_jobs, lease_ms))
        return list(change.seqs)

    def ack(self, *seqs: int, node: str = "n", tokens: Sequence[str] | None = None) -> FinishJobs:
        leases, self.skipped = finish_jobs.begin_ack(self.topic, node, seqs, tokens, self.now)
        change = finish_jobs.ack(self.topic, leases, self.now)
        self.pending.append(change)
        return change

    def nack(self, *seqs: int, node: str = "n", delay_ms: int = 0) -> LeaseChange:
        return self._note(lease_jobs.nack(self.topic, node, seqs, None, delay_ms, self.now))

    def extend(self, *seqs: int, node: str = "n", lease_ms: int = 1000) -> LeaseChange:
        return self._note(lease_jobs.extend(self.topic, node, seqs, None, lease_ms, self.now))

    def unclaim(self, *jobs: tuple[int, int]) -> LeaseChange:
        return self._note(lease_jobs.unclaim(self.topic, jobs, self.now))

    def close(self, holder: LeaseHolder) -> LeaseChange:
        return self._note(lease_jobs.release(self.topic, holder, self.now))

    def dying(self, max_jobs: int = 100) -> LeaseChange:
        return self._note(lease_jobs.begin_dead_lettering(self.topic, max_jobs, self.now))

    def remove_dead_lettered(self, *seqs: int) -> FinishJobs:
        change = finish_jobs.remove_dead_lettered(self.topic, seqs, self.now)
        self.pending.append(change)
        return change

    def remove(self, *seqs: int) -> FinishJobs:
        change = finish_jobs.remove(self.topic, seqs, self.now)
        self.pending.append(change)
        return change
