"""Verifying a segment: every byte counts, and its parts must agree with one another."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.formats.disk.segment_support import plain
from tests.storage.segments.segments_support import add
from tests.support.data_directory import MIXED
from topics.engine.locators import in_extent
from topics.formats.disk.segment import HEADER_BYTES, TRAILER_BYTES, ExtentEntry, encode_entry
from topics.storage.segments.store import SegmentStore
from topics.storage.verify.segments import verify_segment


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
    segment = add(store, 1)
    store.punch([in_extent(1, 0)])
    with segment.path.open("r+b") as file:
        file.seek(next(segment.entries()).flags_at)
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
        ({"keys_len": 1}, "another length of the keys"),
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


@pytest.fixture
def store(tmp_path: Path) -> SegmentStore:
    return SegmentStore.open(tmp_path / "segment" / "00", 3, [])
