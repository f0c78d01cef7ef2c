"""Dead letters (§10.6): when jobs are moved, to which topic, and the content of the copies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.api import Api, ok
from tests.support.queues import (
    HOUR_MS,
    SHORT_MS,
    Queue,
    claiming,
    counters,
    data,
    jobs_of,
    numbers,
    twins,
    until,
)
from tests.support.server import Server

FROM, DELIVERIES = "$dead_letter_from", "$dead_letter_deliveries"

# --- when a job is moved


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


def test_a_job_is_moved_only_by_a_claim_that_would_deliver_it_again(
    pair: tuple[Queue, str],
) -> None:
    queue, dead = pair
    queue.push("a")
    queue.spend(1, 2)
    assert queue.counters() == counters(ready=1)
    assert queue.api.get(dead).status == 404
    queue.bury(1)
    assert queue.counters() == counters(dead_lettered=1)


def test_an_expired_lease_counts_as_a_delivery_like_a_nack(pair: tuple[Queue, str]) -> None:
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


def test_a_moved_job_does_not_end_a_waiting_claim(pair: tuple[Queue, str]) -> None:
    queue, _ = pair
    queue.push("poison")
    queue.spend(1, 2)
    with claiming(queue) as claims:
        future = claims.start_parked("w", 5, wait_ms=20_000)
        queue.becomes(dead_lettered=1)
        assert not future.done()
        queue.push("good")
        assert data(jobs_of(future)) == ["good"]


FOREVER: list[dict[str, Any]] = [
    {},
    {"max_deliveries": 0, "dead_letter": "DEAD"},
    {"max_deliveries": 2},
    {"max_deliveries": 2, "dead_letter": None},
]


@pytest.mark.parametrize("config", FOREVER, ids=lambda value: f"10.6 {json.dumps(value)}")
def test_without_a_limit_or_a_dead_letter_topic_a_job_is_always_redelivered(
    api: Api, topic: str, config: dict[str, Any]
) -> None:
    if config.get("dead_letter"):
        config = config | {"dead_letter": f"{topic}.dead"}
    queue = Queue.create(api, topic, "a", **config)
    queue.spend(1, 6)
    assert [job["deliveries"] for job in queue.claim()] == [7]
    assert api.get(f"{topic}.dead").status == 404


def test_a_changed_limit_applies_to_existing_jobs(api: Api, topic: str) -> None:
    queue = Queue.create(api, topic, "a")
    queue.spend(1, 3)
    queue.configure(max_deliveries=5, dead_letter=f"{topic}.dead")
    queue.spend(1, 2)
    queue.configure(max_deliveries=6)
    queue.spend(1, 1)
    queue.bury(1)
    (copy,) = api.read(f"{topic}.dead")
    assert copy["meta"][DELIVERIES] == 6


# --- the dead-letter topic


@pytest.mark.slow
def test_the_dead_letter_topic_may_be_a_queue(pair: tuple[Queue, str]) -> None:
    queue, name = pair
    dead = Queue.create(queue.api, name)
    queue.push("a")
    with claiming(dead) as claims:
        future = claims.start_parked("mender", wait_ms=20_000)
        queue.spend(1, 2)
        queue.bury(1)
        (job,) = jobs_of(future)
    assert (job["data"], job["deliveries"]) == ("a", 1), "the copy kept its deliveries"
    assert job["meta"][FROM] == queue.name


@pytest.mark.slow
def test_a_missing_dead_letter_topic_is_created_with_defaults(
    pair: tuple[Queue, str],
) -> None:
    queue, dead = pair
    queue.push("a")
    queue.spend(1, 2)
    queue.bury(1)
    config = queue.api.state(dead)["config"]
    assert (config["type"], config["durability"], config["cap_records"]) == ("log", "disk", 0)


@pytest.mark.slow
def test_the_dead_lettered_count_is_kept_until_the_queue_is_deleted(
    pair: tuple[Queue, str],
) -> None:
    queue, dead = pair
    for number in range(1, 4):
        queue.push(number)
        queue.spend(1, 2)
        queue.bury(1)
        assert queue.counters() == counters(dead_lettered=number)
    ok(queue.api.call("POST", f"/v0/topics/{dead}/delete", {"before_seq": 99}))
    assert queue.counters() == counters(dead_lettered=3)
    ok(queue.api.delete(queue.name))
    assert Queue.create(queue.api, queue.name).counters() == counters()


@pytest.mark.slow
def test_large_jobs_are_moved_and_redriven(pair: tuple[Queue, str]) -> None:
    queue, name = pair
    sizes = [700_000 + 1000 * number for number in range(25)]
    for size in sizes:
        queue.push("x" * size)
    for _ in range(2):
        queue.nack(queue.claim_all(25))
    queue.bury(25)
    assert sorted(len(letter["data"]) for letter in queue.api.read(name)) == sizes
    dead = Queue(queue.api, name)
    until(lambda: dead.redrive()["remaining"], lambda left: left == 0)
    assert sorted(len(job["data"]) for job in queue.claim_all(25)) == sizes
    assert dead.live() == []


# --- several queues with one dead-letter topic


@pytest.mark.slow
def test_queues_with_the_same_epoch_can_share_a_dead_letter_topic(
    server: Server, api: Api, topic: str
) -> None:
    """Each letter is redriven to its own queue. Epochs are unique only within a shard."""
    dead = Queue(api, f"{topic}.dead")
    pairs = twins(server.address, topic, max_deliveries=1, dead_letter=dead.name)
    assert pairs, "no two queues were created in the same millisecond"
    queues = [Queue(api, name) for name in pairs[0]]
    for queue in queues:
        queue.push(*range(10))
        queue.nack(queue.claim_all(10))
        queue.bury(10)
    letters = api.read(dead.name)
    assert len(letters) == 20
    assert {(letter["meta"][FROM], letter["data"]) for letter in letters} == {
        (queue.name, number) for queue in queues for number in range(10)
    }
    # Two topics with the same epoch and the same target: a redrive moves the letters of both into
    # one queue.
    sources = [queue for queue in queues if queue.push(*range(10))]
    for queue in sources:
        assert queue.redrive(to=dead.name)["moved"] == 10
    assert len(api.read(dead.name)) == 40


# --- durability

CLASSES = ("ephemeral", "disk", "fsync")


@pytest.fixture(scope="module")
def restarted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A server that was killed after moves from queues of each class to topics of each class."""
    path: Path = tmp_path_factory.mktemp("dead") / "data"
    with Server(path, shards=2) as server:
        with Api(server.address) as api:
            for source in CLASSES:
                for copy in CLASSES:
                    name = f"{source}-{copy}"
                    ok(api.put(f"{name}.dead", {"durability": copy}), 201)
                    queue = Queue.create(
                        api,
                        name,
                        "x",
                        durability=source,
                        max_deliveries=1,
                        dead_letter=f"{name}.dead",
                    )
                    queue.spend(1, 1)
                    queue.bury(1)
        with server.again("kill") as api:
            yield api


@pytest.mark.slow
@pytest.mark.parametrize("copy", CLASSES)
@pytest.mark.parametrize("source", CLASSES)
def test_a_copy_is_as_durable_as_its_topic(restarted: Api, source: str, copy: str) -> None:
    queue = Queue(restarted, f"{source}-{copy}")
    assert len(restarted.read(f"{queue.name}.dead")) == (copy != "ephemeral")
    assert numbers(queue.claim("w", 5)) == [], "the job was restored"
