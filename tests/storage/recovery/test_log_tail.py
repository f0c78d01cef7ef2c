"""Torn tails are cut and counted. Damage in synced data is refused with path and offset."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import msgspec
import pytest

from tests.support.log import (
    Client,
    log_files,
)
from tests.support.recovery import frames_of
from topics.formats.disk.frames import FRAME_HEADER_BYTES
from topics.formats.disk.wal import FILE_HEADER_BYTES
from topics.storage.disk import Damaged

# Torn tails, and damage


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Return the directory of a killed shard with a small log in one file."""
    client = Client(tmp_path / "data", file_bytes=8192)
    client.put("a", durability="fsync")
    client.append("a", "one", key="k")
    client.append("a", "two", "three")
    client.append("b", 1)
    client.kill()
    return tmp_path / "data"


def synced_end(path: Path) -> int:
    """Return the offset up to which the frames of the only file state that the log was synced."""
    (file,) = log_files(path)
    return FILE_HEADER_BYTES + max(header.durable_lsn for _, header in frames_of(file))


def changed(path: Path, target: Path, content: bytes) -> Path:
    """Write ``path`` to the folder ``target`` with other content in its only log file.

    The folder may contain files of an earlier call.
    """
    folder = target / "wal" / "00"
    folder.mkdir(parents=True, exist_ok=True)
    for later in log_files(target)[1:]:
        later.unlink()
    (folder / log_files(path)[0].name).write_bytes(content)
    return target


def records_or_damage(path: Path) -> dict[str, bytes] | Damaged:
    """Start and return the records of every topic, or the damage that the start reports."""
    try:
        client = Client(path, file_bytes=8192)
    except Damaged as damage:
        return damage
    found = {name: client.records(name) for name in client.engine.topics}
    client.kill()
    return found


def prefixes(path: Path) -> dict[int, dict[str, bytes]]:
    """Return the records for a log that ends at each of its frames, by the offset of that frame."""
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
        shown = records_or_damage(target)
        assert isinstance(shown, dict)
        found[offset] = shown
    return found


@pytest.fixture
def no_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable syncs, for tests that open a log thousands of times and simulate no power failure."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(os, "fdatasync", lambda _: None)


@pytest.mark.slow
@pytest.mark.usefixtures("no_syncs")
def test_a_log_cut_at_any_byte_restores_a_prefix(small: Path, tmp_path: Path) -> None:
    expected = prefixes(small)
    content = log_files(small)[0].read_bytes()
    for cut in range(FILE_HEADER_BYTES, max(expected) + 1):
        target = changed(small, tmp_path / "cut", content[:cut].ljust(len(content), b"\0"))
        # If a frame ends in zeros of its own, the cut may have removed fewer bytes than it seems.
        end = max(
            offset for offset in expected if not content[cut:offset].strip(b"\0") or offset <= cut
        )
        assert records_or_damage(target) == expected[end], cut
        if cut % 8 == 0:
            assert records_or_damage(target) == expected[end], "the tail stays cut"


@pytest.mark.slow
@pytest.mark.usefixtures("no_syncs")
def test_a_shortened_log_file_is_damage_and_not_a_torn_tail(small: Path, tmp_path: Path) -> None:
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
        found = records_or_damage(target)
        assert isinstance(found, Damaged)
        assert (found.path, found.offset) == (log_files(target)[0], cut)
        assert log_files(target)[0].stat().st_size == cut, "damage is left as it was found"


@pytest.mark.slow
@pytest.mark.usefixtures("no_syncs")
def test_a_flipped_bit_restores_a_prefix_with_all_synced_frames_or_is_reported_as_damage(
    small: Path, tmp_path: Path
) -> None:
    expected = prefixes(small)
    content = log_files(small)[0].read_bytes()
    frames = [offset for offset, _ in frames_of(log_files(small)[0])]
    synced = synced_end(small)
    rng = random.Random(2)
    for byte in range(FILE_HEADER_BYTES, max(expected)):
        bad = bytearray(content)
        bad[byte] ^= 1 << rng.randrange(8)
        target = changed(small, tmp_path / "flipped", bytes(bad))
        damaged = max(offset for offset in frames if offset <= byte)
        found = records_or_damage(target)
        if isinstance(found, Damaged):
            assert (found.path, found.offset) == (log_files(target)[0], damaged)
            assert damaged < synced
            assert log_files(target)[0].read_bytes() == bytes(bad), "damage is left as it was found"
        else:
            padding = found == expected[max(expected)]
            assert padding or (found == expected[damaged] and damaged >= synced), byte


@pytest.mark.parametrize("byte", [0, 8, 12, 16, 24, 32, 40, 44, 4095])
def test_a_damaged_field_of_the_log_file_header_is_reported_as_damage(
    byte: int, small: Path
) -> None:
    path = log_files(small)[0]
    content = bytearray(path.read_bytes())
    content[byte] ^= 1
    path.write_bytes(content)
    found = records_or_damage(small)
    if byte < 44:
        assert isinstance(found, Damaged)
        assert (found.path, found.offset) == (path, 0)
    else:
        assert isinstance(found, dict)


def test_frames_after_a_missing_frame_are_cut_and_never_restored_later(tmp_path: Path) -> None:
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
    # The frames after the hole must not be restored when the log has grown up to them.
    client = Client(tmp_path / "left", boot="second")
    while client.wal.next_lsn <= header.lsn + 3000:
        client.append("a", "y" * 400)
    before = client.records("a")
    client.kill()
    client = Client(tmp_path / "left", boot="second")
    assert client.records("a") == before
    client.kill()


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


def test_damage_below_a_checkpoint_is_refused_and_left_unchanged(tmp_path: Path) -> None:
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
        with pytest.raises(
            Damaged, match="damaged frame that was synced, according to the checkpoint"
        ) as raised:
            Client(tmp_path / "data")
        assert raised.value.offset == offset
        assert path.read_bytes() == bytes(content)
