"""Leases: a job has one holder until the deadline of its lease, identified by the lease token."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from tests.engine.queue.job_desk import JobDesk
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
    desk: JobDesk, after: int = 0, limit: int = 9, node: str | None = None
) -> list[LeaseView]:
    return claims.leases(desk.topic, after, limit, node, desk.now)


@given(data=st.data())
def test_pages_list_each_lease_that_exists_throughout_exactly_once_and_in_order(
    data: st.DataObject,
) -> None:
    desk = JobDesk(40)
    desk.claim(20, node="a")
    always, seen, page = {*desk.jobs.leases}, [0], [0, 0, 0]
    while len(page) == 3:
        for _ in range(data.draw(st.integers(0, 2))):
            free = desk.claim(1, node=data.draw(st.sampled_from("ab")))
            gone = data.draw(st.sampled_from(sorted(desk.jobs.leases)))
            desk.nack(gone, node=desk.jobs.leases.held[gone].holder.node)
            always -= {gone}
            assert free or not desk.counters.ready
        page = [view.seq for view in views(desk, after=seen[-1], limit=3)]
        assert page == sorted(seq for seq in desk.jobs.leases if seq > seen[-1])[:3]
        seen += page
    assert seen == sorted({*seen})
    assert always <= {*seen}
    assert desk.jobs.leases._order is None, "the last page forgets the order"


def test_an_abandoned_lease_list_frees_its_memory() -> None:
    desk = JobDesk(3)
    desk.claim(2)
    views(desk, limit=1)
    desk.jobs.deliver(range(10, 2 * ORDER_SLACK), 1, 10**9, desk.poll())
    assert desk.jobs.leases._order is None
    assert desk.jobs.leases._later == []


def test_a_page_visits_no_more_leases_than_it_shows() -> None:
    desk, count = JobDesk(), 50_000
    desk.jobs.deliver(range(1, count + 1), 1, 10**9, desk.poll())
    views(desk, limit=10)
    began = time.process_time()
    for after in range(10, 10_000, 10):
        assert next(view.seq for view in views(desk, after=after, limit=10)) == after + 1
    assert time.process_time() - began < 1, "7 ms for each page that walks all of them"
