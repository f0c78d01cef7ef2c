"""Ack, nack and extend (§10.4 to §10.6): the rights of a lease's holder, and the effects
of each call.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.api import Api, ok
from tests.support.queues import (
    DAY_MS,
    HOUR_MS,
    SHORT_MS,
    Queue,
    Work,
    counters,
    data,
    now_ms,
    until,
)
from tests.support.server import Server
from tests.support.sse import watch


def test_an_ack_returns_its_effects_and_the_remaining_counts(queue: Queue) -> None:
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


def test_an_ack_is_not_reported_to_readers_as_a_loss(queue: Queue) -> None:
    queue.push("a", "b")
    with watch(queue.api, [queue.name]) as stream:
        assert stream.read_until_caught_up([queue.name]).data() == ["a", "b"]
        queue.ack(queue.claim("w", 2))
        queue.push("c")
        assert [record["data"] for record in stream.records(1)] == ["c"]


# --- skipped seqs


def test_a_repeated_seq_is_acked_once(queue: Queue) -> None:
    queue.push("a", "b")
    queue.claim("w", 2)
    body = ok(queue.call("ack", {"node": "w", "seqs": [1, 1]}))
    assert (body["acked"], body["skipped"], body["in_flight"]) == (1, [], 1)
    assert queue.live() == [2]


# --- costs and limits


@pytest.mark.parametrize(
    ("durability", "synced"),
    [("ephemeral", False), ("memory", False), ("disk", False), ("fsync", True)],
)
def test_an_ack_in_a_queue_of_class_fsync_is_synced_before_its_response(
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


def test_acks_free_capacity_in_a_queue_that_rejects(api: Api, topic: str) -> None:
    queue = Queue.create(api, topic, "a", "b", cap_records=2, discard="reject")
    assert api.append(topic, "c").status == 422
    queue.ack(queue.claim())
    assert queue.push("c") == [3]
    assert data(queue.claim("w", 5)) == ["b", "c"]


def test_a_repeated_write_does_not_restore_an_acked_job(queue: Queue) -> None:
    first = queue.push("a", idempotency_key="k")
    queue.ack(queue.claim())
    assert queue.push("a", idempotency_key="k") == first
    assert queue.claim("w", 5) == []


def test_a_nack_returns_its_effects_and_the_remaining_counts(queue: Queue) -> None:
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


# --- delay_ms


@pytest.mark.slow
def test_a_nacked_job_is_claimable_after_its_delay(queue: Queue) -> None:
    queue.push("a", "b")
    (job,) = queue.claim("w")
    before = now_ms()
    queue.nack([job], delay_ms=400)
    queue.becomes(ready=2)
    (again,) = queue.claim("w", lease_ms=HOUR_MS)
    assert (again["data"], again["deliveries"]) == ("a", 2), "the fresh job was claimed first"
    assert again["deadline"] - HOUR_MS >= before + 400


@pytest.mark.parametrize("delay_ms", [DAY_MS, DAY_MS + 1, 2**53], ids=lambda value: f"10.5 {value}")
def test_the_delay_of_a_nack_is_clamped_to_a_day(queue: Queue, delay_ms: int) -> None:
    queue.push("a")
    assert queue.nack(queue.claim("w"), delay_ms=delay_ms)["nacked"] == 1
    assert queue.counters() == counters()


# --- durability classes


@pytest.mark.parametrize("leases_durable", [False, True])
@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_a_queue_of_any_durability_class_accepts_nacks(
    api: Api, topic: str, durability: str, leases_durable: bool
) -> None:
    queue = Queue.create(api, topic, "a", durability=durability, leases_durable=leases_durable)
    queue.nack(queue.claim())
    (job,) = queue.claim()
    assert job["deliveries"] == 2
    assert queue.extend([job])["extended"] == 1
    assert queue.ack([job])["acked"] == 1


def test_an_extend_returns_its_effects(queue: Queue) -> None:
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
def test_an_extended_lease_lasts_beyond_its_first_deadline(queue: Queue) -> None:
    queue.push("kept", "lost")
    kept = queue.claim("w", 2, lease_ms=4000)[0]
    queue.extend([kept], lease_ms=HOUR_MS)
    (reclaimed,) = queue.claim_all(1, "other")
    assert reclaimed["data"] == "lost"
    time.sleep(0.3)
    assert queue.claim("other", 5) == []
    assert queue.ack([kept])["acked"] == 1


def test_an_extend_sets_the_deadline_relative_to_now(queue: Queue) -> None:
    queue.push("a")
    jobs = queue.claim("w", lease_ms=HOUR_MS)
    before = now_ms()
    (deadline,) = queue.extend(jobs, lease_ms=SHORT_MS)["deadlines"].values()
    assert before + SHORT_MS <= deadline <= now_ms() + SHORT_MS
    assert data(queue.claim_all(1, "other")) == ["a"]


def test_a_nack_passes_its_error_to_the_next_holder_of_the_job(queue: Queue) -> None:
    longest = "é" * 512
    queue.push("a", "b")
    jobs = queue.claim("w", 2)
    assert all("last_error" not in job for job in jobs)
    queue.nack(jobs, error=longest)
    assert [job["last_error"] for job in queue.claim("w", 2)] == [longest, longest]
    assert [lease["last_error"] for lease in queue.leases()] == [longest, longest]
    queue.nack([1])
    queue.nack([2], error=None)
    assert [job["last_error"] for job in queue.claim("w", 2)] == [longest, longest], "error lost"
    queue.nack([1], error='"\n\\')
    queue.nack([2], error="")
    with Work(queue, max_jobs=2) as work:
        assert [job["last_error"] for job in work.jobs(2)] == ['"\n\\', ""]
        work.leave()
    assert [job["last_error"] for job in queue.claim_all(2)] == ['"\n\\', ""], "error lost"
    queue.ack([1, 2])
    queue.push("c")
    assert "last_error" not in queue.claim("w")[0]


def test_a_nack_without_a_lease_sets_no_error(queue: Queue) -> None:
    queue.push("a")
    queue.claim("w")
    queue.nack([1], "somebody else", error="not mine")
    queue.nack([1])
    assert "last_error" not in queue.claim("w")[0]


def read_if_there(api: Api, topic: str) -> list[Any]:
    return api.read(topic) if api.get(topic).status == 200 else []


def test_a_dead_letter_has_the_error_and_a_redrive_removes_it(pair: tuple[Queue, str]) -> None:
    queue, dead = pair
    queue.push("a", "b", meta={"kept": 1})
    for error in ("first", "last"):
        queue.nack(queue.claim_all(2), error=error)
    assert queue.claim("w") == []
    letters = until(lambda: read_if_there(queue.api, dead), lambda found: len(found) == 2)
    for letter in letters:
        assert letter["meta"]["$dead_letter_error"] == "last"
    assert ok(queue.api.call("POST", f"/v0/topics/{dead}/redrive", {}))["moved"] == 2
    for job in queue.claim_all(2):
        assert job.get("meta") in (None, {"kept": 1})
        assert "last_error" not in job
