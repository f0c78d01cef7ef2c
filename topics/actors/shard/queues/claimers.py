"""Claimer: whoever wants jobs of a queue, a polled claim or a work stream, as a wait list sees it.

waiting --served--> its leases are decided --settle--> the jobs go out, or the log lost them
    |--get_nothing--> answered without jobs
    '--end--> told why it gets no more
"""

from __future__ import annotations

from typing import ClassVar

from topics.engine.changes.lease_jobs import LeaseChange
from topics.engine.queue.claims import Ask, Job
from topics.engine.queue.leases import Holder
from topics.engine.topic import Topic
from topics.formats.api import queue_answers
from topics.storage.wal.progress import Progress


class Claimer:
    """Base of both kinds. ``lease_ms`` None: as the queue says when the jobs are leased."""

    __slots__ = ("holder", "lease_ms", "topic")
    is_stream: ClassVar[bool]
    max_bytes: ClassVar[int]  # about how many bytes of jobs it takes at once

    def __init__(self, topic: Topic, holder: Holder, lease_ms: int | None) -> None:
        self.topic, self.holder, self.lease_ms = topic, holder, lease_ms

    @property
    def room(self) -> int:
        """How many jobs it takes now. One without room leaves the wait list."""
        raise NotImplementedError

    def ask(self, max_jobs: int) -> Ask:
        """What it asks the engine for."""
        lease_ms = self.topic.config.lease_ms if self.lease_ms is None else self.lease_ms
        return Ask(self.holder, max_jobs, lease_ms)

    def begin_waiting(self) -> None:
        """Note that it was not served in the turn in which it came."""

    def served(self, change: LeaseChange) -> None:
        """Note that it has left the wait list with these leases."""
        raise NotImplementedError

    def settle(self, change: LeaseChange, result: Progress | OSError) -> None:
        """Send the jobs; the log may have lost their leases."""
        raise NotImplementedError

    def get_nothing(self) -> None:
        """It has left the wait list without jobs. Only for one that does not wait any longer."""
        raise NotImplementedError

    def end(self, error: Exception) -> None:
        """It has left the wait list because of ``error``, and gets no more jobs."""
        raise NotImplementedError


def job_json(job: Job) -> bytes:
    """The job as clients get it (§10.2)."""
    return queue_answers.job_json(job.number, job.deadline_ts, job.deliveries, job.record)
