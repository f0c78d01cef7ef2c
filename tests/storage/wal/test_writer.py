"""The writer of the log: order, groups, and the writes that the loop makes itself."""

from __future__ import annotations

import errno
import os
import random
import threading
import time
from pathlib import Path

import pytest

from tests.support.log import failing
from tests.support.wal import (
    FILE_BYTES,
    WAIT_MS,
    Gate,
    Log,
    flush_immediately,
    frame,
    frames_on_disk,
    hand_over,
    start,
    sync_by,
)
from topics.formats.disk.frames import Frame
from topics.storage.wal import hang_watch
from topics.storage.wal import writer as wal_writer
from topics.storage.wal.groups import GroupQueue, WalGroup
from topics.storage.wal.log_file import WalFile
from topics.storage.wal.log_progress import LogProgress
from topics.storage.wal.writer import LOOP_WRITE_MAX_BYTES, UNSYNCED_MAX_BYTES, WalWriter

# Order and groups


def test_records_are_found_by_their_locators(wal: Log) -> None:
    locators = [wal.append(frame(size, seq=size)) for size in (1, 50, 3000, 2000, 7)]
    wal.flush(sync=True)
    wal.wait_synced()
    for size, locator in zip((1, 50, 3000, 2000, 7), locators, strict=True):
        view = wal.records(locator)
        assert view.count == 1
        assert bytes(view.blob) == b"%c" % (65 + size % 26) * size
    assert wal.counters.rotations == 2


def test_only_a_group_that_requests_a_sync_is_synced(wal: Log) -> None:
    first = hand_over(wal, frame())
    assert (first.written, first.synced, first.sync_ms) == (wal.next_lsn, 0, 0.0)
    second = hand_over(wal, frame(), sync=True)
    assert (second.written, second.synced) == (wal.next_lsn, wal.next_lsn)
    assert wal.counters.fsyncs == 1


def test_waiting_groups_share_one_write_and_one_sync(
    wal: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    wal.append(frame())
    wal.flush(sync=True)
    gate.wait()
    for seq in range(2, 10):
        wal.append(frame(seq=seq))
        wal.flush(sync=seq % 2 == 0)
    gate.open()
    assert wal.next_progress().synced < wal.next_lsn
    assert wal.next_progress().synced == wal.next_lsn
    assert (wal.counters.batches, wal.counters.fsyncs) == (2, 2)
    assert [header.first_seq for header in frames_on_disk(wal.folder)] == list(range(1, 10))


def test_a_frame_records_the_position_up_to_which_the_log_was_synced(wal: Log) -> None:
    hand_over(wal, frame(), sync=True)
    synced = wal.next_lsn
    hand_over(wal, frame())
    hand_over(wal, frame())
    assert [header.durable_lsn for header in frames_on_disk(wal.folder)] == [0, synced, synced]


# Writes by the loop


def test_a_short_group_is_written_when_flush_returns(wal: Log) -> None:
    hand_over(wal, frame(seq=1))
    progress = flush_immediately(wal, frame(seq=2), frame(seq=3))
    assert progress is not None
    assert (progress.written, progress.error) == (wal.next_lsn, None)
    assert [header.first_seq for header in frames_on_disk(wal.folder)] == [1, 2, 3]
    assert wal.take_progress() == []
    assert wal.counters.batches == 2


def test_the_first_group_of_a_file_and_a_long_group_go_to_the_writer(tmp_path: Path) -> None:
    wal = start(tmp_path / "wal", file_bytes=1 << 20)
    assert flush_immediately(wal, frame(seq=1)) is None
    wal.next_progress()
    assert flush_immediately(wal, frame(LOOP_WRITE_MAX_BYTES, seq=2)) is None
    wal.next_progress()
    assert flush_immediately(wal, frame(seq=3)) is not None
    wal.stop()
    assert [header.first_seq for header in frames_on_disk(wal.folder)] == [1, 2, 3]


def test_the_loop_does_not_write_during_a_sync_or_before_pending_groups(
    wal: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand_over(wal, frame(seq=1))
    gate = Gate(monkeypatch)
    wal.append(frame(seq=2))
    wal.flush(sync=True)
    gate.wait()
    assert flush_immediately(wal, frame(seq=3)) is None, "a sync is in flight"
    gate.open()
    while wal.next_progress().written < wal.next_lsn:
        pass
    assert [header.first_seq for header in frames_on_disk(wal.folder)] == [1, 2, 3]


def test_groups_of_the_loop_and_the_writer_are_written_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of several writes of the loop wakes the writer thread. When the thread runs, a
    group that it must write is already waiting.
    """
    wal = start(tmp_path / "wal")
    hand_over(wal, frame(seq=1), sync=True)
    wal.stop()
    late: list[threading.Thread] = []
    file = WalFile.open(wal.folder / "0000000000000000.wal", 0)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda thread: late.append(thread))
        again = Log(
            wal.folder, sync_ms=60_000, file_bytes=FILE_BYTES, files=[file], lsn=wal.next_lsn
        )
    for seq in (2, 3):
        assert flush_immediately(again, frame(seq=seq)) is not None
    again.flush(sync=True)
    assert flush_immediately(again, frame(seq=4)) is None, "an earlier group waits for a sync"
    again.append(frame(seq=5))
    again.flush(sync=True)
    again.append(frame(seq=6))
    assert again.flush(sync=False) is None, "an earlier group is pending"
    for thread in late:
        thread.start()
    again.wait_synced()
    again.stop()
    assert [header.first_seq for header in frames_on_disk(wal.folder)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.slow
@pytest.mark.parametrize("syncs", [False, True])
def test_groups_that_the_loop_wrote_are_synced_after_their_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, syncs: bool
) -> None:
    """Writes and syncs happen at random times relative to the checks of the writer, and none is
    missed.
    """
    sync_by(monkeypatch, loop=True)
    wal = start(tmp_path / "wal", sync_ms=1, file_bytes=1 << 20)
    hand_over(wal, frame(), sync=True)
    rng = random.Random(1)
    direct = 0
    for seq in range(2, 400):
        direct += flush_immediately(wal, frame(1, seq)) is not None
        if syncs and rng.random() < 0.2:
            wal.append(frame(1, seq))
            wal.flush(sync=True)
        if rng.random() < 0.2:
            wal.wait_synced()
        elif rng.random() < 0.3:
            time.sleep(rng.random() * 0.003)
    wal.wait_synced()
    assert direct > 100
    wal.stop()


def test_many_bytes_that_the_loop_wrote_are_synced_before_their_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    length = frame().length
    monkeypatch.setattr(wal_writer, "SYNC_BYTES", 5 * length)
    polls = threading.Semaphore(0)
    take = GroupQueue.take

    def poll(groups: GroupQueue, until: float) -> list[WalGroup] | None:
        polls.release()
        return take(groups, until)

    monkeypatch.setattr(GroupQueue, "take", poll)
    wal = start(tmp_path / "wal")
    hand_over(wal, frame(), sync=True)
    assert flush_immediately(wal, frame(seq=2)) is not None
    # One poll at the start, one after each frame. The second frame wakes the writer.
    for _ in range(3):
        assert polls.acquire(timeout=WAIT_MS / 1000)
    for seq in range(3, 9):
        assert flush_immediately(wal, frame(seq=seq)) is not None
    while wal.next_progress().synced <= 2 * length:
        pass
    wal.stop()


def test_an_error_of_a_write_by_the_loop_breaks_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wal = start(tmp_path / "wal")
    good = hand_over(wal, frame(seq=1), sync=True)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", failing(errno.EIO))
        assert flush_immediately(wal, frame(seq=2)) is None
    lost = wal.next_progress()
    assert lost.error is wal.failed
    assert lost.error is not None
    assert (lost.error.errno, lost.synced) == (errno.EIO, good.synced)
    for sync in (False, True):
        wal.append(frame(seq=3))
        assert wal.flush(sync=sync) is None
    wal.stop()
    assert [header.first_seq for header in frames_on_disk(wal.folder)] == [1]


# Syncs by the loop


def synced(wal: Log, *frames: Frame) -> LogProgress | None:
    for each in frames:
        wal.append(each)
    return wal.flush(sync=True)


def test_a_cheap_sync_is_complete_when_flush_returns(
    wal: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand_over(wal, frame(seq=1))
    sync_by(monkeypatch, loop=True)
    progress = synced(wal, frame(seq=2), frame(seq=3))
    assert progress is not None
    assert progress.written == progress.synced == wal.synced_lsn == wal.next_lsn
    assert progress.write_ms > 0.0 < progress.sync_ms
    assert wal.take_progress() == []
    assert (wal.counters.batches, wal.counters.fsyncs, wal.counters.loop_fsyncs) == (2, 1, 1)
    assert [header.first_seq for header in frames_on_disk(wal.folder)] == [1, 2, 3]


def test_a_caller_that_cannot_commit_leaves_the_sync_to_the_writer(
    wal: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand_over(wal, frame(seq=1))
    sync_by(monkeypatch, loop=True)
    assert wal.flush(sync=True, immediate=False) is None
    assert wal.next_progress().synced == wal.next_lsn
    assert wal.counters.loop_fsyncs == 0


def test_long_groups_new_files_and_long_backlogs_are_synced_by_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync_by(monkeypatch, loop=True)
    wal = start(tmp_path / "wal", file_bytes=1 << 20)
    assert synced(wal, frame(seq=1)) is None, "the group begins a file"
    wal.next_progress()
    assert synced(wal, frame(LOOP_WRITE_MAX_BYTES, seq=2)) is None
    wal.next_progress()
    assert synced(wal, frame(seq=3)) is not None
    hand_over(wal, frame(UNSYNCED_MAX_BYTES, seq=4))
    assert synced(wal, frame(seq=5)) is None
    wal.next_progress()
    assert wal.counters.loop_fsyncs == 1
    wal.stop()
    assert [header.first_seq for header in frames_on_disk(wal.folder)] == [1, 2, 3, 4, 5]


def test_the_loop_does_not_sync_during_or_after_a_pending_sync(
    wal: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand_over(wal, frame(seq=1))
    gate = Gate(monkeypatch)
    wal.append(frame(seq=2))
    wal.flush(sync=True)
    sync_by(monkeypatch, loop=True)
    gate.wait()
    assert synced(wal, frame(seq=3)) is None
    gate.open()
    wal.wait_synced()
    assert synced(wal, frame(seq=4)) is not None
    assert wal.writer.syncer.try_acquire()
    assert synced(wal, frame(seq=5)) is None, "another sync is in flight"
    wal.writer.syncer.release()
    wal.wait_synced()
    assert [header.first_seq for header in frames_on_disk(wal.folder)] == [1, 2, 3, 4, 5]


@pytest.mark.slow
def test_data_that_the_loop_has_synced_is_not_synced_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer was notified of a write of the loop, and checks again when its sync is due."""
    polls = threading.Semaphore(0)
    plan = WalWriter._plan_sync

    def poll(writer: WalWriter) -> None:
        plan(writer)
        polls.release()

    monkeypatch.setattr(WalWriter, "_plan_sync", poll)
    sync_by(monkeypatch, loop=True)
    wal = start(tmp_path / "wal", sync_ms=300)
    hand_over(wal, frame(seq=1), sync=True)
    assert flush_immediately(wal, frame(seq=2)) is not None
    assert polls.acquire(timeout=WAIT_MS / 1000)
    assert polls.acquire(timeout=WAIT_MS / 1000), "the writer has seen the second frame"
    fsyncs = wal.counters.fsyncs
    if synced(wal, frame(seq=3)) is None:  # The sync was already due on a slow machine
        wal.wait_synced()
    assert wal.counters.fsyncs == fsyncs + 1
    assert polls.acquire(timeout=WAIT_MS / 1000), "the sync is due"
    wal.stop()
    assert wal.counters.fsyncs == fsyncs + 1


def test_the_next_file_is_created_in_advance_even_if_the_loop_makes_all_syncs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal_writer, "SYNC_BYTES", 1000)
    sync_by(monkeypatch, loop=True)
    wal = start(tmp_path / "wal", file_bytes=64 << 10)
    hand_over(wal, frame(seq=1), sync=True)
    seq = 1
    while wal.next_lsn < 40 << 10:
        seq += 1
        if synced(wal, frame(1000, seq=seq)) is None:
            wal.wait_synced()
    assert wal.counters.loop_fsyncs > 1
    end = time.monotonic() + WAIT_MS / 1000
    while not wal.writer.spares._spares:
        assert time.monotonic() < end
        time.sleep(0.001)
    wal.stop()


@pytest.mark.slow
def test_a_hang_of_the_loop_is_reported_until_the_call_returns(
    wal: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hang_watch, "CHECK_INTERVAL_S", 0.01)
    hand_over(wal, frame(seq=1))
    sync_by(monkeypatch, loop=True)
    hangs = threading.Semaphore(0)
    wal.watch_hangs(lambda _: hangs.release())

    def hang(_file: WalFile) -> None:
        assert hangs.acquire(timeout=WAIT_MS / 1000)
        assert hangs.acquire(timeout=WAIT_MS / 1000)

    monkeypatch.setattr(WalFile, "sync", hang)
    progress = synced(wal, frame(seq=2))
    assert progress is not None
    assert wal.writer.hang_watch._number % 2 == 0
