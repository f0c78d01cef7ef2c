"""The log as its loop uses it: consecutive files, waiting and stopping."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.support.log import LossyDisk, failing
from tests.support.wal import (
    FILE_BYTES,
    ROOM,
    Log,
    frame,
    frames_on_disk,
    hand_over,
    start,
)
from topics.formats.disk.frames import (
    FrameKind,
)
from topics.formats.disk.wal import FILE_HEADER_BYTES
from topics.storage.wal.log_file import NoSpace, WalFile

# Files


def test_a_full_log_file_is_synced_before_the_next_one_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wal = start(tmp_path / "wal")
    order: list[str] = []
    real_sync, real_create = WalFile.sync, WalFile.create

    def sync(file: WalFile) -> None:
        order.append(f"sync {file.base}")
        real_sync(file)

    def create(file: WalFile, spare: Path | None) -> None:
        order.append(f"create {file.base}")
        real_create(file, spare)

    monkeypatch.setattr(WalFile, "sync", sync)
    monkeypatch.setattr(WalFile, "create", create)
    length = frame(1000).length
    fit = ROOM // length
    for _ in range(2 * fit + 1):
        wal.append(frame(1000))
    wal.flush(sync=False)
    wal.stop()
    second, third = fit * length, 2 * fit * length
    assert order == [
        "create 0",
        "sync 0",
        f"create {second}",
        f"sync {second}",
        f"create {third}",
        f"sync {third}",
    ]


def test_a_frame_larger_than_a_file_gets_a_file_of_its_size(wal: Log) -> None:
    for size in (10, 100_000, 10):
        wal.append(frame(size))
    wal.flush(sync=True)
    wal.wait_synced()
    sizes = [path.stat().st_size for path in sorted(wal.folder.glob("*.wal"))]
    assert sizes == [FILE_BYTES, FILE_HEADER_BYTES + frame(100_000).length, FILE_BYTES]
    assert len(frames_on_disk(wal.folder)) == 3


# Waiting and stopping


def test_waiting_for_the_disk_raises_the_error_of_the_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wal = start(tmp_path / "wal")
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", failing(errno.ENOSPC))
        wal.append(frame())
        wal.flush(sync=True)
        with pytest.raises(NoSpace):
            wal.wait_synced()
    wal.resume(0)
    wal.append(frame())
    wal.flush(sync=True)
    wal.wait_synced()
    assert wal.synced_lsn == wal.next_lsn
    wal.stop()


def test_a_stop_writes_and_syncs_all_appended_frames(tmp_path: Path) -> None:
    wal = start(tmp_path / "wal")
    hand_over(wal, frame(seq=1))
    wal.append(frame(seq=2))
    wal.stop()
    assert wal.synced_lsn == wal.next_lsn
    assert [header.first_seq for header in frames_on_disk(wal.folder)] == [1, 2]


@pytest.mark.parametrize("call", ["pwritev", "fdatasync"])
def test_a_stop_raises_if_the_last_frames_did_not_reach_the_disk(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wal = start(tmp_path / "wal")
    hand_over(wal, frame(seq=1))
    wal.append(frame(seq=2))
    monkeypatch.setattr(os, call, failing(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        wal.stop()


def test_the_old_name_of_a_reused_log_file_is_durably_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = LossyDisk(monkeypatch)
    wal = start(tmp_path / "wal")
    for seq in range(1, 4):
        wal.append(frame(ROOM - 200, seq))
        wal.flush(sync=True)
    wal.wait_synced()
    retired = wal.detach(wal.full_files()[-1][1])
    wal.writer.spares.add(retired)
    disk.power_loss(tmp_path / "wal", tmp_path / "left")
    wal.stop()
    assert retired
    assert not {file.path.name for file in retired} & {
        path.name for path in (tmp_path / "left").iterdir()
    }


def test_bytes_that_router_frames_name_count_towards_a_full_file(wal: Log) -> None:
    hand_over(wal, frame(), sync=True)
    router = frame()._replace(kind=FrameKind.FORWARD, named_bytes=FILE_BYTES // 2)
    for _ in range(2):
        hand_over(wal, router, sync=True)
    assert wal.full_files() == []
    lsn = wal.next_lsn
    hand_over(wal, router, sync=True)
    assert wal.full_files() == [(0, lsn)]
    hand_over(wal, router, sync=True)
    assert wal.full_files() == [(0, lsn)]
    end = wal.next_lsn
    hand_over(wal, frame(), sync=True)
    assert wal.full_files() == [(0, lsn), (lsn, end)]


def test_an_ended_file_accepts_no_further_frame(wal: Log) -> None:
    hand_over(wal, frame(), sync=True)
    assert wal.may_name(0, 100)
    assert not wal.may_name(0, ROOM), "the next frame does not fit into the file"
    wal.end_file()
    assert not wal.may_name(0, 100)
    lsn = wal.next_lsn
    hand_over(wal, frame(), sync=True)
    assert (wal.base_of(lsn), wal.full_files()) == (lsn, [(0, lsn)])
    assert not wal.may_name(0, 100)
    assert wal.may_name(lsn, 100)
