"""POST /v0/topics/:q/extend (§10.6): the heartbeat of a long job."""

from __future__ import annotations

import time

import pytest

from tests.support.api import refused
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


def test_an_extend_says_what_it_did(queue: Queue) -> None:
    queue.push(*range(4))
    jobs = queue.claim("w", 3)
    before = now_ms()
    body = queue.extend(jobs[:2], lease_ms=60_000)
    after = now_ms()
    body.pop("performance")
    deadlines = body.pop("deadlines")
    assert body == {"topic": queue.name, "extended": 2, "skipped": []}
    assert {*deadlines} == {"1", "2"}
    for deadline in deadlines.values():
        assert before + 60_000 <= deadline <= after + 60_000
    assert [lease["deadline"] for lease in queue.leases()] == [
        *deadlines.values(),
        jobs[2]["deadline"],
    ]


@pytest.mark.slow
def test_an_extended_lease_outlives_its_first_deadline(queue: Queue) -> None:
    queue.push("kept", "lost")
    kept = queue.claim("w", 2, lease_ms=4000)[0]
    queue.extend([kept], lease_ms=HOUR_MS)
    (reclaimed,) = queue.claim_all(1, "other")
    assert reclaimed["data"] == "lost"
    time.sleep(0.3)
    assert queue.claim("other", 5) == []
    assert queue.ack([kept])["acked"] == 1


def test_an_extend_sets_and_does_not_add(queue: Queue) -> None:
    queue.push("a")
    jobs = queue.claim("w", lease_ms=HOUR_MS)
    before = now_ms()
    (deadline,) = queue.extend(jobs, lease_ms=SHORT_MS)["deadlines"].values()
    assert before + SHORT_MS <= deadline <= now_ms() + SHORT_MS
    assert data(queue.claim_all(1, "other")) == ["a"]


@pytest.mark.parametrize(
    ("asked", "effective"),
    [(0, 100), (99, 100), (HOUR_MS, HOUR_MS), (DAY_MS + 1, DAY_MS), (2**53, DAY_MS)],
    ids=lambda value: f"10.6 {value}",
)
def test_lease_ms_is_clamped(queue: Queue, asked: int, effective: int) -> None:
    queue.push("a")
    jobs = queue.claim("w")
    before = now_ms()
    (deadline,) = queue.extend(jobs, lease_ms=asked)["deadlines"].values()
    assert before + effective <= deadline <= now_ms() + effective


def test_lease_ms_is_required(queue: Queue) -> None:
    queue.push("a")
    queue.claim("w")
    refused(queue.call("extend", {"node": "w", "seqs": [1]}), 400, "invalid_request")


def test_an_extend_keeps_the_lease_id(queue: Queue) -> None:
    queue.push("a", "b")
    jobs = queue.claim("w", 2)
    for _ in range(3):
        assert queue.extend(jobs, lease_ids=tokens(jobs))["extended"] == 2
    assert [lease["lease_id"] for lease in queue.leases()] == tokens(jobs)
    assert queue.ack(jobs, lease_ids=tokens(jobs))["acked"] == 2


def test_an_extend_does_not_change_the_delivery_counter(queue: Queue) -> None:
    queue.push("a")
    jobs = queue.claim("w")
    for _ in range(3):
        queue.extend(jobs)
    assert [lease["deliveries"] for lease in queue.leases()] == [1]
    queue.nack(jobs)
    assert [job["deliveries"] for job in queue.claim("w")] == [2]


def test_an_extend_changes_no_counter(queue: Queue) -> None:
    queue.push("a", "b")
    queue.extend(queue.claim("w"))
    assert queue.counters() == counters(ready=1, in_flight=1)


def test_an_extended_lease_ends_all_the_same(queue: Queue) -> None:
    queue.push("a")
    jobs = queue.claim("w", lease_ms=HOUR_MS)
    queue.extend(jobs, lease_ms=HOUR_MS)
    queue.extend(jobs, lease_ms=SHORT_MS)
    (again,) = queue.claim_all(1, "other")
    assert again["deliveries"] == 2


# --- what is skipped


def test_only_the_holder_extends(queue: Queue) -> None:
    queue.push("a")
    jobs = queue.claim("w")
    body = queue.extend(jobs, "other")
    assert (body["extended"], body["skipped"], body["deadlines"]) == (0, [1], {})
    assert [lease["deadline"] for lease in queue.leases()] == [jobs[0]["deadline"]]


def test_an_expired_lease_cannot_be_extended(queue: Queue) -> None:
    queue.push("a")
    jobs = queue.claim("w", lease_ms=SHORT_MS)
    queue.becomes(ready=1)
    body = queue.extend(jobs)
    assert (body["extended"], body["skipped"]) == (0, [1])
    assert data(queue.claim("other")) == ["a"]


def test_a_reclaimed_job_cannot_be_extended(queue: Queue) -> None:
    queue.push("a")
    jobs = queue.claim("w", lease_ms=SHORT_MS)
    (reclaimed,) = until(lambda: queue.claim("other", lease_ms=HOUR_MS))
    assert queue.extend(jobs)["skipped"] == [1]
    assert [lease["deadline"] for lease in queue.leases()] == [reclaimed["deadline"]]


@pytest.mark.parametrize("seq", [0, 2, 99, 2**64 - 1], ids=lambda value: f"10.6 {value}")
def test_a_seq_that_nobody_leased_is_skipped(queue: Queue, seq: int) -> None:
    queue.push("a", "b")
    queue.claim("w")
    assert queue.extend([seq])["skipped"] == [seq]


def test_the_good_seqs_of_a_request_count(queue: Queue) -> None:
    queue.push(*range(6))
    mine, theirs = queue.claim("w", 2), queue.claim("other", 2)
    body = queue.extend([77, *theirs, mine[1], 6, mine[0]])
    assert (body["extended"], body["skipped"]) == (2, [77, *numbers(theirs), 6])
    assert {*body["deadlines"]} == {"1", "2"}


def test_a_stale_token_skips_its_seq(queue: Queue) -> None:
    queue.push("a", "b")
    old = queue.claim("w", 2)
    queue.nack([old[0]])
    (new,) = queue.claim("w")
    body = queue.extend(old, lease_ids=tokens(old))
    assert (body["extended"], body["skipped"]) == (1, [1])
    deadlines = {lease["$seq"]: lease["deadline"] for lease in queue.leases()}
    assert deadlines == {1: new["deadline"], 2: body["deadlines"]["2"]}


def test_an_acked_job_cannot_be_extended(queue: Queue) -> None:
    queue.push("a")
    jobs = queue.claim("w")
    queue.ack(jobs)
    assert queue.extend(jobs)["skipped"] == [1]
