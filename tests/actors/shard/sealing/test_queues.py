"""Tests of checkpoints and sealing of queues: a restart restores the same jobs, even if jobs are
claimed, moved or undone during a checkpoint.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.actors.shard.sealing.sealing_support import Sealer, ended, sealed
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
from topics.engine.changes import finish_jobs, lease_jobs
from topics.engine.queue import jobs as jobs_module
from topics.storage.wal.log_file import NoSpace

pytestmark = pytest.mark.slow

HOUR_MS = 3_600_000


def put(client: Sealer, name: str = "q", **config: object) -> None:
    client.put(name, **{"type": "queue", "leases_durable": True, **config})


def of(client: Sealer, name: str = "q") -> Known:
    return known(client.engine.queue(name), client.now)


def lose(client: Sealer) -> None:
    """Undo the pending changes, as on a full disk."""
    client.commits._roll_back(NoSpace(errno.ENOSPC, "no space"))
    client.wal.resume(client.wal._start)


def checkpoint_at(client: Sealer, step: int, do: Callable[[], object]) -> int:
    """Write a checkpoint and call ``do`` before this step. Return the number of steps."""
    client.in_flight = client.sealing.checkpoint()
    count = 0
    while True:
        if count == step:
            do()
        if not client.step():
            return count
        count += 1


# Contents of a checkpoint


def test_delays_survive_the_removal_of_their_log_file(client: Sealer) -> None:
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


def test_leases_survive_the_removal_of_their_log_file(client: Sealer) -> None:
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


# Changes while a checkpoint is written


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
def test_changes_during_a_checkpoint_are_recovered_once(
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
def test_claims_and_acks_pending_during_a_checkpoint_are_recovered_once(
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
            begin(client, finish_jobs.remove_dead_lettered(queue, moved, client.now))
            begin(client, lease_jobs.nack(queue, "v", [5], None, 0, client.now))
            checkpoint_at(client, at, client.wait)
            assert client.wait() is None
            before = of(client)
            assert before.dead_lettered == 1
            client.kill()
            again = client.again()
            assert of(again) == before, f"written before step {at}"
            again.kill()


def test_a_checkpoint_never_contains_an_undone_lease(client: Sealer) -> None:
    put(client)
    client.append("q", *range(4))
    claim(client, "q", 2)
    before = normal(client)
    change = claiming(client, "q", 2, node="v")
    begin(client, change)
    begin(client, acking(client, "q", 1))
    client.in_flight = client.sealing.checkpoint()
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


def test_an_undone_second_move_does_not_affect_the_first(
    client: Sealer,
) -> None:
    put(client, leases_durable=False, max_deliveries=1, dead_letter="d")
    client.append("q", 1, 2)
    claim(client, "q", 2)
    nack(client, "q", 1, 2)
    claim(client, "q")
    queue = client.engine.queue("q")
    lease_jobs.return_to_dead(queue, begin_move(client, "q", 1))
    begin(client, lease_jobs.begin_dead_lettering(queue, 2, client.now))
    lose(client)
    client.checkpoint()
    client.kill()
    client = client.again()
    assert of(client).rows == {1: (DYING, 0, 0, 1, "d")}
    client.kill()


# Normal form of jobs


def normal(client: Sealer) -> dict[str, Known]:
    """Return the state of all jobs. An undone claim leaves a free job without deliveries, which a
    restart restores as fresh or due; both are treated as equal.
    """
    found: dict[str, Known] = {}
    for name, each in all_known(client).items():
        rows = {seq: row for seq, row in each.rows.items() if row[:4] != (FREE, 0, 0, 0)}
        delays = {seq: due_ts for seq, due_ts in each.delays.items() if due_ts > client.now.ts}
        found[name] = Known(rows, delays, each.dead_lettered)
    return found
