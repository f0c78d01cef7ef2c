"""Wait list: which claim is next, and the share of each member of a cohort."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from topics.actors.shard.queues.wait_list import Claimer, Share, WaitList, even_shares
from topics.engine.queue.leases import LeaseHolder
from topics.engine.topic import Topic
from topics.formats.api.topic_config import TopicConfig


class Stub(Claimer):
    """A claimer that takes up to ``jobs``."""

    __slots__ = ("capacity",)
    is_stream = True
    max_bytes = 1

    def __init__(self, line: WaitList, jobs: int) -> None:
        self.topic, self.holder, self.lease_ms = line.topic, LeaseHolder("w", is_stream=True), None
        self.capacity = jobs


def line_of(*capacities: int) -> tuple[WaitList, list[Stub]]:
    line = WaitList(Topic(1, "q", 1, TopicConfig(type="queue")))
    claimers = [Stub(line, capacity) for capacity in capacities]
    for claimer in claimers:
        line.join(claimer, may_wait=True)
    return line, claimers


def shares_of(line: WaitList) -> list[list[int]]:
    return [[share.max_jobs for share in part] for part in line.slices or ()]


def test_jobs_are_dealt_one_at_a_time_to_the_claimers_with_capacity() -> None:
    assert even_shares([10, 10, 10], 9) == [3, 3, 3]
    assert even_shares([10, 1, 10], 9) == [4, 1, 4]
    assert even_shares([10, 10, 10], 5) == [2, 2, 1]
    assert even_shares([1, 2], 9) == [1, 2]
    assert even_shares([], 9) == []


@given(st.lists(st.integers(1, 20), max_size=8), st.integers(0, 100))
def test_even_shares_equal_those_of_dealing_one_by_one(capacities: list[int], jobs: int) -> None:
    dealt = [0] * len(capacities)
    left = jobs
    while left and dealt != capacities:
        for at, capacity in enumerate(capacities):
            if left and dealt[at] < capacity:
                dealt[at] += 1
                left -= 1
    assert even_shares(capacities, jobs) == dealt


def test_a_cohort_within_the_bound_of_an_iteration_is_served_in_one_pass() -> None:
    line, claimers = line_of(5, 5)
    line.form_cohort(ready=100, jobs_max=10)
    assert list(line.slices or ()) == [[Share(claimer, 5) for claimer in claimers]]
    line.form_cohort(ready=3, jobs_max=4)
    assert shares_of(line) == [[2, 1]]


def test_only_as_many_claimers_are_served_as_there_are_jobs() -> None:
    line, claimers = line_of(0, *[9] * 8000)
    line.form_cohort(ready=2, jobs_max=10)
    assert list(line.slices or ()) == [[Share(claimer, 1) for claimer in claimers[1:3]]]
    assert list(line.waiting) == claimers, "no claimer has lost its position"
    line.form_cohort(ready=0, jobs_max=10)
    assert shares_of(line) == []


def test_a_larger_cohort_gets_even_shares_in_several_passes() -> None:
    line, _ = line_of(50, 50, 50, 2)
    line.form_cohort(ready=62, jobs_max=30)
    assert shares_of(line) == [[20], [20], [20, 2]]


def test_forming_a_cohort_resets_the_claims_that_arrived_since_the_last_one() -> None:
    line, (first, second) = line_of(1, 1)
    line.leave(first)
    assert list(line.uncounted) == [second]
    line.form_cohort(ready=1, jobs_max=10)
    assert not line.uncounted
    line.join(first, may_wait=False)
    assert (list(line.uncounted), list(line.unserved)) == ([first], [first])


def test_a_stream_joins_the_wait_list_once_when_it_has_capacity_again() -> None:
    line, (stream, full) = line_of(1, 0)
    line.streams = {stream.holder: stream, full.holder: full}
    line.leave(stream)
    line.leave(full)
    line.admit([stream.holder, full.holder, stream.holder, LeaseHolder("other", is_stream=True)])
    assert list(line.waiting) == [stream]
    assert not line.is_empty
