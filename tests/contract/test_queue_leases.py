"""GET /v0/topics/:q/leases, the effect of keys and prefixes on queues, and changed limits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.api import Api, ok, refused
from tests.support.queues import (
    HOUR_MS,
    Queue,
    Work,
    data,
    numbers,
    tokens,
    work_path,
)
from tests.support.server import Server
from tests.support.sse import refused_stream

pytestmark = pytest.mark.slow


def page_of(queue: Queue, query: str = "") -> Any:
    return ok(queue.api.call("GET", f"/v0/topics/{queue.name}/leases{query}"))


def test_a_lease_shows_its_node_its_job_and_its_deadline(queue: Queue) -> None:
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


def test_the_parameter_node_selects_the_leases_of_one_worker(queue: Queue) -> None:
    queue.push(*range(6))
    for node in ("a", "b", "a b&é", "a"):
        queue.claim(node)
    assert [lease["$seq"] for lease in queue.leases(node="a")] == [1, 4]
    assert [lease["$seq"] for lease in queue.leases(node="a b&é")] == [3]
    assert queue.leases(node="nobody") == []


@pytest.mark.parametrize("page_size", [1, 3, 7, 1000], ids=lambda value: f"page_size {value}")
def test_the_pages_together_contain_each_lease_once(queue: Queue, page_size: int) -> None:
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


def test_a_page_has_100_leases_by_default_and_at_most_1000(queue: Queue) -> None:
    queue.push(*range(1100))
    queue.claim("w", 1000)
    queue.claim("w", 100)
    assert len(page_of(queue)["leases"]) == 100
    assert len(page_of(queue, "?page_size=1000")["leases"]) == 1000
    assert len(page_of(queue, "?page_size=5000")["leases"]) == 1000
    assert len(queue.leases()) == 1100


def test_a_cursor_stays_valid_while_leases_start_and_end(queue: Queue) -> None:
    queue.push(*range(6))
    jobs = queue.claim("w", 6)
    cursor = page_of(queue, "?page_size=2")["next_cursor"]
    queue.ack(jobs[:4])
    body = page_of(queue, f"?page_size=9&cursor={cursor}")
    assert [lease["$seq"] for lease in body["leases"]] == [5, 6]


FULL = "full-key"
KEYS = ",".join(
    [
        FULL,
        "reader:read",
        "writer:write",
        "both:rw",
        "remover:delete",
        "admin:admin",
        "tenant::t42:|shared.",
        "tenant-writer:write:t42:",
        "o+d/d=%20key",
    ]
)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = tmp_path_factory.mktemp("guarded-queues") / "data"
    with Server(path, api_keys=KEYS, shards=2) as server:
        with Api(server.address, token=FULL) as api:
            for name in ("t42:q", "t43:q", "shared.q", "other"):
                Queue.create(api, name)
        yield server


@pytest.fixture
def full(guarded: Server) -> Iterator[Api]:
    with Api(guarded.address, token=FULL) as api:
        yield api


def test_a_lease_id_is_shown_only_to_a_key_that_may_write(guarded: Server, full: Api) -> None:
    queue = Queue.create(full, "leased", "a")
    (job,) = queue.claim("w", lease_ms=HOUR_MS)
    lease = {"$seq": 1, "node": "w", "deadline": job["deadline"], "deliveries": 1}
    for token, shown in ((FULL, True), ("both", True), ("reader", False)):
        with Api(guarded.address, token=token) as api:
            expected = lease | ({"lease_id": job["lease_id"]} if shown else {})
            assert Queue(api, "leased").leases() == [expected]


def test_a_redrive_stays_inside_the_prefixes_of_its_key(guarded: Server, full: Api) -> None:
    Queue.create(full, "t42:target")
    marks = [{"$dead_letter_from": name} for name in ("t43:q", "t42:target", "absent")]
    records = [{"data": number, "meta": meta} for number, meta in enumerate(marks)]
    ok(full.append("t42:dead", records=records), 201)
    with Api(guarded.address, token="tenant") as api:
        dead = Queue(api, "t42:dead")
        for to in ("t43:q", "other", "absent"):
            refused(dead.call("redrive", {"to": to}), 403, "forbidden")
        refused(Queue(api, "t43:q").call("redrive", {}), 403, "forbidden")
        body = dead.redrive()
        assert (body["moved"], body["remaining"], body["skipped"]) == (1, 0, 2)
        assert body["reason"] == "forbidden"
        assert data(Queue(api, "t42:target").claim("w", 5)) == [1]
    assert Queue(full, "t43:q").live() == []
    assert Queue(full, "t42:dead").live() == [1, 3]
    assert Queue(full, "t42:dead").redrive()["moved"] == 1


GOOD: dict[str, dict[str, Any]] = {
    "claim": {"node": "w"},
    "ack": {"node": "w", "seqs": [1]},
    "nack": {"node": "w", "seqs": [1]},
    "extend": {"node": "w", "seqs": [1], "lease_ms": 1000},
    "redrive": {},
}
SETTLING = ("ack", "nack", "extend")


# --- bodies


def test_a_redrive_without_a_body_moves_every_letter_that_it_can(api: Api, topic: str) -> None:
    ok(api.append(topic, "stray"), 201)
    body = ok(api.call("POST", f"/v0/topics/{topic}/redrive"))
    assert (body["moved"], body["skipped"], body["reason"]) == (0, 1, "no_source")


# --- changed limits


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    path = tmp_path_factory.mktemp("small-queues") / "data"
    with (
        Server(path, max_claim=5, max_node_bytes=3) as server,
        Api(server.address) as api,
    ):
        yield api


@pytest.mark.slow
def test_max_claim_may_be_changed(small: Api, topic: str) -> None:
    queue = Queue.create(small, topic, *range(20))
    assert data(queue.claim("w", 1000)) == [0, 1, 2, 3, 4]
    assert queue.ack([1, 2, 3, 4, 5])["acked"] == 5
    for verb in SETTLING:
        body = GOOD[verb] | {"seqs": [1, 2, 3, 4, 5, 6]}
        refused(queue.call(verb, body), 400, "batch_too_large")
    with Work(queue, "w", 1000) as stream:
        assert data(stream.jobs(5)) == [5, 6, 7, 8, 9]
        stream.quiet(0.3)


@pytest.mark.slow
def test_the_length_of_a_node_may_be_changed(small: Api, topic: str) -> None:
    queue = Queue.create(small, topic, "a", "b")
    assert data(queue.claim("éx")) == ["a"]
    for verb, body in GOOD.items():
        if verb != "redrive":
            refused(queue.call(verb, body | {"node": "éé"}), 400, "invalid_request")
    path = work_path(topic, node="éé")
    answer = refused_stream(small.address, path, "Accept: text/event-stream")
    refused(answer, 400, "invalid_request")
