"""A log without space for its next file continues in the current one."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.log import failing
from tests.support.wal import (
    Gate,
    Log,
    frame,
    frames_on_disk,
    hand_over,
)
from topics.formats.disk.frames import (
    Frame,
    FrameKind,
)
from topics.storage.folders import DirectoryLost
from topics.storage.wal.log_file import NoSpace

# A full disk


def test_a_log_file_that_is_half_full_has_a_spare_for_the_next_one(wal: Log) -> None:
    hand_over(wal, frame(4000), sync=True)
    deadline = time.monotonic() + 5
    while not wal.writer.spares:
        assert time.monotonic() < deadline, "no spare file was created"
        time.sleep(0.001)
    (inode,) = [spare.stat().st_ino for spare in wal.folder.glob("*.spare")]
    hand_over(wal, frame(3000, seq=2), sync=True)
    wal.wait_synced()
    assert inode in {path.stat().st_ino for path in wal.folder.glob("*.wal")}
    assert [header.first_seq for header in frames_on_disk(wal.folder)] == [1, 2]


@pytest.mark.usefixtures("no_spares")
def test_without_space_for_a_new_file_the_log_continues_in_the_old_file(
    wal: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = hand_over(wal, frame(2000, seq=1), sync=True)
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", failing(errno.ENOSPC))
        refused = hand_over(wal, frame(3000, seq=2), frame(10, seq=3))
    assert isinstance(refused.error, NoSpace)
    assert (refused.written, refused.synced) == (before.written, before.written)
    assert wal.failed is None
    wal.resume(refused.written)
    assert hand_over(wal, frame(100, seq=4)).written == wal.next_lsn  # Fits the old file
    hand_over(wal, frame(3000, seq=5), sync=True)
    wal.wait_synced()
    assert [header.first_seq for header in frames_on_disk(wal.folder)] == [1, 4, 5]


@pytest.mark.usefixtures("no_spares")
def test_a_delete_may_use_the_reserve_when_an_append_finds_no_space(
    wal: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand_over(wal, frame(4000), sync=True)
    wal.writer.spares.fill_reserve()
    assert not wal.lacks_space
    delete = Frame(FrameKind.DELETE, 1, 0, 0, 10, parts=(bytes(160),))
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", failing(errno.ENOSPC))
        for frames in ([frame(10)], [delete, frame(10)]):
            refused = hand_over(wal, *frames)
            assert isinstance(refused.error, NoSpace)
            assert wal.lacks_space
            wal.resume(refused.written)
        assert hand_over(wal, delete, sync=True).synced == wal.next_lsn
        assert not wal.allocate_files()
    assert [header.kind for header in frames_on_disk(wal.folder)] == [
        FrameKind.APPEND,
        FrameKind.DELETE,
    ]
    assert wal.lacks_space
    assert wal.allocate_files()
    assert not wal.lacks_space


def _move_the_file(path: Path) -> None:
    path.rename(path.with_suffix(".other"))


def _replace_the_file(path: Path) -> None:
    path.unlink()
    path.touch()


def _move_the_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_name("moved"))


def _replace_the_folder(path: Path) -> None:
    _move_the_folder(path)
    shutil.copytree(path.parent.with_name("moved"), path.parent)


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize(
    "displace", [_move_the_file, _replace_the_file, _move_the_folder, _replace_the_folder]
)
def test_nothing_is_written_to_a_log_file_that_has_lost_its_name(
    wal: Log, monkeypatch: pytest.MonkeyPatch, displace: Callable[[Path], None], sync: bool
) -> None:
    written = hand_over(wal, frame(), sync=sync).written
    (path,) = wal.folder.glob("*.wal")
    displace(path)
    wal.check()
    refused = wal.next_progress()
    assert isinstance(refused.error, DirectoryLost)
    assert refused.error is wal.failed
    assert (refused.error.errno, refused.written) == (errno.ENOENT, written)


def test_a_check_that_fails_for_another_reason_does_not_stop_the_log(
    wal: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hand_over(wal, frame(), sync=True).error is None
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", failing(errno.EACCES))
        wal.check()
    assert hand_over(wal, frame(), sync=True).error is None
    assert wal.failed is None


@pytest.mark.usefixtures("no_spares")
def test_groups_handed_over_before_the_full_disk_is_reported_are_dropped(
    wal: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    wal.append(frame(2000, seq=1))
    wal.flush(sync=True)
    gate.wait()
    monkeypatch.setattr(os, "posix_fallocate", failing(errno.ENOSPC))
    for seq in range(2, 6):
        wal.append(frame(3000, seq=seq))
        wal.flush(sync=seq == 3)
    gate.open()
    refused = wal.next_progress()
    while refused.error is None:
        refused = wal.next_progress()
    assert isinstance(refused.error, NoSpace)
    wal.resume(refused.written)
    hand_over(wal, frame(50, seq=9), sync=True)
    assert [header.first_seq for header in frames_on_disk(wal.folder)] == [1, 9]
    assert wal.take_progress() == []


def test_a_log_without_space_for_its_first_file_can_start_later(
    wal: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", failing(errno.ENOSPC))
        assert isinstance(hand_over(wal, frame()).error, NoSpace)
    wal.resume(0)
    wal.flush(sync=True)
    hand_over(wal, frame(seq=7), sync=True)
    assert [header.first_seq for header in frames_on_disk(wal.folder)] == [7]
