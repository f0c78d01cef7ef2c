"""Lease list: who holds which jobs, page by page."""

from __future__ import annotations

from typing import NamedTuple

from topics.engine.now import Now
from topics.engine.queue.claims import jobs_of
from topics.engine.topic import Topic


class LeaseView(NamedTuple):
    """A lease as it is listed. ``deadline_ts``: wall ms."""

    seq: int
    node: str
    number: int
    deadline_ts: int
    deliveries: int


def leases(topic: Topic, after: int, limit: int, node: str | None, now: Now) -> list[LeaseView]:
    """As `ShardEngine.leases`."""
    jobs = jobs_of(topic)
    jobs.advance(now.ms)
    return [
        LeaseView(seq, holder.node, number, now.ts + deadline_ms - now.ms, jobs.deliveries(seq))
        for seq, number, deadline_ms, holder in jobs.leases.page(after, limit, node, now.ms)
    ]
