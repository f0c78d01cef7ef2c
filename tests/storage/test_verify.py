"""Verification: every byte is checked, and a state that a crash may leave is not damage."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.formats.disk.segment_support import plain
from tests.storage.segments.segments_support import add
from tests.support.data_directory import MIXED, findings, topics
from tests.support.log import Client, append_streamed, log_files
from topics.engine.locators import in_extent
from topics.formats.disk.segment import HEADER_BYTES, TRAILER_BYTES, encode_entry
from topics.storage import checkpoints
from topics.storage.data_dir import (
    DataDirectory,
    locked_for_reading,
)
from topics.storage.disk import DAMAGED
from topics.storage.segments.segment_store import SegmentStore
from topics.storage.verify import (
    Finding,
    verify_blob,
    verify_checkpoint,
    verify_directory,
    verify_segment,
)

# Directories: the files must agree with each other, and a state that a crash may leave is not
# damage


def test_a_directory_after_an_orderly_stop_has_no_damage(data: Path) -> None:
    with locked_for_reading(data) as shards:
        seen = [found.name for found in verify_directory(data, shards)]  # type: ignore[union-attr]
    assert [Path(name).suffix for name in seen] == [".wal", ".wal", ".wal", ".ckpt", ".seg"]


@pytest.mark.slow
def test_the_verify_command_reports_its_findings(data: Path) -> None:
    done = topics("verify", str(data))
    assert (done.returncode, done.stdout) == (0, "5 files, no damage\n")
    path = next(data.rglob("*.seg"))
    intact = bytearray(path.read_bytes())
    intact[HEADER_BYTES + 20] ^= 1
    path.write_bytes(intact)
    done = topics("verify", str(data))
    assert (done.returncode, done.stdout) == (
        3,
        f"{path}, offset 4096: records are damaged\n5 files, 1 finding\n",
    )
    directory = DataDirectory(data, shards=1)
    done = topics("verify", str(data))
    directory.close()
    assert (done.returncode, done.stdout) == (1, "")
    assert "in use by process" in done.stderr
    done = topics("verify", str(data / "nowhere"))
    assert (done.returncode, done.stderr) == (2, f"topics: {data}/nowhere: no such directory\n")
    done = topics("inspect", str(data / "nowhere"))
    assert (done.returncode, done.stderr) == (
        2,
        f"topics: {data}/nowhere: No such file or directory\n",
    )


# Log files: a torn tail is not damage, but a damaged frame before synced frames is


def test_a_torn_tail_is_not_damage_but_a_damaged_synced_frame_is(data: Path) -> None:
    last, first = log_files(data)[-1], log_files(data)[0]
    for checkpoint in (data / "checkpoint" / "00").iterdir():
        checkpoint.unlink()
    intact = last.read_bytes()
    end = len(intact.rstrip(b"\0"))
    last.write_bytes(intact[:end] + b"WF01 torn".ljust(len(intact) - end, b"\0"))
    assert findings(data) == []
    damaged = bytearray(intact)
    damaged[5000] ^= 1
    last.write_bytes(damaged)
    (found,) = findings(data)
    assert found.startswith(
        f"{last.name}: damaged frame that was synced, according to the frame at offset "
    )
    last.write_bytes(intact)
    damaged = bytearray(first.read_bytes())
    damaged[9000] ^= 1
    first.write_bytes(damaged)
    (found,) = findings(data)
    assert found.startswith(f"{first.name}: damaged frame that was synced, ")


def test_a_missing_log_file_is_damage(data: Path) -> None:
    log_files(data)[1].unlink()
    (found,) = findings(data)
    assert "a file is missing or truncated" in found


def test_a_log_file_kept_as_a_damaged_copy_is_not_a_finding(data: Path) -> None:
    path = log_files(data)[0]
    path.with_name(path.name + DAMAGED).write_bytes(b"damaged")
    assert findings(data) == []


def test_a_log_file_that_is_cut_or_of_another_shard_is_a_finding(data: Path) -> None:
    path = log_files(data)[-1]
    os.truncate(path, path.stat().st_size - 1)
    assert (
        f"{path.name}: the file is truncated: it was created with {path.stat().st_size + 1} bytes"
        in (findings(data))
    )
    (data / "wal" / "00").rename(data / "wal" / "01")
    reported = [each for each in verify_directory(data, 2) if isinstance(each, Finding)]
    assert any(each.reason.startswith("belongs to shard 0, LSN 0x") for each in reported)


# Checkpoints: each by itself, and compared with the log and the segments


def test_a_log_that_ends_before_its_checkpoint_is_damage(data: Path) -> None:
    last = log_files(data)[-1]
    last.write_bytes(last.read_bytes()[:HEADER_BYTES].ljust(last.stat().st_size, b"\0"))
    (found,) = findings(data)
    assert "before the checkpoint at 0x" in found


def test_a_missing_segment_that_a_checkpoint_names_is_a_finding(data: Path) -> None:
    (path,) = (data / "checkpoint" / "00").glob("*.ckpt")
    checkpoint = checkpoints.read(path)
    assert checkpoint is not None
    shard = {**checkpoint.shard, "segments": [1, 0xAB]}
    checkpoints.write(path.parent, checkpoint.lsn, checkpoint.replay_from, [shard])
    assert findings(data) == ["00000000ab.seg: segment of the checkpoint is missing"]


def test_a_cut_checkpoint_is_a_finding(data: Path) -> None:
    (path,) = (data / "checkpoint" / "00").glob("*.ckpt")
    intact = path.read_bytes()
    assert [*verify_checkpoint(path)] == []
    path.write_bytes(intact[:-1])
    assert [finding.reason for finding in verify_checkpoint(path)] == [
        "is not a complete checkpoint"
    ]


def test_only_the_two_newest_checkpoints_are_compared_with_other_files(data: Path) -> None:
    folder = data / "checkpoint" / "00"
    (path,) = folder.glob("*.ckpt")
    found = checkpoints.read(path)
    assert found is not None
    older = folder / f"{0:016x}{checkpoints.SUFFIX}"
    path.replace(older)
    checkpoints.write(folder, found.lsn, found.replay_from, [{**found.shard, "segments": [7]}])
    newest, _ = sorted(folder.glob("*.ckpt"), reverse=True)
    assert findings(data) == ["0000000007.seg: segment of the checkpoint is missing"]
    for number in (0xE, 0xF):
        (folder / f"{number:016x}{checkpoints.SUFFIX}").write_bytes(older.read_bytes())
    assert newest.exists()
    assert findings(data) == []


# Segments: every byte is checked, and the parts must agree with each other


def reasons(path: Path) -> list[str]:
    return [finding.reason for finding in verify_segment(path)]


def test_a_segment_has_no_damage_after_it_is_written_flagged_and_punched(
    store: SegmentStore,
) -> None:
    segment = add(store, 1, MIXED)
    assert reasons(segment.path) == []
    store.flag_deleted(in_extent(1, 0), [1, 4], 0)
    store.flags.write(0)
    store.punch([in_extent(1, 2)])
    assert reasons(segment.path) == []


@pytest.mark.parametrize("sectors", [slice(1), slice(3, 5), slice(-1, None)])
def test_an_extent_that_is_partly_punched_is_not_damage(
    store: SegmentStore, sectors: slice
) -> None:
    segment = add(store, 1, MIXED)
    intact = segment.path.read_bytes()
    pages = [*segment.entries()][2].pages
    store.punch([in_extent(1, 2)])
    punched = segment.path.read_bytes()
    with segment.path.open("r+b") as file:
        file.seek(pages.start)
        file.write(intact[pages.start : pages.stop])
        for at in [*range(pages.start, pages.stop, 512)][sectors]:
            file.seek(at)
            file.write(punched[at : at + 512])
    assert reasons(segment.path) == []


@pytest.mark.slow
def test_every_flipped_byte_of_a_segment_is_a_finding(store: SegmentStore) -> None:
    segment = add(store, 1, MIXED)
    intact = segment.path.read_bytes()
    flags = range(segment.trailer.flags_at, segment.trailer.flags_at + segment.trailer.record_count)
    rng = random.Random(5)
    used = [at for at in range(len(intact)) if intact[at]]
    for at in {
        *rng.sample(used, 300),
        *rng.sample(range(len(intact)), 300),
        *flags,
        *range(60),
        *range(len(intact) - 100, len(intact)),
    }:
        if at >= len(intact):
            continue
        data = bytearray(intact)
        data[at] ^= rng.choice([2, 4, 8, 16, 128])
        segment.path.write_bytes(data)
        assert reasons(segment.path), at


def test_a_delete_flag_flipped_between_0_and_1_cannot_be_detected(store: SegmentStore) -> None:
    segment = add(store, 1, MIXED)
    data = bytearray(segment.path.read_bytes())
    data[segment.trailer.flags_at] ^= 1
    segment.path.write_bytes(data)
    assert reasons(segment.path) == []


def test_an_extent_of_zeros_with_a_live_record_is_damage(store: SegmentStore) -> None:
    segment = add(store, 1)
    store.punch([in_extent(1, 0)])
    with segment.path.open("r+b") as file:
        file.seek(next(segment.entries()).flags_at)
        file.write(b"\0")
    assert reasons(segment.path) == ["the tables of the extent are damaged"]


@pytest.mark.parametrize("length", [0, 10, HEADER_BYTES, HEADER_BYTES + TRAILER_BYTES, -1, -4096])
def test_a_shortened_segment_is_a_finding(store: SegmentStore, length: int) -> None:
    segment = add(store, 1, MIXED)
    os.truncate(segment.path, length if length >= 0 else segment.size + length)
    assert len(reasons(segment.path)) == 1


def test_a_segment_under_the_name_of_another_is_a_finding(store: SegmentStore) -> None:
    segment = add(store, 1, MIXED)
    moved = segment.path.rename(segment.path.with_name("0000000002.seg"))
    assert reasons(moved) == ["belongs to shard 3, number 1"]
    assert [finding.reason for finding in verify_segment(moved, 3)] == [
        "belongs to shard 3, number 1"
    ]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"offset": 8192}, "does not start at the end of the previous part"),
        ({"flags_at": 1}, "the delete flags of the extent are at the wrong"),
        ({"record_count": 0}, "numbers of delete flags and records differ"),
        ({"tables_len": 8}, "does not start at the end of the previous part"),
        ({"first_seq": 6}, "tables"),
        ({"first_ts": 1}, "the times in the directory do not match"),
        ({"last_ts": 1}, "the times in the directory do not match"),
        ({"keys_len": 1}, "differ in the length of the keys"),
    ],
)
def test_a_directory_that_contradicts_its_extents_is_a_finding(
    store: SegmentStore, change: dict[str, int], reason: str
) -> None:
    segment = add(store, 1, [(1, 5, [plain(4)])])
    (entry,) = segment.entries()
    rewrite(segment.path, segment.trailer.directory_at, encode_entry(entry._replace(**change)))
    assert any(reason in found for found in reasons(segment.path))


def rewrite(path: Path, directory_at: int, directory: bytes) -> None:
    """Replace the directory, with a trailer that matches it."""
    import crc32c

    from topics.formats.disk.segment import decode_trailer, encode_trailer

    data = bytearray(path.read_bytes())
    trailer = decode_trailer(data[-TRAILER_BYTES:], len(data))
    data[directory_at : directory_at + len(directory)] = directory
    data[-TRAILER_BYTES:] = encode_trailer(trailer._replace(directory_crc=crc32c.crc32c(directory)))
    path.write_bytes(data)


@pytest.fixture
def store(tmp_path: Path) -> SegmentStore:
    return SegmentStore.open(tmp_path / "segment" / "00", 3, [])


# Blobs: every byte is checked, and the name must be that of the write


@pytest.fixture
def blob(tmp_path: Path) -> Path:
    """Return the blob of a write that is not sealed yet."""
    DataDirectory(tmp_path / "data", shards=1).close()
    client = Client(tmp_path / "data")
    client.put("a")
    path = append_streamed(client, "a", records=[{"data": "x" * 100}] * 3)
    client.stop()
    return path


@pytest.mark.slow
def test_every_flipped_bit_and_every_cut_of_a_blob_is_a_finding(blob: Path) -> None:
    intact = blob.read_bytes()
    for at in range(len(intact)):
        blob.write_bytes(intact[:at] + bytes([intact[at] ^ 4]) + intact[at + 1 :])
        assert len([*verify_blob(blob)]) == 1, at
        blob.write_bytes(intact[:at])
        assert len([*verify_blob(blob)]) == 1, at


@pytest.mark.parametrize("name", ["1-2.blob", "2-1.blob", "no numbers.blob", "1.blob"])
def test_a_blob_under_another_name_is_a_finding(blob: Path, name: str) -> None:
    moved = blob.rename(blob.with_name(name))
    (finding,) = verify_blob(moved)
    assert finding.path == moved


def test_a_missing_blob_that_the_log_names_is_a_finding(blob: Path, tmp_path: Path) -> None:
    assert findings(tmp_path / "data") == []
    blob.unlink()
    assert findings(tmp_path / "data") == [f"{blob.name}: blob of the log is missing"]
