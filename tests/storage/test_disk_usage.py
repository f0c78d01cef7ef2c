"""Disk usage: allocated bytes of files that may be created and removed at any time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from topics.storage.disk_usage import BLOCK_BYTES, ShardFolders, disk_usage

MIB = 1 << 20


@pytest.fixture
def folders(tmp_path: Path) -> ShardFolders:
    found = ShardFolders._make(tmp_path / name for name in ShardFolders._fields)
    for folder in found:
        folder.mkdir()
    return found


def test_each_folder_counts_its_own_files(folders: ShardFolders) -> None:
    for mib, folder in enumerate(folders, start=1):
        for name in ("a", "b"):
            file = folder / name
            file.write_bytes(bytes(mib * MIB))
            with file.open("rb") as opened:
                os.fsync(opened.fileno())  # Some file systems allocate blocks only at a sync
    found = disk_usage(folders)
    sizes = (found.log, found.blobs, found.segments, found.checkpoints)
    # Some file systems allocate a little more for a file.
    assert [round(size / MIB) for size in sizes] == [2, 4, 6, 8]
    at = os.statvfs(folders.log)
    assert found.free == pytest.approx(at.f_bavail * at.f_frsize, rel=0.1)


def test_a_hole_takes_no_disk_space(folders: ShardFolders) -> None:
    with (folders.segments / "1.seg").open("wb") as file:
        file.truncate(64 * MIB)
    assert disk_usage(folders).segments < MIB
    assert (folders.segments / "1.seg").stat().st_blocks * BLOCK_BYTES < MIB


def test_the_time_of_the_newest_checkpoint_is_reported(folders: ShardFolders) -> None:
    assert disk_usage(folders).checkpoint_ts == 0
    checkpoints = ((f"{1:016x}.ckpt", 1_000), (f"{2:016x}.ckpt", 2_000))
    for name, second in (*checkpoints, ("next.reserve", 3_000), ("copy.ckpt", 4_000)):
        (folders.checkpoints / name).touch()
        os.utime(folders.checkpoints / name, (second, second))
    assert disk_usage(folders).checkpoint_ts == 2_000_000
