"""Looking for damage, and at files: every byte counts, and nothing that a crash may leave is called
damage.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.formats.disk.segment_support import Write, plain
from tests.storage.segments.segments_support import add
from tests.support.log import Client, log_files
from topics.engine.locators import in_extent
from topics.formats.disk.segment import HEADER_BYTES, TRAILER_BYTES, ExtentEntry, encode_entry
from topics.storage.data_dir import (
    DataDirectory,
    DataDirectoryInUse,
    NotADataDirectory,
    held_for_reading,
)
from topics.storage.disk import mapped
from topics.storage.inspect import ForeignFile, describe
from topics.storage.segments.store import SegmentStore
from topics.storage.verify.directory import verify_directory
from topics.storage.verify.finding import Finding
from topics.storage.verify.segments import verify_segment

MIXED = [
    (
        1,
        5,
        [
            plain(40, tag="t%d"),
            Write([("n", "t", b"1", b"{}"), (None, None, b"2", b'{"a":1}')], key="k"),
        ],
    ),
    (2, 9, [Write([("a", None, b"1", None)] * 3, ts_ms=5), plain(2)]),
    (3, 1, [Write([("a", "x", b"1", None)] * 3)]),
]


@pytest.fixture
def store(tmp_path: Path) -> SegmentStore:
    return SegmentStore.open(tmp_path / "segment" / "00", 3, [])


def reasons(path: Path) -> list[str]:
    return [finding.reason for finding in verify_segment(path)]


def test_a_segment_as_it_was_written_is_whole(store: SegmentStore) -> None:
    segment = add(store, 1, MIXED)
    assert reasons(segment.path) == []
    store.flag_deleted(in_extent(1, 0), [1, 4], 0)
    store.write_due_flags(0)
    store.punch([in_extent(1, 2)])
    assert reasons(segment.path) == []


@pytest.mark.slow
def test_every_flipped_byte_is_found(store: SegmentStore) -> None:
    segment = add(store, 1, MIXED)
    whole = segment.path.read_bytes()
    flags = range(segment.trailer.flags_at, segment.trailer.flags_at + segment.trailer.record_count)
    dice = random.Random(5)
    used = [at for at in range(len(whole)) if whole[at]]
    for at in {
        *dice.sample(used, 300),
        *dice.sample(range(len(whole)), 300),
        *flags,
        *range(60),
        *range(len(whole) - 100, len(whole)),
    }:
        if at >= len(whole):
            continue
        data = bytearray(whole)
        data[at] ^= dice.choice([2, 4, 8, 16, 128])
        segment.path.write_bytes(data)
        assert reasons(segment.path), at


def test_a_flipped_delete_flag_that_is_0_or_1_cannot_be_told(store: SegmentStore) -> None:
    segment = add(store, 1, MIXED)
    data = bytearray(segment.path.read_bytes())
    data[segment.trailer.flags_at] ^= 1
    segment.path.write_bytes(data)
    assert reasons(segment.path) == []


def test_an_extent_of_zeros_is_damage_where_a_record_lives(store: SegmentStore) -> None:
    segment = add(store, 1, MIXED)
    store.punch([in_extent(1, 1)])
    with segment.path.open("r+b") as file:
        file.seek([*segment.entries()][1].flags_at)
        file.write(b"\0")
    assert reasons(segment.path) == ["the tables of the extent are damaged"]


@pytest.mark.parametrize("length", [0, 10, HEADER_BYTES, HEADER_BYTES + TRAILER_BYTES, -1, -4096])
def test_a_short_file_is_found(store: SegmentStore, length: int) -> None:
    segment = add(store, 1, MIXED)
    os.truncate(segment.path, length if length >= 0 else segment.size + length)
    assert len(reasons(segment.path)) == 1


def test_another_segments_file_is_found(store: SegmentStore) -> None:
    segment = add(store, 1, MIXED)
    moved = segment.path.rename(segment.path.with_name("0000000002.seg"))
    assert reasons(moved) == ["belongs to shard 3, number 1"]
    assert [finding.reason for finding in verify_segment(moved, 3)] == [
        "belongs to shard 3, number 1"
    ]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"offset": 8192}, "does not begin where the one before it ends"),
        ({"flags_at": 1}, "does not begin where"),
        ({"record_count": 0}, "another length than its parts"),
        ({"first_seq": 6}, "seq 6 is not that of the tables"),
        ({"first_ts": 1}, "other times"),
        ({"last_ts": 1}, "other times"),
    ],
)
def test_a_directory_that_contradicts_the_rest_is_found(
    store: SegmentStore, change: dict[str, int], reason: str
) -> None:
    segment = add(store, 1, [(1, 5, [plain(4)])])
    (entry,) = segment.entries()
    rewrite(segment.path, segment.trailer.directory_at, encode_entry(entry._replace(**change)))
    assert any(reason in found for found in reasons(segment.path))


@pytest.mark.parametrize(
    ("at", "value", "reason"),
    [
        ("ends", 1, "the ends of the records do not ascend"),
        ("tag_refs", 2, "the postings are not those of the tags"),
        ("tag_refs", 9, "a record has a tag that is not in the dictionary"),
        ("tag_ends", 99, "the tags do not ascend"),
        ("postings", 1, "the postings are not those of the tags"),
    ],
)
def test_tables_that_contradict_each_other_are_found_behind_right_checksums(
    store: SegmentStore, at: str, value: int, reason: str
) -> None:
    segment = add(store, 1, [(1, 5, [plain(4, tag="t%d")])])
    (entry,) = segment.entries()
    number = {"ends": 3, "tag_refs": 4, "tag_ends": 9, "postings": 17}[at]
    data = bytearray(segment.path.read_bytes())
    start = entry.tables_at + 32 + 4 * number
    data[start : start + 4] = value.to_bytes(4, "little")
    segment.path.write_bytes(data)
    fix(segment.path, entry)
    assert any(reason in found for found in reasons(segment.path))


def fix(path: Path, entry: ExtentEntry) -> None:
    """Make the checksum of the tables right again."""
    import crc32c

    data = path.read_bytes()
    crc = crc32c.crc32c(data[entry.tables_at : entry.tables_at + entry.tables_len])
    rewrite(path, len(data) - TRAILER_BYTES - 80, encode_entry(entry._replace(tables_crc=crc)))


def rewrite(path: Path, directory_at: int, directory: bytes) -> None:
    """Another directory, with a trailer that bears it out."""
    import crc32c

    from topics.formats.disk.segment import decode_trailer, encode_trailer

    data = bytearray(path.read_bytes())
    trailer = decode_trailer(data[-TRAILER_BYTES:], len(data))
    data[directory_at : directory_at + len(directory)] = directory
    data[-TRAILER_BYTES:] = encode_trailer(trailer._replace(directory_crc=crc32c.crc32c(directory)))
    path.write_bytes(data)


# A whole directory


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory with each kind of file, two log files among them."""
    path = tmp_path / "data"
    DataDirectory(path, shards=1).close()
    client = Client(path)
    client.put("a", durability="fsync")
    for _ in range(60):
        client.append("a", "x" * 2000)
    client.stop()
    add(SegmentStore.open(path / "segment" / "00", 0, []), 1, MIXED)
    return path


def findings(data: Path) -> list[str]:
    with held_for_reading(data) as shards:
        return [
            f"{found.path.name}: {found.reason}"
            for found in verify_directory(data, shards)
            if isinstance(found, Finding)
        ]


def test_a_directory_after_an_orderly_stop_is_whole(data: Path) -> None:
    with held_for_reading(data) as shards:
        seen = [found.name for found in verify_directory(data, shards)]  # type: ignore[union-attr]
    assert [Path(name).suffix for name in seen] == [".wal", ".wal", ".wal", ".ckpt", ".seg"]


def test_a_torn_tail_is_no_damage_and_a_hurt_frame_is(data: Path) -> None:
    last, first = log_files(data)[-1], log_files(data)[0]
    for checkpoint in (data / "checkpoint" / "00").iterdir():
        checkpoint.unlink()
    whole = last.read_bytes()
    end = len(whole.rstrip(b"\0"))
    last.write_bytes(whole[:end] + b"WF01 torn".ljust(len(whole) - end, b"\0"))
    assert findings(data) == []
    hurt = bytearray(whole)
    hurt[5000] ^= 1
    last.write_bytes(hurt)
    (found,) = findings(data)
    assert found.startswith(f"{last.name}: damaged frame; the frame at offset ")
    last.write_bytes(whole)
    hurt = bytearray(first.read_bytes())
    hurt[9000] ^= 1
    first.write_bytes(hurt)
    (found,) = findings(data)
    assert "the log before it ends at" in found


def test_a_log_that_ends_before_its_checkpoint_is_damage(data: Path) -> None:
    last = log_files(data)[-1]
    last.write_bytes(last.read_bytes()[:HEADER_BYTES].ljust(last.stat().st_size, b"\0"))
    (found,) = findings(data)
    assert ".ckpt: says that the log was synced to 0x" in found


def test_a_missing_log_file_is_damage(data: Path) -> None:
    log_files(data)[1].unlink()
    (found,) = findings(data)
    assert "a file between is missing or cut" in found


@pytest.mark.parametrize("kind", ["*.ckpt", "*.wal", "*.seg"])
def test_a_hurt_header_is_damage(data: Path, kind: str) -> None:
    path = sorted(data.rglob(kind))[-1]
    whole = bytearray(path.read_bytes())
    whole[17] ^= 1
    path.write_bytes(whole)
    assert any(found.startswith(path.name) for found in findings(data))


def test_a_directory_that_a_server_has_is_refused_and_one_that_is_read_is_not_taken(
    data: Path,
) -> None:
    held = DataDirectory(data, shards=1)
    with pytest.raises(DataDirectoryInUse, match=str(os.getpid())), held_for_reading(data):
        pass
    held.close()
    with held_for_reading(data), held_for_reading(data), pytest.raises(DataDirectoryInUse):
        DataDirectory(data, shards=1)
    (data / "LOCK").unlink()
    with held_for_reading(data) as shards:
        assert shards == 1


def test_what_is_no_data_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotADataDirectory, match="no file meta"), held_for_reading(tmp_path):
        pass


# The command


def topics(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "topics", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.slow
def test_the_command_says_what_it_found(data: Path) -> None:
    done = topics("verify", str(data))
    assert (done.returncode, done.stdout) == (0, "5 files, no damage\n")
    path = next(data.rglob("*.seg"))
    whole = bytearray(path.read_bytes())
    whole[HEADER_BYTES + 20] ^= 1
    path.write_bytes(whole)
    done = topics("verify", str(data))
    assert (done.returncode, done.stdout) == (
        3,
        f"{path}, offset 4096: records are damaged\n5 files, 1 findings\n",
    )
    held = DataDirectory(data, shards=1)
    done = topics("verify", str(data))
    held.close()
    assert (done.returncode, done.stdout) == (1, "")
    assert "in use by process" in done.stderr
    done = topics("verify", str(data / "nowhere"))
    assert (done.returncode, done.stderr) == (2, f"topics: {data}/nowhere: no such directory\n")
    done = topics("inspect", str(data / "nowhere"))
    assert (done.returncode, done.stderr) == (
        2,
        f"topics: {data}/nowhere: No such file or directory\n",
    )


def test_each_kind_of_file_is_shown(data: Path) -> None:
    lines = {
        path.suffix or path.name: [*describe(path)]
        for path in sorted(data.rglob("*"))
        if path.is_file() and path.name != "LOCK"
    }
    assert lines["meta"] == ["data directory of 1 shards"]
    assert lines[".reserve"][0].endswith(" bytes of room, not in use")
    (data / "next.reserve").touch()  # as a full disk leaves it
    assert [*describe(data / "next.reserve")] == ["0 bytes of room, not in use"]
    with pytest.raises(ForeignFile, match="LOCK is no file of a data directory"):
        [*describe(data / "LOCK")]
    assert lines[".seg"][:2] == [
        f"segment 1 of shard 0, log 0x64 to 0xc8, {next(data.rglob('*.seg')).stat().st_size} bytes",
        "3 extents, 50 records",
    ]
    assert lines[".seg"][2].endswith("nodes+tags+metas; 1 nodes, 41 tags, 1 keys")
    assert "topic 1, seqs 5 to 46, 0 deleted" in lines[".seg"][2]
    assert lines[".wal"][0].startswith("log of shard 0 from 0x")
    assert lines[".wal"][-1].endswith("zeros follow")
    assert any("APPEND, topic 1, seqs " in line for line in lines[".wal"])
    assert lines[".ckpt"][0].endswith(", of an orderly stop")
    done = topics("inspect", str(next(data.rglob("*.seg"))))
    assert done.stdout.splitlines() == lines[".seg"]


def test_a_delete_is_shown_with_what_it_takes(tmp_path: Path) -> None:
    client = Client(tmp_path / "data")
    client.append("t", records=[{"data": 1, "tag": tag} for tag in "abcab"])
    client.delete_records("t", before_seq=2)
    client.delete_records("t", match=["tag", "Eq", "a"])
    client.stop()
    shown = [
        line for path in log_files(tmp_path / "data") for line in describe(path) if "DELETE" in line
    ]
    assert "DELETE, topic 1, seqs below 2, 0 bytes" in shown[0]
    assert "DELETE, topic 1, 1 runs of seqs, 16 bytes" in shown[1]


def test_damage_is_shown_in_its_line(data: Path) -> None:
    path = next(data.rglob("*.seg"))
    store = SegmentStore.open(path.parent, 0, [1])
    store.punch([in_extent(1, 0)])
    (_, entry), *_ = [*store.entries(1)][1:]
    whole = bytearray(path.read_bytes())
    whole[entry.tables_at] ^= 1
    path.write_bytes(whole)
    shown = [*describe(path)]
    assert shown[2].endswith("; its room was given back")
    assert shown[3].endswith(f"; offset {entry.tables_at}: the tables of the extent are damaged")


def test_an_empty_file_can_be_mapped(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert mapped(tmp_path / "empty") == b""
