"""Jobs that are delivered too often (§10.6): when they are moved, and what becomes of those that
cannot go.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.api import Api, ok
from tests.support.queues import (
    HOUR_MS,
    SHORT_MS,
    Queue,
    Work,
    claiming,
    counters,
    data,
    jobs_of,
    until,
)

DELIVERIES, SRC_SEQ = "$dead_letter_deliveries", "$dead_letter_src_seq"

# --- when


def test_a_job_is_delivered_max_deliveries_times_and_then_moved(pair: tuple[Queue, str]) -> None:
    queue, dead = pair
    queue.push("poison", "good")
    for number in (1, 2):
        (job,) = queue.claim()
        assert (job["data"], job["deliveries"]) == ("poison", number)
        queue.nack([job])
    (job,) = queue.claim(lease_ms=HOUR_MS)
    assert job["data"] == "good"
    queue.becomes(in_flight=1, dead_lettered=1)
    assert queue.live() == [2]
    assert [record["data"] for record in queue.api.read(dead)] == ["poison"]


def test_a_job_is_moved_by_the_pass_that_would_deliver_it_and_not_before(
    pair: tuple[Queue, str],
) -> None:
    queue, dead = pair
    queue.push("a")
    queue.spend(1, 2)
    assert queue.counters() == counters(ready=1)
    assert queue.api.get(dead).status == 404
    queue.bury(1)
    assert queue.counters() == counters(dead_lettered=1)


def test_an_expired_lease_counts_as_a_nack_does(pair: tuple[Queue, str]) -> None:
    queue, dead = pair
    queue.push("a")
    for _ in range(2):
        queue.claim_all(1, lease_ms=SHORT_MS)
    until(lambda: queue.claim() or queue.counters()["dead_lettered"])
    assert queue.claim() == []
    queue.becomes(dead_lettered=1)
    assert [record["data"] for record in queue.api.read(dead)] == ["a"]


def test_the_last_delivery_may_still_be_acked(pair: tuple[Queue, str]) -> None:
    queue, dead = pair
    queue.push("a")
    queue.spend(1, 1)
    assert queue.ack(queue.claim())["acked"] == 1
    assert queue.counters() == counters()
    assert queue.api.get(dead).status == 404


def test_moving_does_not_use_up_the_max_of_a_claim(pair: tuple[Queue, str]) -> None:
    queue, _ = pair
    queue.push(*range(5))
    queue.spend(3, 2)
    assert data(queue.claim("w", 2)) == [3, 4]
    queue.becomes(in_flight=2, dead_lettered=3)


def test_a_work_stream_moves_jobs_too(pair: tuple[Queue, str]) -> None:
    queue, dead = pair
    queue.push("poison")
    with Work(queue, "w", 2) as stream:
        for number in (1, 2):
            (job,) = stream.jobs(1)
            assert job["deliveries"] == number
            queue.nack([job])
        queue.becomes(dead_lettered=1)
        queue.push("good")
        assert data(stream.jobs(1)) == ["good"]
    assert [record["data"] for record in queue.api.read(dead)] == ["poison"]


def test_a_waiting_claim_is_not_ended_by_a_job_that_is_moved(pair: tuple[Queue, str]) -> None:
    queue, _ = pair
    queue.push("poison")
    queue.spend(1, 2)
    with claiming(queue) as claims:
        future = claims.start_parked("w", 5, wait_ms=20_000)
        queue.becomes(dead_lettered=1)
        assert not future.done()
        queue.push("good")
        assert data(jobs_of(future)) == ["good"]


@pytest.mark.parametrize("max_deliveries", [1, 3], ids=lambda value: f"10.6 {value}")
def test_any_number_of_deliveries(api: Api, topic: str, max_deliveries: int) -> None:
    queue = Queue.create(
        api, topic, "a", max_deliveries=max_deliveries, dead_letter=f"{topic}.dead"
    )
    queue.spend(1, max_deliveries)
    queue.bury(1)


FOREVER: list[dict[str, Any]] = [
    {},
    {"max_deliveries": 0, "dead_letter": "DEAD"},
    {"max_deliveries": 2},
    {"max_deliveries": 2, "dead_letter": None},
]


@pytest.mark.parametrize("config", FOREVER, ids=lambda value: f"10.6 {json.dumps(value)}")
def test_a_job_is_reclaimed_forever_without_a_limit_or_a_topic(
    api: Api, topic: str, config: dict[str, Any]
) -> None:
    if config.get("dead_letter"):
        config = config | {"dead_letter": f"{topic}.dead"}
    queue = Queue.create(api, topic, "a", **config)
    queue.spend(1, 6)
    assert [job["deliveries"] for job in queue.claim()] == [7]
    assert api.get(f"{topic}.dead").status == 404


def test_config_changes_count_from_now_on(api: Api, topic: str) -> None:
    queue = Queue.create(api, topic, "a")
    queue.spend(1, 3)
    queue.configure(max_deliveries=5, dead_letter=f"{topic}.dead")
    queue.spend(1, 2)
    queue.configure(max_deliveries=6)
    queue.spend(1, 1)
    queue.bury(1)
    (copy,) = api.read(f"{topic}.dead")
    assert copy["meta"][DELIVERIES] == 6


# --- what cannot go


@pytest.mark.slow
def test_a_job_stays_while_the_dead_letter_topic_is_full(pair: tuple[Queue, str]) -> None:
    queue, dead = pair
    ok(queue.api.append(dead, "old", config={"cap_records": 1, "discard": "reject"}), 201)
    queue.push("poison")
    queue.spend(1, 2)
    queue.push("good")
    assert data(queue.claim(lease_ms=HOUR_MS)) == ["good"]
    for _ in range(3):
        assert queue.claim() == [], "never delivered a third time"
    assert queue.live() == [1, 2]
    assert queue.counters()["dead_lettered"] == 0
    assert [record["data"] for record in queue.api.read(dead)] == ["old"]
    ok(queue.api.call("POST", f"/v0/topics/{dead}/delete", {"before_seq": 2}))
    until(lambda: queue.counters()["dead_lettered"], lambda found: found == 1)
    assert [record["data"] for record in queue.api.read(dead)] == ["poison"]
    assert queue.counters() == counters(in_flight=1, dead_lettered=1)


@pytest.mark.slow
def test_a_part_of_the_jobs_fits_and_the_others_stay(pair: tuple[Queue, str]) -> None:
    queue, dead = pair
    ok(queue.api.put(dead, {"cap_records": 2, "discard": "reject"}), 201)
    queue.push(*range(5))
    queue.spend(5, 2)
    until(lambda: queue.claim() or queue.counters()["dead_lettered"], lambda found: found == 2)
    assert len(queue.live()) == 3
    ok(queue.api.put(dead, {"cap_records": 5}))
    queue.bury(3)
    assert sorted(data(queue.api.read(dead))) == [0, 1, 2, 3, 4]
    assert sorted(record["meta"][SRC_SEQ] for record in queue.api.read(dead)) == [1, 2, 3, 4, 5]


def test_jobs_without_a_place_are_delivered_again_when_the_topic_is_taken_away(
    api: Api, topic: str
) -> None:
    dead = f"{topic}.dead"
    ok(api.append(dead, "old", config={"cap_records": 1, "discard": "reject"}), 201)
    queue = Queue.create(api, topic, "a", max_deliveries=2, dead_letter=dead)
    queue.spend(1, 2)
    assert queue.claim() == []
    queue.configure(dead_letter=None)
    assert [job["deliveries"] for job in queue.claim_all(1)] == [3]
