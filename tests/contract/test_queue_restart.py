"""What a restart leaves of acks, delays and dead letters, and of servers killed at work."""

from __future__ import annotations

import http.client
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.api import Api, ok
from tests.support.queues import (
    HOUR_MS,
    Job,
    Queue,
    counters,
    data,
    names_on,
    now_ms,
    numbers,
    tokens,
    until,
)
from tests.support.server import Server

pytestmark = pytest.mark.slow

SMALL_LOG = 64 << 10
ENDS = pytest.mark.parametrize("end", ["stop", "kill"])
CLASSES = ("disk", "fsync")


def restart(server: Server, end: str) -> None:
    server.stop() if end == "stop" else server.kill()
    server.start()


def fill_the_log(api: Api) -> None:
    """Enough other writes to seal all log files so far, on both shards."""
    for name in names_on("filler"):
        for number in range(60):
            answer = api.append(name, f"{number}" * 4000)
            ok(answer, answer.status)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / "data", shards=2, wal_file_bytes=SMALL_LOG) as server:
        yield server


@ENDS
def test_acks_are_durable_through_sealing(server: Server, end: str) -> None:
    """Jobs are large, so that they are sealed before some of their acks."""
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
        restart(server, end)
        with Api(server.address) as api:
            for durability, seqs in kept.items():
                queue = Queue(api, durability)
                assert queue.live() == seqs
                assert queue.counters() == counters(ready=len(seqs))
                assert ok(api.diff(durability))["tombstone"] is None, "acks are silent"
    with Api(server.address) as api:
        for durability, seqs in kept.items():
            jobs = Queue(api, durability).claim("w", 100)
            assert numbers(jobs) == seqs
            assert [job["data"][0] for job in jobs] == [seq - 1 for seq in seqs]
            assert Queue(api, durability).push("new") == [61]


@ENDS
def test_delays_run_on_over_a_restart(server: Server, end: str) -> None:
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

            def look(queue: Queue = queue, found: list[Job] = found) -> int:
                found.extend(queue.claim("w", 5, lease_ms=HOUR_MS))
                return len(found)

            until(look, lambda count: count >= 3)
            assert sorted(data(found)) == ["later", "now", "while down"]
            (later,) = [job for job in found if job["data"] == "later"]
            assert later["deadline"] - HOUR_MS >= later["$ts"] + 4000 - 1, "not before its time"
            assert queue.counters() == counters(in_flight=3, delayed=2)
            assert len(queue.live()) == 5


@ENDS
def test_a_delayed_job_that_was_deleted_stays_deleted(server: Server, end: str) -> None:
    with Api(server.address) as api:
        queue = Queue.create(api, "q")
        records = [{"data": tag, "tag": tag, "delay_ms": HOUR_MS} for tag in ("a", "b")]
        ok(api.append("q", records=records))
        queue.erase(match="a")
        fill_the_log(api)
    restart(server, end)
    with Api(server.address) as api:
        assert Queue(api, "q").counters() == counters(delayed=1)


@ENDS
def test_dead_lettered_counts_on_over_a_restart(server: Server, end: str) -> None:
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
        restart(server, end)
        with Api(server.address) as api:
            for name in CLASSES:
                assert Queue(api, name).counters() == counters(dead_lettered=number)
                letters = api.read(f"{name}.dead")
                assert [letter["data"] for letter in letters] == [*range(1, number + 1)]


@pytest.mark.parametrize("after_s", [0.0, 0.01, 0.03, 0.08], ids=lambda value: f"{value} s")
@pytest.mark.parametrize("where", ["same shard", "another shard"])
def test_a_kill_while_jobs_are_moved_doubles_and_loses_none(
    server: Server, where: str, after_s: float
) -> None:
    same, other = names_on("q")
    dead = same if where == "same shard" else other
    config = {"durability": "fsync", "max_deliveries": 1, "dead_letter": dead}
    with Api(server.address) as api:
        queue = Queue.create(api, "q", *range(400), leases_durable=True, **config)
        queue.spend(400, 1)
    passing = threading.Thread(target=_pass, args=(server,))
    passing.start()
    time.sleep(after_s)
    server.kill()
    passing.join()
    server.start()
    with Api(server.address) as api:
        queue = Queue(api, "q")

        def look() -> int:
            assert queue.claim("w", 400) == [], "each has been delivered as often as it may be"
            return len(queue.live())

        until(look, lambda left: left == 0)
        letters = api.read(dead)
        assert sorted(letter["data"] for letter in letters) == list(range(400))
        assert queue.counters() == counters(dead_lettered=400)


def _pass(server: Server) -> None:
    try:
        with Api(server.address) as api:
            Queue(api, "q").call("claim", {"node": "w"})
    except (OSError, http.client.HTTPException):
        return  # the server was killed


# --- killed at work


@dataclass(slots=True)
class Worker:
    """What a worker has been told. ``unsure``: seqs of the request that was not answered."""

    node: str
    held: dict[int, Job] = field(default_factory=dict)
    acked: set[int] = field(default_factory=set)
    unsure: set[int] = field(default_factory=set)

    def run(self, server: Server, chance: random.Random, killed: threading.Event) -> None:
        """Claim, ack and nack until the server is killed."""
        try:
            with Api(server.address) as api:
                while True:
                    self._turn(Queue(api, "q"), chance)
        except (OSError, http.client.HTTPException, AssertionError):
            if not killed.is_set():
                raise

    def _turn(self, queue: Queue, chance: random.Random) -> None:
        for job in queue.claim(self.node, chance.randrange(1, 5), lease_ms=HOUR_MS):
            self.held[job["$seq"]] = job
        mine = chance.sample(sorted(self.held), min(len(self.held), chance.randrange(3)))
        if not mine:
            return
        self.unsure = {*mine}
        fence = tokens([self.held[seq] for seq in mine])
        if chance.random() < 0.5:
            assert queue.ack(mine, self.node, lease_ids=fence)["skipped"] == []
            self.acked |= self.unsure
        else:
            assert queue.nack(mine, self.node, lease_ids=fence)["skipped"] == []
        for seq in mine:
            del self.held[seq]
        self.unsure = set()


@pytest.mark.parametrize("durability", CLASSES)
@pytest.mark.parametrize("seed", range(3))
def test_every_answer_before_a_kill_holds_after_it(
    server: Server, durability: str, seed: int
) -> None:
    with Api(server.address) as api:
        queue = Queue.create(api, "q", durability=durability, leases_durable=True)
        queue.push(*range(3000))
    workers = [Worker(f"w{number}") for number in range(4)]
    killed = threading.Event()
    with ThreadPoolExecutor(len(workers)) as pool:
        runs = [
            pool.submit(worker.run, server, random.Random(f"{seed} {worker.node}"), killed)
            for worker in workers
        ]
        time.sleep(0.5 + 0.3 * seed)
        killed.set()
        server.kill()
        for run in runs:
            run.result()
    server.start()
    with Api(server.address) as api:
        queue = Queue(api, "q")
        leases = {lease["$seq"]: lease for lease in queue.leases(page_size=1000)}
        live = {*queue.live()}
    for worker in workers:
        assert worker.acked.isdisjoint(live), "what was acked is gone"
        for seq in worker.held.keys() - worker.unsure:
            job, lease = worker.held[seq], leases[seq]
            told = (worker.node, job["lease_id"], job["deadline"], job["deliveries"])
            assert told == tuple(
                lease[name] for name in ("node", "lease_id", "deadline", "deliveries")
            )
    acked = {seq for worker in workers for seq in worker.acked | worker.unsure}
    assert live >= {*range(1, 3001)} - acked, "no job is lost"
