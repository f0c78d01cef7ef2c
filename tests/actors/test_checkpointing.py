"""What a checkpoint may say while the shard goes on."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import trio

from tests.storage.log_support import Client
from topics.actors.sealing import Sealing
from topics.storage.wal_file import NoRoom


def test_a_checkpoint_that_saw_what_a_full_disk_undid_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
