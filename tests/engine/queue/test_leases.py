"""Leases: a job has one holder until the deadline of its lease, identified by the lease token."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from tests.engine.queue.job_harness import JobHarness
from topics.engine.queue import claims
from topics.engine.queue.claims import LeaseView
from topics.engine.queue.leases import ORDER_SLACK, LeaseHolder, LeaseTable

NODE = "n"


def leased(*seqs: int, deadline_ms: int = 100, holder: LeaseHolder | None = None) -> LeaseTable:
    """Return a table that leases these seqs with lease numbers from 10 on."""
    table = LeaseTable()
    table.grant(seqs, 10, deadline_ms, holder or table.poller(NODE))
    return table


# The list of leases: pages in the order of seqs


def views(
    harness: JobHarness, after: int = 0, limit: int = 9, node: str | None = None
) -> list[LeaseView]:
    return claims.leases(harness.topic, after, limit, node, harness.now)


@given(data=st.data())
def test_pages_list_each_lease_that_exists_throughout_exactly_once_and_in_order(
    data: st.DataObject,
) -> None:
    harness = JobHarness(40)
    harness.claim(20, node="a")
    always, seen, page = {*harness.jobs.leases}, [0], [0, 0, 0]
    while len(page) == 3:
        for _ in range(data.draw(st.integers(0, 2))):
            free = harness.claim(1, node=data.draw(st.sampled_from("ab")))
            released = data.draw(st.sampled_from(sorted(harness.jobs.leases)))
            harness.nack(released, node=harness.jobs.leases.held[released].holder.node)
            always -= {released}
            assert free or not harness.counters.ready
        page = [view.seq for view in views(harness, after=seen[-1], limit=3)]
        assert page == sorted(seq for seq in harness.jobs.leases if seq > seen[-1])[:3]
        seen += page
    assert seen == sorted({*seen})
    assert always <= {*seen}
    assert harness.jobs.leases._order is None, "the last page frees the sorted order"


def test_an_abandoned_lease_list_frees_its_memory() -> None:
    harness = JobHarness(3)
    harness.claim(2)
    views(harness, limit=1)
    harness.jobs.deliver(range(10, 2 * ORDER_SLACK), 1, 10**9, harness.poll())
    assert harness.jobs.leases._order is None
    assert harness.jobs.leases._later == []


def test_a_page_visits_no_more_leases_than_it_shows() -> None:
    harness, count = JobHarness(), 50_000
    harness.jobs.deliver(range(1, count + 1), 1, 10**9, harness.poll())
    views(harness, limit=10)
    began = time.process_time()
    for after in range(10, 10_000, 10):
        assert next(view.seq for view in views(harness, after=after, limit=10)) == after + 1
    assert time.process_time() - began < 1, "a page that visits all leases would take 7 ms"
