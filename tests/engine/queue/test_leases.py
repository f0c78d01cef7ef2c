"""Leases: one holder for a job, until its deadline and under its token."""

from __future__ import annotations

from topics.engine.queue.leases import Holder, LeaseTable, lease_id

NODE = "n"


def leased(*seqs: int, deadline_ms: int = 100, holder: Holder | None = None) -> LeaseTable:
    """Under numbers from 10 on."""
    table = LeaseTable()
    table.grant(seqs, 10, deadline_ms, holder or table.poller(NODE))
    return table


def test_a_lease_holds_at_its_deadline_and_not_a_millisecond_later() -> None:
    table = leased(1)
    assert table.is_held(1, NODE, None, 100)
    assert not table.is_held(1, NODE, None, 101)
    assert table.take_over(100) == []
    assert table.take_over(101) == [(101, 1)]
    assert len(table) == 0


def test_a_job_is_held_by_its_node_and_under_its_token() -> None:
    table = leased(1, 2)
    assert table.is_held(2, NODE, lease_id(11), 0)
    assert not table.is_held(2, NODE, lease_id(10), 0)
    assert not table.is_held(2, NODE, "lease_B", 0)  # as it was given, or not at all
    assert not table.is_held(2, "m", lease_id(11), 0)
    assert not table.is_held(3, NODE, None, 0)


def test_claims_of_one_node_have_one_holder_that_goes_with_its_last_lease() -> None:
    table = leased(1)
    table.grant((2,), 11, 100, table.poller(NODE))
    assert table.lease(1).holder is table.lease(2).holder
    assert table.lease(1).holder.held == 2
    table.drop(1)
    assert table.pollers.keys() == {NODE}
    table.drop(2)
    assert table.pollers == {}


def test_the_slot_of_a_lease_is_used_again() -> None:
    table = leased(1, 2)
    table.drop(1)
    table.grant((3,), 20, 300, table.poller("m"))
    assert [table.lease(seq).number for seq in (2, 3)] == [11, 20]
    assert table.lease(2).holder.node == NODE
    assert not table.has_number(3, 10)
    assert table.has_number(3, 20)
