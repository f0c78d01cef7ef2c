"""The steps of a start: what it restores, and what it writes to the disk before the first write of
a client.
"""

from __future__ import annotations

import errno
import gc
import os
import shutil
from pathlib import Path

import msgspec
import pytest

from tests.support.log import (
    FILE_BYTES,
    START,
    Client,
    LossyDisk,
    failing,
    log_files,
    state,
)
from tests.support.recovery import busy_client, recovered_state
from topics.engine.now import Now
from topics.errors import TopicNotFound
from topics.formats.disk.frames import FrameKind
from topics.storage import disk as disk_functions
from topics.storage.disk import make_directory
from topics.storage.recovery.shard_recovery import recover
from topics.storage.wal import log_file as wal_file
from topics.storage.wal import spares
from topics.storage.wal.log_file import WalFile

# Restored state


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_restart_restores_the_complete_state(end: str, tmp_path: Path) -> None:
    client = busy_client(tmp_path / "data")
    before = state(client)
    getattr(client, end)()
    assert recovered_state(tmp_path / "data") == before


def test_a_shard_without_records_takes_little_disk_space(tmp_path: Path) -> None:
    for _ in range(3):  # A restart takes no additional space
        client = Client(tmp_path, file_bytes=64 << 20)
        client.kill()
        blocks = sum(path.stat().st_blocks for path in tmp_path.rglob("*"))
        assert blocks * 512 < 10 << 20


def test_log_files_grow_with_the_log_and_keep_their_size_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spares, "FIRST_FILE_BYTES", 8 << 10)
    client = Client(tmp_path, file_bytes=64 << 10)
    for number in range(300):
        client.append("a", "x" * 1000)
        if number % 60 == 59:
            client.kill()
            client = Client(tmp_path, file_bytes=64 << 10)
    assert client.engine.topic("a").head_seq == 300
    client.kill()
    lengths = [path.stat().st_size >> 10 for path in log_files(tmp_path)]
    assert lengths == sorted(lengths)
    assert lengths[0] == 8
    assert {16, 32, 64} >= {*lengths[-3:]}
    assert lengths[-1] == 64


def test_recovering_twice_equals_recovering_once(tmp_path: Path) -> None:
    busy_client(tmp_path / "data").kill()
    once = recovered_state(tmp_path / "data")
    assert recovered_state(tmp_path / "data") == once
    lost_power = recovered_state(tmp_path / "data", boot="second")
    assert recovered_state(tmp_path / "data", boot="second") == lost_power


def test_a_deleted_topic_stays_deleted_and_its_id_and_epoch_are_not_reused(
    tmp_path: Path,
) -> None:
    client = Client(tmp_path / "data")
    client.append("a", 1)
    first = client.engine.topic("a")
    client.delete("a")
    client.kill()
    client = Client(tmp_path / "data")
    with pytest.raises(TopicNotFound):
        client.engine.topic("a")
    client.append("a", 2)
    again = client.engine.topic("a")
    assert again.id > first.id
    assert again.epoch > first.epoch
    assert again.head_seq == 1
    client.kill()


def test_a_start_reports_its_progress_up_to_completion(tmp_path: Path) -> None:
    busy_client(tmp_path / "data", file_bytes=4096 + 1024).kill()
    reported: list[float] = []
    shard = recover(
        tmp_path / "data",
        0,
        1,
        START,
        wal_file_bytes=FILE_BYTES,
        wal_sync_ms=200,
        report=reported.append,
        boot="x",
    )
    shard.wal.stop()
    assert reported == sorted(reported)
    assert len(reported) > 3
    assert reported[-1] == 1.0
    assert reported[-2] == pytest.approx(1.0)


@pytest.mark.parametrize("exists", [False, True])
def test_a_start_reports_progress_after_at_most_three_syncs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    if exists:
        Client(tmp_path / "data").kill()
    calls: list[str] = []

    def record_calls(name: str) -> None:
        real = getattr(os, name)

        def sync(fd: int) -> None:
            calls.append(name)
            real(fd)

        monkeypatch.setattr(os, name, sync)

    record_calls("fsync")
    record_calls("fdatasync")
    shard = recover(
        tmp_path / "data",
        *(0, 1, START),
        wal_file_bytes=FILE_BYTES,
        wal_sync_ms=200,
        report=lambda _: calls.append("progress"),
    )
    steps = " ".join(calls).split("progress")
    shard.wal.stop()
    assert sum(len(step.split()) for step in steps) > 10
    assert max(len(step.split()) for step in steps) <= 3


@pytest.mark.parametrize("was_enabled", [True, False])
def test_the_garbage_collector_is_off_during_a_start_and_restored_afterwards(
    tmp_path: Path, was_enabled: bool
) -> None:
    Client(tmp_path / "data").kill()
    seen: list[bool] = []
    set_collector = gc.enable if was_enabled else gc.disable
    before = gc.isenabled()
    set_collector()
    try:
        shard = recover(
            tmp_path / "data",
            *(0, 1, START),
            wal_file_bytes=FILE_BYTES,
            wal_sync_ms=200,
            report=lambda _: seen.append(gc.isenabled()),
        )
        assert gc.isenabled() is was_enabled
    finally:
        (gc.enable if before else gc.disable)()
    shard.wal.stop()
    assert seen
    assert not any(seen)


def test_an_unfinished_log_file_is_removed(tmp_path: Path) -> None:
    busy_client(tmp_path / "data").kill()
    leftover = tmp_path / "data" / "wal" / "00" / "00000000ffffffff.new"
    leftover.write_bytes(b"half")
    recovered_state(tmp_path / "data")
    assert not leftover.exists()


def test_a_start_on_a_full_disk_reads_the_log_and_writes_its_frames_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy_client(tmp_path / "data").kill()
    expected = recovered_state(tmp_path / "data")
    for path in (tmp_path / "data" / "wal" / "00").glob("*.[rs]*e"):
        path.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", failing(errno.ENOSPC))
        patch.setattr(WalFile, "holds", lambda *_: False)
        full = Client(tmp_path / "data")
    assert [frame.kind for frame in full.shard.unwritten_frames] == [FrameKind.START]
    assert full.wal.lacks_space
    assert state(full) == expected
    assert full.wal.allocate_files()
    full.wal.begin(full.shard.unwritten_frames)
    full.wal.wait_synced()
    full.append("after", 1)
    full.kill()
    assert recovered_state(tmp_path / "data").keys() == expected.keys() | {"after"}


def test_written_frames_are_synced_before_a_frame_states_that_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(tmp_path / "data", sync_ms=60_000)
    client.append("a", 1)
    client.append("a", "written, not synced")
    shutil.copytree(tmp_path / "data", tmp_path / "killed")
    client.kill()
    disk = LossyDisk(monkeypatch)
    writes: list[int] = []
    real = os.pwritev

    def recording_pwritev(fd: int, chunks: list[bytes], offset: int) -> int:
        writes.append(len(disk._contents))
        return real(fd, chunks, offset)

    monkeypatch.setattr(os, "pwritev", recording_pwritev)
    Client(tmp_path / "killed").kill()
    assert writes == [0, 1], "the old frames are synced before a frame states that they are"


# File names after a power failure


def test_file_names_that_a_killed_process_did_not_sync_are_synced_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = LossyDisk(monkeypatch)
    make_directory(tmp_path / "data")
    with monkeypatch.context() as patch:
        for module in (disk_functions, wal_file):
            patch.setattr(module, "sync_directory", lambda _folder: None)
        Client(tmp_path / "data").kill()
    client = Client(tmp_path / "data", sync_ms=60_000)
    client.put("a", durability="fsync")
    client.append("a", "promised")
    disk.power_loss(tmp_path / "data", tmp_path / "left")
    client.kill()
    client = Client(tmp_path / "left", boot="second")
    assert client.engine.topic("a").head_seq == 1
    client.kill()


# Timestamps


def ts_of(client: Client, name: str, seq: int) -> int:
    (record,) = msgspec.json.decode(
        b"[%b]" % b",".join(map(bytes, client.read(name, seq - 1, 1).chunks))
    )
    return int(record["$ts"])


def test_ts_does_not_decrease_after_a_change_to_ephemeral_a_stop_and_a_clock_step(
    tmp_path: Path,
) -> None:
    client = Client(tmp_path)
    client.put("a", durability="disk")
    client.append("a", 1)
    client.later(5_000)
    client.put("a", durability="ephemeral")
    client.later(5_000)
    seq, _ = client.append("a", 2)
    before = ts_of(client, "a", seq)
    client.stop()
    client = Client(tmp_path)
    seq, _ = client.append("a", 3)
    assert ts_of(client, "a", seq) == before
    client.kill()


@pytest.mark.parametrize("idle_ms", [0, 900, 1_900, 2_100, 60_000])
def test_ts_of_an_ephemeral_topic_does_not_decrease_after_a_kill_and_a_clock_step(
    tmp_path: Path, idle_ms: int
) -> None:
    """The topic may have been written to continuously, or after a pause."""
    client, before = Client(tmp_path), 0
    client.put("a", durability="ephemeral")
    for run in range(3):
        for _ in range(3):
            client.later(idle_ms)
            seq, _ = client.append("a", run)
            assert ts_of(client, "a", seq) >= before, run
            before = ts_of(client, "a", seq)
        client.kill()
        client = Client(tmp_path, now=Now(START.ts, client.now.ms + 1))
    seq, _ = client.append("a", "last")
    assert before <= ts_of(client, "a", seq) <= before + 2_000 * 3, "the ts is not far above"
    client.kill()


def test_repeated_starts_log_the_ts_of_an_idle_ephemeral_topic_only_once(
    tmp_path: Path,
) -> None:
    client = Client(tmp_path)
    client.put("a", durability="ephemeral")
    seq, _ = client.append("a", 1)
    before = ts_of(client, "a", seq)
    frame_counts = []
    for _ in range(4):
        client.kill()
        client = Client(tmp_path, now=Now(START.ts - 1_000, client.now.ms + 1))
        frame_counts.append(client.wal.counters.frames)
    assert frame_counts == [2, 1, 1, 1], "frames of the topic and of the start"
    seq, _ = client.append("a", 2)
    assert ts_of(client, "a", seq) >= before
    client.kill()


def test_a_busy_ephemeral_topic_logs_its_ts_once_a_second(tmp_path: Path) -> None:
    client = Client(tmp_path)
    client.put("a", durability="ephemeral")
    frames = client.wal.counters.frames
    for _ in range(500):
        client.later(10)
        client.append("a", 1)
    assert 3 <= client.wal.counters.frames - frames <= 6
    client.kill()
