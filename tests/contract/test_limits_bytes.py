"""The cap of bytes, which applies to the records of all topics in all shards together (§11)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.deleting import erase
from tests.support.api import Answer, Api, ok, refused
from tests.support.caps import (
    TOTAL_BYTES,
    at_once,
    capped,
    capped_server,
    clear,
    fill,
    held,
    statuses,
)
from tests.support.copies import arrived, kept, route, shown
from tests.support.queues import Queue, until
from tests.support.server import Server
from tests.support.ws import Socket, failed
from topics.formats.names import shard_of

MOST, MAX_TOPICS = 6_000_000, 12
HERE, THERE = "a", next(name for name in "bcdefgh" if shard_of(name, 2) != shard_of("a", 2))
FULL_S = 0.3  # a router that is blocked retries within this time


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with capped_server(tmp_path_factory.mktemp("limits"), MAX_TOPICS, MOST) as server:
        yield server


@pytest.fixture
def api(limited: Server) -> Iterator[Api]:
    """A client of a server that has only two empty topics on different shards."""
    with Api(limited.address) as api:
        clear(api)
        ok(api.put(HERE), 201)
        ok(api.put(THERE), 201)
        yield api


def test_a_write_that_does_not_fit_stores_nothing(limited: Server, api: Api) -> None:
    fill(api, THERE, MOST)
    for topic in (HERE, THERE):
        before = api.state(topic)
        capped(api.append(topic, 1), TOTAL_BYTES, MOST)
        capped(api.append(topic, *range(100)), TOTAL_BYTES, MOST)
        capped(api.append(topic, *["x" * 900_000] * 5), TOTAL_BYTES, MOST)
        with Socket(limited.address) as socket:
            for request_id in "pq":
                answer = socket.request("publish", request_id, topic=topic, records=[{"data": 1}])
                failed(answer, request_id, "throttled")
        after = api.state(topic)
        assert (after["head_seq"], after["bytes"]) == (before["head_seq"], before["bytes"])
    capped(api.append("new", 1), TOTAL_BYTES, MOST)
    refused(api.get("new"), 404, "topic_not_found")


def test_a_batch_is_stored_completely_or_not_at_all(api: Api) -> None:
    fill(api, THERE, MOST - 1000)
    capped(api.append(HERE, "x" * 400, "y" * 400, "z" * 400), TOTAL_BYTES, MOST)
    assert api.state(HERE)["head_seq"] == 0
    ok(api.append(HERE, "x" * 400, "y" * 400))


def test_concurrent_writers_never_exceed_the_cap(limited: Server, api: Api) -> None:
    ok(api.append(HERE, "x" * 50_000))
    size = api.state(HERE)["bytes"]
    ok(api.append(THERE, "x" * 50_000))
    fill(api, HERE, MOST - 10 * size)

    def work(api: Api, number: int) -> list[Answer]:
        return [api.append((HERE, THERE)[number % 2], "x" * 49_990) for _ in range(4)]

    assert statuses(at_once(limited.address, 6, work)) == {200: 10, 429: 14}
    assert MOST - size < held(api)[1] <= MOST


def test_reads_deletes_config_changes_and_repeated_keys_succeed_at_the_cap(api: Api) -> None:
    ok(api.append(HERE, 1, headers={"Idempotency-Key": "k"}))
    fill(api, THERE, MOST)
    assert ok(api.append(HERE, 1, headers={"Idempotency-Key": "k"}))["deduped"] is True
    assert len(api.read(HERE)) == 1
    ok(api.put(HERE, {"ttl_ms": 60_000}))
    ok(api.put("empty"), 201)
    ok(erase(api, HERE, {"before_seq": 2}))
    ok(api.append(HERE, 1))
    ok(api.delete(THERE))
    ok(api.append(HERE, "x" * 100_000))


def test_a_topic_that_trims_itself_accepts_appends_at_the_cap(limited: Server, api: Api) -> None:
    ok(api.put("ring", {"cap_bytes": 20_000}), 201)
    for number in range(10, 40):
        ok(api.append("ring", f"{number}" * 400))
    fill(api, THERE, MOST - (20_000 - api.state("ring")["bytes"]))
    for number in range(10, 40):
        ok(api.append("ring", f"{number}" * 400))
        assert held(api)[1] <= MOST
    capped(api.append(THERE, "x" * 20_000), TOTAL_BYTES, MOST)
    with Socket(limited.address) as socket:
        for number in range(10, 40):
            socket.send_command(
                "publish", str(number), topic="ring", records=[{"data": f"{number}" * 400}]
            )
        acks = [socket.message() for _ in range(30)]
    assert {ack["op"] for ack in acks} == {"ack"}, acks
    assert held(api)[1] <= MOST


def test_evictions_and_age_free_capacity(api: Api) -> None:
    ok(api.append(HERE, *["x" * 1000] * 20))
    ok(api.append("aging", *["x" * 1000] * 20), 201)
    fill(api, THERE, MOST)
    ok(api.put(HERE, {"cap_records": 5}))
    ok(api.append(THERE, "x" * 14_000))
    capped(api.append(THERE, "x" * 14_000), TOTAL_BYTES, MOST)
    ok(api.put("aging", {"ttl_ms": 1}))  # records expire although no client reads the topic
    until(lambda: api.append(THERE, "x" * 14_000).status, lambda status: status == 200)


def test_topic_full_takes_precedence_over_the_cap_of_the_server(api: Api) -> None:
    ok(api.put("full", {"cap_records": 1, "discard": "reject"}), 201)
    ok(api.append("full", 1))
    fill(api, THERE, MOST)
    refused(api.append("full", 1), 422, "topic_full")


def test_a_router_waits_until_capacity_is_free(api: Api) -> None:
    route(api, HERE, THERE)
    ok(api.put("ballast"), 201)
    fill(api, "ballast", MOST - 2000)
    ok(api.append(HERE, *["x" * 200] * 6))
    count = until(lambda: len(kept(api, THERE)), lambda found: found >= 1)
    time.sleep(FULL_S)
    assert count <= len(kept(api, THERE)) < 6
    assert shown(api, f"{HERE}->{THERE}")["lag_records"] > 0
    assert held(api)[1] <= MOST
    ok(erase(api, "ballast", {"before_seq": 2}))
    ok(api.delete("ballast"))
    arrived(api, THERE, *["x" * 200] * 6)


@pytest.mark.slow
def test_dead_letters_and_redrives_wait_at_the_cap(api: Api) -> None:
    queue = Queue.create(api, "q", "x" * 500, "y" * 500, max_deliveries=1, dead_letter="q.dead")
    ok(api.append("q.dead", "z" * 500), 201)
    ok(api.put("ballast"), 201)
    fill(api, "ballast", MOST)
    queue.spend(2, 1)
    assert queue.claim() == []
    assert queue.counters()["dead_lettered"] == 0
    moved = Queue(api, "q.dead").redrive(to="q")
    assert (moved["moved"], moved["skipped"], moved["reason"]) == (0, 1, "throttled")
    ok(api.delete("ballast"))

    def dead_lettered() -> int:
        queue.claim()
        return queue.counters()["dead_lettered"]

    until(dead_lettered, lambda found: found == 2)
    assert Queue(api, "q.dead").redrive(to="q")["moved"] == 3


@pytest.mark.slow
def test_reads_deletes_and_updates_succeed_above_a_lowered_cap(tmp_path: Path) -> None:
    with Server(tmp_path / "data", shards=2) as server:
        with Api(server.address) as api:
            for topic in (HERE, THERE):
                ok(api.append(topic, *["x" * 1000] * 50), 201)
        server.stop()
        server.env["TOPICS_MAX_TOTAL_BYTES"] = "30000"
        server.start()
        with Api(server.address) as api:
            capped(api.append(HERE, 1), TOTAL_BYTES, 30_000)
            assert len(api.read(HERE)) == 50
            ok(api.put(HERE, {"cap_bytes": 20_000}))
            capped(api.append(THERE, "x" * 500), TOTAL_BYTES, 30_000)
            ok(erase(api, THERE, {"before_seq": 48}))
            for topic in (HERE, THERE):
                ok(api.append(topic, "x" * 500))
            assert held(api)[1] < 30_000
