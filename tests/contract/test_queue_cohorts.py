"""Coalescing windows (``claim_jitter_ms``, §10.2): whoever asks within one shares what there is.

The windows are long, so that also a loaded machine gets all claims into one.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import Any

import pytest

from tests.support.api import SLACK_S, Api, ok
from tests.support.queues import (
    HOUR_MS,
    SHORT_MS,
    Queue,
    Work,
    claiming,
    counters,
    data,
    jobs_of,
    now_ms,
    numbers,
    parked,
)

pytestmark = pytest.mark.slow

WINDOW_MS = 1500


@pytest.fixture
def jittered(api: Api, topic: str) -> Queue:
    return Queue.create(api, topic, claim_jitter_ms=WINDOW_MS, lease_ms=HOUR_MS)


def counts(futures: list[Future[Any]]) -> list[int]:
    return [len(jobs_of(future)) for future in futures]


def no_job_twice(futures: list[Future[Any]]) -> list[int]:
    """The seqs of all jobs of these claims, ascending."""
    found = [seq for future in futures for seq in numbers(jobs_of(future))]
    assert len(found) == len({*found})
    return sorted(found)


@pytest.mark.parametrize(
    ("jobs", "each"), [(8, [2, 2, 2, 2]), (7, [1, 2, 2, 2]), (2, [0, 0, 1, 1])]
)
def test_a_cohort_divides_the_jobs_evenly(jittered: Queue, jobs: int, each: list[int]) -> None:
    jittered.push(*range(jobs))
    with claiming(jittered) as claims:
        futures = [claims.start(f"w{number}", 10) for number in range(4)]
        assert sorted(counts(futures)) == each
        assert no_job_twice(futures) == list(range(1, jobs + 1))
    assert jittered.counters() == counters(in_flight=jobs)


def test_each_claimer_of_a_cohort_keeps_its_max(jittered: Queue) -> None:
    jittered.push(*range(9))
    with claiming(jittered) as claims:
        futures = [claims.start(f"w{number}", most) for number, most in enumerate((1, 2, 10))]
        assert counts(futures) == [1, 2, 6]
        assert no_job_twice(futures) == list(range(1, 10))


def test_each_claimer_of_a_cohort_keeps_its_lease(jittered: Queue) -> None:
    jittered.push(*range(4))
    before = now_ms()
    with claiming(jittered) as claims:
        futures = [
            claims.start("brief", 2, lease_ms=60_000),
            claims.start("long", 2, lease_ms=2 * HOUR_MS),
            claims.start("default", 2),
        ]
        spans = [{job["deadline"] - before for job in jobs_of(future)} for future in futures]
    after_ms = now_ms() - before
    for span, lease_ms in zip(spans, (60_000, 2 * HOUR_MS, HOUR_MS), strict=True):
        assert span
        assert all(lease_ms <= value <= lease_ms + after_ms for value in span)


def test_a_cohort_larger_than_the_queue_leaves_some_with_nothing(jittered: Queue) -> None:
    jittered.push("only")
    with claiming(jittered) as claims:
        futures = [claims.start(f"w{number}") for number in range(6)]
        assert sorted(counts(futures)) == [0, 0, 0, 0, 0, 1]


def test_a_cohort_takes_no_more_than_it_asks_for(jittered: Queue) -> None:
    jittered.push(*range(50))
    with claiming(jittered) as claims:
        futures = [claims.start(f"w{number}", 3) for number in range(4)]
        assert counts(futures) == [3, 3, 3, 3]
        assert no_job_twice(futures) == list(range(1, 13))
    assert jittered.counters() == counters(ready=38, in_flight=12)


def test_expired_jobs_go_to_a_cohort_before_fresh_ones(jittered: Queue) -> None:
    jittered.push(*range(6))
    jittered.nack(jittered.claim("w", 3))
    with claiming(jittered) as claims:
        futures = [claims.start(f"w{number}") for number in range(3)]
        assert no_job_twice(futures) == [1, 2, 3]


def test_a_claim_of_a_jittered_queue_waits_at_most_the_window(jittered: Queue) -> None:
    jittered.push("a")
    begun = time.monotonic()
    assert data(jittered.claim()) == ["a"]
    assert jittered.claim() == []
    assert time.monotonic() - begun < 2 * WINDOW_MS / 1000 + SLACK_S


def test_a_job_that_comes_within_the_window_is_shared_out(jittered: Queue) -> None:
    with claiming(jittered) as claims:
        futures = [claims.start(f"w{number}", 5) for number in range(2)]
        parked(jittered)
        jittered.push("a", "b")
        assert counts(futures) == [1, 1]


def test_a_queue_is_greedy_by_default(queue: Queue) -> None:
    queue.push(*range(10))
    assert len(queue.claim("first", 10)) == 10
    assert queue.claim("second", 10) == []


def test_the_window_changes_in_place(queue: Queue) -> None:
    queue.configure(claim_jitter_ms=WINDOW_MS)
    queue.push(*range(4))
    with claiming(queue) as claims:
        assert counts([claims.start(f"w{number}", 9) for number in range(2)]) == [2, 2]
    queue.configure(claim_jitter_ms=0)
    queue.push(*range(4))
    assert len(queue.claim("w", 9)) == 4


def test_streams_share_with_claims(jittered: Queue) -> None:
    with Work(jittered, "pushed", 4), claiming(jittered) as claims:
        future = claims.start_parked("polled", 4, wait_ms=20_000)
        jittered.push(*range(4))
        assert len(jobs_of(future)) == 2
        assert jittered.counters() == counters(in_flight=4)


def test_streams_share_with_each_other(jittered: Queue) -> None:
    with Work(jittered, "left", 10) as left, Work(jittered, "right", 10) as right:
        jittered.push(*range(10))
        found = left.jobs(5) + right.jobs(5)
        assert sorted(data(found)) == list(range(10))


def test_no_job_of_a_cohort_is_lost_when_leases_end(jittered: Queue) -> None:
    jittered.push(*range(6))
    with claiming(jittered) as claims:
        futures = [claims.start(f"w{number}", 3, lease_ms=SHORT_MS) for number in range(2)]
        assert no_job_twice(futures) == [1, 2, 3, 4, 5, 6]
    jittered.becomes(ready=6)


def test_a_queue_that_is_deleted_ends_the_window(jittered: Queue) -> None:
    with claiming(jittered) as claims:
        future = claims.start_parked("w", 5, wait_ms=20_000)
        ok(jittered.api.delete(jittered.name))
        with pytest.raises(AssertionError, match="topic_not_found"):
            future.result(30)
