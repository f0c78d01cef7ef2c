"""Lease list: pages of leases by seq."""

from __future__ import annotations

from tests.engine.queue.job_desk import JobDesk
from topics.engine.queue.lease_list import LeaseView


def views(
    desk: JobDesk, after: int = 0, limit: int = 9, node: str | None = None
) -> list[LeaseView]:
    return desk.engine.leases(desk.topic, after, limit, node, desk.now)


def test_leases_come_by_seq_page_by_page() -> None:
    desk = JobDesk(5)
    desk.claim(5)
    desk.nack(1, 4)
    desk.claim(1)
    assert [view.seq for view in views(desk, limit=2)] == [1, 2]
    assert [view.seq for view in views(desk, after=2, limit=2)] == [3, 5]
    assert views(desk, after=5) == []


def test_a_lease_is_shown_with_its_holder_deadline_and_deliveries() -> None:
    desk = JobDesk(2)
    desk.claim(node="a", lease_ms=500)
    desk.claim(node="b", lease_ms=900)
    desk.nack(2, node="b")
    desk.later(100)
    desk.claim(node="b", lease_ms=900)
    (view,) = views(desk, node="b")
    assert (view.seq, view.node, view.deliveries) == (2, "b", 2)
    assert view.deadline_ts == desk.now.ts + 900
    assert [view.node for view in views(desk)] == ["a", "b"]


def test_a_lease_that_is_over_or_being_acked_is_not_shown() -> None:
    desk = JobDesk(2)
    desk.claim(2, lease_ms=500)
    desk.ack(2)
    assert [view.seq for view in views(desk)] == [1]
    desk.later(501)
    assert views(desk) == []
