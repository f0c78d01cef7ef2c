"""Checkpoints of routers: they outlive the log that held them, and may change while one is made."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.actors.shard.sealing.sealing_support import Sealer
from tests.engine.routing.test_graph import router
from tests.storage.recovery.test_routers import busy, known, put, remove


def test_routers_outlive_the_log_that_held_them(client: Sealer) -> None:
    busy(client)
    before = known(client)
    for number in range(60):
        client.append("t", "x" * 400, number)
    for _ in range(3):
        client.seal()
        client.checkpoint()
    assert client.wal.oldest_lsn > 0
    client.kill()
    client = client.again()
    assert known(client) == before
    client.kill()


@pytest.mark.parametrize("is_late", [False, True])
def test_a_change_at_any_step_of_a_checkpoint_is_there_after_a_restart(
    tmp_path: Path, is_late: bool
) -> None:
    step = 0
    while True:
        client = Sealer(tmp_path / f"{step}")
        busy(client)
        client.append("t", 1)
        client.under_way = client.sealing.checkpoint()
        count, is_done = 0, False
        while True:
            if count == step:
                is_done = True
                put(client, router(6, "cd"))
                put(client, router(7, "ce", "c->d"))
                remove(client, 3)
                put(client, replace(router(7, "ce", "c->d"), base_total=3))
            if not client.step():
                break
            count += 1
        before = known(client)
        if is_late and is_done:
            put(client, router(8, "xy"))
            remove(client, 8)
            before = before[0], 8
        client.kill()
        client = client.again()
        assert known(client) == before, step
        client.kill()
        if not is_done:
            assert step > 3
            return
        step += 1


def test_without_routers_a_checkpoint_says_nothing_of_them(client: Sealer) -> None:
    client.append("t", 1)
    client.checkpoint()
    client.kill()
    client = client.again()
    assert known(client) == ({}, 0)
    client.kill()
