"""Durable files: a file gets its name when it is complete, and errors are reported."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.log import failing
from tests.support.wal import leave_space
from topics.formats.disk.wal import FileHeader
from topics.storage import checkpoints, disk
from topics.storage.disk import MARGIN_BYTES, AtomicFile, allocate, check_space, write_back
from topics.storage.wal.blobs import BlobStore
from topics.storage.wal.log_file import WalFile
from topics.storage.wal.spares import prepare

# Functions for durable files: check of free space before allocation, zeros, write-back


SIZE = 64 << 10


MAKERS: list[Callable[[Path], object]] = [
    lambda folder: WalFile(folder, FileHeader(0, 0, 0, SIZE), SIZE).create(),
    lambda folder: prepare(folder, "a", SIZE),
    lambda folder: BlobStore(folder).begin(1, 1, SIZE),
    lambda folder: checkpoints.reserve_space(folder),
]


@pytest.mark.parametrize("make", MAKERS)
def test_a_file_without_enough_disk_space_is_not_allocated_even_briefly(
    make: Callable[[Path], object], tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        leave_space(patch, SIZE)
        with pytest.raises(OSError, match="No space left") as raised:
            make(tmp_path)
    assert raised.value.errno == errno.ENOSPC
    assert sum(path.stat().st_blocks for path in tmp_path.iterdir()) == 0


def test_allocation_keeps_a_margin_and_is_tried_if_the_free_space_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_space(monkeypatch, MARGIN_BYTES + SIZE)
    check_space(tmp_path, SIZE)
    with pytest.raises(OSError, match="No space left"):
        check_space(tmp_path, SIZE + 512)
    monkeypatch.setattr(
        os, "statvfs", lambda _: SimpleNamespace(f_blocks=0, f_bavail=0, f_frsize=4096)
    )
    with pytest.raises(OSError, match="Input/output error"):
        allocate(0, tmp_path, SIZE)


def test_a_write_back_error_is_raised_because_the_sync_would_not_report_it(
    tmp_path: Path,
) -> None:
    read, write = os.pipe()
    with pytest.raises(OSError, match="Illegal seek"):
        write_back(write, 0, 4096)
    os.close(read)
    os.close(write)


def test_zeros_are_written_if_the_file_system_cannot_allocate_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 10_000)
    with path.open("r+b") as file:
        monkeypatch.setattr(disk, "_fallocate", None)
        disk.zero(file.fileno(), 100, 9_000)
    assert path.read_bytes() == b"x" * 100 + bytes(9_000) + b"x" * 900


# AtomicFile: a file gets its name when it is completely on the disk


def test_a_published_file_replaces_the_previous_one(tmp_path: Path) -> None:
    path = tmp_path / "name.kind"
    path.write_bytes(b"before")
    file = AtomicFile(path, ".tmp")
    with open(file.fd, "wb", closefd=False) as stream:
        stream.write(b"after")
    assert path.read_bytes() == b"before"
    file.publish()
    assert path.read_bytes() == b"after"
    assert [*tmp_path.iterdir()] == [path]


def test_an_abandoned_file_is_removed_and_can_be_abandoned_again(tmp_path: Path) -> None:
    file = AtomicFile(tmp_path / "name.kind", ".tmp")
    file.abandon()
    file.abandon()
    assert [*tmp_path.iterdir()] == []


def test_a_file_whose_name_cannot_be_synced_is_removed_under_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = AtomicFile(tmp_path / "name.kind", ".tmp")
    monkeypatch.setattr("topics.storage.disk.sync_directory", failing(errno.EIO))
    with pytest.raises(OSError):
        file.publish()
    file.abandon()
    assert [*tmp_path.iterdir()] == []
