"""Lease logging: writes the leases and delivery counts of a queue when its leases become durable.

    PUT committed --> slices of jobs, one after another, in their own frames --> reply to the PUT

The TOPIC frame of the PUT is written first. Every later change to a lease has its own frame. So a
slice, which contains the current state of its jobs, never contradicts a later frame.
`Jobs.unlogged` is set until the last slice is durable. Another PUT that finds it set writes all
slices again before its response.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from topics.actors.shard.context import ShardContext
from topics.engine.changes import lease_jobs
from topics.engine.queue.claims import jobs_of
from topics.engine.queue.ledger import keeps_leases
from topics.engine.topic import Topic
from topics.storage.wal.log_progress import LogProgress

SLICE_JOBS = 2048  # maximum number of jobs in a slice, which takes a few milliseconds to log

Done = Callable[[OSError | None], None]


class LeaseLogging:
    """Logs the leases of one shard's queues."""

    def __init__(self, context: ShardContext) -> None:
        self._context, self._commits = context, context.commits

    @staticmethod
    def is_due(topic: Topic) -> bool:
        """Return whether leases of this topic that must be durable are missing from the log."""
        has_unlogged = topic.jobs is not None and topic.jobs.unlogged is not None
        return has_unlogged and keeps_leases(topic.config) and not topic.deleted

    def log(self, topic: Topic, done: Done) -> None:
        """Log the leases. Call ``done`` with None when they are durable, or with the log's error.

        Also call ``done`` with None if the topic is deleted, or if its leases no longer need to be
        durable.
        """
        jobs = jobs_of(topic)
        self._step(topic, jobs.listed(), 0, jobs.unlogged, done)

    def _step(self, topic: Topic, seqs: list[int], start: int, cause: object, done: Done) -> None:
        """Log the slice that begins at index ``start``. Call this only within an iteration."""
        jobs = jobs_of(topic)
        if not self.is_due(topic) or jobs.unlogged is not cause:
            return done(None)
        if start >= len(seqs):
            jobs.unlogged = None
            return done(None)
        refusal = self._context.disk_space.refusal(grows=True)
        if refusal is not None:
            return done(refusal)
        end = start + SLICE_JOBS
        change = lease_jobs.log_leases(topic, seqs[start:end], self._context.now)
        following = partial(self._step, topic, seqs, end, cause, done)

        def settle(result: LogProgress | OSError) -> None:
            if isinstance(result, OSError):
                done(result)
            else:  # continue in a later iteration, so that messages are served in between
                self._context.deadlines.call_at(-math.inf, following)

        if change.frames:
            return self._commits.submit(change, settle)
        self._context.deadlines.call_at(-math.inf, following)
        return None
