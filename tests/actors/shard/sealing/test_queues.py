"""Checkpoints and sealing of queues: while jobs are claimed, moved and undone, whatever is written
comes to the same jobs after a restart.
"""

from __future__ import annotations

import contextlib
import errno
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.actors.shard.sealing.sealing_support import Sealer, ended, sealed, spoil
from tests.support.jobs import (
    DYING,
    FREE,
    HELD,
    Known,
    ack,
    acking,
    all_known,
    begin,
    begin_move,
    claim,
    claiming,
    end_move,
    known,
    nack,
)
from topics.engine.changes import delete_records, finish_jobs, lease_jobs
from topics.engine.queue import jobs as jobs_module
from topics.engine.queue.claims import jobs_of
from topics.engine.queue.ledger import Ledger
from topics.engine.topic import Topic
from topics.storage.checkpoints import whole
from topics.storage.wal.file import NoRoom

pytestmark = pytest.mark.slow

HOUR_MS = 3_600_000


def put(client: Sealer, name: str = "q", **config: object) -> None:
    client.put(name, **{"type": "queue", "leases_durable": True, **config})


def of(client: Sealer, name: str = "q") -> Known:
    return known(client.engine.queue(name), client.now)


def lose(client: Sealer) -> None:
    """A full disk: what waits is undone."""
    client.commits._lose(NoRoom(errno.ENOSPC, "no room"))
    client.wal.resume(client.wal._start)


def checkpoint_at(client: Sealer, step: int, do: Callable[[], object]) -> int:
    """Write a checkpoint, and do something before this step of it; how many steps it took."""
    client.under_way = client.sealing.checkpoint()
    count = 0
    while True:
        if count == step:
            do()
        if not client.step():
            return count
        count += 1


# What a checkpoint holds


def test_delays_outlive_the_log_that_held_them(client: Sealer) -> None:
    put(client, leases_durable=False)
    for number in range(30):
        records = [{"data": "x" * 60, "delay_ms": HOUR_MS + number}, {"data": number}]
        client.append("q", records=records)
    client.seal()
    client.checkpoint()
    assert sealed(client, "q")
    assert client.wal.oldest_lsn > 0
    before = of(client)
    assert len(before.delays) == 30
    client.kill()
    client = client.again()
    assert of(client) == before
    assert all(job.seq % 2 == 0 for job in claim(client, "q", 99))
    client.kill()


def test_leases_outlive_the_log_that_held_them(client: Sealer) -> None:
    put(client, max_deliveries=1, dead_letter="d")
    for number in range(40):
        client.append("q", number)
        claim(client, "q", lease_ms=HOUR_MS, node=f"n{number % 3}")
    nack(client, "q", 4, 1, 7, node="n0")
    nack(client, "q", 2, 5, node="n1", delay_ms=HOUR_MS)
    claim(client, "q", 1)
    begin_move(client, "q", 1)
    end_move(client, "q", 4)
    client.seal()
    client.checkpoint()
    assert client.wal.oldest_lsn > 0
    before = of(client)
    assert {row.state for row in before.rows.values()} == {HELD, FREE}
    assert before.dead_lettered == 1
    client.kill()
    client = client.again()
    assert of(client) == before
    client.kill()


def test_free_jobs_keep_their_order_over_a_checkpoint(client: Sealer) -> None:
    put(client)
    client.append("q", *range(5))
    claim(client, "q", 5)
    nack(client, "q", 4, 2)
    client.later(1)
    nack(client, "q", 3)
    client.checkpoint()
    nack(client, "q", 1)
    client.later(1)
    nack(client, "q", 5)
    client.kill()
    client = client.again()
    assert [claim(client, "q")[0].seq for _ in range(5)] == [4, 2, 3, 1, 5]
    client.kill()


def test_a_checkpoint_is_made_in_steps(client: Sealer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "LEDGER_STEP", 4)
    put(client)
    client.append("q", *range(30))
    claim(client, "q", 30)
    most = 0

    class Counting(Ledger):
        def pack(self) -> dict[str, Any]:
            nonlocal most
            most = max(most, len(self.rows))
            return super().pack()

    monkeypatch.setattr(jobs_module, "Ledger", Counting)
    client.checkpoint()
    assert most == 4
    before = of(client)
    client.kill()
    client = client.again()
    assert of(client) == before
    client.kill()


# Changes while a checkpoint is made


def expire(client: Sealer) -> None:
    client.later(20_000)
    claim(client, "q", 1)


CHANGES: dict[str, Callable[[Sealer], object]] = {
    "claim": lambda client: claim(client, "q", 3),
    "ack": lambda client: ack(client, "q", 1, 2),
    "nack": lambda client: nack(client, "q", 1, 2, delay_ms=500),
    "expiry": expire,
    "move": lambda client: end_move(client, "q", *begin_move(client, "q")),
    "begin of a move": lambda client: begin_move(client, "q"),
    "delete": lambda client: client.delete_records("q", before_seq=4),
    "forgotten leases": lambda client: client.put("q", leases_durable=False),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_happens_during_a_checkpoint_is_known_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setattr(jobs_module, "LEDGER_STEP", 2)
    steps, at = 1, 0
    while at <= steps:
        with ended(Sealer(tmp_path / f"{at}")) as client:
            put(client, max_deliveries=2, dead_letter="d")
            client.append("q", *range(9))
            for _ in range(2):
                claim(client, "q", 3)
                nack(client, "q", 3, 2)
            claim(client, "q", 4)  # 2 and 3 are exhausted
            steps = checkpoint_at(client, at, lambda: CHANGES[change](client))
            before = all_known(client)
            client.kill()
            again = client.again()
            assert all_known(again) == before, f"before step {at}"
            again.kill()
        at += 1
    assert steps > 4


@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_claims_and_acks_that_are_not_written_yet_are_known_once(
    tmp_path: Path, durability: str
) -> None:
    for at in range(6):
        with ended(Sealer(tmp_path / f"{at}")) as client:
            put(client, durability=durability, max_deliveries=1, dead_letter="d")
            client.append("q", *range(9))
            claim(client, "q", 3)
            nack(client, "q", 3)
            claim(client, "q", 1)
            moved = begin_move(client, "q")
            queue = client.engine.queue("q")
            begin(client, claiming(client, "q", 2, node="v"))
            begin(client, acking(client, "q", 1))
            begin(client, finish_jobs.bury(queue, moved, client.now))
            begin(client, lease_jobs.nack(queue, "v", [5], None, 0, client.now))
            checkpoint_at(client, at, client.wait)
            assert client.wait() is None
            before = of(client)
            assert before.dead_lettered == 1
            client.kill()
            again = client.again()
            assert of(again) == before, f"written before step {at}"
            again.kill()


def test_a_checkpoint_never_holds_a_lease_that_was_undone(client: Sealer) -> None:
    put(client)
    client.append("q", *range(4))
    claim(client, "q", 2)
    before = normal(client)
    change = claiming(client, "q", 2, node="v")
    begin(client, change)
    begin(client, acking(client, "q", 1))
    client.under_way = client.sealing.checkpoint()
    client.step()
    lose(client)
    with pytest.raises(OSError, match="undone"):
        client.seal()
    assert client.sealing.checkpoints.written == 0
    assert normal(client) == before
    client.checkpoint()
    client.kill()
    client = client.again()
    assert normal(client) == before
    client.kill()


def test_a_second_begin_of_a_move_that_is_undone_takes_nothing_from_the_first(
    client: Sealer,
) -> None:
    put(client, leases_durable=False, max_deliveries=1, dead_letter="d")
    client.append("q", 1, 2)
    claim(client, "q", 2)
    nack(client, "q", 1, 2)
    claim(client, "q")
    queue = client.engine.queue("q")
    lease_jobs.keep_dead(queue, begin_move(client, "q", 1))
    begin(client, lease_jobs.dying(queue, 2, client.now))
    lose(client)
    client.checkpoint()
    client.kill()
    client = client.again()
    assert of(client).rows == {1: (DYING, 0, 0, 1, "d")}
    client.kill()


# A walk


def normal(client: Sealer) -> dict[str, Known]:
    """What is known of all jobs. A claim that was undone leaves a free job that was never
    delivered; a restart finds it fresh, or due.
    """
    found: dict[str, Known] = {}
    for name, each in all_known(client).items():
        rows = {seq: row for seq, row in each.rows.items() if row[:4] != (FREE, 0, 0, 0)}
        delays = {seq: due_ts for seq, due_ts in each.delays.items() if due_ts > client.now.ts}
        found[name] = Known(rows, delays, each.dead_lettered)
    return found


class Walk:
    """Workers, time, sealing, failures and restarts by chance."""

    def __init__(self, path: Path, seed: int) -> None:
        self.dice = random.Random(seed)
        self.client = self.began(Sealer(path))
        self.moving: dict[str, list[int]] = {"q": [], "p": []}
        self.restarts = 0
        config = {"max_deliveries": 3, "dead_letter": "d", "cap_records": 60}
        put(self.client, "q", **config, durability=self.dice.choice(["disk", "fsync"]))
        put(self.client, "p", **config, leases_durable=False)

    def run(self, steps: int) -> None:
        acts = [
            *[self.append] * 3,
            *[self.claim] * 5,
            *[self.ack, self.nack, self.extend] * 2,
            *[self.move, self.delete, self.time_passes, self.wait],
            *[self.seal] * 5,
        ]
        for _ in range(steps):
            self.dice.choice(acts)()
            if self.dice.random() < 0.03:
                self.lose()
            if self.dice.random() < 0.03:
                self.restart()
        self.restart()
        self.client.kill()

    def began(self, client: Sealer) -> Sealer:
        """Numbers of leases begin anywhere in each process."""
        client.engine.table.next_lease_number = self.dice.randrange(1 << 60)
        return client

    def queue(self) -> Topic:
        return self.client.engine.queue(self.dice.choice("qp"))

    def held(self, queue: Topic) -> list[int]:
        seqs = list(jobs_of(queue).leases)
        return self.dice.sample(seqs, min(len(seqs), self.dice.randint(1, 4)))

    def append(self) -> None:
        records = [
            {"data": "x" * 30, "delay_ms": self.dice.choice([0, 0, 40, 5000])}
            for _ in range(self.dice.randint(1, 4))
        ]
        self.client.start(self.queue().name, records=records)

    def claim(self) -> None:
        name, lease_ms = self.queue().name, self.dice.choice([100, 3000])
        node, count = self.dice.choice("abc"), self.dice.randint(1, 4)
        begin(self.client, claiming(self.client, name, count, node=node, lease_ms=lease_ms))

    def ack(self) -> None:
        queue, node = self.queue(), self.dice.choice("abc")
        begin(self.client, acking(self.client, queue.name, *self.held(queue), node=node))

    def nack(self) -> None:
        queue, node = self.queue(), self.dice.choice("abc")
        delay_ms, now = self.dice.choice([0, 0, 300]), self.client.now
        seqs = self.held(queue)
        begin(self.client, lease_jobs.nack(queue, node, seqs, None, delay_ms, now))

    def extend(self) -> None:
        queue, node = self.queue(), self.dice.choice("abc")
        seqs, now = self.held(queue), self.client.now
        begin(self.client, lease_jobs.extend(queue, node, seqs, None, 2000, now))

    def move(self) -> None:
        queue = self.queue()
        moving = self.moving[queue.name]
        if not moving:
            self.wait()
            moving += begin_move(self.client, queue.name, 2)
            return
        if self.dice.random() < 0.3:
            lease_jobs.keep_dead(queue, moving)
        else:
            begin(self.client, finish_jobs.bury(queue, moving, self.client.now))
        moving.clear()

    def delete(self) -> None:
        queue = self.queue()
        bound = queue.start_seq + self.dice.randint(0, 3)
        self.client.submit(
            delete_records.decide(
                self.client.engine.table,
                delete_records.asked(self.client.engine.table, queue.name, bound, None),
                self.client.now,
            )
        )

    def time_passes(self) -> None:
        self.wait()  # no lease ends before its claim is written
        self.client.later(self.dice.choice([1, 20, 150]))

    def wait(self) -> None:
        assert self.client.wait() is None

    def seal(self) -> None:
        for _ in range(self.dice.randint(1, 8)):
            with contextlib.suppress(OSError):  # given up: changes were undone
                self.client.step()

    def lose(self) -> None:
        if self.client.commits.reached < self.client.wal._start:
            return self.wait()  # some of it is written, and cannot be undone
        lose(self.client)
        for moving in self.moving.values():
            moving.clear()
        return None

    def restart(self) -> None:
        self.wait()
        before = normal(self.client)
        how = self.dice.choice(["kill", "stop", "spoil"])
        client = self.client
        if how == "stop":
            client.stop()
        else:
            client.kill()
        if how == "spoil" and len(whole(client.path / "checkpoint" / "00")) == 2:
            spoil(client.path)
        self.client = self.began(client.again())
        after = normal(self.client)
        assert after == before
        for name in before:
            queue, was = self.client.engine.queue(name), client.engine.queue(name)
            assert queue.count == was.count
            if name == "q":
                counters = jobs_of(queue).counters(queue.count)
                # What was on its way to another topic may be ready.
                assert counters[1:] == jobs_of(was).counters(was.count)[1:]
        for moving in self.moving.values():
            moving.clear()
        self.restarts += 1


@pytest.mark.parametrize("seed", range(6))
def test_a_walk(tmp_path: Path, seed: int) -> None:
    walk = Walk(tmp_path / "data", seed)
    walk.run(150)
    assert walk.restarts > 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6, 60))
def test_a_long_walk(tmp_path: Path, seed: int) -> None:
    Walk(tmp_path / "data", seed).run(600)
