"""POST /v0/topics/:q/claim (§10.2) and the state of a queue (§1.2, §10.7)."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from tests.support.api import Api, ok, refused
from tests.support.queues import (
    DAY_MS,
    HOUR_MS,
    LEASE_ID,
    SHORT_MS,
    Queue,
    counters,
    data,
    now_ms,
    numbers,
)
from tests.support.server import Server
from tests.support.sse import watch


def test_a_claim_leases_a_job_and_returns_all_its_fields(queue: Queue) -> None:
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
    }, "absent fields must be omitted"
    assert second["data"] is None
    assert (body["topic"], body["count"], body["ready"]) == (queue.name, 2, 0)


def test_max_is_1_by_default(queue: Queue) -> None:
    queue.push("a", "b")
    assert data(queue.claim()) == ["a"]


@pytest.mark.parametrize("requested", [1001, 2**32 - 1], ids=lambda value: f"10.2 {value}")
def test_max_is_clamped_to_1000(queue: Queue, requested: int) -> None:
    queue.push(*range(1001))
    body = queue.claimed("w", requested)
    assert (body["count"], body["ready"]) == (1000, 1)
    assert data(body["claimed"]) == list(range(1000))


@pytest.mark.parametrize(
    ("requested", "effective"),
    [(0, 100), (99, 100), (100, 100), (HOUR_MS, HOUR_MS), (DAY_MS + 1, DAY_MS), (2**53, DAY_MS)],
    ids=lambda value: f"10.2 {value}",
)
def test_lease_ms_is_clamped(queue: Queue, requested: int, effective: int) -> None:
    """This applies to claims and extends."""
    queue.push("a", "b")
    held = queue.claim(lease_ms=HOUR_MS)
    before = now_ms()
    (job,) = queue.claim(lease_ms=requested)
    (extended,) = queue.extend(held, lease_ms=requested)["deadlines"].values()
    for deadline in (job["deadline"], extended):
        assert before + effective <= deadline <= now_ms() + effective


def test_a_lease_lasts_for_the_lease_ms_of_the_topic(api: Api, topic: str) -> None:
    queue = Queue.create(api, topic, "a", "b", "c", lease_ms=HOUR_MS)
    before = now_ms()
    (job,) = queue.claim()
    assert before + HOUR_MS <= job["deadline"] <= now_ms() + HOUR_MS
    queue.configure(lease_ms=DAY_MS)
    before = now_ms()
    (later,) = queue.claim()
    assert before + DAY_MS <= later["deadline"] <= now_ms() + DAY_MS
    assert [lease["deadline"] for lease in queue.leases()] == [job["deadline"], later["deadline"]]


def test_a_worker_may_claim_jobs_that_its_own_node_produced(queue: Queue) -> None:
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


def test_a_claim_returns_data_and_meta_byte_for_byte(queue: Queue) -> None:
    body = b'{"records":[{"data":' + ODD + b',"meta":' + ODD + b"}]}"
    ok(queue.api.call("POST", f"/v0/topics/{queue.name}", body))
    answer = queue.call("claim", {"node": "w"})
    (job,) = msgspec.json.decode(answer.body, type=RawClaim).claimed
    assert bytes(job.data) == bytes(job.meta) == ODD


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
def test_a_claim_below_max_has_taken_every_ready_job(queue: Queue, size: int) -> None:
    """This includes large jobs."""
    sizes = [size + number for number in range(20)]
    for each in sizes:
        queue.push("x" * each)
    body = queue.claimed("w", 20)
    assert [len(job["data"]) for job in body["claimed"]] == sizes
    assert body["ready"] == 0


def test_a_claim_returns_the_number_of_large_jobs_that_it_left(queue: Queue) -> None:
    for number in range(20):
        queue.push(f"{number:02}" + "x" * 700_000)
    found: list[int] = []
    while len(found) < 20:
        body = queue.claimed("w", 20)
        assert body["claimed"]
        found += [int(job["data"][:2]) for job in body["claimed"]]
        assert body["ready"] == 20 - len(found)
    assert found == [*range(20)]


def test_a_claim_and_its_response_may_be_compressed(queue: Queue) -> None:
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


@pytest.mark.parametrize("node", ["é", "x" * 128, "é" * 64, 'say "x"', " ", "a/b\n"])
def test_a_node_may_be_any_text(queue: Queue, node: str) -> None:
    queue.push("a")
    jobs = queue.claim(node)
    assert [lease["node"] for lease in queue.leases()] == [node]
    assert queue.ack(jobs, "other")["acked"] == 0
    assert queue.ack(jobs, node)["acked"] == 1


def test_a_queue_shows_its_type_and_counters(queue: Queue) -> None:
    state = queue.api.state(queue.name)
    assert (state["type"], state["config"]["type"]) == ("queue", "queue")
    assert state["queue"] == counters()
    log = f"{queue.name}.log"
    ok(queue.api.append(log, 1), 201)
    assert "queue" not in queue.api.state(log)


# --- a queue is a topic


def test_reads_and_watches_claim_no_job(queue: Queue) -> None:
    queue.push(*range(3))
    held = queue.claim("w")
    before = queue.counters(), queue.leases()
    with watch(queue.api, [queue.name], node="w") as stream:
        assert stream.read_until_caught_up([queue.name]).data() == [0, 1, 2]
        queue.api.read(queue.name)
        queue.push(3)
        stream.records(1)
    assert queue.counters() == counters(ready=3, in_flight=1)
    assert (before[0]["in_flight"], before[1]) == (1, queue.leases())
    assert queue.ack(held)["acked"] == 1


def test_a_recreated_queue_keeps_no_state_of_the_old_one(api: Api, topic: str) -> None:
    queue = Queue.create(api, topic, *range(5))
    jobs = queue.claim("w", 2)
    queue.nack(queue.claim("w"), delay_ms=HOUR_MS)
    ok(api.delete(topic))
    queue = Queue.create(api, topic)
    assert queue.counters() == counters()
    queue.push(*"abcdef")
    assert queue.counters() == counters(ready=6)
    assert queue.ack(jobs)["skipped"] == numbers(jobs)
    assert [(job["data"], job["deliveries"]) for job in queue.claim("w", 9)] == [
        (letter, 1) for letter in "abcdef"
    ]


# --- jobs that are removed by other means than an ack

TTL_MS = 300


def delete(queue: Queue) -> None:
    queue.erase(match="old")


def cap(queue: Queue) -> None:
    """Set a cap of four and push four more jobs."""
    queue.configure(cap_records=4)
    queue.push(*"cap!")


def expire(queue: Queue) -> None:
    """Set a TTL that the first four jobs have exceeded."""
    time.sleep(TTL_MS / 1000 + 0.1)
    queue.configure(ttl_ms=TTL_MS)


TAKES: list[tuple[Callable[[Queue], None], int]] = [(delete, 0), (cap, 4), (expire, 0)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("take", "fresh"), TAKES, ids=[f"10.7 {take.__name__}" for take, _ in TAKES]
)
def test_a_removed_job_is_no_longer_counted_in_any_state(
    queue: Queue, take: Callable[[Queue], None], fresh: int
) -> None:
    for name in ("ready", "held", "hidden", "delayed"):
        late = {"delay_ms": HOUR_MS} if name == "delayed" else {}
        ok(queue.api.append(queue.name, records=[{"data": name, "tag": "old", **late}]))
    (freed, held, hidden) = queue.claim("w", 3, lease_ms=HOUR_MS)
    queue.nack([freed])
    queue.nack([hidden], delay_ms=HOUR_MS)
    assert queue.counters() == counters(ready=1, in_flight=1, delayed=1)
    take(queue)
    assert queue.counters() == counters(ready=fresh)
    assert queue.leases() == []
    assert queue.ack([held])["skipped"] == [held["$seq"]]
    assert queue.extend([held])["skipped"] == [held["$seq"]]
    assert queue.nack([held])["skipped"] == [held["$seq"]]
    assert queue.counters() == counters(ready=fresh)
    assert data(queue.claim("w", 9)) == list("cap!")[:fresh]


@pytest.mark.slow
def test_a_reclaim_of_an_expired_record_delivers_nothing(api: Api, topic: str) -> None:
    queue = Queue.create(api, topic, "a")
    assert data(queue.claim("w", lease_ms=SHORT_MS)) == ["a"]
    time.sleep(0.3)
    queue.configure(ttl_ms=200)
    assert queue.claim("other", 5) == []
    assert queue.counters() == counters()


def test_an_eviction_of_jobs_is_reported_to_readers_and_not_to_workers(
    api: Api, topic: str
) -> None:
    queue = Queue.create(api, topic, *range(5), cap_records=3)
    assert ok(api.diff(topic))["tombstone"]["reason"] == "cap"
    assert data(queue.claim("w", 9)) == [2, 3, 4]


def test_a_queue_with_only_leased_jobs_is_not_empty(queue: Queue) -> None:
    queue.push("a")
    jobs = queue.claim("w")
    refused(queue.api.delete(queue.name, if_empty="true"), 409, "topic_not_empty")
    queue.ack(jobs)
    assert ok(queue.api.delete(queue.name, if_empty="true"))["deleted"] is True
