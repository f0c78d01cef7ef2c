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


def test_leases_end_in_the_order_of_their_deadlines() -> None:
    table = leased(1, deadline_ms=300)
    table.grant((2, 3), 12, 200, table.poller(NODE))
    table.grant((4,), 14, 250, table.poller(NODE))
    assert [seq for _, seq in table.take_over(1000)] == [2, 3, 4, 1]


def test_an_extension_sets_the_deadline_whether_it_is_later_or_sooner() -> None:
    table = leased(1, 2)
    table.extend((1,), 500)
    table.extend((2,), 50)
    assert table.take_over(101) == [(51, 2)]
    assert (table.lease(1).number, table.lease(1).deadline_ms) == (10, 500)
    assert table.take_over(501) == [(501, 1)]


def test_claims_of_one_node_have_one_holder_that_goes_with_its_last_lease() -> None:
    table = leased(1)
    table.grant((2,), 11, 100, table.poller(NODE))
    assert table.lease(1).holder is table.lease(2).holder
    assert table.lease(1).holder.held == 2
    table.drop(1)
    assert table.pollers.keys() == {NODE}
    table.drop(2)
    assert table.pollers == {}


def test_two_holders_of_a_cohort_that_are_one_node_become_one() -> None:
    table = LeaseTable()
    table.grant((1,), 10, 100, Holder(NODE))
    table.grant((2,), 11, 100, Holder(NODE))
    assert table.pollers[NODE].held == 2


def test_a_stream_knows_what_it_holds_and_is_named_when_that_becomes_less() -> None:
    stream = Holder(NODE, is_stream=True)
    table = leased(1, 2, holder=stream)
    assert (stream.held, [*(stream.seqs or ())], table.pollers) == (2, [1, 2], {})
    assert table.loosened == []
    table.drop(1)
    assert (stream.held, [*(stream.seqs or ())], table.loosened) == (1, [2], [stream])


def test_a_dropped_lease_is_what_it_was_and_a_second_drop_is_nothing() -> None:
    table = leased(1)
    lease = table.drop(1)
    assert lease is not None
    assert (lease.seq, lease.number, lease.deadline_ms, lease.holder.node) == (1, 10, 100, NODE)
    assert table.drop(1) is None


def test_the_slot_of_a_lease_is_used_again() -> None:
    table = leased(1, 2)
    table.drop(1)
    table.grant((3,), 20, 300, table.poller("m"))
    assert [table.lease(seq).number for seq in (2, 3)] == [11, 20]
    assert table.lease(2).holder.node == NODE
    assert not table.has_number(3, 10)
    assert table.has_number(3, 20)


def test_a_lease_that_was_dropped_and_given_again_does_not_end_at_its_first_deadline() -> None:
    table = leased(1)
    table.drop(1)
    table.grant((1,), 20, 900, table.poller(NODE))
    assert table.take_over(500) == []
    assert table.next_over_at is not None
    assert 500 < table.next_over_at <= 901
