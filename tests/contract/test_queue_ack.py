"""POST /v0/topics/:q/ack (§10.4): the ack is the delete, and only the holder's counts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.api import Api, ok
from tests.support.queues import (
    HOUR_MS,
    SHORT_MS,
    Queue,
    counters,
    data,
    numbers,
    tokens,
    until,
)
from tests.support.server import Server
from tests.support.sse import watch


def test_an_ack_says_what_it_did_and_what_is_left(queue: Queue) -> None:
    queue.push(*range(5))
    jobs = queue.claim("w", 3)
    body = queue.ack(jobs[:2])
    body.pop("performance")
    assert body == {
        "topic": queue.name,
        "acked": 2,
        "skipped": [],
        "ready": 2,
        "in_flight": 1,
    }
    assert queue.counters() == counters(ready=2, in_flight=1)


def test_an_ack_deletes_the_job(queue: Queue) -> None:
    queue.push("a", "b", "c")
    jobs = queue.claim("w", 3)
    queue.ack([jobs[1]])
    assert queue.live() == [1, 3]
    queue.ack([jobs[0]])
    state = queue.api.state(queue.name)
    assert (state["earliest_seq"], state["head_seq"], state["count"]) == (3, 3, 1)
    queue.ack([jobs[2]])
    state = queue.api.state(queue.name)
    assert (state["earliest_seq"], state["count"], state["bytes"]) == (4, 0, 0)
    page = ok(queue.api.diff(queue.name))
    assert (page["records"], page["tombstone"], page["caught_up"]) == ([], None, True)


def test_an_ack_is_silent_to_readers(queue: Queue) -> None:
    queue.push("a", "b")
    with watch(queue.api, [queue.name]) as stream:
        assert stream.told([queue.name]).data() == ["a", "b"]
        queue.ack(queue.claim("w", 2))
        queue.push("c")
        assert [record["data"] for record in stream.records(1)] == ["c"]


def test_an_acked_job_never_comes_back(queue: Queue) -> None:
    queue.push("a", "b")
    (first, second) = queue.claim("w", 2)
    queue.ack([first])
    queue.extend([second], lease_ms=SHORT_MS)
    assert numbers(queue.claim_all(1)) == [second["$seq"]]
    assert queue.claim("w", 5) == []


def test_jobs_are_acked_in_any_order(queue: Queue) -> None:
    queue.push(*range(6))
    jobs = queue.claim("w", 6)
    assert queue.ack([jobs[4], jobs[0], jobs[3]])["acked"] == 3
    assert queue.live() == [2, 3, 6]


# --- what is skipped


def test_only_the_holder_acks(queue: Queue) -> None:
    queue.push("a")
    jobs = queue.claim("w")
    body = queue.ack(jobs, "other")
    assert (body["acked"], body["skipped"], body["in_flight"]) == (0, [1], 1)
    assert queue.live() == [1]
    assert queue.ack(jobs, "w")["acked"] == 1


def test_an_ack_is_safe_to_repeat(queue: Queue) -> None:
    queue.push("a", "b")
    jobs = queue.claim("w", 2)
    assert queue.ack(jobs)["acked"] == 2
    for _ in range(2):
        body = queue.ack(jobs)
        assert (body["acked"], body["skipped"]) == (0, [1, 2])


@pytest.mark.parametrize("seq", [0, 2, 99, 2**53, 2**64 - 1], ids=lambda value: f"10.4 {value}")
def test_a_seq_that_nobody_leased_is_skipped(queue: Queue, seq: int) -> None:
    queue.push("a", "b")
    queue.claim("w")
    body = queue.ack([seq])
    assert (body["acked"], body["skipped"]) == (0, [seq])
    assert queue.live() == [1, 2]


def test_the_good_seqs_of_a_request_count(queue: Queue) -> None:
    queue.push(*range(6))
    queue.ack(queue.claim("w"))
    mine, theirs = queue.claim("w", 2), queue.claim("other", 2)
    body = queue.ack([77, *theirs, mine[1], 1, 6, mine[0]])
    assert body["acked"] == 2
    assert body["skipped"] == [77, *numbers(theirs), 1, 6]
    assert queue.live() == [*numbers(theirs), 6]


def test_a_seq_that_stands_twice_is_acked_once(queue: Queue) -> None:
    queue.push("a", "b")
    queue.claim("w", 2)
    body = ok(queue.call("ack", {"node": "w", "seqs": [1, 1]}))
    assert (body["acked"], body["skipped"], body["in_flight"]) == (1, [], 1)
    assert queue.live() == [2]


def test_an_ack_after_the_deadline_is_skipped_though_nobody_else_claims(queue: Queue) -> None:
    queue.push("a")
    jobs = queue.claim("w", lease_ms=SHORT_MS)
    queue.becomes(ready=1)
    body = queue.ack(jobs)
    assert (body["acked"], body["skipped"], body["ready"]) == (0, [1], 1)


def test_an_ack_after_a_nack_is_skipped(queue: Queue) -> None:
    queue.push("a")
    jobs = queue.claim("w")
    queue.nack(jobs)
    assert queue.ack(jobs)["skipped"] == [1]
    assert data(queue.claim("w")) == ["a"]


# --- the fence


def test_a_token_that_is_current_counts(queue: Queue) -> None:
    queue.push("a", "b")
    jobs = queue.claim("w", 2)
    body = queue.ack(jobs, lease_ids=tokens(jobs))
    assert (body["acked"], body["skipped"]) == (2, [])


def test_tokens_belong_to_the_seqs_in_their_order(queue: Queue) -> None:
    queue.push("a", "b", "c")
    jobs = queue.claim("w", 3)
    first, second, third = tokens(jobs)
    body = queue.ack(jobs, lease_ids=[second, first, third])
    assert (body["acked"], body["skipped"]) == (1, [1, 2])
    assert queue.ack(jobs[:2], lease_ids=[first, second])["acked"] == 2


@pytest.mark.parametrize("token", ["", "lease_", "lease_0", "lease_zz", "nonsense", "é", "x" * 999])
def test_a_token_of_no_lease_skips_its_seq(queue: Queue, token: str) -> None:
    queue.push("a", "b")
    jobs = queue.claim("w", 2)
    body = queue.ack(jobs, lease_ids=[token, jobs[1]["lease_id"]])
    assert (body["acked"], body["skipped"]) == (1, [1])
    assert queue.counters() == counters(in_flight=1)


def test_a_token_does_not_replace_the_node(queue: Queue) -> None:
    queue.push("a")
    jobs = queue.claim("w")
    assert queue.ack(jobs, "other", lease_ids=tokens(jobs))["skipped"] == [1]


# --- what it costs and how much it may be


def test_1000_jobs_are_acked_at_once(queue: Queue) -> None:
    queue.push(*range(1000))
    jobs = queue.claim("w", 1000)
    assert queue.ack(jobs, lease_ids=tokens(jobs))["acked"] == 1000
    assert queue.live() == []


@pytest.mark.parametrize(
    ("durability", "synced"),
    [("ephemeral", False), ("memory", False), ("disk", False), ("fsync", True)],
)
def test_the_ack_of_a_durable_queue_is_synced_before_its_answer(
    api: Api, topic: str, durability: str, synced: bool
) -> None:
    queue = Queue.create(api, topic, "a", durability=durability)
    spent: dict[str, Any] = queue.ack(queue.claim())["performance"]
    assert (spent.get("fsync_ms", 0.0) > 0) == synced


def test_concurrent_acks_of_the_same_jobs_count_each_once(
    server: Server, api: Api, topic: str
) -> None:
    queue = Queue.create(api, topic, *range(100), durability="fsync")
    jobs = queue.claim("w", 100, lease_ms=HOUR_MS)

    def ack(_: int) -> int:
        with Api(server.address) as own:
            return int(Queue(own, topic).ack(jobs)["acked"])

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(ack, range(6))) == 100
    assert queue.counters() == counters()


def test_acks_make_room_in_a_queue_that_rejects(api: Api, topic: str) -> None:
    queue = Queue.create(api, topic, "a", "b", cap_records=2, discard="reject")
    assert api.append(topic, "c").status == 422
    queue.ack(queue.claim())
    assert queue.push("c") == [3]
    assert data(queue.claim("w", 5)) == ["b", "c"]


def test_a_repeated_write_does_not_bring_an_acked_job_back(queue: Queue) -> None:
    first = queue.push("a", idempotency_key="k")
    queue.ack(queue.claim())
    assert queue.push("a", idempotency_key="k") == first
    assert queue.claim("w", 5) == []


def test_a_late_ack_may_find_the_job_with_another_worker(queue: Queue) -> None:
    """The seam of at-least-once delivery: the first worker was slow, not dead."""
    queue.push("a")
    slow = queue.claim("slow", lease_ms=SHORT_MS)
    quick = until(lambda: queue.claim("quick", lease_ms=HOUR_MS))
    assert [job["deliveries"] for job in quick] == [2]
    assert queue.ack(slow, "slow")["skipped"] == [1]
    assert queue.live() == [1]
    assert queue.ack(quick, "quick")["acked"] == 1
