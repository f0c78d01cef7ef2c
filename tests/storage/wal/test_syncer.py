"""Background syncs are made within their time, and all syncs are counted with their durations."""

from __future__ import annotations

import errno
import random
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
from topics.storage.wal.log_progress import SYNC_BOUNDS_US, WalCounters, WriteState
from topics.storage.wal.syncer import (
    AVERAGE_OVER,
    CHEAP_S,
    PAUSE_MAX_S,
    PAUSE_PER_S,
    SLOW_S,
    STALE_S,
    Syncer,
    SyncPace,
)

# Syncs that no client waits for


def test_unrequested_data_is_synced_after_its_time(tmp_path: Path) -> None:
    wal = start(tmp_path / "wal", sync_ms=1)
    assert hand_over(wal, frame()).synced == 0
    assert wal.next_progress().synced == wal.next_lsn
    wal.stop()


def test_steady_writing_does_not_postpone_the_sync(tmp_path: Path) -> None:
    wal = start(tmp_path / "wal", sync_ms=200, file_bytes=64 << 20)
    end = time.monotonic() + WAIT_MS / 1000
    while not wal.synced_lsn:
        assert time.monotonic() < end, "a record waits no longer than sync_ms for its sync"
        wal.append(frame())
        wal.flush(sync=False)
        while wal.synced_lsn < wal.next_lsn and not wal.take_progress():
            is_readable(wal.progress_fd, 1)
    wal.stop()


def test_the_writer_starts_at_the_position_at_which_the_log_was_opened(
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


# Durations of syncs


class SlowFile:
    """A file whose syncs take durations that the test specifies, with a simulated clock."""

    def __init__(self, *took_us: int) -> None:
        self.now_ns, self.took_us = 0, [*took_us]

    def sync(self) -> None:
        took_us = self.took_us.pop(0)
        self.now_ns += took_us * 1_000
        if took_us == BAD:
            raise OSError(errno.EIO, "no")


BAD = 77


def test_each_sync_is_counted_with_its_duration(monkeypatch: pytest.MonkeyPatch) -> None:
    took = (49, 50, 51, 500, 501, 10_000_000, 10_000_001)
    file: Any = SlowFile(*took)
    monkeypatch.setattr(syncer, "time", SimpleNamespace(perf_counter_ns=lambda: file.now_ns))
    counters = WalCounters()
    own = Syncer(WriteState(None, 0, counters))
    for lsn in range(1, len(took) + 1):
        assert own.sync(file, lsn)
        assert own.sync(file, lsn), "synced data is not synced again"
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


def test_a_failed_sync_is_not_counted() -> None:
    file: Any = SlowFile(10, BAD, 10)
    counters = WalCounters()
    own = Syncer(WriteState(None, 0, counters))
    assert [own.sync(file, lsn) for lsn in (1, 2, 3)] == [True, False, False]
    assert (counters.fsyncs, counters.sync_us[-1], file.took_us) == (1, 1, [10])


# The loop syncs while syncs are cheap, and pauses after a slow one


FAST_S = CHEAP_S / 5


def cheap(now: float = 0.0) -> SyncPace:
    pace = SyncPace()
    pace.note(FAST_S, now, by_loop=False)
    assert pace.is_cheap(now)
    return pace


def test_the_thread_makes_the_first_syncs() -> None:
    pace = SyncPace()
    assert not pace.is_cheap(0.0)
    pace.note(CHEAP_S * 2, 1.0, by_loop=False)
    assert not pace.is_cheap(1.0)
    pace.note(CHEAP_S, 2.0, by_loop=False)
    assert pace.is_cheap(2.0)


def test_the_loop_pauses_its_syncs_in_proportion_to_a_slow_sync() -> None:
    pace = cheap()
    pace.note(SLOW_S * 2, 1.0, by_loop=True)
    again_at = 1.0 + SLOW_S * 2 * PAUSE_PER_S
    pace.note(FAST_S, again_at - 0.01, by_loop=False)
    assert not pace.is_cheap(again_at - 0.01)
    assert not pace.is_cheap(again_at), "the thread must first measure a fast sync"
    pace.note(CHEAP_S * 2, again_at, by_loop=False)
    assert not pace.is_cheap(again_at)
    pace.note(FAST_S, again_at, by_loop=False)
    assert pace.is_cheap(again_at)


def test_no_sync_causes_a_pause_above_the_maximum() -> None:
    pace = cheap()
    pace.note(1000.0, 1001.0, by_loop=True)
    pace.note(FAST_S, 1001.0 + PAUSE_MAX_S, by_loop=False)
    assert pace.is_cheap(1001.0 + PAUSE_MAX_S)


def test_syncs_that_are_expensive_on_average_end_the_syncs_of_the_loop() -> None:
    pace, now = cheap(), 0.0
    for _ in range(AVERAGE_OVER * 4):
        now += SLOW_S
        pace.note(CHEAP_S * 2, now, by_loop=True)
    assert not pace.is_cheap(now)


def test_slow_syncs_of_the_thread_do_not_pause_the_syncs_of_the_loop() -> None:
    pace = cheap()
    for now in range(5):
        pace.note(1.0, now, by_loop=False)
    assert pace.is_cheap(5.0)


def test_the_duration_of_a_sync_is_unknown_after_a_long_time_without_syncs() -> None:
    pace = cheap()
    assert pace.is_cheap(STALE_S - 0.1)
    assert not pace.is_cheap(STALE_S)
    pace.note(FAST_S, STALE_S + 1, by_loop=False)
    assert pace.is_cheap(STALE_S + 1)


def test_slow_syncs_cost_the_loop_a_bounded_share_of_its_time_on_any_disk() -> None:
    for share in (0.01, 0.3, 0.9):
        rng, pace, now, lost_s = random.Random(1), SyncPace(), 0.0, 0.0
        while now < 200.0:
            took_s = 0.02 if rng.random() < share else FAST_S
            by_loop = pace.is_cheap(now)
            now += took_s + FAST_S
            lost_s += took_s if by_loop and took_s > SLOW_S else 0.0
            pace.note(took_s, now, by_loop=by_loop)
        assert 0.0 < lost_s <= 200.0 / PAUSE_PER_S * 1.05
