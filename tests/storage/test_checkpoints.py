"""Checkpoints: files of chunks, and the disk space that is reserved for the next one."""

from __future__ import annotations

import errno
import os
import tracemalloc
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.support.wal import leave_space
from topics.formats.disk.checkpoint import CHUNK_BYTES, CHUNK_HEADER_BYTES, HEADER_BYTES, Item
from topics.storage import checkpoints
from topics.storage.disk import Damaged


def items() -> list[Item]:
    return [{"segments": [], "boot": "b"}]


def many(count: int = 5_000) -> Iterator[Item]:
    """Yield the item of the shard and more items, enough for several chunks."""
    yield from items()
    for number in range(count):
        yield {"id": number, "keys": [[f"{number:060}", 1, 1, 1]]}


def fill_once(patch: pytest.MonkeyPatch) -> list[int]:
    """Simulate a full disk for one write. The returned list is empty afterwards."""
    real, pending_failures = os.pwritev, [1]

    def full_once(fd: int, chunks: list[bytes], offset: int) -> int:
        if pending_failures:
            pending_failures.pop()
            raise OSError(errno.ENOSPC, "full")
        return real(fd, chunks, offset)

    patch.setattr(os, "pwritev", full_once)
    leave_space(patch, 0)
    return pending_failures


def test_a_checkpoint_on_a_full_disk_uses_the_reserved_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints.reserve_space(tmp_path)
    inode = (tmp_path / checkpoints.RESERVE_NAME).stat().st_ino
    with monkeypatch.context() as patch:
        fill_once(patch)
        checkpoints.write(tmp_path, 8, 0, items())
    (path,) = tmp_path.glob("*.ckpt")
    assert path.stat().st_ino == inode
    assert [found.lsn for found in checkpoints.intact_checkpoints(tmp_path)] == [8]
    checkpoints.write(tmp_path, 16, 0, items())
    assert (tmp_path / checkpoints.RESERVE_NAME).stat().st_size == checkpoints.RESERVE_MIN_BYTES
    assert [found.lsn for found in checkpoints.intact_checkpoints(tmp_path)] == [16, 8]


def test_the_reserve_for_a_checkpoint_is_twice_the_size_of_the_last_one(tmp_path: Path) -> None:
    large = {"id": 1, "keys": [["k" * 700_000, 1, 1, 1]]}
    checkpoints.write(tmp_path, 8, 0, [*items(), large])
    reserve = tmp_path / checkpoints.RESERVE_NAME
    assert reserve.stat().st_size == 2 * next(tmp_path.glob("*.ckpt")).stat().st_size
    assert reserve.stat().st_blocks * 512 >= reserve.stat().st_size


def test_a_checkpoint_moves_into_the_reserve_if_the_disk_fills_up_midway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints.write(tmp_path, 8, 0, many())
    checkpoints.reserve_space(tmp_path, 1 << 20)
    inode = (tmp_path / checkpoints.RESERVE_NAME).stat().st_ino
    real, calls = os.pwritev, count(1)

    def full_at_the_second(fd: int, chunks: list[bytes], offset: int) -> int:
        if next(calls) == 2:
            raise OSError(errno.ENOSPC, "full")
        return real(fd, chunks, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", full_at_the_second)
        leave_space(patch, 0)
        checkpoints.write(tmp_path, 16, 0, many())
    newest, older = checkpoints.intact_checkpoints(tmp_path)
    assert newest.path.stat().st_ino == inode
    assert [*newest.items()] == [*older.items()] == [*many()][1:]
    assert not [*tmp_path.glob("*.tmp")]


def test_an_abandoned_checkpoint_restores_the_reserve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints.reserve_space(tmp_path)
    before = {path.name: path.stat().st_ino for path in tmp_path.iterdir()}
    with monkeypatch.context() as patch:
        pending_failures = fill_once(patch)
        writer = checkpoints.CheckpointWriter(tmp_path)
        writer.write(b"a chunk")
        assert not pending_failures
        writer.abandon()
    assert {path.name: path.stat().st_ino for path in tmp_path.iterdir()} == before
    assert (tmp_path / checkpoints.RESERVE_NAME).stat().st_size == checkpoints.RESERVE_MIN_BYTES


@pytest.mark.parametrize("call", ["pwritev", "ftruncate", "fdatasync"])
def test_a_failed_checkpoint_leaves_the_previous_one_and_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    checkpoints.write(tmp_path, 8, 0, items())
    before = sorted(tmp_path.iterdir())

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(OSError, match="broken"):
            checkpoints.write(tmp_path, 16, 0, many())
    assert sorted(tmp_path.iterdir()) == before
    assert [found.lsn for found in checkpoints.intact_checkpoints(tmp_path)] == [8]


def test_a_checkpoint_moves_into_the_reserve_if_its_sync_finds_no_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints.reserve_space(tmp_path, 1 << 20)
    inode = (tmp_path / checkpoints.RESERVE_NAME).stat().st_ino
    real, pending_failures = os.fdatasync, [1]

    def full_once(fd: int) -> None:
        if pending_failures:
            pending_failures.pop()
            raise OSError(errno.ENOSPC, "full")
        real(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", full_once)
        leave_space(patch, 0)
        checkpoints.write(tmp_path, 8, 0, many())
    (found,) = checkpoints.intact_checkpoints(tmp_path)
    assert found.path.stat().st_ino == inode
    assert [*found.items()] == [*many()][1:]


def test_a_damaged_or_cut_checkpoint_is_skipped_in_favour_of_the_older_one(
    tmp_path: Path,
) -> None:
    checkpoints.write(tmp_path, 8, 0, items())
    checkpoints.write(tmp_path, 16, 0, many())
    newest = checkpoints.intact_checkpoints(tmp_path)[0].path
    good = newest.read_bytes()
    for at in (*range(HEADER_BYTES + CHUNK_HEADER_BYTES), len(good) // 2, len(good) - 1):
        if at // 4 == 2:  # Skip the version
            continue
        newest.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        assert [found.lsn for found in checkpoints.intact_checkpoints(tmp_path)] == [8], at
    for size in (0, 1, HEADER_BYTES, len(good) // 2, len(good) - 1):
        newest.write_bytes(good[:size])
        assert [found.lsn for found in checkpoints.intact_checkpoints(tmp_path)] == [8], size
    newest.write_bytes(good + b"x")
    assert [found.lsn for found in checkpoints.intact_checkpoints(tmp_path)] == [8]


def test_a_checkpoint_that_changes_while_it_is_read_is_damage(tmp_path: Path) -> None:
    checkpoints.write(tmp_path, 8, 0, many())
    (found,) = checkpoints.intact_checkpoints(tmp_path)
    content = bytearray(found.path.read_bytes())
    content[-1] ^= 1
    found.path.write_bytes(content)
    with pytest.raises(Damaged, match="changed while it was read"):
        [*found.items()]


def test_a_large_checkpoint_is_read_one_chunk_at_a_time(tmp_path: Path) -> None:
    checkpoints.write(tmp_path, 8, 0, many(20_000))
    (found,) = checkpoints.intact_checkpoints(tmp_path)
    size = found.path.stat().st_size
    assert size > 8 * CHUNK_BYTES
    tracemalloc.start()
    try:
        assert checkpoints.is_intact(found.path)
        peak_checked = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        assert sum(1 for _ in found.items()) == 20_000
        peak_read = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_checked < 4 * CHUNK_BYTES
    assert peak_read < 40 * CHUNK_BYTES < size * 5  # Values are larger than their bytes


def test_each_chunk_of_a_checkpoint_reports_progress(tmp_path: Path) -> None:
    checkpoints.write(tmp_path, 8, 0, many())
    reports: list[None] = []
    (found,) = checkpoints.intact_checkpoints(tmp_path, lambda: reports.append(None))
    assert len(reports) == -(-found.path.stat().st_size // (CHUNK_BYTES + 100)) > 1
