"""Segment files: written under a temporary name, and opened complete or refused."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

import pytest

from tests.formats.disk.segment_support import plain
from tests.storage.segments.segments_support import add, reopened
from topics.engine.locators import in_extent
from topics.formats.disk.segment import HEADER_BYTES, TRAILER_BYTES
from topics.storage import disk
from topics.storage.disk import Damaged
from topics.storage.segments.segment_file import Segment, segment_path
from topics.storage.segments.segment_store import SegmentStore
from topics.storage.verify import verify_segment

# Segment file: complete or refused; punched extents free their disk space


@pytest.mark.parametrize(
    "length",
    [0, 1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + TRAILER_BYTES, -1, -TRAILER_BYTES, -4096],
)
def test_a_cut_file_is_refused(store: SegmentStore, length: int) -> None:
    segment = add(store, 1)
    os.truncate(segment.path, length if length >= 0 else segment.size + length)
    with pytest.raises(Damaged, match=segment.path.name):
        reopened(store)


def test_a_segment_file_with_additional_bytes_is_refused(store: SegmentStore) -> None:
    segment = add(store, 1)
    intact = segment.path.read_bytes()
    for tail in (b"\0", intact[-TRAILER_BYTES:]):
        segment.path.write_bytes(intact + tail)
        with pytest.raises(Damaged):
            reopened(store)


@pytest.mark.parametrize(("shard", "number"), [(4, 1), (3, 2)])
def test_a_segment_of_another_shard_or_number_is_refused(
    store: SegmentStore, shard: int, number: int
) -> None:
    segment = add(store, 1)
    segment.path.rename(segment_path(store.folder, number))
    with pytest.raises(Damaged, match="belongs to shard 3, number 1"):
        SegmentStore.open(store.folder, shard, [number])


def test_a_reader_receives_path_and_offset_of_the_damage(
    store: SegmentStore,
) -> None:
    segment = add(store, 1)
    (locator, entry), (other, _), _ = store.entries(1)
    for at, offset in (
        (entry.offset + 70_000, entry.offset + 65536),
        (entry.tables_at + 50, entry.tables_at),
    ):
        intact = bytearray(segment.path.read_bytes())
        intact[at] ^= 1
        segment.path.write_bytes(intact)
        opened = reopened(store)
        with pytest.raises(Damaged) as raised:
            opened.records(locator).slice(0, 300)
        assert (raised.value.path, raised.value.offset) == (segment.path, offset)
        assert opened.records(other).slice(0, 1)


def test_an_unknown_delete_flag_is_a_finding_and_its_record_is_live(store: SegmentStore) -> None:
    segment = add(store, 1)
    (locator, entry), *_ = store.entries(1)
    with segment.path.open("r+b") as file:
        file.seek(entry.flags_at + 3)
        file.write(b"\x07\x01")
    opened = reopened(store)
    findings = opened.segments[1].findings
    assert findings == [f"{segment.path}, offset {entry.flags_at + 3}: delete flag 7"]
    found = opened.records(locator).select(
        2, 6, frozenset(), True, True, opened.delete_flags(locator)
    )
    assert [index for index, _ in found] == [2, 3, 5]


def test_a_punched_extent_frees_its_space_and_leaves_the_others_intact(store: SegmentStore) -> None:
    segment = add(store, 1)
    locators = [locator for locator, _ in store.entries(1)]
    kept = [store.records(locator).blob.tobytes() for locator in locators[1:]]
    before = segment.path.stat()
    store.records(locators[0])
    store.punch([locators[0]])
    after = segment.path.stat()
    assert after.st_size == before.st_size
    assert after.st_blocks < before.st_blocks - 100_000 // 512
    for opened in (store, reopened(store)):
        assert [opened.records(locator).blob.tobytes() for locator in locators[1:]] == kept
        assert [opened.delete_flags(locator) is None for locator in locators] == [False, True, True]
        with pytest.raises(Damaged):
            opened.records(locators[0])


def test_pages_that_a_dead_extent_shares_with_live_ones_are_kept(store: SegmentStore) -> None:
    topics = [(topic, 1, [plain(40, 150)]) for topic in range(1, 9)]  # About two pages each
    segment = add(store, 1, topics)
    locators = [locator for locator, _ in store.entries(1)]
    kept = [store.records(locator).blob.tobytes() for locator in locators[1::2]]
    before = segment.path.stat().st_blocks
    store.punch(locators[::2])
    assert segment.path.stat().st_blocks < before
    opened = reopened(store)
    assert [opened.records(locator).blob.tobytes() for locator in locators[1::2]] == kept
    assert opened.segments[1].unpunched({1, 3, 5, 7}) == []
    assert [*verify_segment(segment.path)] == []


@pytest.mark.slow
def test_small_extents_share_pages(store: SegmentStore) -> None:
    segment = add(store, 1, [(topic, 1, [plain(1)]) for topic in range(1, 501)])
    assert segment.size < 500 * 250
    # No page belongs to one extent only
    store.punch([in_extent(1, extent) for extent in range(400)])
    assert reopened(store).records(in_extent(1, 499)).slice(0, 1)
    assert [*verify_segment(segment.path)] == []


@pytest.mark.parametrize(("code", "raises"), [(errno.EOPNOTSUPP, False), (errno.EIO, True)])
def test_only_the_flags_are_set_if_holes_cannot_be_punched(
    store: SegmentStore, monkeypatch: pytest.MonkeyPatch, code: int, raises: bool
) -> None:
    def fallocate(*_: object) -> int:
        ctypes.set_errno(code)
        return -1

    add(store, 1)
    monkeypatch.setattr(disk, "_fallocate", fallocate)
    if raises:
        with pytest.raises(OSError, match="Input/output"):
            store.punch([in_extent(1, 0)])
    else:
        store.punch([in_extent(1, 0)])
    assert bytes(store.delete_flags(in_extent(1, 0)) or b"") == b"\1" * 300
    assert store.records(in_extent(1, 0)).count == 300


# Segment writer: a segment gets its name when it is completely on the disk


def test_an_abandoned_segment_leaves_no_file(store: SegmentStore, folder: Path) -> None:
    writer = store.begin(1, 0, 1)
    writer.write([b"half"])
    writer.abandon()
    writer.abandon()
    assert [*folder.iterdir()] == []


def test_a_segment_gets_its_name_when_it_is_completely_synced(
    store: SegmentStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, list[str]]] = []

    def record_sync(fd: int) -> None:
        synced.append(
            (Path(f"/proc/self/fd/{fd}").readlink().name, [path.name for path in folder.iterdir()])
        )

    folder.mkdir(parents=True)
    monkeypatch.setattr(os, "fdatasync", record_sync)
    monkeypatch.setattr(os, "fsync", record_sync)
    add(store, 1)
    assert synced == [("0000000001.tmp", ["0000000001.tmp"]), ("03", ["0000000001.seg"])]


def test_a_segment_that_reads_back_differently_is_refused(
    store: SegmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Segment.check_tables

    def corrupt_and_check(segment: Segment) -> None:
        entry = [*segment.entries()][1]
        with segment.path.open("r+b") as file:
            os.pwrite(file.fileno(), b"!", entry.tables_at + entry.tables_len - 1)
        original(segment)

    monkeypatch.setattr(Segment, "check_tables", corrupt_and_check)
    with pytest.raises(Damaged, match="tables"):
        add(store, 1)
    assert not store.segments
