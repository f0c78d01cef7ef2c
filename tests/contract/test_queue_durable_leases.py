"""Leases after a restart (§0.10, §10.3). With ``leases_durable`` all leases are kept. Without it,
all jobs are claimable. After an orderly stop they keep their deliveries, delays and errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.api import Api
from tests.support.queues import (
    HOUR_MS,
    SHORT_MS,
    Job,
    Queue,
    Work,
    counters,
    data,
    fill_the_log,
    numbers,
    tokens,
    until,
)
from tests.support.server import Server

pytestmark = pytest.mark.slow

SMALL_LOG = 64 << 10
CLASSES = ("disk", "fsync")
ENDS = ("stop", "kill")


@dataclass(slots=True)
class Scene:
    """A queue and its state before the restart, which tests compare with the state after it."""

    queue: Queue
    jobs: list[Job] = field(default_factory=list)
    leases: list[Any] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)


def held(queue: Queue) -> list[Job]:
    """Claim jobs 1 to 3 of 5, the second with another node."""
    return [*queue.claim("a"), *queue.claim("b"), *queue.claim("a")]


def extended(queue: Queue) -> list[Job]:
    jobs = queue.claim("a", 2)
    queue.extend(jobs[1:], "a", lease_ms=5 * HOUR_MS)
    return jobs


def shortened(queue: Queue) -> list[Job]:
    """Claim a job with a lease that expires during the restart."""
    jobs = queue.claim("a")
    queue.extend(jobs, "a", lease_ms=SHORT_MS)
    return jobs


def nacked(queue: Queue) -> list[Job]:
    """Claim jobs 1 and 2, and deliver and nack job 2 twice."""
    jobs = queue.claim("a", 2)
    queue.nack(jobs[1:], "a", error="why")
    queue.nack(queue.claim("b"), "b")
    return jobs


def reclaimed(queue: Queue) -> list[Job]:
    """Claim job 1 again after its first lease has expired."""
    old = queue.claim("a", lease_ms=SHORT_MS)
    return [*old, *until(lambda: queue.claim("b"))]


def released(queue: Queue) -> list[Job]:
    """Push job 1 on a work stream, then disconnect it."""
    with Work(queue, "a") as stream:
        jobs = stream.jobs(1)
    queue.becomes(ready=5)
    return jobs


ACTS: list[Callable[[Queue], list[Job]]] = [held, extended, shortened, nacked, reclaimed, released]


def scenes(api: Api, *, leases_durable: bool) -> Iterator[Scene]:
    for durability in CLASSES:
        for act in ACTS:
            name = f"{act.__name__}-{durability}-{leases_durable}".lower()
            queue = Queue.create(
                *(api, name, *range(5)),
                durability=durability,
                leases_durable=leases_durable,
                lease_ms=HOUR_MS,
            )
            yield Scene(queue, act(queue))


@pytest.fixture(scope="module", params=ENDS)
def restarted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Scene]]:
    """The scenes after a restart. Log files are small, so that most were sealed before it."""
    path: Path = tmp_path_factory.mktemp("leases") / "data"
    with Server(path, shards=2, wal_file_bytes=SMALL_LOG) as server:
        with Api(server.address) as api:
            found = [*scenes(api, leases_durable=True)]
            fill_the_log(api)
            found += scenes(api, leases_durable=False)
            for scene in found:
                scene.leases, scene.counters = scene.queue.leases(), scene.queue.counters()
        with server.again(request.param) as api:
            for scene in found:
                scene.queue = Queue(api, scene.queue.name)
            yield {scene.queue.name: scene for scene in found}


@pytest.fixture(params=CLASSES)
def durable(
    request: pytest.FixtureRequest, restarted: dict[str, Scene]
) -> Callable[[Callable[[Queue], list[Job]]], Scene]:
    """Return the scene of an act with durable leases."""
    return lambda act: restarted[f"{act.__name__}-{request.param}-true"]


Durable = Callable[[Callable[[Queue], list[Job]]], Scene]


# --- leases_durable: true


def test_holders_deadlines_and_tokens_survive_a_restart(durable: Durable) -> None:
    scene = durable(held)
    queue, jobs = scene.queue, scene.jobs
    assert queue.leases() == scene.leases
    assert [lease["deadline"] for lease in scene.leases] == [job["deadline"] for job in jobs]
    assert queue.counters() == scene.counters == counters(ready=2, in_flight=3)
    assert data(queue.claim("c", 5)) == [3, 4], "a leased job was claimed"
    assert queue.ack(jobs[:1], "b")["skipped"] == [1]
    assert queue.ack(jobs[:1], "a", lease_ids=tokens(jobs[1:2]))["skipped"] == [1]
    assert queue.ack(jobs[:1], "a", lease_ids=tokens(jobs[:1]))["acked"] == 1
    assert queue.ack(jobs[1:2], "b")["acked"] == 1
    assert queue.extend(jobs[2:3], "a", lease_ids=tokens(jobs[2:3]))["extended"] == 1


def test_an_extended_deadline_survives_a_restart(durable: Durable) -> None:
    scene = durable(extended)
    assert scene.queue.leases() == scene.leases
    (first, second) = scene.leases
    assert second["deadline"] > first["deadline"] + 3 * HOUR_MS


def test_a_lease_that_expires_during_the_restart_is_reclaimed_first_and_counted(
    durable: Durable,
) -> None:
    scene = durable(shortened)
    (job,) = until(lambda: scene.queue.claim("c"), lambda jobs: numbers(jobs) == [1])
    assert job["deliveries"] == 2
    assert scene.queue.ack(scene.jobs, "a")["skipped"] == [1]


def test_after_a_restart_only_the_last_holder_has_the_lease(durable: Durable) -> None:
    scene = durable(reclaimed)
    (old, new) = scene.jobs
    assert scene.queue.leases() == scene.leases
    assert scene.queue.ack([old], "a", lease_ids=tokens([old]))["skipped"] == [1]
    assert scene.queue.ack([new], "b", lease_ids=tokens([new]))["acked"] == 1


def test_jobs_of_a_disconnected_stream_stay_released(durable: Durable) -> None:
    scene = durable(released)
    assert scene.queue.counters() == counters(ready=5)
    (job,) = scene.queue.claim("c")
    assert (job["$seq"], job["deliveries"]) == (1, 2)


def test_a_nack_and_its_error_survive_a_restart(durable: Durable) -> None:
    scene = durable(nacked)
    assert scene.queue.leases() == scene.leases
    (job,) = scene.queue.claim("c")
    assert (job["$seq"], job["deliveries"], job["last_error"]) == (2, 3, "why")


# --- leases_durable: false


@pytest.fixture(params=CLASSES)
def loose(request: pytest.FixtureRequest, restarted: dict[str, Scene]) -> Durable:
    """Return the scene of an act whose leases are not durable."""
    return lambda act: restarted[f"{act.__name__}-{request.param}-false"]


def test_jobs_in_flight_are_claimable_immediately_after_a_restart(loose: Durable) -> None:
    scene = loose(held)
    queue, jobs = scene.queue, scene.jobs
    assert queue.leases() == []
    assert queue.counters() == counters(ready=5)
    assert queue.ack(jobs[:1], "a")["skipped"] == [1]
    again = queue.claim("a", 5)
    assert numbers(again) == [1, 2, 3, 4, 5]
    old = [jobs[0], jobs[2]]
    assert queue.ack(old, "a", lease_ids=tokens(old))["skipped"] == numbers(old), "void token"
    assert queue.ack(old, "a")["acked"] == 2


@pytest.mark.parametrize("act", [extended, shortened, nacked, reclaimed, released])
def test_every_job_is_ready_after_a_restart(
    loose: Durable, act: Callable[[Queue], list[Job]]
) -> None:
    queue = loose(act).queue
    assert queue.counters() == counters(ready=5)
    assert numbers(queue.claim("c", 9)) == [1, 2, 3, 4, 5]


# --- an orderly stop, without durable leases


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / "data", shards=2, wal_file_bytes=SMALL_LOG) as server:
        yield server


@pytest.mark.parametrize("durability", [*CLASSES, "memory"])
def test_a_job_that_always_fails_is_dead_lettered_after_max_deliveries_over_four_restarts(
    server: Server, durability: str
) -> None:
    delivered: list[int] = []
    with Api(server.address) as api:
        Queue.create(
            *(api, "q", "poison"),
            durability=durability,
            max_deliveries=3,
            dead_letter="q.dead",
            lease_ms=HOUR_MS,
        )
    for _ in range(4):
        with Api(server.address) as api:
            delivered += [job["deliveries"] for job in Queue(api, "q").claim("w", 5)]
        with server.again("stop"):
            pass
    with Api(server.address) as api:
        queue = Queue(api, "q")
        delivered += [job["deliveries"] for job in queue.claim("w", 5)]
        until(queue.counters, lambda found: found == counters(dead_lettered=1))
        (letter,) = api.read("q.dead")
    assert delivered == [1, 2, 3]
    assert letter["meta"]["$dead_letter_deliveries"] == 3


@pytest.mark.parametrize("durability", CLASSES)
def test_a_stop_keeps_delays_and_errors_of_nacks(server: Server, durability: str) -> None:
    with Api(server.address) as api:
        queue = Queue.create(api, "q", *range(4), durability=durability, lease_ms=HOUR_MS)
        jobs = queue.claim("w", 3)
        queue.nack(jobs[:1], error="later", delay_ms=HOUR_MS)
        queue.nack(jobs[1:2], error="now")
    for _ in range(2):
        with server.again("stop") as api:
            queue = Queue(api, "q")
            assert queue.counters() == counters(ready=3), "the delay of job 1 was lost"
            assert queue.leases() == []
    with Api(server.address) as api:
        found = Queue(api, "q").claim("v", 5)
        states = [(job["$seq"], job["deliveries"], job.get("last_error")) for job in found]
        assert states == [(2, 2, "now"), (3, 2, None), (4, 1, None)]


def test_a_kill_after_a_stop_neither_loses_nor_duplicates_jobs(server: Server) -> None:
    """Delivery counts are those of the stop, or start at zero if a later checkpoint was written."""
    with Api(server.address) as api:
        queue = Queue.create(api, "q", *range(6), lease_ms=HOUR_MS)
        queue.nack(queue.claim("w", 4))
    with server.again("stop") as api:
        queue = Queue(api, "q")
        jobs = queue.claim("w", 6)
        assert [job["deliveries"] for job in jobs] == [2, 2, 2, 2, 1, 1]
        queue.ack(jobs[:2])
        queue.nack(jobs[2:3], delay_ms=HOUR_MS)
    with server.again("kill") as api:
        queue = Queue(api, "q")
        assert queue.counters() == counters(ready=4)
        jobs = queue.claim("w", 6)
        assert [(job["$seq"], job["deliveries"]) for job in jobs] == [
            (3, 2),
            (4, 2),
            (5, 1),
            (6, 1),
        ]


# --- other cases of restarts


@pytest.mark.parametrize("end", ENDS)
def test_an_ephemeral_queue_is_empty_after_a_restart(tmp_path: Path, end: str) -> None:
    with Server(tmp_path / "data") as server:
        with Api(server.address) as api:
            queue = Queue.create(api, "q", *range(5), durability="ephemeral", leases_durable=True)
            jobs = queue.claim("w", 2, lease_ms=HOUR_MS)
        with server.again(end) as api:
            queue = Queue(api, "q")
            assert queue.counters() == counters()
            assert queue.leases() == []
            assert queue.ack(jobs)["skipped"] == numbers(jobs)
            queue.push("new")
            assert data(queue.claim("w", 9)) == ["new"]


@pytest.mark.parametrize("durability", CLASSES)
def test_leases_that_a_put_makes_durable_survive_an_immediate_kill(
    server: Server, durability: str
) -> None:
    """After a repeated PUT is answered, all leases and counts are durable, too."""
    with Api(server.address) as api:
        queue = Queue.create(api, "q", *range(1600), durability=durability, lease_ms=HOUR_MS)
        held = [job for _ in range(3) for job in queue.claim("a", 400)]
        queue.nack(held[:1], "a", error="later", delay_ms=HOUR_MS)
        queue.nack(held[1:2], "a", error="now")
        queue.nack(queue.claim("b"), "b")
        queue.extend(queue.claim("c"), "c", lease_ms=5 * HOUR_MS)
        before, counted = queue.leases(), queue.counters()
        assert len(before) == 1199
        queue.configure(leases_durable=True)
        queue.configure(leases_durable=True)
    for _ in range(2):
        with server.again("kill") as api:
            queue = Queue(api, "q")
            assert queue.leases() == before
            assert queue.counters() == counted
    with Api(server.address) as api:
        queue = Queue(api, "q")
        (job,) = queue.claim("d")
        assert job["$seq"] > 1199
        (lease,) = [each for each in queue.leases() if each["node"] == "c"]
        assert (lease["deliveries"], lease["last_error"]) == (3, "now")


def test_leases_durable_can_be_switched_on_and_off(tmp_path: Path) -> None:
    """A claim after the PUT is as durable as one before it."""
    with Server(tmp_path / "data") as server:
        with Api(server.address) as api:
            queue = Queue.create(api, "q", *range(3), lease_ms=HOUR_MS)
            queue.configure(leases_durable=True)
            queue.claim("w")
            expected = queue.leases()
        with server.again("kill") as api:
            assert Queue(api, "q").leases() == expected
