"""Tests of checkpoints that are written while the shard and its routers continue to work."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from tests.actors.shard.sealing.sealing_support import (
    Sealer,
    fill,
    run,
    seen,
)
from tests.engine.routing.test_graph import router
from tests.storage.recovery.test_routers import busy, known, put, remove
from tests.support.log import Client
from topics.actors.shard.sealing import sealing
from topics.actors.shard.sealing.sealing import Sealing
from topics.engine.changes import delete_records, delete_topic, put_topic
from topics.formats.api.decoding import decode_config
from topics.formats.api.diff_body import TagMatch
from topics.storage.wal.log_file import NoSpace


def test_a_checkpoint_is_abandoned_when_a_full_disk_undoes_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(tmp_path / "data")
    client.append("a", "stays")
    before, wal = client.wal.next_lsn, client.wal
    deletion = delete_topic.decide(client.engine.table, "a", False, client.now)
    assert deletion is not None
    client.commits.submit(deletion, None)

    def fail_flush(*, sync: bool, immediate: bool) -> None:
        assert sync
        assert not immediate
        client.commits._roll_back(NoSpace(errno.ENOSPC, "no space"))
        wal.resume(before)

    with monkeypatch.context() as patch:
        patch.setattr(wal, "flush", fail_flush)
        with pytest.raises(OSError, match="undone"):
            run(Sealing(client.shard, client.commits).checkpoint())
    client.kill()
    client = Client(tmp_path / "data")
    assert b"stays" in client.records("a")
    client.kill()


def test_a_delete_after_a_checkpoint_restores_no_record_that_a_cap_removed(
    tmp_path: Path,
) -> None:
    client = Client(tmp_path / "data", file_bytes=8192)
    client.put("a", cap_records=5, durability="fsync")
    for number in range(1, 6):
        client.append("a", records=[{"data": number, "tag": f"t{number}"}])
    client.append("other", "x" * 3000)
    client.append("other", "x" * 3000)
    client.put("last", durability="fsync")  # syncs the log, so the checkpoint gets no later notice
    sealing = Sealing(client.shard, client.commits)
    run(sealing._round())
    assert sealing.checkpoints.written == 1
    client.append("a", 6)
    deleted = delete_records.decide(
        client.engine.table,
        delete_records.remaining_delete(client.engine.table, "a", None, TagMatch("Eq", "t3")),
        client.now,
    )
    client.submit(deleted)
    assert client.wait() is None
    assert deleted.deleted == 1
    before = client.records("a")
    client.kill()
    client = Client(tmp_path / "data", file_bytes=8192)
    topic = client.engine.topic("a")
    assert client.records("a") == before
    assert (topic.count, topic.start_seq, topic.cap_floor) == (4, 2, 2)
    client.kill()


def test_a_long_round_writes_checkpoints_and_frees_log_files_before_its_end(client: Sealer) -> None:
    fill(client, "a", rounds=60)
    before, waiting = seen(client), client.wal.count_full_files(client.sealing.reclaim.replay_from)
    assert waiting > 8
    client.seal()
    assert client.sealing.reclaim.sealed == waiting
    assert client.sealing.checkpoints.written == -(-waiting // sealing.FILES_PER_CHECKPOINT)
    assert len(client.wal._bases) <= 2 * sealing.FILES_PER_CHECKPOINT + 1, (
        "what two checkpoints need, and the one that is written"
    )
    assert seen(client) == before


def test_no_checkpoint_contains_a_topic_whose_creation_was_undone(client: Sealer) -> None:
    fill(client, "a", rounds=2)
    client.in_flight = client.sealing.checkpoint()
    client.submit(put_topic.decide(client.engine.table, "ghost", decode_config(b"{}"), client.now))
    client.step()
    client.commits._roll_back(OSError(errno.ENOSPC, "full"))
    client.wal.resume(client.wal._start)
    with pytest.raises(OSError, match="undone"):
        client.seal()
    assert client.sealing.checkpoints.written == 0
    client.checkpoint()
    client.kill()
    again = client.again()
    assert [*again.engine.topics] == ["a"]
    again.kill()


# Routers


@pytest.mark.slow
@pytest.mark.parametrize("is_late", [False, True])
def test_a_change_at_any_step_of_a_checkpoint_survives_a_restart(
    tmp_path: Path, is_late: bool
) -> None:
    step = 0
    while True:
        client = Sealer(tmp_path / f"{step}")
        busy(client)
        client.append("t", 1)
        client.in_flight = client.sealing.checkpoint()
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
