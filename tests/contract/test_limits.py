"""The cap of topics, which applies to all shards and clients together (§11)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.api import Answer, Api, listed, ok, refused
from tests.support.caps import TOPICS, at_once, capped, capped_server, clear, statuses
from tests.support.queues import Queue, until
from tests.support.routers import names, put
from tests.support.server import Server
from tests.support.ws import Socket, failed
from topics.formats.names import shard_of

MOST, MAX_BYTES = 6, 1 << 20


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with capped_server(tmp_path_factory.mktemp("limits"), MOST, MAX_BYTES) as server:
        yield server


@pytest.fixture
def api(limited: Server) -> Iterator[Api]:
    """A client of a server without topics."""
    with Api(limited.address) as api:
        clear(api)
        yield api


def make(api: Api, count: int) -> list[str]:
    """Create topics on both shards."""
    made = [f"t{number}" for number in range(count)]
    for name in made:
        ok(api.put(name), 201)
    assert {shard_of(name, 2) for name in made} == {0, 1}
    return made


def test_concurrent_creators_never_exceed_the_cap(limited: Server, api: Api) -> None:
    def work(api: Api, number: int) -> list[Answer]:
        return [
            api.put(f"c{number}.{step}") if step % 2 else api.append(f"c{number}.{step}", 1)
            for step in range(4)
        ]

    answers = at_once(limited.address, 6, work)
    assert statuses(answers) == {201: MOST, 429: 24 - MOST}
    for answer in answers:
        if answer.status == 429:
            capped(answer, TOPICS, MOST)
    assert len(listed(api)) == MOST


def test_every_request_that_would_exceed_the_cap_is_refused(limited: Server, api: Api) -> None:
    first, *_ = make(api, MOST)
    capped(api.put("new"), TOPICS, MOST)
    capped(api.append("new", 1), TOPICS, MOST)
    capped(api.append("new", 1, config={"type": "queue"}), TOPICS, MOST)
    capped(api.append("new", *["x" * 900_000] * 5), TOPICS, MOST)
    capped(put(api, "r", first, "new"), TOPICS, MOST)
    capped(put(api, "r", "new", first), TOPICS, MOST)
    with Socket(limited.address) as socket:
        answer = socket.request("publish", "p", topic="new", records=[{"data": 1}])
        failed(answer, "p", "throttled")
        assert socket.request("ping", "q")["op"] == "pong"
    refused(api.get("new"), 404, "topic_not_found")
    assert names(api) == []
    refused(api.append("new", 1, create=False), 404, "topic_not_found")
    refused(api.put("new", {"ttl_ms": "x"}), 400, "invalid_request")


def test_existing_topics_can_be_used_and_configured_at_the_cap(api: Api) -> None:
    first, second, *_ = make(api, MOST)
    assert ok(api.put(first, {"cap_records": 3}))["created"] is False
    ok(api.append(first, 1))
    ok(put(api, "r", first, second), 201)
    assert ok(put(api, "r", first, second, filter="t"))["created"] is False
    ok(api.append(first, 1, headers={"Idempotency-Key": "k"}))
    assert ok(api.append(first, 1, headers={"Idempotency-Key": "k"}))["deduped"] is True
    ok(api.call("POST", f"/v0/topics/{first}/delete", {"before_seq": 9}))


def test_each_delete_frees_capacity_for_one_topic(api: Api) -> None:
    made = make(api, MOST)
    for old, new in zip(made[:3], "abc", strict=True):
        ok(api.delete(old))
        ok(api.delete(old))
        ok(api.append(new, 1), 201)
        capped(api.put("one-more"), TOPICS, MOST)


@pytest.mark.parametrize("free", [0, 1])
@pytest.mark.parametrize("shards", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_a_router_creates_both_ends_or_none(api: Api, free: int, shards: tuple[int, int]) -> None:
    make(api, MOST - free)
    before = listed(api)
    new = [f"e{number}" for number in range(40)]
    source = next(name for name in new if shard_of(name, 2) == shards[0])
    dest = next(name for name in new if name != source and shard_of(name, 2) == shards[1])
    capped(put(api, "r", source, dest), TOPICS, MOST)
    assert (listed(api), names(api)) == (before, [])
    ok(api.delete(before[0]))
    ok(api.delete(before[1]))
    ok(put(api, "r", source, dest), 201)
    assert len(listed(api)) == MOST - free


@pytest.mark.slow
def test_dead_letters_wait_until_their_topic_can_be_created(api: Api) -> None:
    queue = Queue.create(api, "q", "bad", max_deliveries=1, dead_letter="dead")
    others = make(api, MOST - 1)
    queue.spend(1, 1)
    assert queue.claim() == []
    until(lambda: queue.counters()["dead_lettered"], lambda found: found == 0)
    assert queue.live() == [1]
    ok(api.delete(others[0]))

    def moved() -> Any:
        queue.claim()
        return queue.counters()["dead_lettered"]

    assert until(moved) == 1
    assert len(api.read("dead")) == 1
    capped(api.put("one-more"), TOPICS, MOST)


@pytest.mark.slow
def test_a_lowered_cap_does_not_affect_existing_topics(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", shards=2, max_topics=0)
    with server:
        with Api(server.address) as api:
            made = make(api, 10)
            ok(api.append(made[0], 1))
        server.stop()
        server.env["TOPICS_MAX_TOPICS"] = "3"
        server.start()
        with Api(server.address) as api:
            capped(api.put("new"), TOPICS, 3)
            assert ok(api.diff(made[0], from_seq=0))["records"]
            ok(api.append(made[1], 1))
            ok(api.put(made[1], {"cap_records": 4}))
            for name in made[:7]:
                ok(api.delete(name))
                capped(api.put("new"), TOPICS, 3)
            ok(api.delete(made[7]))
            ok(api.put("new"), 201)
