"""The reader of a merge: it reads records ahead and verifies their checksums again."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.storage.segments.segments_support import add, maps
from topics.engine.locators import in_extent
from topics.storage.disk import Damaged
from topics.storage.segments.merge_reader import ExtentRequest, MergeReader
from topics.storage.segments.segment_store import SegmentStore


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def opened(store: SegmentStore) -> MergeReader:
    reader = MergeReader(store, [*store.segments])
    reader.open()
    return reader


def test_a_store_reads_through_the_pinned_maps_of_a_merge(
    store: SegmentStore, folder: Path
) -> None:
    for number in range(1, 9):
        add(store, number)
    store.flag_deleted(in_extent(2, 0), [4], 10)
    views = [bytes(store.records(in_extent(number, 0)).blob) for number in range(1, 9)]
    store.maps.close()
    reader = opened(store)
    store.maps.pin(reader.maps)
    for number in range(1, 9):
        locator = in_extent(number, 0)
        assert bytes(reader.view(locator).blob) == views[number - 1]
        assert bytes(store.records(locator).blob) == views[number - 1]
        assert bool(store.delete_flags(locator)) == (number == 2)
    assert len(store.maps) == 0
    assert len(maps(folder)) == 8
    store.maps.pin({})
    del reader
    assert len(maps(folder)) == 0


@pytest.mark.parametrize("where", ["tables", "blob"])
def test_segments_that_were_verified_before_are_verified_again(
    store: SegmentStore, where: str
) -> None:
    segment = add(store, 1)
    assert 0 not in segment.checked
    entry = next(segment.entries())
    flip(segment.path, entry.offset + 5 if where == "blob" else entry.tables_at + 5)
    found: list[Damaged] = []
    segment.on_damage = found.append
    reader = opened(store)
    with pytest.raises(Damaged):
        bytes(reader.view(in_extent(1, 0)).blob)
    assert [damage.path for damage in found] == [segment.path]


def test_a_damaged_directory_is_reported(store: SegmentStore) -> None:
    segment = add(store, 1)
    flip(segment.path, segment.trailer.directory_at + 9)
    with pytest.raises(Damaged, match="directory"):
        opened(store)


def test_a_missing_segment_file_is_damage(store: SegmentStore) -> None:
    add(store, 1).path.unlink()
    with pytest.raises(Damaged):
        opened(store)


def test_only_live_records_and_tables_are_read_ahead(
    store: SegmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = add(store, 1)
    entry = next(segment.entries())
    reader = opened(store)
    pread, read = os.pread, list[tuple[int, int]]()

    def recording_pread(fd: int, length: int, offset: int) -> bytes:
        read.append((offset, length))
        return pread(fd, length, offset)

    monkeypatch.setattr(os, "pread", recording_pread)
    reader.read_ahead([ExtentRequest(in_extent(1, 0), 0, None)])
    assert read[0] == (entry.tables_at, entry.tables_len)
    assert sum(length for _, length in read[1:]) == entry.blob_bytes
    read.clear()
    reader.read_ahead([ExtentRequest(in_extent(1, 0), entry.record_count, None)])
    assert read == [(entry.tables_at, entry.tables_len)]
    read.clear()
    reader.read_ahead(
        [ExtentRequest(in_extent(1, 0), 0, bytes([0]) + b"\1" * (entry.record_count - 1))]
    )
    assert read[1:] == [(entry.offset, 64 << 10)]


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES])
def test_a_disk_error_is_damage_and_any_other_error_is_raised(
    store: SegmentStore, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    add(store, 1)
    reader = opened(store)

    def failing_pread(*_: object) -> bytes:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "pread", failing_pread)
    with pytest.raises(Damaged if code == errno.EIO else OSError):
        reader.read_ahead([ExtentRequest(in_extent(1, 0), 0, None)])
