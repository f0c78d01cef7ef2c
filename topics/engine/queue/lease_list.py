"""Lease list: who holds which jobs, page by page."""

from __future__ import annotations

import heapq
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
    table = jobs.leases
    seqs = heapq.nsmallest(
        limit,
        (
            seq
            for seq in table
            if seq > after and (node is None or table.lease(seq).holder.node == node)
        ),
    )
    return [
        LeaseView(
            seq,
            lease.holder.node,
            lease.number,
            now.ts + lease.deadline_ms - now.ms,
            jobs.deliveries(seq),
        )
        for seq, lease in ((seq, table.lease(seq)) for seq in seqs)
    ]
