"""Acks, delays and dead letters after restarts and after kills under load."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.api import Api, ok
from tests.support.queues import (
    HOUR_MS,
    Job,
    Queue,
    counters,
    data,
    fill_the_log,
    now_ms,
    numbers,
    until,
)
from tests.support.server import Server

pytestmark = pytest.mark.slow

SMALL_LOG = 64 << 10
ENDS = pytest.mark.parametrize("end", ["stop", "kill"])
CLASSES = ("disk", "fsync")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / "data", shards=2, wal_file_bytes=SMALL_LOG) as server:
        yield server


@ENDS
def test_acks_stay_durable_when_log_files_are_sealed(server: Server, end: str) -> None:
    """The jobs are large, so that some are sealed before their acks."""
    kept: dict[str, list[int]] = {}
    with Api(server.address) as api:
        for durability in CLASSES:
            queue = Queue.create(api, durability, durability=durability, lease_ms=HOUR_MS)
            for number in range(60):
                queue.push([number, "x" * 4000])
            jobs = queue.claim("w", 60)
            queue.ack(jobs[:10])
            queue.ack(jobs[10:30:2])
            kept[durability] = numbers([*jobs[11:30:2], *jobs[30:]])
        fill_the_log(api)
        for durability in CLASSES:
            queue = Queue(api, durability)
            queue.ack(kept[durability][-5:])
            del kept[durability][-5:]
    for _ in range(2):
        with server.again(end) as api:
            for durability, seqs in kept.items():
                queue = Queue(api, durability)
                assert queue.live() == seqs
                assert queue.counters() == counters(ready=len(seqs))
                assert ok(api.diff(durability))["tombstone"] is None, "an ack is no loss"
    with Api(server.address) as api:
        for durability, seqs in kept.items():
            jobs = Queue(api, durability).claim("w", 100)
            assert numbers(jobs) == seqs
            assert [job["data"][0] for job in jobs] == [seq - 1 for seq in seqs]
            assert Queue(api, durability).push("new") == [61]


@ENDS
def test_delays_continue_during_a_restart(server: Server, end: str) -> None:
    with Api(server.address) as api:
        for durability in CLASSES:
            queue = Queue.create(api, durability, durability=durability)
            at = now_ms() + 2 * HOUR_MS
            records = [
                {"data": "while down", "delay_ms": 300},
                {"data": "hours", "delay_ms": HOUR_MS},
                {"data": "later", "delay_ms": 4000},
                {"data": "at", "deliver_at": at},
                {"data": "now"},
            ]
            ok(api.append(durability, records=records))
        fill_the_log(api)
    server.stop() if end == "stop" else server.kill()
    time.sleep(0.4)
    server.start()
    with Api(server.address) as api:
        for durability in CLASSES:
            queue = Queue(api, durability)
            found: list[Job] = []

            def poll(queue: Queue = queue, found: list[Job] = found) -> int:
                found.extend(queue.claim("w", 5, lease_ms=HOUR_MS))
                return len(found)

            until(poll, lambda count: count >= 3)
            assert sorted(data(found)) == ["later", "now", "while down"]
            (later,) = [job for job in found if job["data"] == "later"]
            assert later["deadline"] - HOUR_MS >= later["$ts"] + 4000 - 1, "too early"
            assert queue.counters() == counters(in_flight=3, delayed=2)
            assert len(queue.live()) == 5


@ENDS
def test_the_dead_lettered_count_continues_after_a_restart(server: Server, end: str) -> None:
    for number in range(1, 4):
        with Api(server.address) as api:
            for name in CLASSES:
                queue = Queue(api, name)
                config = {"durability": name, "max_deliveries": 1, "dead_letter": f"{name}.dead"}
                answer = api.put(name, {"type": "queue", **config})
                ok(answer, answer.status)
                queue.push(number)
                queue.spend(1, 1)
                queue.bury(1)
            fill_the_log(api)
        with server.again(end) as api:
            for name in CLASSES:
                assert Queue(api, name).counters() == counters(dead_lettered=number)
                letters = api.read(f"{name}.dead")
                assert [letter["data"] for letter in letters] == [*range(1, number + 1)]
