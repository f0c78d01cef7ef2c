"""Data directory: one owner, one constant shard count, and no use of damaged files."""

from __future__ import annotations

import errno
import os
import stat
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.log import failing
from tests.support.program import Program
from topics.storage import data_dir
from topics.storage.data_dir import (
    DataDirectory,
    DataDirectoryDamaged,
    DataDirectoryInUse,
    NotADataDirectory,
    check_path,
    decode_meta,
    encode_meta,
    locked_for_reading,
)

ROOT = Path(__file__).parent.parent.parent


HOLD_THE_LOCK = """
import sys, pathlib
from topics.storage.data_dir import DataDirectory
held = DataDirectory(pathlib.Path(sys.argv[1]), shards=1)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "data"


def test_meta_has_the_documented_bytes() -> None:
    assert encode_meta(3).hex() == "746f706963736464010000000300000000000000db9dd230"
    assert decode_meta(encode_meta(3)) == (3, 0)
    assert decode_meta(encode_meta(3, 7)) == (3, 7)


def test_any_flipped_bit_and_any_cut_of_meta_is_detected() -> None:
    good = encode_meta(2)
    for bit in range(8 * len(good)):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError, match=r"offset (0|8|20)"):
            decode_meta(bytes(bad))
    for length in range(len(good)):
        with pytest.raises(ValueError, match=f"{length} bytes instead of 24"):
            decode_meta(good[:length])


def test_a_new_directory_is_private_and_keeps_its_shard_count(path: Path) -> None:
    first = DataDirectory(path, shards=2)
    assert (first.shards, first.is_new) == (2, True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert (path / "LOCK").read_text() == f"{os.getpid()}\n"
    first.close()
    again = DataDirectory(path, shards=5)
    assert (again.shards, again.is_new) == (2, False)
    again.close()
    names = sorted(str(each.relative_to(path)) for each in path.glob("*/*"))
    assert names == [
        f"{part}/{shard}"
        for part in ("blob", "checkpoint", "segment", "wal")
        for shard in ("00", "01")
    ]
    assert sorted(each.name for each in path.iterdir() if each.is_file()) == ["LOCK", "meta"]


def test_a_second_owner_is_refused_with_the_pid_of_the_first(path: Path) -> None:
    with Program(
        [sys.executable, "-c", HOLD_THE_LOCK, str(path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as owner:
        assert owner.stdout
        assert owner.stdin
        assert owner.stdout.readline() == b"held\n"
        with pytest.raises(DataDirectoryInUse, match=rf"in use by process {owner.pid}$"):
            DataDirectory(path, shards=1)
        owner.stdin.close()
        owner.wait(10)
    DataDirectory(path, shards=1).close()


def test_a_forked_child_keeps_the_lock_after_its_parent_released_it(path: Path) -> None:
    directory = DataDirectory(path, shards=1)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    directory.close()
    with pytest.raises(DataDirectoryInUse):
        DataDirectory(path, shards=1)
    os.close(writing)
    os.waitpid(child, 0)
    DataDirectory(path, shards=1).close()


def test_damaged_meta_is_refused_with_path_and_offset_and_releases_the_lock(path: Path) -> None:
    DataDirectory(path, shards=2).close()
    good = (path / "meta").read_bytes()
    (path / "meta").write_bytes(good[:12] + b"\x07" + good[13:])
    for _ in range(2):
        with pytest.raises(DataDirectoryDamaged, match=rf"{path}/meta: offset 20: wrong checksum"):
            DataDirectory(path, shards=2)
    (path / "meta").write_bytes(good)
    DataDirectory(path, shards=2).close()


def test_a_directory_with_foreign_files_is_not_taken_over(path: Path) -> None:
    path.mkdir(parents=True)
    (path / "thesis.tex").touch()
    with pytest.raises(DataDirectoryDamaged, match=r"not empty: it contains thesis\.tex"):
        DataDirectory(path, shards=1)
    with pytest.raises(NotADataDirectory, match=r"not empty: it contains thesis\.tex"):
        check_path(path)
    assert [entry.name for entry in path.iterdir()] == ["thesis.tex"], (
        "no file of the server remains"
    )


def test_a_directory_without_its_meta_is_damaged_and_not_a_wrong_path(path: Path) -> None:
    (path / "wal").mkdir(parents=True)
    check_path(path)
    with pytest.raises(DataDirectoryDamaged, match="it contains wal"):
        DataDirectory(path, shards=1)
    with (
        pytest.raises(DataDirectoryDamaged, match="contains wal, but the file meta is missing"),
        locked_for_reading(path),
    ):
        pass


def test_a_path_that_is_not_a_directory_is_reported_by_its_name(path: Path) -> None:
    path.parent.mkdir()
    check_path(path)
    path.touch()
    for wrong_path in (path, path / "deeper" / "still"):
        with pytest.raises(NotADataDirectory, match=f"{path} is not a directory"):
            check_path(wrong_path)


def test_an_empty_mounted_volume_is_accepted(path: Path) -> None:
    (path / "lost+found").mkdir(parents=True)
    DataDirectory(path, shards=1).close()
    assert (path / "meta").exists()


def test_a_crash_before_the_rename_leaves_a_directory_that_is_still_new(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def power_cut(*_args: object) -> None:
        raise OSError("power cut")

    with monkeypatch.context() as crash:
        crash.setattr(Path, "replace", power_cut)
        with pytest.raises(OSError, match="power cut"):
            DataDirectory(path, shards=2)
    again = DataDirectory(path, shards=3)
    assert (again.shards, again.is_new) == (3, True)
    again.close()


def test_meta_is_synced_before_its_rename_and_the_directory_after(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, rename = os.fsync, Path.replace

    def recording_fsync(descriptor: int) -> None:
        steps.append("sync " + Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    def recording_rename(self: Path, target: Path) -> Path:
        steps.append("rename")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", recording_fsync)
    monkeypatch.setattr(Path, "replace", recording_rename)
    DataDirectory(path, shards=1).close()
    at = steps.index("rename")
    assert steps[at - 1 : at + 2] == ["sync meta.new", "rename", "sync data"]


def test_every_parent_folder_of_a_new_directory_is_synced_before_its_meta(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This includes a folder of a process that was killed before it could sync it."""
    path.parent.mkdir()
    synced: list[Path] = []
    fsync = os.fsync

    def recording_fsync(descriptor: int) -> None:
        fsync(descriptor)
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())

    monkeypatch.setattr(os, "fsync", recording_fsync)
    DataDirectory(path, shards=1).close()
    before = synced[: synced.index(path / "meta.new")]
    assert {*before} >= {*path.parents}
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_a_server_acquires_the_lock_on_a_full_disk(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    DataDirectory(path, shards=1).close()
    monkeypatch.setattr(os, "pwrite", failing(errno.ENOSPC))
    DataDirectory(path, shards=1).close()


def test_the_documented_table_of_meta_matches_the_struct() -> None:
    assert data_dir.META.size == 24
    assert struct.calcsize("<8sIII") == data_dir._CRC_AT


def test_readers_and_the_server_exclude_each_other(
    data: Path,
) -> None:
    directory = DataDirectory(data, shards=1)
    with pytest.raises(DataDirectoryInUse, match=str(os.getpid())), locked_for_reading(data):
        pass
    directory.close()
    with locked_for_reading(data), locked_for_reading(data), pytest.raises(DataDirectoryInUse):
        DataDirectory(data, shards=1)
    (data / "LOCK").unlink()
    with locked_for_reading(data) as shards:
        assert shards == 1
