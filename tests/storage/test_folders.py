"""Folders that are held open: files are created and removed in the open folder, even if another
folder is at its path.
"""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.log import START
from tests.support.wal import frame
from topics.storage import checkpoints
from topics.storage.data_dir import (
    MOVED,
    UNLOCKED,
    DataDirectory,
    DataDirectoryInUse,
    locked_for_reading,
)
from topics.storage.disk import Damaged, preserve_damaged
from topics.storage.folders import DirectoryLost, Folders, shown, unchecked
from topics.storage.recovery.shard_recovery import recover
from topics.storage.wal.blobs import BlobStore

FILE_BYTES = 1 << 16


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def directory(path: Path) -> Iterator[DataDirectory]:
    directory = DataDirectory(path, shards=2)
    yield directory
    directory.close()


def files(path: Path) -> dict[str, bytes]:
    found = (each for each in path.rglob("*") if each.is_file())
    return {str(each.relative_to(path)): each.read_bytes() for each in found}


def move(path: Path) -> Path:
    """Put another directory at the path and return the new path of the first one."""
    elsewhere = path.rename(path.with_name("elsewhere"))
    shutil.copytree(elsewhere, path)
    return elsewhere


def test_all_files_are_written_and_removed_in_the_held_directory(
    directory: DataDirectory, path: Path
) -> None:
    """This also holds before any check has noticed the move."""
    folders = dataclasses.replace(directory.folders[0], check=unchecked)
    shard = recover(folders, 0, 2, START, wal_file_bytes=FILE_BYTES, wal_sync_ms=60_000)
    for number in range(3):
        checkpoints.write(folders.checkpoint, number, 0, iter([{"last_epoch": 1}]))
    elsewhere = move(path)
    at_path, before = files(path), files(elsewhere)
    checkpoints.write(folders.checkpoint, 9, 0, iter([{"last_epoch": 1}]))
    blob = BlobStore(folders.blob).begin(1, 1, 4)
    blob.write([b"body"])
    blob.finish()
    shard.wal.append(frame(50_000))
    shard.wal.append(frame(50_000))  # Written to the next file
    shard.wal.flush(sync=False)
    shard.wal.stop()
    preserve_damaged(next(folders.blob.glob("*.blob")))
    after = files(elsewhere)
    assert files(path) == at_path
    added = {name.rpartition(".")[2] for name in after.keys() - before.keys()}
    assert added >= {"ckpt", "blob", "damaged", "wal"}
    assert before.keys() - after.keys(), "the oldest checkpoint is removed"


def test_each_shard_has_its_own_folders_with_the_same_file_names(
    directory: DataDirectory, path: Path
) -> None:
    for shard, folders in enumerate(directory.folders):
        plain = Folders.under(path, shard)
        for one, other in zip((folders.root, *folders.own), (plain.root, *plain.own), strict=True):
            assert one.samefile(other)
        for folder, named in zip(folders.own, plain.own, strict=True):
            assert folders.name_of(folder / "x") == plain.name_of(named / "x")
        assert folders.name_of(folders.root / "meta") == plain.name_of(path / "meta") == "meta"


def test_messages_show_the_current_or_last_path_of_a_file(
    directory: DataDirectory, path: Path
) -> None:
    folder = directory.folders[1].wal
    file = folder / "0.wal"
    assert shown(f"at {file}: {file}") == f"at {path}/wal/01/0.wal: {path}/wal/01/0.wal"
    path.rename(path.with_name("elsewhere"))
    damage = Damaged(file, 7, "torn")
    assert str(damage) == f"{path.with_name('elsewhere')}/wal/01/0.wal, offset 7: torn"
    assert damage.path == file, "the path of the damage can be opened"
    (path.with_name("elsewhere") / "wal" / "01").rmdir()
    assert shown(str(file)) == f"{path.with_name('elsewhere')}/wal/01/0.wal"


def unlink_lock(path: Path) -> None:
    (path / "LOCK").unlink()


def replace_lock(path: Path) -> None:
    (path / "LOCK").rename(path / "LOCK.old")
    (path / "LOCK").touch()


def replace_a_folder(path: Path) -> None:
    (path / "segment" / "00").rename(path / "old")
    (path / "segment" / "00").mkdir()


def replace_with_a_file(path: Path) -> None:
    move(path)
    shutil.rmtree(path)
    path.touch()


def link_elsewhere(path: Path) -> None:
    """Move the directory and link the same LOCK file into a new one."""
    elsewhere = path.rename(path.with_name("elsewhere"))
    path.mkdir()
    (path / "LOCK").hardlink_to(elsewhere / "LOCK")


@pytest.mark.parametrize(
    ("act", "reason", "is_quick"),
    [
        (move, MOVED, True),
        (shutil.rmtree, MOVED, True),
        (replace_with_a_file, MOVED, True),
        (link_elsewhere, MOVED, False),
        (replace_a_folder, MOVED, False),
        (unlink_lock, UNLOCKED, True),
        (replace_lock, UNLOCKED, True),
    ],
)
def test_a_lost_directory_is_detected(
    directory: DataDirectory,
    path: Path,
    act: Callable[[Path], object],
    reason: str,
    is_quick: bool,
) -> None:
    check = directory.folders[0].check
    check()
    check(quick=True)
    act(path)
    with pytest.raises(DirectoryLost, match=reason):
        check()
    if is_quick:
        with pytest.raises(DirectoryLost, match=reason):
            check(quick=True)


def test_a_directory_behind_a_symlink_is_lost_when_the_link_changes(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "one", target_is_directory=True)
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    directory = DataDirectory(link, shards=1)
    directory.folders[0].check()
    link.unlink()
    link.symlink_to(tmp_path / "two", target_is_directory=True)
    with pytest.raises(DirectoryLost):
        directory.folders[0].check()
    directory.close()


@pytest.mark.parametrize("code", [errno.EBADF, errno.EINVAL, errno.EOPNOTSUPP])
def test_the_lock_of_meta_excludes_others_if_directories_cannot_be_locked(
    path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    flock = fcntl.flock

    def no_folders(fd: int, kind: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(code, os.strerror(code))
        flock(fd, kind)

    monkeypatch.setattr(fcntl, "flock", no_folders)
    directory = DataDirectory(path, shards=1)
    (path / "LOCK").unlink()
    with pytest.raises(DataDirectoryInUse):
        DataDirectory(path, shards=1)
    with pytest.raises(DataDirectoryInUse), locked_for_reading(path):
        pass
    directory.close()
    DataDirectory(path, shards=1).close()


def test_a_folder_that_cannot_be_opened_fails_only_its_shard(path: Path) -> None:
    DataDirectory(path, shards=2).close()
    (path / "wal" / "01").rmdir()
    (path / "wal" / "01").touch()
    directory = DataDirectory(path, shards=2)
    try:
        recover(
            directory.folders[0], 0, 2, START, wal_file_bytes=FILE_BYTES, wal_sync_ms=1
        ).wal.stop()
        with pytest.raises(OSError, match="01"):
            recover(directory.folders[1], 1, 2, START, wal_file_bytes=FILE_BYTES, wal_sync_ms=1)
    finally:
        directory.close()


def test_a_machine_without_proc_is_refused_with_a_message(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from topics.storage import data_dir

    monkeypatch.setattr(data_dir, "held_path", lambda fd: Path(f"/no proc/{fd}"))
    with pytest.raises(OSError, match="needs /proc"):
        DataDirectory(path, shards=1)
