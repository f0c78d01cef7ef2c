"""Queues while a shard or the front crashes and is restarted: no call hangs, no job is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.api import Api, Wire, ok, refused
from tests.support.queues import (
    ERROR,
    HOUR_MS,
    Queue,
    Work,
    asking,
    counters,
    data,
    names_on,
    parked,
    tokens,
    until,
)
from tests.support.server import Server, kill_one
from topics.formats.names import shard_of

pytestmark = pytest.mark.slow


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / "data", shards=2) as server:
        server.wait_roles(3)
        yield server


def kill(server: Server, role: str) -> None:
    kill_one(server.wait_roles(3)[role])


def kill_shard_of(server: Server, name: str) -> None:
    kill(server, f"shard {shard_of(name, 2)}")


def wait_until_served(server: Server, name: str) -> None:
    """Wait until the topic is served again."""

    def status_of_topic() -> int:
        try:
            with Api(server.address) as api:
                return api.get(name).status
        except OSError:
            return 0

    until(status_of_topic, lambda status: status == 200, 20)


@pytest.mark.parametrize("durable", [True, False], ids=["durable", "loose"])
def test_a_work_stream_ends_when_its_shard_crashes(server: Server, durable: bool) -> None:
    """Its leases are kept if they are durable. Otherwise they end immediately."""
    with Api(server.address) as api:
        queue = Queue.create(api, "q", "a", "b", leases_durable=durable, lease_ms=HOUR_MS)
        with Work(queue, "w") as stream:
            jobs = stream.jobs(1)
            kill_shard_of(server, "q")
            assert stream.event(ERROR).json()["code"] == 503
            with pytest.raises(EOFError):
                stream.event()
        wait_until_served(server, "q")
        assert data(queue.claim("other", 2)) == (["b"] if durable else ["a", "b"])
        assert queue.ack(jobs, "w", lease_ids=tokens(jobs))["acked"] == int(durable)


def test_a_waiting_claim_gets_503_when_its_shard_crashes(server: Server) -> None:
    with Api(server.address) as api, Wire(server.address) as wire:
        queue = Queue.create(api, "q")
        wire.send(asking(queue, wait_ms=20_000))
        parked(queue)
        kill_shard_of(server, "q")
        answer = wire.answer()
        refused(answer, 503, "not_ready")
        assert int(answer.headers["retry-after"]) >= 1
        wait_until_served(server, "q")
        queue.push("a")
        assert data(queue.claim()) == ["a"]


def test_jobs_of_streams_are_claimable_immediately_after_a_front_crash(server: Server) -> None:
    with Api(server.address) as api:
        queue = Queue.create(api, "q", *range(4), lease_ms=HOUR_MS)
        polled = queue.claim("polled")
        stream = Work(queue, "w", 2)
        stream.jobs(2)
    kill(server, "front 0")
    stream.close()
    wait_until_served(server, "q")
    with Api(server.address) as api:
        queue = Queue(api, "q")
        queue.becomes(ready=3, in_flight=1)
        jobs = queue.claim("other", 5)
        assert [(job["data"], job["deliveries"]) for job in jobs] == [(1, 2), (2, 2), (3, 1)]
        assert queue.ack(polled, "polled", lease_ids=tokens(polled))["acked"] == 1


def test_a_waiting_claim_of_a_crashed_front_takes_no_job(server: Server) -> None:
    with Api(server.address) as api, Wire(server.address) as wire:
        queue = Queue.create(api, "q")
        wire.send(asking(queue, wait_ms=20_000))
        parked(queue)
        kill(server, "front 0")
        wire.rest()
    wait_until_served(server, "q")
    with Api(server.address) as api:
        queue = Queue(api, "q")
        queue.push("a")
        queue.becomes(ready=1)
        assert data(queue.claim()) == ["a"]


@pytest.mark.parametrize("which", ["source", "target"])
@pytest.mark.parametrize("attempt", range(3))
def test_a_shard_crash_during_moves_neither_duplicates_nor_loses_jobs(
    server: Server, which: str, attempt: int
) -> None:
    _, dead = names_on("q")
    with Api(server.address) as api:
        config = {"durability": "fsync", "max_deliveries": 1, "dead_letter": dead}
        queue = Queue.create(api, "q", *range(300), leases_durable=True, **config)
        ok(api.put(dead, {"durability": "fsync"}), 201)
        queue.spend(300, 1)
        assert queue.claim("pass") == []
        time.sleep(0.01 * attempt)
        kill_shard_of(server, "q" if which == "source" else dead)
        for name in ("q", dead):
            wait_until_served(server, name)

        def live_after_claim() -> list[int]:
            answer = queue.call("claim", {"node": "pass"})
            assert answer.status == 503 or ok(answer)["claimed"] == []
            return queue.live()

        until(live_after_claim, lambda live: live == [], 20)
        assert sorted(data(api.read(dead))) == list(range(300))
        assert queue.counters() == counters(dead_lettered=300)
