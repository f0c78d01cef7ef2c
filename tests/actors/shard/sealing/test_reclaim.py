"""Tests of reclaiming: unneeded space is freed after two checkpoints."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.actors.shard.sealing.sealing_support import (
    FILE_BYTES,
    Sealer,
    Seen,
    check_restart,
    copy,
    damage_newest_checkpoint,
    delete,
    files,
    fill,
    findings,
    free_all,
    seen,
)
from tests.support.log import append_streamed, failing
from topics.formats.disk.wal import FILE_HEADER_BYTES
from topics.storage import checkpoints
from topics.storage.segments.segment_store import SegmentStore
from topics.storage.wal.spares import SPARES_MAX, SpareFiles


def test_the_space_of_deletes_is_freed_on_a_full_disk(
    client: Sealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(client, "big", rounds=30)
    client.seal()
    fill(client, "a", rounds=10)
    client.delete("big")
    before = len(files(client.path, "segment"))
    monkeypatch.setattr(SegmentStore, "begin", failing(errno.ENOSPC))
    for _ in range(3):
        client.sealing.checkpoints.written_at = float("-inf")
        with pytest.raises(OSError):
            client.seal()
    assert len(files(client.path, "segment")) < before


@pytest.mark.slow
def test_space_is_freed_after_two_checkpoints_and_an_idle_shard_writes_none(
    client: Sealer,
) -> None:
    used, before = mostly_deleted(client)
    assert free_all(client) <= 3
    assert disk_bytes(client) < used * 0.6
    assert len(files(client.path, "checkpoint")) == checkpoints.CHECKPOINTS_KEPT
    assert len([path for path in files(client.path, "wal") if path.suffix == ".wal"]) <= 3
    assert (
        len([path for path in files(client.path, "wal") if path.suffix == ".spare"]) <= SPARES_MAX
    )
    assert seen(client) == before
    written = client.sealing.checkpoints.written
    for _ in range(5):
        client.sealing.checkpoints.written_at = float("-inf")
        client.seal()
    assert client.sealing.checkpoints.written == written, "an idle shard writes no checkpoints"
    delete(client, "kept", before_seq=1 << 40)
    assert free_all(client) <= 3
    assert disk_bytes(client) < used * 0.2


def disk_bytes(client: Sealer) -> int:
    return sum(path.stat().st_blocks * 512 for path in files(client.path, "segment"))


def mostly_deleted(client: Sealer) -> tuple[int, Seen]:
    """Seal three topics and delete more than half of the records. Return the space used before and
    the observable state after.
    """
    fill(client, "kept", "deleted", "shrinks", rounds=40, size=300)
    client.seal()
    used = disk_bytes(client)
    client.delete("deleted")
    delete(client, "shrinks", before_seq=60)
    return used, seen(client)


@pytest.mark.slow
def test_space_that_was_not_freed_before_a_kill_is_freed_after_the_start(client: Sealer) -> None:
    used, before = mostly_deleted(client)
    client.kill()
    again = client.again()
    free_all(again)
    assert disk_bytes(again) < used * 0.6
    assert seen(again) == before
    again.kill()
    third = again.again()
    assert free_all(third) <= 3
    assert seen(third) == before
    third.kill()


def test_old_bytes_in_a_recycled_log_file_are_not_a_torn_tail(client: Sealer) -> None:
    for _ in range(40):
        fill(client, "a", rounds=1)
        client.seal()
    while client.wal.next_lsn - client.wal._bases[-1] > FILE_BYTES // 8:
        client.append("a", 1)
    before = seen(client)
    client.kill()
    (last,) = [
        path
        for path in files(client.path, "wal")
        if path.name.startswith(f"{client.wal._bases[-1]:016x}.wal")
    ]
    assert any(
        last.read_bytes()[FILE_HEADER_BYTES + client.wal.next_lsn - client.wal._bases[-1] :]
    ), "the file contains bytes of earlier frames"
    assert findings(client.path) == []
    again = client.again()
    assert again.shard.cut_bytes == 0
    assert seen(again) == before
    again.kill()


@pytest.mark.slow
def test_recycled_log_files_are_found_after_a_power_loss_lost_their_names(
    client: Sealer, tmp_path: Path
) -> None:
    fill(client, "a", rounds=60)
    free_all(client)
    recycled = [path.name for path in files(client.path, "wal") if path.suffix == ".spare"]
    assert len(recycled) == SPARES_MAX
    files_now = len(client.wal._bases)
    while len(client.wal._bases) < files_now + SPARES_MAX:
        client.append("a", 1)
    before, bases = seen(client), client.wal._bases[-SPARES_MAX:]
    client.kill()
    names = dict(zip([f"{base:016x}.wal" for base in bases], recycled, strict=True))
    for lost in ([*names], [*names][:1], [*names][1:]):
        data = copy(client.path, tmp_path / "copy")
        for name in lost:
            (data / "wal" / "00" / name).rename(data / "wal" / "00" / names[name])
        assert findings(data) == []
        again = Sealer(data, now=client.now)
        assert seen(again) == before
        assert all((data / "wal" / "00" / name).exists() for name in names)
        again.kill()


def spare_inodes(client: Sealer) -> set[int]:
    """Return the spare log files."""
    spares = [path for path in files(client.path, "wal") if path.suffix == ".spare"]
    return {path.stat().st_ino for path in spares}


def test_a_spare_log_file_is_used_after_a_restart_and_is_not_read(client: Sealer) -> None:
    fill(client, "a", rounds=60)
    free_all(client)
    before = seen(client)
    spares = spare_inodes(client)
    assert spares
    client.kill()
    again = client.again()
    assert seen(again) == before
    while len(again.wal._bases) < 4:
        again.append("a", 1)
    inodes = {path.stat().st_ino for path in files(again.path, "wal") if path.suffix == ".wal"}
    assert inodes >= spares
    free_all(again)
    spares = spare_inodes(again)
    assert spares
    again.kill()
    other = again.again(file_bytes=2 * client.wal.file_bytes)
    other.kill()  # also stops its threads: one may be creating a spare, which is empty at first
    fresh = {path for path in files(other.path, "wal") if path.suffix == ".spare"}
    assert {path.stat().st_size for path in fresh} <= {other.wal.file_bytes}


def test_a_log_file_whose_blobs_are_freed_first_is_not_damaged(
    client: Sealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.append("a", 0)
    blob = append_streamed(client, "a", *["x" * 3000] * 10)
    fill(client, "a", rounds=4)
    before = seen(client)
    monkeypatch.setattr(SpareFiles, "add", failing(errno.EIO))
    with pytest.raises(OSError):
        client.checkpoint()
    assert not blob.exists()
    assert files(client.path, "wal")[0].name.startswith("0" * 16)
    assert findings(client.path) == []
    client.kill()
    damage_newest_checkpoint(client.path)
    check_restart(client, before)
