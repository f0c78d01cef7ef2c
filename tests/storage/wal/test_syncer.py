"""Syncs that nobody waits for come within their time."""

from __future__ import annotations

import select
import threading
import time
from pathlib import Path

import pytest

from tests.support.wal import (
    WAIT_MS,
    frame,
    hand_over,
    start,
)

# Syncs that nobody waits for


def test_what_nobody_waits_for_is_synced_after_its_time(tmp_path: Path) -> None:
    wal = start(tmp_path / "wal", sync_ms=1)
    assert hand_over(wal, frame()).synced == 0
    assert wal.next_progress().synced == wal.next_lsn
    wal.stop()


def test_steady_writing_does_not_put_the_sync_off(tmp_path: Path) -> None:
    wal = start(tmp_path / "wal", sync_ms=200, file_bytes=64 << 20)
    end = time.monotonic() + WAIT_MS / 1000
    while not wal.synced_lsn:
        assert time.monotonic() < end, "a record waits no longer than sync_ms for its sync"
        wal.append(frame())
        wal.flush(sync=False)
        while wal.synced_lsn < wal.next_lsn and not wal.take_progress():
            select.select([wal.progress_fd], [], [], 1)
    wal.stop()


def test_the_writer_starts_from_where_the_log_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late: list[threading.Thread] = []
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda thread: late.append(thread))
        wal = start(tmp_path / "wal")
    wal.append(frame())
    wal.flush(sync=False)
    for thread in late:
        thread.start()
    assert wal.next_progress().synced == 0
    wal.stop()
