"""A log on a real directory, driven without a loop: its frames and its progress."""

from __future__ import annotations

import errno
import os
import select
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.log import failing
from topics.formats.disk.frames import (
    Frame,
    FrameHeader,
    FrameKind,
    ScanStop,
    check_frame,
)
from topics.formats.disk.wal import FILE_HEADER_BYTES
from topics.storage.disk import make_directory
from topics.storage.frame_reader import FrameReader
from topics.storage.wal.blobs import BlobStore
from topics.storage.wal.log import Wal
from topics.storage.wal.log_file import WalFile
from topics.storage.wal.log_progress import LogProgress
from topics.storage.wal.syncer import SyncPace

WAIT_MS = 10_000
FILE_BYTES = 8192
ROOM = FILE_BYTES - FILE_HEADER_BYTES


def frame(size: int = 100, seq: int = 1) -> Frame:
    """Return an APPEND frame whose body is one table entry and ``size`` bytes of blob."""
    return Frame(
        FrameKind.APPEND,
        1,
        seq,
        0,
        1,
        0,
        0,
        (size.to_bytes(4, "little"), b"%c" % (65 + seq % 26) * size),
    )


class Log(Wal):
    """A log whose progress reports are taken one at a time."""

    def __init__(
        self,
        folder: Path,
        *,
        sync_ms: int,
        file_bytes: int,
        files: Sequence[WalFile] = (),
        lsn: int = 0,
        shard: int = 0,
        blobs: BlobStore | None = None,
    ) -> None:
        self._reports: deque[LogProgress] = deque()
        blobs = blobs or BlobStore(folder.parent / "blob")
        super().__init__(
            folder,
            shard,
            [*files],
            lsn,
            blobs=blobs,
            frames=FrameReader(blobs),
            file_bytes=file_bytes,
            sync_ms=sync_ms,
        )

    def next_progress(self) -> LogProgress:
        while not self._reports:
            poller = select.poll()
            poller.register(self.progress_fd, select.POLLIN)
            assert poller.poll(WAIT_MS), "the writer reports every write"
            self._reports += self.take_progress()
        return self._reports.popleft()

    def flush(self, *, sync: bool, immediate: bool = True) -> LogProgress | None:
        progress = super().flush(sync=sync, immediate=immediate)
        if progress is not None:
            self._reports.append(progress)
        return progress


def start(folder: Path, *, sync_ms: int = 60_000, file_bytes: int = FILE_BYTES) -> Log:
    make_directory(folder)
    return Log(folder, sync_ms=sync_ms, file_bytes=file_bytes)


def hand_over(wal: Log, *frames: Frame, sync: bool = False) -> LogProgress:
    for each in frames:
        wal.append(each)
    wal.flush(sync=sync)
    return wal.next_progress()


def frames_on_disk(folder: Path) -> list[FrameHeader]:
    """Return every frame of every file in order. The log must not have a hole."""
    found: list[FrameHeader] = []
    lsn = 0
    for path in sorted(folder.glob("*.wal")):
        file = WalFile.open(path, 0)
        assert file.base == lsn
        while isinstance(
            header := check_frame(file.view(), file.offset(lsn), lsn, file.seed),
            FrameHeader,
        ):
            found.append(header)
            lsn = header.end
        assert header is ScanStop.END
        file.close()
    return found


class Gate:
    """Hold the threads of the writer inside their next sync until opened. The loop makes
    no syncs.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self._open = threading.Event(), threading.Event()
        real = WalFile.sync

        def sync(file: WalFile) -> None:
            self.reached.set()
            assert self._open.wait(WAIT_MS / 1000)
            real(file)

        monkeypatch.setattr(WalFile, "sync", sync)
        sync_by(monkeypatch, loop=False)

    def wait(self) -> None:
        assert self.reached.wait(WAIT_MS / 1000)

    def open(self) -> None:
        self._open.set()


def sync_by(monkeypatch: pytest.MonkeyPatch, *, loop: bool) -> None:
    """Let the loop perform all syncs that it is permitted to perform, or the thread all syncs.

    The measured durations of syncs have no effect.
    """
    monkeypatch.setattr(SyncPace, "is_cheap", lambda *_: loop)


def flush_immediately(wal: Log, *frames: Frame) -> LogProgress | None:
    for each in frames:
        wal.append(each)
    return wal.flush(sync=False)


def leave_space(patch: pytest.MonkeyPatch, size: int) -> None:
    """Simulate a disk that reports this much free space and fails allocations."""
    patch.setattr(
        os,
        "statvfs",
        lambda _: SimpleNamespace(f_blocks=1 << 30, f_bavail=size // 512, f_frsize=512),
    )
    patch.setattr(os, "posix_fallocate", failing(errno.EIO))
