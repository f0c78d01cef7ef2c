"""POST /v0/topics/:q/nack (§10.5): a voluntary early reclaim, at once or later."""

from __future__ import annotations

import time

import pytest

from tests.support.api import Api
from tests.support.queues import (
    DAY_MS,
    HOUR_MS,
    SHORT_MS,
    Queue,
    counters,
    data,
    now_ms,
    numbers,
    tokens,
    until,
)


def test_a_nack_says_what_it_did_and_what_is_left(queue: Queue) -> None:
    queue.push(*range(4))
    jobs = queue.claim("w", 3)
    body = queue.nack(jobs[:2])
    body.pop("performance")
    assert body == {
        "topic": queue.name,
        "nacked": 2,
        "skipped": [],
        "ready": 3,
        "in_flight": 1,
    }
    assert queue.counters() == counters(ready=3, in_flight=1)


def test_a_nacked_job_is_claimable_at_once_by_anybody(queue: Queue) -> None:
    queue.push("a")
    queue.nack(queue.claim("w"))
    (again,) = queue.claim("other")
    assert (again["data"], again["deliveries"]) == ("a", 2)


def test_nacked_jobs_come_before_fresh_ones(queue: Queue) -> None:
    queue.push(*range(6))
    jobs = queue.claim("w", 3)
    queue.nack([jobs[1], jobs[2]])
    assert data(queue.claim("w", 2)) == [1, 2]
    assert data(queue.claim("w", 2)) == [3, 4]


def test_one_claim_takes_nacked_and_fresh_jobs_ascending(queue: Queue) -> None:
    queue.push(*range(5))
    queue.nack(queue.claim("w", 2)[1:])
    jobs = queue.claim("w", 3)
    assert [(job["data"], job["deliveries"]) for job in jobs] == [(1, 2), (2, 1), (3, 1)]


def test_a_nack_leaves_the_record_in_the_log(queue: Queue) -> None:
    queue.push("a", "b")
    before = queue.api.read(queue.name)
    queue.nack(queue.claim("w", 2))
    assert queue.api.read(queue.name) == before


# --- delay_ms


def test_a_delayed_nack_hides_the_job_from_claims_and_counters(queue: Queue) -> None:
    queue.push("a", "b")
    body = queue.nack(queue.claim("w"), delay_ms=HOUR_MS)
    assert (body["nacked"], body["ready"], body["in_flight"]) == (1, 1, 0)
    assert queue.counters() == counters(ready=1), "delayed counts appends with a delay only"
    assert queue.api.state(queue.name)["count"] == 2
    assert queue.live() == [1, 2]
    assert data(queue.claim("w", 5)) == ["b"]


def test_a_delayed_nack_comes_back_when_its_time_has_come(queue: Queue) -> None:
    queue.push("a", "b")
    (job,) = queue.claim("w")
    before = now_ms()
    queue.nack([job], delay_ms=400)
    queue.becomes(ready=2)
    (again,) = queue.claim("w", lease_ms=HOUR_MS)
    assert (again["data"], again["deliveries"]) == ("a", 2), "before the fresh one"
    assert again["deadline"] - HOUR_MS >= before + 400


@pytest.mark.slow
def test_delays_pass_each_by_itself(queue: Queue) -> None:
    queue.push("long", "short", "none")
    long, short, none = queue.claim("w", 3)
    queue.nack([none])
    assert data(queue.claim("w", 3)) == ["none"]
    queue.nack([long], delay_ms=3000)
    queue.nack([short], delay_ms=100)
    found: list[str] = []

    def look() -> list[str]:
        found.extend(data(queue.claim("w")))
        return found

    assert until(look, lambda found: len(found) == 2) == ["short", "long"]


@pytest.mark.parametrize("delay_ms", [DAY_MS, DAY_MS + 1, 2**53], ids=lambda value: f"10.5 {value}")
def test_a_delay_is_clamped_to_a_day(queue: Queue, delay_ms: int) -> None:
    queue.push("a")
    assert queue.nack(queue.claim("w"), delay_ms=delay_ms)["nacked"] == 1
    assert queue.counters() == counters()


def test_a_hidden_job_belongs_to_nobody(queue: Queue) -> None:
    queue.push("a")
    jobs = queue.claim("w")
    queue.nack(jobs, delay_ms=HOUR_MS)
    assert queue.ack(jobs)["skipped"] == [1]
    assert queue.nack(jobs)["skipped"] == [1]
    assert queue.extend(jobs)["skipped"] == [1]
    assert queue.leases() == []


# --- what is skipped


def test_only_the_holder_nacks(queue: Queue) -> None:
    queue.push("a")
    jobs = queue.claim("w")
    body = queue.nack(jobs, "other")
    assert (body["nacked"], body["skipped"], body["in_flight"]) == (0, [1], 1)
    assert queue.claim("other", 5) == []


def test_a_nack_is_safe_to_repeat(queue: Queue) -> None:
    queue.push("a")
    jobs = queue.claim("w")
    assert queue.nack(jobs)["nacked"] == 1
    assert queue.nack(jobs)["skipped"] == [1]
    assert queue.counters() == counters(ready=1)


def test_the_good_seqs_of_a_request_count(queue: Queue) -> None:
    queue.push(*range(6))
    mine, theirs = queue.claim("w", 2), queue.claim("other", 2)
    body = queue.nack([77, *theirs, mine[1], 6, 0, mine[0]])
    assert (body["nacked"], body["skipped"]) == (2, [77, *numbers(theirs), 6, 0])
    assert queue.counters() == counters(ready=4, in_flight=2)


def test_a_nack_after_the_deadline_is_skipped(queue: Queue) -> None:
    """Else a delay could hide a job that others may claim already."""
    queue.push("a")
    jobs = queue.claim("w", lease_ms=SHORT_MS)
    queue.becomes(ready=1)
    assert queue.nack(jobs, delay_ms=HOUR_MS)["skipped"] == [1]
    assert data(queue.claim("other")) == ["a"]


def test_a_stale_token_skips_its_seq(queue: Queue) -> None:
    queue.push("a", "b")
    old = queue.claim("w", 2)
    queue.nack([old[0]])
    new = queue.claim("w")
    body = queue.nack(old, lease_ids=tokens(old))
    assert (body["nacked"], body["skipped"]) == (1, [1])
    assert queue.nack(new, lease_ids=tokens(new))["nacked"] == 1


def test_a_nack_without_tokens_goes_by_node_and_seq(queue: Queue) -> None:
    queue.push("a")
    old = queue.claim("w")
    queue.nack(old)
    queue.claim("w")
    assert queue.nack(old)["nacked"] == 1


@pytest.mark.parametrize("leases_durable", [False, True])
@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_a_queue_of_any_class_takes_nacks(
    api: Api, topic: str, durability: str, leases_durable: bool
) -> None:
    queue = Queue.create(api, topic, "a", durability=durability, leases_durable=leases_durable)
    queue.nack(queue.claim())
    (job,) = queue.claim()
    assert job["deliveries"] == 2
    assert queue.extend([job])["extended"] == 1
    assert queue.ack([job])["acked"] == 1


@pytest.mark.slow
def test_a_job_that_is_nacked_often_is_delivered_as_often(queue: Queue) -> None:
    queue.push("a")
    begun = time.monotonic()
    for number in range(1, 201):
        (job,) = queue.claim("w")
        assert job["deliveries"] == number
        queue.nack([job], delay_ms=number % 2)
        until(queue.counters, lambda found: found["ready"] == 1)
    assert time.monotonic() - begun < 60
