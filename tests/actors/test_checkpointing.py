"""What a checkpoint may say while the shard goes on."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import trio

from tests.storage.log_support import Client
from topics.actors.shard.sealing.sealing import Sealing
from topics.formats.api.requests import TagMatch
from topics.storage.wal.file import NoRoom


def test_a_checkpoint_that_saw_what_a_full_disk_undid_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(tmp_path / "data")
    client.append("a", "stays")
    before, wal = client.wal.position, client.wal
    going = client.engine.delete("a", False, client.now)
    assert going is not None
    client.commits.submit(going, None)

    def no_room(*, sync: bool) -> None:
        assert sync
        client.commits._lose(NoRoom(errno.ENOSPC, "no room"))
        wal.resume(before)

    with monkeypatch.context() as patch:
        patch.setattr(wal, "flush", no_room)
        with pytest.raises(OSError, match="undone"):
            trio.run(Sealing(client.shard, client.commits).checkpoint)
    client.kill()
    client = Client(tmp_path / "data")
    assert b"stays" in client.records("a")
    client.kill()


def test_a_delete_after_a_checkpoint_brings_back_nothing_that_a_cap_took_before_it(
    tmp_path: Path,
) -> None:
    client = Client(tmp_path / "data", file_bytes=8192)
    client.put("a", cap_records=5, durability="fsync")
    for number in range(1, 6):
        client.append("a", records=[{"data": number, "tag": f"t{number}"}])
    client.append("other", "x" * 3000)
    client.append("other", "x" * 3000)
    client.put("last", durability="fsync")  # everything is synced: nobody would tell the checkpoint
    sealing = Sealing(client.shard, client.commits)
    trio.run(sealing._round)
    assert sealing.checkpoints.written == 1
    client.append("a", 6)
    deleted = client.engine.delete_records("a", None, TagMatch("Eq", "t3"), client.now)
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
