"""POST /v0/topics/:q/claim (§10.2): who gets which jobs, and what they look like."""

from __future__ import annotations

import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from tests.support.api import Api, ok
from tests.support.queues import (
    DAY_MS,
    HOUR_MS,
    LEASE_ID,
    Queue,
    counters,
    data,
    now_ms,
    numbers,
    tokens,
)
from tests.support.server import Server


def test_a_claim_leases_a_job_and_says_all_about_it(queue: Queue) -> None:
    record = {"data": {"type": "resize"}, "tag": "tenant42:job-8800", "meta": {"trace": "z9"}}
    ok(queue.api.append(queue.name, records=[record, {"data": None}], node="web-1"))
    (stored, _) = queue.api.read(queue.name)
    before = now_ms()
    body = queue.claimed("worker-eu-1", 2, lease_ms=5000)
    after = now_ms()
    body.pop("performance")
    (first, second) = body["claimed"]
    lease_id, deadline = first.pop("lease_id"), first.pop("deadline")
    assert first == {
        "$seq": 1,
        "$ts": stored["$ts"],
        "$node": "web-1",
        "$tag": "tenant42:job-8800",
        "deliveries": 1,
        "data": {"type": "resize"},
        "meta": {"trace": "z9"},
    }
    assert LEASE_ID.fullmatch(lease_id)
    assert before + 5000 <= deadline <= after + 5000
    assert second.keys() == {
        *("$seq", "$ts", "$node", "lease_id", "deadline", "deliveries", "data")
    }, "what is absent is omitted"
    assert second["data"] is None
    assert (body["topic"], body["count"], body["ready"]) == (queue.name, 2, 0)


def test_max_is_1_by_default(queue: Queue) -> None:
    queue.push("a", "b")
    assert data(queue.claim()) == ["a"]


def test_a_claim_takes_up_to_max_jobs_from_the_head(queue: Queue) -> None:
    queue.push(*range(10))
    body = queue.claimed("w", 4)
    assert data(body["claimed"]) == [0, 1, 2, 3]
    assert body["ready"] == 6
    assert data(queue.claim("w", 4)) == [4, 5, 6, 7]


def test_a_queue_with_less_work_answers_with_fewer_jobs(queue: Queue) -> None:
    queue.push("a", "b")
    body = queue.claimed("w", 5)
    assert (body["count"], body["ready"]) == (2, 0)
    body = queue.claimed("w", 5)
    assert (body["claimed"], body["count"], body["ready"]) == ([], 0, 0)


def test_a_new_queue_has_no_jobs_to_claim(queue: Queue) -> None:
    body = queue.claimed("w", 5)
    assert (body["claimed"], body["count"], body["ready"]) == ([], 0, 0)


@pytest.mark.parametrize("asked", [1001, 2**32 - 1], ids=lambda value: f"10.2 {value}")
def test_max_is_clamped_to_1000(queue: Queue, asked: int) -> None:
    queue.push(*range(1001))
    body = queue.claimed("w", asked)
    assert (body["count"], body["ready"]) == (1000, 1)
    assert data(body["claimed"]) == list(range(1000))


@pytest.mark.parametrize(
    ("asked", "effective"),
    [(0, 100), (99, 100), (100, 100), (HOUR_MS, HOUR_MS), (DAY_MS + 1, DAY_MS), (2**53, DAY_MS)],
    ids=lambda value: f"10.2 {value}",
)
def test_lease_ms_is_clamped(queue: Queue, asked: int, effective: int) -> None:
    queue.push("a")
    before = now_ms()
    (job,) = queue.claim(lease_ms=asked)
    assert before + effective <= job["deadline"] <= now_ms() + effective


def test_a_lease_lasts_as_long_as_the_topic_says(api: Api, topic: str) -> None:
    queue = Queue.create(api, topic, "a", "b", "c", lease_ms=HOUR_MS)
    before = now_ms()
    (job,) = queue.claim()
    assert before + HOUR_MS <= job["deadline"] <= now_ms() + HOUR_MS
    queue.configure(lease_ms=DAY_MS)
    before = now_ms()
    (later,) = queue.claim()
    assert before + DAY_MS <= later["deadline"] <= now_ms() + DAY_MS
    assert [lease["deadline"] for lease in queue.leases()] == [job["deadline"], later["deadline"]]


def test_a_lease_lasts_30_s_by_default(queue: Queue) -> None:
    queue.push("a")
    before = now_ms()
    (job,) = queue.claim()
    assert before + 30_000 <= job["deadline"] <= now_ms() + 30_000


@pytest.mark.parametrize("node", ["w", "other"])
def test_a_leased_job_is_not_claimable(queue: Queue, node: str) -> None:
    queue.push("a")
    assert data(queue.claim("w")) == ["a"]
    assert queue.claim(node, 5) == []


def test_an_acked_job_is_not_claimable(queue: Queue) -> None:
    queue.push("a", "b")
    queue.ack(queue.claim())
    assert data(queue.claim("other", 5)) == ["b"]


def test_each_claim_counts_a_delivery_and_makes_a_new_lease(queue: Queue) -> None:
    queue.push("a")
    found = []
    for _ in range(4):
        jobs = queue.claim()
        found += jobs
        queue.nack(jobs)
    assert [job["deliveries"] for job in found] == [1, 2, 3, 4]
    assert len({*tokens(found)}) == 4


def test_a_worker_may_claim_what_its_own_node_has_produced(queue: Queue) -> None:
    queue.push("a", node="w")
    assert data(queue.claim("w")) == ["a"]


ODD = (
    b'{"z":1,"a":1.10,"big":1E400,"long":1234567890123456789012345678901234567890,'
    b'"escaped":"\\u00e9\\/","raw":"\xc3\xa9", "space" : [ 1 , 2 ] }'
)


class RawJob(msgspec.Struct):
    data: msgspec.Raw
    meta: msgspec.Raw


class RawClaim(msgspec.Struct):
    claimed: list[RawJob]


def test_data_and_meta_come_back_as_the_bytes_that_were_sent(queue: Queue) -> None:
    body = b'{"records":[{"data":' + ODD + b',"meta":' + ODD + b"}]}"
    ok(queue.api.call("POST", f"/v0/topics/{queue.name}", body))
    answer = queue.call("claim", {"node": "w"})
    (job,) = msgspec.json.decode(answer.body, type=RawClaim).claimed
    assert bytes(job.data) == bytes(job.meta) == ODD


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_a_queue_of_any_class_is_claimed_from(api: Api, topic: str, durability: str) -> None:
    queue = Queue.create(api, topic, "a", "b", durability=durability)
    jobs = queue.claim("w", 2)
    assert data(jobs) == ["a", "b"]
    assert queue.ack(jobs)["acked"] == 2


def test_a_job_is_claimable_as_soon_as_its_append_is_answered(queue: Queue) -> None:
    for number in range(50):
        queue.push(number)
        assert data(queue.claim()) == [number]


def test_a_queue_made_by_a_write_is_a_queue(api: Api, topic: str) -> None:
    ok(api.append(topic, "a", config={"type": "queue", "lease_ms": HOUR_MS}), 201)
    assert data(Queue(api, topic).claim()) == ["a"]


def test_no_job_is_leased_twice_by_concurrent_claims(server: Server, api: Api, topic: str) -> None:
    queue = Queue.create(api, topic, *range(400))

    def work(number: int) -> list[int]:
        with Api(server.address) as own:
            mine = Queue(own, topic)
            found: list[int] = []
            while jobs := mine.claim(f"w{number}", 7, lease_ms=HOUR_MS):
                found += numbers(jobs)
            return found

    with ThreadPoolExecutor(8) as pool:
        found = [seq for seqs in pool.map(work, range(8)) for seq in seqs]
    assert sorted(found) == list(range(1, 401))
    assert queue.counters() == counters(in_flight=400)


@pytest.mark.parametrize(
    "size",
    [
        400_000,
        700_000,
    ],
    ids=lambda value: f"10.2 {value}",
)
def test_count_below_max_says_that_the_queue_is_empty(queue: Queue, size: int) -> None:
    """Also of large jobs."""
    sizes = [size + number for number in range(20)]
    for each in sizes:
        queue.push("x" * each)
    body = queue.claimed("w", 20)
    assert [len(job["data"]) for job in body["claimed"]] == sizes
    assert body["ready"] == 0


def test_a_claim_that_leaves_large_jobs_says_how_many(queue: Queue) -> None:
    for number in range(20):
        queue.push(f"{number:02}" + "x" * 700_000)
    found: list[int] = []
    while len(found) < 20:
        body = queue.claimed("w", 20)
        assert body["claimed"]
        found += [int(job["data"][:2]) for job in body["claimed"]]
        assert body["ready"] == 20 - len(found)
    assert found == [*range(20)]


def test_a_claim_may_be_compressed_both_ways(queue: Queue) -> None:
    queue.push("x" * 5000)
    answer = queue.api.call(
        "POST",
        f"/v0/topics/{queue.name}/claim",
        gzip.compress(b'{"node":"w"}'),
        {"Content-Encoding": "gzip", "Accept-Encoding": "gzip"},
    )
    assert answer.headers["content-encoding"] == "gzip"
    (job,) = json.loads(gzip.decompress(answer.body))["claimed"]
    assert job["data"] == "x" * 5000


UNKNOWN: list[dict[str, Any]] = [{"queue": "x"}, {"lease_ids": 5}, {"seqs": "x"}, {"$seq": 1}]


@pytest.mark.parametrize("extra", UNKNOWN, ids=lambda value: f"0 {json.dumps(value)}")
def test_unknown_fields_are_ignored(queue: Queue, extra: dict[str, Any]) -> None:
    queue.push("a")
    assert data(queue.claim("w", 2, **extra)) == ["a"]


@pytest.mark.parametrize("node", ["é", "x" * 128, "é" * 64, 'say "x"', " ", "a/b\n"])
def test_any_text_is_a_node(queue: Queue, node: str) -> None:
    queue.push("a")
    jobs = queue.claim(node)
    assert [lease["node"] for lease in queue.leases()] == [node]
    assert queue.ack(jobs, "other")["acked"] == 0
    assert queue.ack(jobs, node)["acked"] == 1
