"""Syncs that nobody waits for come within their time, and all are counted with what they took."""

from __future__ import annotations

import errno
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.polling import is_readable
from tests.support.wal import (
    WAIT_MS,
    frame,
    hand_over,
    start,
)
from topics.storage.wal import syncer
from topics.storage.wal.progress import SYNC_BOUNDS_US, WalCounters, WriteState
from topics.storage.wal.syncer import Syncer

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
            is_readable(wal.progress_fd, 1)
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


# How long syncs take


class SlowFile:
    """A file whose syncs take times that the test gives, on a clock of its own."""

    def __init__(self, *took_us: int) -> None:
        self.now_ns, self.took_us = 0, [*took_us]

    def sync(self) -> None:
        took_us = self.took_us.pop(0)
        self.now_ns += took_us * 1_000
        if took_us == BAD:
            raise OSError(errno.EIO, "no")


BAD = 77


def test_each_sync_is_counted_with_the_time_that_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    took = (49, 50, 51, 500, 501, 10_000_000, 10_000_001)
    file: Any = SlowFile(*took)
    monkeypatch.setattr(syncer, "time", SimpleNamespace(perf_counter_ns=lambda: file.now_ns))
    counters = WalCounters()
    own = Syncer(WriteState(None, 0, counters))
    for lsn in range(1, len(took) + 1):
        assert own.sync(file, lsn)
        assert own.sync(file, lsn), "what is synced is not touched again"
    *buckets, total_us, count = counters.sync_us
    counted = dict(zip((*SYNC_BOUNDS_US, "more"), buckets, strict=True))
    assert {bound: seen for bound, seen in counted.items() if seen} == {
        50: 2,
        100: 1,
        500: 1,
        1_000: 1,
        10_000_000: 1,
        "more": 1,
    }
    assert (total_us, count, counters.fsyncs) == (sum(took), len(took), len(took))


def test_a_sync_that_fails_does_not_count() -> None:
    file: Any = SlowFile(10, BAD, 10)
    counters = WalCounters()
    own = Syncer(WriteState(None, 0, counters))
    assert [own.sync(file, lsn) for lsn in (1, 2, 3)] == [True, False, False]
    assert (counters.fsyncs, counters.sync_us[-1], file.took_us) == (1, 1, [10])


def test_syncs_of_both_threads_count(tmp_path: Path) -> None:
    wal = start(tmp_path / "wal", sync_ms=1)
    for sync in (True, False) * 5:
        wal.append(frame())
        wal.flush(sync=sync)
        while wal.synced_lsn < wal.next_lsn:
            wal.next_progress()
    wal.stop()
    assert wal.counters.fsyncs >= 10
    assert wal.counters.sync_us[-1] == sum(wal.counters.sync_us[:-2]) == wal.counters.fsyncs
