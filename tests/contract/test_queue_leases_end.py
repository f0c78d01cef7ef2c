"""The visibility timeout (§10.3): leases expire, and the former holder loses the job."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.api import Api, ok
from tests.support.queues import (
    HOUR_MS,
    SHORT_MS,
    Job,
    Queue,
    counters,
    data,
    tokens,
    until,
)

pytestmark = pytest.mark.slow

CLOCKS_MS = 1  # deadlines are shown in wall-clock time and measured with a monotonic clock


def reclaimed(queue: Queue, node: str = "other") -> Job:
    """Wait until a job is claimable again, and claim it for an hour."""
    (job,) = until(lambda: queue.claim(node, lease_ms=HOUR_MS))
    return job


def claimed_at(job: Job) -> int:
    """Return the time at which a job was claimed for an hour, by the clock of the server."""
    return int(job["deadline"]) - HOUR_MS


# --- when leases expire


def test_a_lease_does_not_end_before_its_deadline(queue: Queue) -> None:
    for _ in range(5):
        queue.push("a")
        (first,) = queue.claim("w", lease_ms=SHORT_MS)
        again = reclaimed(queue)
        assert claimed_at(again) >= first["deadline"] - CLOCKS_MS
        queue.ack([again], "other")


@pytest.mark.slow
def test_every_lease_has_its_own_deadline(queue: Queue) -> None:
    queue.push("long", "short", "longest")
    queue.claim("w", lease_ms=4000)
    queue.claim("w", lease_ms=SHORT_MS)
    queue.claim("w", lease_ms=HOUR_MS)
    assert reclaimed(queue)["data"] == "short"
    assert reclaimed(queue)["data"] == "long"
    assert queue.claim("other", 5) == []


def test_the_state_reflects_an_expired_lease_without_a_claim(queue: Queue) -> None:
    queue.push("a", "b")
    queue.claim("w", 2, lease_ms=SHORT_MS)
    queue.becomes(ready=2)
    assert queue.leases() == []


# --- the order of expired jobs


def test_expired_jobs_are_claimed_before_fresh_ones(queue: Queue) -> None:
    queue.push(*range(5))
    queue.ack(queue.claim("w"))
    queue.claim("w", 2, lease_ms=SHORT_MS)
    queue.becomes(ready=4)
    assert data(queue.claim("other", 2)) == [1, 2]
    assert data(queue.claim("other", 2)) == [3, 4]


def test_one_claim_returns_expired_and_fresh_jobs_in_ascending_order(queue: Queue) -> None:
    queue.push(*range(4))
    (first, second) = queue.claim("w", 2)
    queue.extend([second], lease_ms=SHORT_MS)
    queue.becomes(ready=3, in_flight=1)
    jobs = queue.claim("other", 3)
    assert [(job["data"], job["deliveries"]) for job in jobs] == [(1, 2), (2, 1), (3, 1)]
    assert queue.ack([first])["acked"] == 1


# --- nodes whose lease has expired

VERBS: list[tuple[str, dict[str, Any]]] = [
    ("ack", {}),
    ("nack", {}),
    ("nack", {"delay_ms": HOUR_MS}),
    ("extend", {"lease_ms": HOUR_MS}),
]
SETTLED = pytest.mark.parametrize(("verb", "fields"), VERBS, ids=lambda value: f"10.3 {value}")


def skipped(queue: Queue, verb: str, node: str, **fields: Any) -> list[int]:
    """Return the skipped seqs when this node settles seq 1."""
    found: list[int] = ok(queue.call(verb, {"node": node, "seqs": [1], **fields}))["skipped"]
    return found


@SETTLED
def test_a_previous_holder_cannot_settle_the_job(
    queue: Queue, verb: str, fields: dict[str, Any]
) -> None:
    queue.push("a")
    queue.claim("w", lease_ms=SHORT_MS)
    again = reclaimed(queue)
    assert skipped(queue, verb, "w", **fields) == [1]
    assert [lease["lease_id"] for lease in queue.leases()] == [again["lease_id"]]
    assert skipped(queue, verb, "other", **fields) == []


@SETTLED
def test_a_holder_cannot_settle_after_its_deadline_even_before_a_reclaim(
    queue: Queue, verb: str, fields: dict[str, Any]
) -> None:
    queue.push("a")
    queue.claim("w", lease_ms=SHORT_MS)
    queue.becomes(ready=1)
    assert skipped(queue, verb, "w", **fields) == [1]
    assert queue.counters() == counters(ready=1)


@SETTLED
def test_tokens_distinguish_two_workers_with_one_node(
    queue: Queue, verb: str, fields: dict[str, Any]
) -> None:
    queue.push("a")
    old = queue.claim("w", lease_ms=SHORT_MS)
    new = reclaimed(queue, "w")
    assert skipped(queue, verb, "w", lease_ids=tokens(old), **fields) == [1]
    assert [lease["lease_id"] for lease in queue.leases()] == tokens([new])
    assert skipped(queue, verb, "w", lease_ids=tokens([new]), **fields) == []


@SETTLED
def test_without_tokens_any_worker_with_the_node_can_settle(
    queue: Queue, verb: str, fields: dict[str, Any]
) -> None:
    queue.push("a")
    queue.claim("w", lease_ms=SHORT_MS)
    reclaimed(queue, "w")
    assert skipped(queue, verb, "w", **fields) == []


def test_a_token_of_a_deleted_queue_is_invalid(api: Api, topic: str) -> None:
    queue = Queue.create(api, topic, "a")
    old = queue.claim("w")
    ok(api.delete(topic))
    queue = Queue.create(api, topic, "b")
    assert queue.ack(old)["skipped"] == [1], "the new job with this seq was settled"
    new = queue.claim("w")
    assert queue.ack(new, lease_ids=tokens(old))["skipped"] == [1]
    assert queue.ack(new, lease_ids=tokens(new))["acked"] == 1
