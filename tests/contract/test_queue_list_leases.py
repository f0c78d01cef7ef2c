"""GET /v0/topics/:q/leases: who holds what."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.api import Api, ok, refused
from tests.support.queues import (
    HOUR_MS,
    SHORT_MS,
    Queue,
    Work,
    numbers,
    tokens,
)

pytestmark = pytest.mark.slow


def page_of(queue: Queue, query: str = "") -> Any:
    return ok(queue.api.call("GET", f"/v0/topics/{queue.name}/leases{query}"))


def test_a_lease_tells_who_holds_which_job_and_until_when(queue: Queue) -> None:
    queue.push("a", "b", "c")
    (job,) = queue.claim("worker-eu-1")
    body = page_of(queue)
    body.pop("performance")
    assert body == {
        "leases": [
            {
                "$seq": 1,
                "node": "worker-eu-1",
                "lease_id": job["lease_id"],
                "deadline": job["deadline"],
                "deliveries": 1,
            }
        ]
    }


def test_a_queue_without_leases_has_an_empty_list(queue: Queue) -> None:
    queue.push("a")
    body = page_of(queue)
    assert body["leases"] == []
    assert "next_cursor" not in body


def test_only_jobs_that_are_held_are_listed(queue: Queue) -> None:
    queue.push("acked", "nacked", "hidden", "expired", "held", "fresh")
    jobs = queue.claim("w", 5, lease_ms=HOUR_MS)
    queue.ack(jobs[0:1])
    queue.nack(jobs[1:2])
    queue.nack(jobs[2:3], delay_ms=HOUR_MS)
    queue.extend(jobs[3:4], lease_ms=SHORT_MS)
    queue.becomes(ready=3, in_flight=1)
    assert [lease["$seq"] for lease in queue.leases()] == [5]


def test_leases_of_claims_and_of_streams_are_listed_by_seq(queue: Queue) -> None:
    queue.push(*range(6))
    polled = queue.claim("polled", 2)
    with Work(queue, "pushed", 2) as stream:
        pushed = stream.jobs(2)
        more = queue.claim("polled", 2)
        found = queue.leases()
        jobs = [*polled, *pushed, *more]
        assert [lease["$seq"] for lease in found] == numbers(jobs) == [1, 2, 3, 4, 5, 6]
        assert [lease["lease_id"] for lease in found] == tokens(jobs)
        assert [lease["node"] for lease in found] == ["polled"] * 2 + ["pushed"] * 2 + [
            "polled"
        ] * 2


def test_deliveries_and_deadlines_are_those_of_today(queue: Queue) -> None:
    queue.push("a")
    for _ in range(3):
        queue.nack(queue.claim("w"))
    jobs = queue.claim("w")
    (deadline,) = queue.extend(jobs, lease_ms=HOUR_MS)["deadlines"].values()
    (lease,) = queue.leases()
    assert (lease["deliveries"], lease["deadline"]) == (4, deadline)


def test_node_chooses_the_leases_of_one_worker(queue: Queue) -> None:
    queue.push(*range(6))
    for node in ("a", "b", "a b&é", "a"):
        queue.claim(node)
    assert [lease["$seq"] for lease in queue.leases(node="a")] == [1, 4]
    assert [lease["$seq"] for lease in queue.leases(node="a b&é")] == [3]
    assert queue.leases(node="nobody") == []


@pytest.mark.parametrize("page_size", [1, 3, 7, 1000], ids=lambda value: f"page_size {value}")
def test_pages_add_up(queue: Queue, page_size: int) -> None:
    queue.push(*range(20))
    queue.claim("a", 7)
    queue.claim("b", 5)
    assert [lease["$seq"] for lease in queue.leases(page_size=page_size)] == [*range(1, 13)]
    found = queue.leases(page_size=page_size, node="b")
    assert [lease["$seq"] for lease in found] == [*range(8, 13)]


def test_the_last_page_has_no_cursor(queue: Queue) -> None:
    queue.push(*range(4))
    queue.claim("w", 4)
    assert "next_cursor" not in page_of(queue, "?page_size=4")
    first = page_of(queue, "?page_size=3")
    assert len(first["leases"]) == 3
    last = page_of(queue, f"?page_size=3&cursor={first['next_cursor']}")
    assert [lease["$seq"] for lease in last["leases"]] == [4]
    assert "next_cursor" not in last


def test_a_page_has_100_leases_by_default_and_1000_at_most(queue: Queue) -> None:
    queue.push(*range(1100))
    queue.claim("w", 1000)
    queue.claim("w", 100)
    assert len(page_of(queue)["leases"]) == 100
    assert len(page_of(queue, "?page_size=1000")["leases"]) == 1000
    assert len(page_of(queue, "?page_size=5000")["leases"]) == 1000
    assert len(queue.leases()) == 1100


def test_a_cursor_goes_on_though_leases_come_and_go(queue: Queue) -> None:
    queue.push(*range(6))
    jobs = queue.claim("w", 6)
    cursor = page_of(queue, "?page_size=2")["next_cursor"]
    queue.ack(jobs[:4])
    body = page_of(queue, f"?page_size=9&cursor={cursor}")
    assert [lease["$seq"] for lease in body["leases"]] == [5, 6]


BAD = [
    *("page_size=x", "page_size=-1", "page_size=1.5"),
    *("cursor=%21", "cursor=nonsense", "cursor=AAAA"),
]


@pytest.mark.parametrize("query", BAD)
def test_a_bad_query_is_a_400(queue: Queue, query: str) -> None:
    answer = queue.api.call("GET", f"/v0/topics/{queue.name}/leases?{query}")
    refused(answer, 400, "invalid_request")


def test_looking_changes_nothing(queue: Queue) -> None:
    queue.push("a", "b")
    jobs = queue.claim("w")
    before = queue.counters()
    for _ in range(3):
        queue.leases()
    assert queue.counters() == before
    assert queue.ack(jobs)["acked"] == 1


def test_an_absent_queue_and_a_log_have_no_leases(api: Api, topic: str) -> None:
    refused(api.call("GET", f"/v0/topics/{topic}/leases"), 404, "topic_not_found")
    ok(api.append(topic, 1), 201)
    refused(api.call("GET", f"/v0/topics/{topic}/leases"), 409, "not_a_queue")
