"""What a shard finds again: everything that was promised, nothing that was not, and damage by name."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.storage.log_support import (
    FILE_BYTES,
    START,
    Client,
    ForgetfulDisk,
    failing,
    log_files,
    state,
)
from topics.engine.now import Now
from topics.engine.topic import RESERVE_MIN
from topics.errors import TopicNotFound
from topics.formats.disk.frames import FRAME_HEADER_BYTES, FrameHeader, FrameKind, check_frame
from topics.formats.disk.wal import FILE_HEADER_BYTES
from topics.storage import checkpoints
from topics.storage import disk as disk_functions
from topics.storage.disk import Damaged, boot_id, make_directory
from topics.storage.recovery import recover
from topics.storage.wal import file as wal_file
from topics.storage.wal.file import WalFile

CLASSES = ("ephemeral", "memory", "disk", "fsync")


def frames_of(path: Path) -> list[tuple[int, FrameHeader]]:
    """``(offset, header)`` of every frame of one file."""
    file = WalFile.open(path, 0)
    found = []
    position = file.base
    while isinstance(
        header := check_frame(file.view(), file.offset(position), position, file.seed), FrameHeader
    ):
        found.append((file.offset(position), header))
        position = header.end
    file.close()
    return found


def reopened(path: Path, **options: Any) -> Client:
    return Client(path, **options)


def recovered_state(path: Path, **options: Any) -> dict[str, Any]:
    client = Client(path, **options)
    found = state(client)
    client.kill()
    return found


def busy_client(path: Path, **options: Any) -> Client:
    """A shard with a little of everything."""
    client = Client(path, **options)
    client.put("a", durability="fsync")
    client.append("a", 1, 2, 3, key="k1", node="n")
    client.append("b", {"x": [1, 2]}, tag="t", key="k2")
    client.put("m", durability="memory", cap_records=7)
    for number in range(20):
        client.append("b", number)
        client.append("m", f"m{number}", "more")
    client.put("gone")
    client.append("gone", "lost", key="k3")
    client.delete("gone")
    client.append("gone", "again")
    client.put("a", ttl_ms=9)
    return client


# What comes back


def test_an_empty_folder_is_an_empty_shard(tmp_path: Path) -> None:
    client = Client(tmp_path / "data")
    assert state(client) == {}
    assert client.shard.cut_bytes == 0
    client.kill()


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_everything_comes_back_as_it_was(end: str, tmp_path: Path) -> None:
    client = busy_client(tmp_path / "data")
    before = state(client)
    getattr(client, end)()
    assert recovered_state(tmp_path / "data") == before


def test_recovering_twice_is_recovering_once(tmp_path: Path) -> None:
    busy_client(tmp_path / "data").kill()
    once = recovered_state(tmp_path / "data")
    assert recovered_state(tmp_path / "data") == once
    lost_power = recovered_state(tmp_path / "data", boot="second")
    assert recovered_state(tmp_path / "data", boot="second") == lost_power


def test_a_log_of_many_files_comes_back(tmp_path: Path) -> None:
    client = Client(tmp_path / "data", file_bytes=8192)
    for number in range(200):
        client.append("a", "x" * 200, number)
    before = state(client)
    client.kill()
    assert len(log_files(tmp_path / "data")) > 5
    assert recovered_state(tmp_path / "data", file_bytes=8192) == before


def test_the_log_goes_on_where_it_ended(tmp_path: Path) -> None:
    for number in range(5):
        client = Client(tmp_path / "data")
        assert client.append("a", number) == (number + 1, False)
        client.kill()
    client = Client(tmp_path / "data")
    assert [record["data"] for record in msgspec.json.decode(b"[%b]" % client.records("a"))] == [
        0,
        1,
        2,
        3,
        4,
    ]
    client.kill()


def test_a_topic_that_was_deleted_stays_deleted_and_its_id_and_epoch_are_not_used_again(
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


def test_progress_is_told_from_nothing_to_all(tmp_path: Path) -> None:
    busy_client(tmp_path / "data", file_bytes=4096 + 1024).kill()
    told: list[float] = []
    shard = recover(
        tmp_path / "data",
        0,
        1,
        START,
        wal_file_bytes=FILE_BYTES,
        wal_sync_ms=200,
        report=told.append,
        boot="x",
    )
    shard.wal.stop()
    assert told == sorted(told)
    assert len(told) > 3
    assert told[-1] == 1.0
    assert told[-2] == pytest.approx(1.0)


def test_the_machine_has_a_name_for_this_run() -> None:
    assert boot_id() == boot_id() != ""


def test_a_file_that_was_never_finished_is_removed(tmp_path: Path) -> None:
    busy_client(tmp_path / "data").kill()
    leftover = tmp_path / "data" / "wal" / "00" / "00000000ffffffff.new"
    leftover.write_bytes(b"half")
    recovered_state(tmp_path / "data")
    assert not leftover.exists()


def test_before_the_first_write_the_disk_knows_of_this_start(tmp_path: Path) -> None:
    client = Client(tmp_path / "data")
    assert client.wal.synced == client.wal.position > 0
    client.kill()


def test_a_log_without_room_for_a_start_is_read_and_told_of_it_later(
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
    assert [frame.kind for frame in full.shard.unsaid] == [FrameKind.START]
    assert full.wal.short_of_room
    assert state(full) == expected
    assert full.wal.find_room()
    full.wal.begin(full.shard.unsaid)
    full.wal.wait_synced()
    full.append("after", 1)
    full.kill()
    assert recovered_state(tmp_path / "data").keys() == expected.keys() | {"after"}


def test_frames_that_were_only_written_are_synced_before_one_vouches_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(tmp_path / "data", sync_ms=60_000)
    client.append("a", 1)
    client.append("a", "written, not synced")
    shutil.copytree(tmp_path / "data", tmp_path / "killed")
    client.kill()
    disk = ForgetfulDisk(monkeypatch)
    writes: list[int] = []
    real = os.pwritev

    def noting(fd: int, pieces: list[bytes], offset: int) -> int:
        writes.append(len(disk._contents))
        return real(fd, pieces, offset)

    monkeypatch.setattr(os, "pwritev", noting)
    Client(tmp_path / "killed").kill()
    assert writes == [0, 1], "the frames once more, and after a sync the one that speaks of them"


# Idempotency keys


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_a_key_comes_back_with_its_records(durability: str, tmp_path: Path) -> None:
    client = Client(tmp_path / "data")
    client.put("a", durability=durability)
    assert client.append("a", 1, 2, key="k") == (1, False)
    client.kill()
    client = Client(tmp_path / "data")
    assert client.append("a", "other", key="k") == (1, True)
    assert client.engine.topic("a").head_seq == 2
    client.kill()


@pytest.mark.parametrize(("ms", "deduped"), [(119_999, True), (120_000, False)])
def test_a_key_does_not_live_longer_for_a_restart(ms: int, deduped: bool, tmp_path: Path) -> None:
    client = Client(tmp_path / "data")
    client.append("a", 1, key="k")
    client.kill()
    # Another run of the machine: its monotonic clock began anew.
    client = Client(tmp_path / "data", now=Now(START.ts + ms, 17))
    assert client.append("a", 2, key="k")[1] is deduped
    client.kill()


def test_a_key_lives_on_for_the_rest_of_its_window_after_a_restart(tmp_path: Path) -> None:
    client = Client(tmp_path / "data")
    client.append("a", 1, key="k")
    client.kill()
    client = Client(tmp_path / "data", now=Now(START.ts + 100_000, 17))
    client.later(19_999)
    assert client.append("a", 2, key="k")[1]
    client.later(1)
    assert not client.append("a", 2, key="k")[1]
    client.kill()


def test_a_wall_clock_that_went_back_ends_no_key(tmp_path: Path) -> None:
    client = Client(tmp_path / "data")
    client.append("a", 1, key="k")
    client.kill()
    client = Client(tmp_path / "data", now=Now(START.ts - 10_000_000, 17))
    assert client.append("a", 2, key="k") == (1, True)
    client.append("a", 3)
    assert b'"$ts":%d,"data":3' % START.ts in client.records("a")
    client.kill()


def alive(client: Client, name: str, *keys: str) -> list[str]:
    """Which of the keys still stand for a write."""
    topic = client.engine.topic(name)
    return [
        key
        for key in keys
        if topic.dedupe.find(key, client.now.ms, topic.config.idempotency_window_ms)
    ]


# Each step: milliseconds to wait, then a key to write with or a window to set.
WINDOWS: list[list[tuple[int, str | int]]] = [
    [(0, 100), (0, "a"), (60, "b"), (60, 1000), (10, "c")],
    [(0, 1000), (0, "a"), (60, 10), (5, "b"), (1, 1000), (0, "c")],
    [(0, 100), (0, "a"), (90, "b"), (60, 5000), (50, 100_000), (0, "c")],
    [(0, 100), (0, "a"), (150, "b"), (10, 50), (39, 5000), (0, 100_000)],
    [(0, 100), (0, "a"), (100, 1000)],
    [(0, 100), (0, "a"), (99, 1000)],
    [(0, 0), (0, "a"), (0, 1000), (0, "b")],
    [(0, 1000), (0, "a"), (0, 0), (0, "b"), (0, 1000), (5, "c")],
]


@pytest.mark.parametrize("steps", WINDOWS, ids=str)
@pytest.mark.parametrize("pause_ms", [0, 30, 930])
def test_a_restart_keeps_the_keys_that_live_when_windows_have_changed(
    steps: list[tuple[int, str | int]], pause_ms: int, tmp_path: Path
) -> None:
    client = Client(tmp_path / "data")
    client.put("t")
    for wait_ms, step in steps:
        client.later(wait_ms)
        if isinstance(step, str):
            client.append("t", step, key=step)
        else:
            client.put("t", idempotency_window_ms=step)
    client.later(pause_ms)
    before = alive(client, "t", "a", "b", "c")
    client.kill()
    client = Client(tmp_path / "data", now=client.now)
    assert alive(client, "t", "a", "b", "c") == before
    client.kill()


# Power loss: names


def test_names_that_a_killed_process_has_not_synced_are_synced_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = ForgetfulDisk(monkeypatch)
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


# Power loss: seqs


@pytest.mark.parametrize("durability", CLASSES)
@pytest.mark.parametrize("losses", [1, 2])
def test_no_seq_is_given_twice_when_the_power_goes(
    durability: str, losses: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = ForgetfulDisk(monkeypatch)
    client = Client(tmp_path / "0", sync_ms=60_000)
    client.put("a", durability=durability)
    client.append("a", "first")
    handed_out = 1
    for loss in range(losses):
        for number in range(10):
            handed_out = client.append("a", number, "and one more")[0] + 1
        disk.power_loss(tmp_path / f"{loss}", tmp_path / f"{loss + 1}")
        client.kill()
        client = Client(tmp_path / f"{loss + 1}", boot=f"boot {loss}", sync_ms=60_000)
        if durability == "fsync":
            assert client.engine.topic("a").head_seq == handed_out
        assert client.append("a", "next")[0] > handed_out
    client.kill()


@pytest.mark.parametrize("before", ["memory", "disk"])
def test_a_topic_that_became_fsync_loses_nothing_and_tells_of_no_loss(
    before: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = ForgetfulDisk(monkeypatch)
    client = Client(tmp_path / "data", sync_ms=60_000)
    client.put("a", durability=before)
    client.append("a", "old class")
    client.put("a", durability="fsync")
    client.append("a", "new class")
    disk.power_loss(tmp_path / "data", tmp_path / "left")
    client.kill()
    client = Client(tmp_path / "left", boot="second")
    assert client.engine.topic("a").head_seq == 2
    assert client.engine.topic("a").losses == ()
    assert client.append("a", "next") == (3, False)
    client.kill()


@pytest.mark.parametrize("durability", CLASSES)
def test_no_seq_is_given_twice_after_a_kill(durability: str, tmp_path: Path) -> None:
    client = Client(tmp_path / "data")
    client.put("a", durability=durability)
    last = [client.append("a", number)[0] for number in range(5)][-1]
    client.kill()
    client = Client(tmp_path / "data")
    first = client.append("a", "next")[0]
    assert first == last + 1 if durability != "ephemeral" else first > last
    client.kill()


def test_records_in_memory_only_are_gone_after_a_restart_and_the_topic_is_not(
    tmp_path: Path,
) -> None:
    client = Client(tmp_path / "data")
    client.put("a", durability="ephemeral", cap_records=5)
    client.append("a", 1, 2, 3)
    assert client.read("a").count == 3
    client.kill()
    client = Client(tmp_path / "data")
    topic = client.engine.topic("a")
    assert (topic.count, topic.config.cap_records, topic.earliest_seq) == (0, 5, topic.head_seq + 1)
    client.kill()


def test_an_orderly_stop_keeps_the_head_of_records_in_memory_only(tmp_path: Path) -> None:
    client = Client(tmp_path / "data")
    client.put("a", durability="ephemeral")
    client.append("a", 1, 2, 3)
    client.stop()
    client = Client(tmp_path / "data")
    assert client.append("a", 4) == (4, False)
    client.kill()


def test_a_kill_soon_after_an_orderly_start_gives_no_seq_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = ForgetfulDisk(monkeypatch)
    client = Client(tmp_path / "data")
    client.put("a", durability="ephemeral")
    client.append("a", 1, 2, 3)
    client.stop()
    client = Client(tmp_path / "data", sync_ms=60_000)
    assert client.append("a", 4) == (4, False)
    disk.power_loss(tmp_path / "data", tmp_path / "left")
    client.kill()
    client = Client(tmp_path / "left", boot="second")
    assert client.append("a", "next")[0] > 4
    client.kill()


def test_many_records_in_memory_only_are_never_ahead_of_their_reservation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = ForgetfulDisk(monkeypatch)
    client = Client(tmp_path / "data", sync_ms=60_000)
    client.put("a", durability="ephemeral")
    last = 0
    for number in range(8):
        last = client.append("a", *range(1500))[0] + 1499
        disk.power_loss(tmp_path / "data", tmp_path / f"left {number}")
        other = Client(tmp_path / f"left {number}", boot="second")
        assert other.append("a", "next")[0] > last
        other.kill()
    client.kill()


@pytest.mark.parametrize("before", CLASSES)
@pytest.mark.parametrize("after", CLASSES)
@pytest.mark.parametrize("loses_power", [False, True])
def test_a_change_of_class_in_place_gives_no_seq_twice(
    before: str, after: str, loses_power: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = ForgetfulDisk(monkeypatch)
    client = Client(tmp_path / "0", sync_ms=60_000)
    client.put("a", durability=before)
    client.append("a", *range(5000))
    client.append("a", "old class")
    client.put("a", durability=after)
    last = client.append("a", "new class")[0]
    for start in (1, 2):
        if loses_power:
            disk.power_loss(tmp_path / f"{start - 1}", tmp_path / f"{start}")
        else:
            shutil.copytree(tmp_path / f"{start - 1}", tmp_path / f"{start}")
        client.kill()
        client = Client(
            tmp_path / f"{start}", boot=f"boot {start}" if loses_power else "first", sync_ms=60_000
        )
        assert client.engine.topic("a").config.durability == after
        first = client.append("a", "next")[0]
        assert first > last
        last = first
    client.kill()


def test_without_a_name_for_the_run_every_start_is_taken_for_a_power_loss(tmp_path: Path) -> None:
    first_seqs = []
    for _ in range(3):
        client = Client(tmp_path / "data", boot="")
        first_seqs.append(client.append("a", 1)[0])
        client.kill()
    assert first_seqs[0] == 1
    assert all(later >= earlier + RESERVE_MIN for earlier, later in pairwise(first_seqs))


# Torn tails and damage


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A small log in one file, killed."""
    client = Client(tmp_path / "data", file_bytes=8192)
    client.put("a", durability="fsync")
    client.append("a", "one", key="k")
    client.append("a", "two", "three")
    client.append("b", 1)
    client.kill()
    return tmp_path / "data"


def promised(path: Path) -> int:
    """Offset up to which the frames of the only file say that the log was synced."""
    (file,) = log_files(path)
    return FILE_HEADER_BYTES + max(header.durable_lsn for _, header in frames_of(file))


def changed(path: Path, target: Path, content: bytes) -> Path:
    """``path`` with another content of its only log file, in the folder ``target`` (which may hold
    an earlier try).
    """
    folder = target / "wal" / "00"
    folder.mkdir(parents=True, exist_ok=True)
    for later in log_files(target)[1:]:
        later.unlink()
    (folder / log_files(path)[0].name).write_bytes(content)
    return target


def seen(path: Path) -> dict[str, bytes] | Damaged:
    """The records of every topic after a start; or why there was none."""
    try:
        client = Client(path, file_bytes=8192)
    except Damaged as damage:
        return damage
    found = {name: client.records(name) for name in client.engine.topics}
    client.kill()
    return found


def prefixes(path: Path) -> dict[int, dict[str, bytes]]:
    """What is seen when the log ends at each of its frames, by that offset."""
    (file,) = log_files(path)
    content = file.read_bytes()
    offsets = [offset for offset, _ in frames_of(file)]
    end = (
        offsets[-1]
        + FRAME_HEADER_BYTES
        + len(content[offsets[-1] + FRAME_HEADER_BYTES :].rstrip(b"\0"))
    )
    found: dict[int, dict[str, bytes]] = {}
    for number, offset in enumerate([*offsets, end]):
        target = changed(
            path, path.with_name(f"prefix {number}"), content[:offset].ljust(len(content), b"\0")
        )
        shown = seen(target)
        assert isinstance(shown, dict)
        found[offset] = shown
    return found


@pytest.fixture
def no_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that open a log some thousand times and lose no power."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(os, "fdatasync", lambda _: None)


@pytest.mark.slow
@pytest.mark.usefixtures("no_syncs")
def test_a_log_cut_at_any_byte_is_a_prefix(small: Path, tmp_path: Path) -> None:
    expected = prefixes(small)
    content = log_files(small)[0].read_bytes()
    for cut in range(FILE_HEADER_BYTES, max(expected) + 1):
        target = changed(small, tmp_path / "cut", content[:cut].ljust(len(content), b"\0"))
        # Where a frame ends in zeros of its own, less than all of it may have been cut.
        whole = max(
            offset for offset in expected if not content[cut:offset].strip(b"\0") or offset <= cut
        )
        assert seen(target) == expected[whole], cut
        if cut % 8 == 0:
            assert seen(target) == expected[whole], "the tail was cut for good"


@pytest.mark.slow
@pytest.mark.usefixtures("no_syncs")
def test_a_file_cut_short_is_damage_and_no_torn_tail(small: Path, tmp_path: Path) -> None:
    content = log_files(small)[0].read_bytes()
    end = len(content.rstrip(b"\0"))
    for cut in (
        FILE_HEADER_BYTES,
        end - 1,
        end,
        len(content) - 1,
        *random.Random(1).sample(range(FILE_HEADER_BYTES, end), 40),
    ):
        target = changed(small, tmp_path / "cut", content[:cut])
        found = seen(target)
        assert isinstance(found, Damaged)
        assert (found.path, found.offset) == (log_files(target)[0], cut)
        assert log_files(target)[0].stat().st_size == cut, "damage is left as it was found"


@pytest.mark.slow
@pytest.mark.usefixtures("no_syncs")
def test_a_flipped_bit_is_a_prefix_with_all_that_was_promised_or_damage_by_name(
    small: Path, tmp_path: Path
) -> None:
    expected = prefixes(small)
    content = log_files(small)[0].read_bytes()
    frames = [offset for offset, _ in frames_of(log_files(small)[0])]
    safe = promised(small)
    dice = random.Random(2)
    for byte in range(FILE_HEADER_BYTES, max(expected)):
        bad = bytearray(content)
        bad[byte] ^= 1 << dice.randrange(8)
        target = changed(small, tmp_path / "flipped", bytes(bad))
        hurt = max(offset for offset in frames if offset <= byte)
        found = seen(target)
        if isinstance(found, Damaged):
            assert (found.path, found.offset) == (log_files(target)[0], hurt)
            assert hurt < safe
            assert log_files(target)[0].read_bytes() == bytes(bad), "damage is left as it was found"
        else:
            padding = found == expected[max(expected)]
            assert padding or (found == expected[hurt] and hurt >= safe), byte


@pytest.mark.parametrize("byte", [0, 8, 12, 16, 24, 32, 40, 44, 4095])
def test_a_damaged_file_header_is_damage_unless_nothing_reads_it(byte: int, small: Path) -> None:
    path = log_files(small)[0]
    content = bytearray(path.read_bytes())
    content[byte] ^= 1
    path.write_bytes(content)
    found = seen(small)
    if byte < 44:
        assert isinstance(found, Damaged)
        assert (found.path, found.offset) == (path, 0)
    else:
        assert isinstance(found, dict)


def test_a_frame_whose_sectors_never_came_hides_no_frame_behind_it(tmp_path: Path) -> None:
    client = Client(tmp_path / "data", sync_ms=60_000)
    client.append("a", "first")
    for _ in range(6):
        client.append("a", "x" * 400)
    shutil.copytree(tmp_path / "data", tmp_path / "left")
    client.kill()
    path = log_files(tmp_path / "left")[0]
    offset, header = frames_of(path)[4]
    content = bytearray(path.read_bytes())
    content[offset : offset + header.end - header.lsn] = bytes(header.end - header.lsn)
    path.write_bytes(content)
    client = Client(tmp_path / "left", boot="second")
    assert client.shard.cut_bytes > 0
    seqs = [record["$seq"] for record in msgspec.json.decode(b"[%b]" % client.records("a"))]
    client.kill()
    assert seqs == [1, 2]
    # The frames behind the hole must not come back once the log has grown up to them.
    client = Client(tmp_path / "left", boot="second")
    while client.wal.position <= header.lsn + 3000:
        client.append("a", "y" * 400)
    before = client.records("a")
    client.kill()
    client = Client(tmp_path / "left", boot="second")
    assert client.records("a") == before
    client.kill()


def test_zeros_in_the_place_of_a_synced_frame_are_damage(small: Path) -> None:
    path = log_files(small)[0]
    offset, header = frames_of(path)[2]
    content = bytearray(path.read_bytes())
    content[offset : offset + header.end - header.lsn] = bytes(header.end - header.lsn)
    path.write_bytes(content)
    found = seen(small)
    assert isinstance(found, Damaged)
    assert found.offset == offset


def test_a_torn_tail_is_cut_and_counted(small: Path) -> None:
    path = log_files(small)[0]
    offset, header = frames_of(path)[-1]
    content = bytearray(path.read_bytes())
    content[offset + FRAME_HEADER_BYTES] ^= 0xFF
    path.write_bytes(content)
    client = Client(small, file_bytes=8192)
    assert 0 < header.body_len <= client.shard.cut_bytes - FRAME_HEADER_BYTES + 1
    client.kill()
    client = Client(small, file_bytes=8192)
    assert client.shard.cut_bytes == 0
    client.kill()


def test_damage_below_a_checkpoint_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    client = Client(tmp_path / "data")
    client.put("a", durability="fsync")
    client.append("a", "one")
    client.append("a", "two")
    client.stop()
    path = log_files(tmp_path / "data")[0]
    offset, _ = frames_of(path)[-1]
    content = bytearray(path.read_bytes())
    content[offset + FRAME_HEADER_BYTES] ^= 1
    path.write_bytes(content)
    for _ in range(2):
        with pytest.raises(Damaged, match="the checkpoint says that it had been synced") as raised:
            Client(tmp_path / "data")
        assert raised.value.offset == offset
        assert path.read_bytes() == bytes(content)


def test_a_log_that_ends_before_its_checkpoint_is_damage(tmp_path: Path) -> None:
    client = Client(tmp_path / "data")
    client.append("a", "one")
    client.append("a", "two")
    client.stop()
    path = log_files(tmp_path / "data")[0]
    offset, _ = frames_of(path)[-1]
    content = path.read_bytes()
    path.write_bytes(content[:offset].ljust(len(content), b"\0"))
    with pytest.raises(Damaged, match="before the checkpoint"):
        Client(tmp_path / "data")
    path.unlink()
    with pytest.raises(Damaged, match="before the checkpoint"):
        Client(tmp_path / "data")


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """A log of several files, killed."""
    client = Client(tmp_path / "data", file_bytes=8192)
    for _ in range(40):
        client.append("a", "x" * 500)
    client.kill()
    assert len(log_files(tmp_path / "data")) > 4
    return tmp_path / "data"


@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_missing_file_is_damage(number: int, many: Path) -> None:
    files = log_files(many)
    files[number].unlink()
    with pytest.raises(Damaged, match="missing or cut") as raised:
        Client(many)
    assert raised.value.path == files[number + 1]


def test_a_damaged_frame_in_an_earlier_file_is_damage(many: Path) -> None:
    path = log_files(many)[1]
    offset, _ = frames_of(path)[-1]
    content = bytearray(path.read_bytes())
    content[offset + 70] ^= 4
    path.write_bytes(content)
    with pytest.raises(Damaged, match="the next file says") as raised:
        Client(many)
    assert (raised.value.path, raised.value.offset) == (path, offset)


def test_an_earlier_file_that_ends_too_soon_is_damage(many: Path) -> None:
    path = log_files(many)[1]
    offset, _ = frames_of(path)[-1]
    content = path.read_bytes()
    path.write_bytes(content[:offset].ljust(len(content), b"\0"))
    with pytest.raises(Damaged, match="missing or cut"):
        Client(many)


def test_another_shards_file_is_damage(many: Path) -> None:
    (many / "wal" / "00").rename(many / "wal" / "01")
    with pytest.raises(Damaged, match="belongs to shard 0"):
        recover(many, 1, 2, START, wal_file_bytes=FILE_BYTES, wal_sync_ms=200)


def test_a_file_of_an_unknown_version_is_refused_by_name(small: Path) -> None:
    path = log_files(small)[0]
    content = bytearray(path.read_bytes())
    content[8] = 9
    path.write_bytes(content)
    with pytest.raises(
        Damaged, match="has format version 9; this program reads versions up to 2"
    ) as raised:
        Client(small)
    assert raised.value.path == path


# Checkpoints


@pytest.fixture
def stopped(tmp_path: Path) -> Iterator[Path]:
    """A shard that was stopped in order twice, so that two checkpoints stand."""
    for number in range(2):
        client = Client(tmp_path / "data")
        client.put("e", durability="ephemeral")
        client.append("e", number, number)
        client.append("d", number)
        client.stop()
    return tmp_path / "data"  # type: ignore[return-value]


def checkpoint_files(path: Path) -> list[Path]:
    return sorted((path / "checkpoint" / "00").glob("*.ckpt"))


def spoil(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_the_newest_checkpoint_is_believed(stopped: Path) -> None:
    client = Client(stopped)
    assert client.engine.topic("e").head_seq == 4
    assert client.engine.topic("d").head_seq == 2
    client.kill()


@pytest.mark.parametrize("spoiled", [1, 2])
def test_with_damaged_checkpoints_no_seq_is_given_twice(spoiled: int, stopped: Path) -> None:
    files = checkpoint_files(stopped)
    assert len(files) == 2
    for path in files[-spoiled:]:
        spoil(path)
    client = Client(stopped)
    assert client.engine.topic("d").head_seq == 2
    assert client.append("e", "next")[0] > 4
    client.kill()


def test_a_checkpoint_of_an_unknown_version_is_refused_by_name(stopped: Path) -> None:
    path = checkpoint_files(stopped)[-1]
    content = bytearray(path.read_bytes())
    content[8] = 9
    path.write_bytes(content)
    with pytest.raises(
        Damaged, match=f"{path.name}, offset 8: has format version 9; this program reads version 2"
    ):
        Client(stopped)


def test_what_came_after_the_last_stop_is_laid_over_its_checkpoint(stopped: Path) -> None:
    client = Client(stopped)
    client.append("d", "later")
    client.delete("e")
    client.kill()
    client = Client(stopped)
    assert client.engine.topic("d").head_seq == 3
    with pytest.raises(TopicNotFound):
        client.engine.topic("e")
    client.kill()


def test_two_checkpoints_are_kept(stopped: Path) -> None:
    for _ in range(3):
        Client(stopped).stop()
    files = checkpoint_files(stopped)
    assert len(files) == checkpoints.KEEP
    newest, older = checkpoints.whole(stopped / "checkpoint" / "00")
    assert newest.lsn > older.lsn
    assert checkpoints.decode(files[-1].read_bytes()) == newest


# Time


def ts_of(client: Client, name: str, seq: int) -> int:
    (record,) = msgspec.json.decode(
        b"[%b]" % b",".join(map(bytes, client.read(name, seq - 1, 1).pieces))
    )
    return int(record["$ts"])


def test_ts_does_not_go_back_after_a_change_to_ephemeral_an_orderly_stop_and_a_clock_that_steps_back(
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
def test_ts_of_an_ephemeral_topic_does_not_go_back_by_a_kill_and_a_clock_that_steps_back(
    tmp_path: Path, idle_ms: int
) -> None:
    """It may have been written to all the time, or after a while."""
    client, before = Client(tmp_path), 0
    client.put("a", durability="ephemeral")
    for life in range(3):
        for _ in range(3):
            client.later(idle_ms)
            seq, _ = client.append("a", life)
            assert ts_of(client, "a", seq) >= before, life
            before = ts_of(client, "a", seq)
        client.kill()
        client = Client(tmp_path, now=Now(START.ts, client.now.ms + 1))
    seq, _ = client.append("a", "last")
    assert before <= ts_of(client, "a", seq) <= before + 2_000 * 3, "and it is not far ahead"
    client.kill()


def test_a_start_tells_the_log_once_of_an_ephemeral_topic_that_nobody_writes_to(
    tmp_path: Path,
) -> None:
    client = Client(tmp_path)
    client.put("a", durability="ephemeral")
    seq, _ = client.append("a", 1)
    before = ts_of(client, "a", seq)
    told = []
    for _ in range(4):
        client.kill()
        client = Client(tmp_path, now=Now(START.ts - 1_000, client.now.ms + 1))
        told.append(client.wal.counters.frames)
    assert told == [2, 1, 1, 1], "of the topic, and of the start"
    seq, _ = client.append("a", 2)
    assert ts_of(client, "a", seq) >= before
    client.kill()


def test_a_busy_ephemeral_topic_writes_one_frame_a_second_to_keep_its_time(tmp_path: Path) -> None:
    client = Client(tmp_path)
    client.put("a", durability="ephemeral")
    frames = client.wal.counters.frames
    for _ in range(500):
        client.later(10)
        client.append("a", 1)
    assert 3 <= client.wal.counters.frames - frames <= 6
    client.kill()
