"""Segment files: whole or refused, mapped only while they are read, deletes in place."""

from __future__ import annotations

import ctypes
import errno
import gc
import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.formats.segment_support import Write, plain, source
from tests.storage.log_support import ForgetfulDisk
from topics.formats.disk.segment import HEADER_BYTES, TRAILER_BYTES
from topics.formats.disk.segment_build import Source, build
from topics.storage.disk import Damaged
from topics.storage.segments import store as segments
from topics.storage.segments.store import (
    MARK_BYTES,
    Segment,
    SegmentStore,
    place_of,
    segment_path,
    split_locator,
)

TOPICS = [
    (1, 5, [plain(300, 400, tag="t%d")]),
    (2, 9, [plain(2), Write([("n", None, b"1", None)], key="k")]),
    (3, 1, [plain(1)]),
]


def add(
    store: SegmentStore, number: int, topics: Iterable[tuple[int, int, list[Write]]] = TOPICS
) -> Segment:
    writer = store.begin(number, 100 * number, 100 * number + 100)
    sources: list[Source] = [
        source(topic_id, first_seq, batch)[0] for topic_id, first_seq, batch in topics
    ]
    for piece in build(writer.header, sources):
        writer.write([piece])
    segment = writer.finish()
    store.add(segment)
    return segment


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "segment" / "03"


@pytest.fixture
def store(folder: Path) -> SegmentStore:
    return SegmentStore.open(folder, 3, [])


def reopened(store: SegmentStore) -> SegmentStore:
    return SegmentStore.open(store.folder, 3, [*store.segments])


def test_a_place_is_bit_62_the_segments_number_and_the_extents() -> None:
    assert place_of(7, 3) == 1 << 62 | 7 << 24 | 3
    for number, extent in ((0, 0), (1, 2**24 - 1), (2**38 - 1, 5)):
        assert split_locator(place_of(number, extent)) == (number, extent)
        assert place_of(number, extent) < 1 << 63


def test_what_was_written_is_read_then_and_after_a_start(store: SegmentStore) -> None:
    add(store, 1)
    for held in (store, reopened(store)):
        found = [
            (split_locator(locator), entry.topic_id, entry.first_seq, entry.record_count)
            for locator, entry in held.entries(1)
        ]
        assert found == [((1, 0), 1, 5, 300), ((1, 1), 2, 9, 3), ((1, 2), 3, 1, 1)]
        for (locator, entry), (_, first_seq, batch) in zip(held.entries(1), TOPICS, strict=True):
            expected = b",".join(
                bytes(view.slice(0, view.count)) for view in source(1, first_seq, batch)[1]
            )
            assert held.records(locator).slice(0, entry.record_count) == expected
            assert held.dead(locator) is None
        assert held.segments[1].header.base == 100
        assert held.segments[1].header.end == 200
        assert held.findings == []


def test_only_the_named_segments_stay(store: SegmentStore, folder: Path) -> None:
    for number in (1, 2, 300):
        add(store, number)
    store.begin(4, 0, 1).write([b"half"])
    held = SegmentStore.open(folder, 3, [1, 300])
    assert sorted(path.name for path in folder.iterdir()) == ["0000000001.seg", "000000012c.seg"]
    assert sorted(held.segments) == [1, 300]


def test_a_missing_segment_is_refused(store: SegmentStore, folder: Path) -> None:
    with pytest.raises(Damaged, match="not there"):
        SegmentStore.open(folder, 3, [1])


def test_nothing_is_removed_when_a_segment_is_refused(store: SegmentStore, folder: Path) -> None:
    add(store, 1)
    with pytest.raises(Damaged):
        SegmentStore.open(folder, 3, [2])
    assert segment_path(folder, 1).exists()


def test_an_abandoned_segment_leaves_nothing(store: SegmentStore, folder: Path) -> None:
    writer = store.begin(1, 0, 1)
    writer.write([b"half"])
    writer.abandon()
    writer.abandon()
    assert [*folder.iterdir()] == []


def test_a_segment_has_its_name_only_when_it_is_whole_on_disk(
    store: SegmentStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, list[str]]] = []

    def note(fd: int) -> None:
        synced.append(
            (Path(f"/proc/self/fd/{fd}").readlink().name, [path.name for path in folder.iterdir()])
        )

    monkeypatch.setattr(os, "fdatasync", note)
    monkeypatch.setattr(os, "fsync", note)
    add(store, 1)
    assert synced == [("0000000001.tmp", ["0000000001.tmp"]), ("03", ["0000000001.seg"])]


@pytest.mark.parametrize(
    "length",
    [0, 1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + TRAILER_BYTES, -1, -TRAILER_BYTES, -4096],
)
def test_a_cut_file_is_refused(store: SegmentStore, length: int) -> None:
    segment = add(store, 1)
    os.truncate(segment.path, length if length >= 0 else segment.size + length)
    with pytest.raises(Damaged, match=segment.path.name):
        reopened(store)


def test_a_lengthened_file_is_refused(store: SegmentStore) -> None:
    segment = add(store, 1)
    whole = segment.path.read_bytes()
    for tail in (b"\0", whole[-TRAILER_BYTES:]):
        segment.path.write_bytes(whole + tail)
        with pytest.raises(Damaged):
            reopened(store)


def test_another_version_is_refused_and_named(store: SegmentStore) -> None:
    segment = add(store, 1)
    whole = bytearray(segment.path.read_bytes())
    whole[8] = 9
    segment.path.write_bytes(whole)
    with pytest.raises(
        Damaged, match="offset 8: segment has format version 9; this program reads version 1"
    ):
        reopened(store)


@pytest.mark.parametrize(("shard", "number"), [(4, 1), (3, 2)])
def test_another_shards_or_numbers_segment_is_refused(
    store: SegmentStore, shard: int, number: int
) -> None:
    segment = add(store, 1)
    segment.path.rename(segment_path(store.folder, number))
    with pytest.raises(Damaged, match="belongs to shard 3, number 1"):
        SegmentStore.open(store.folder, shard, [number])


def test_damage_of_records_is_told_with_path_and_offset_to_who_reads_them(
    store: SegmentStore,
) -> None:
    segment = add(store, 1)
    (locator, entry), (other, _), _ = store.entries(1)
    for at, offset in (
        (entry.offset + 70_000, entry.offset + 65536),
        (entry.tables_at + 50, entry.tables_at),
    ):
        whole = bytearray(segment.path.read_bytes())
        whole[at] ^= 1
        segment.path.write_bytes(whole)
        held = reopened(store)
        with pytest.raises(Damaged) as raised:
            held.records(locator).slice(0, 300)
        assert (raised.value.path, raised.value.offset) == (segment.path, offset)
        assert held.records(other).slice(0, 1)


# Maps


def test_no_more_segments_are_mapped_than_were_allowed(folder: Path) -> None:
    store = SegmentStore.open(folder, 3, [], mapped_max=2)
    for number in range(1, 6):
        add(store, number, [(1, number, [plain(5)])])
    gc.collect()
    gc.disable()  # a map must go when it is let go, not when the collector comes
    try:
        for number in (1, 2, 3, 2, 4, 2, 5, 1):
            assert (
                store.records(place_of(number, 0))
                .slice(0, 1)
                .tobytes()
                .startswith(b'{"$seq":%d,' % number)
            )
            assert store.mapped_count <= 2
            assert len(maps(folder)) == store.mapped_count
        assert maps(folder) == {"0000000001.seg", "0000000005.seg"}
    finally:
        gc.enable()


def test_the_least_recently_used_map_goes(folder: Path) -> None:
    store = SegmentStore.open(folder, 3, [], mapped_max=2)
    for number in (1, 2, 3):
        add(store, number)
    for number in (1, 2, 1, 3):
        store.records(place_of(number, 0))
    assert maps(folder) == {"0000000001.seg", "0000000003.seg"}


def test_what_a_reader_holds_outlives_the_map_and_the_file(folder: Path) -> None:
    store = SegmentStore.open(folder, 3, [], mapped_max=1)
    add(store, 1)
    add(store, 2)
    piece = store.records(place_of(1, 0)).slice(0, 300)
    before = piece.tobytes()
    store.records(place_of(2, 0))
    store.unlink(1)
    assert piece == before
    assert maps(folder) == {"0000000001.seg (deleted)", "0000000002.seg"}
    del piece
    assert maps(folder) == {"0000000002.seg"}
    store.close()
    assert maps(folder) == set()


def maps(folder: Path) -> set[str]:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split("/")[-1] for line in lines if str(folder) in line}


def test_a_view_is_made_once_while_its_segment_is_mapped(
    store: SegmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(store, 1)
    locators = [locator for locator, _ in store.entries(1)]
    assert store.records(locators[0]) is store.records(locators[0])
    monkeypatch.setattr(segments, "VIEWS_MAX", 2)
    first = store.records(locators[0])
    for locator in locators:
        store.records(locator)
    assert store.records(locators[0]) is not first


# Deletes


def test_marks_are_seen_at_once_and_after_a_start(store: SegmentStore) -> None:
    add(store, 1)
    locator, other = place_of(1, 0), place_of(1, 1)
    store.mark(locator, [3, 299, 0, 3], 0)
    store.sync(0)
    for held in (store, reopened(store)):
        dead = held.dead(locator)
        assert dead is not None
        assert [index for index, flag in enumerate(dead) if flag] == [0, 3, 299]
        assert held.dead(other) is None
        view = held.records(locator)
        assert [index for index, _ in view.select(0, 5, frozenset(), True, True, dead)] == [1, 2, 4]
        assert [len(piece) > 0 for piece in view.slices(0, 300, dead)] == [True, True]
    store.mark(locator, [7], 0)
    dead = store.dead(locator)
    assert dead is not None
    assert [index for index, flag in enumerate(dead) if flag] == [0, 3, 7, 299]


def test_a_mark_comes_into_the_file_when_the_log_is_synced_as_far_as_its_delete(
    store: SegmentStore,
) -> None:
    add(store, 1)
    locator, other = place_of(1, 0), place_of(1, 1)
    for indexes, position in (([1], 100), ([2], 100), ([3], 250)):
        store.mark(locator, indexes, position)
    store.mark(other, [0], 300)
    for position, written in ((0, []), (99, []), (100, [1, 2]), (249, [1, 2]), (300, [1, 2, 3])):
        store.write_marks(position)
        assert dead_of(store, locator) == [1, 2, 3]
        assert dead_of(reopened(store), locator) == written
        assert not store.marks_due(position)
    assert not store._flags
    assert dead_of(reopened(store), other) == [0]


def dead_of(store: SegmentStore, locator: int) -> list[int]:
    return [index for index, flag in enumerate(store.dead(locator) or b"") if flag]


def test_marks_across_blocks_touch_nothing_else(store: SegmentStore) -> None:
    count = 2 * MARK_BYTES + 10
    segment = add(
        store, 1, [(1, 1, [plain(count // 2), plain(count - count // 2)]), (2, 1, [plain(3)])]
    )
    before = segment.path.read_bytes()
    marked = [0, MARK_BYTES - 1, MARK_BYTES, 2 * MARK_BYTES + 9]
    store.mark(place_of(1, 0), marked, 0)
    store.write_marks(0)
    after = bytearray(segment.path.read_bytes())
    at = segment.trailer.flags_at
    assert [index for index in range(len(after)) if after[index] != before[index]] == [
        at + index for index in marked
    ]
    store.mark(place_of(1, 0), [], 0)
    store.mark(place_of(1, 1), [], 0)
    assert store.dead(place_of(1, 1)) is None


def test_marks_survive_a_power_loss_once_they_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = ForgetfulDisk(monkeypatch)
    store = SegmentStore.open(tmp_path / "data" / "s", 3, [])
    add(store, 1)
    add(store, 2)
    store.mark(place_of(1, 0), [1], 0)
    store.mark(place_of(2, 0), [2], 0)
    store.sync(0)
    store.mark(place_of(1, 0), [5], 0)
    disk.power_loss(store.folder, tmp_path / "after")
    held = SegmentStore.open(tmp_path / "after", 3, [1, 2])
    dead = [held.dead(place_of(number, 0)) for number in (1, 2)]
    assert [[index for index, flag in enumerate(flags or b"") if flag] for flags in dead] == [
        [1],
        [2],
    ]


def test_marks_that_a_killed_process_has_left_are_synced_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = ForgetfulDisk(monkeypatch)
    store = SegmentStore.open(tmp_path / "data" / "s", 3, [])
    add(store, 1)
    store.mark(place_of(1, 0), [1], 0)
    store.write_marks(0)
    after_kill = SegmentStore.open(store.folder, 3, [1])
    after_kill.mark(place_of(1, 0), [], 0)  # a replay finds it marked already
    after_kill.sync(0)
    disk.power_loss(store.folder, tmp_path / "after")
    flags = SegmentStore.open(tmp_path / "after", 3, [1]).dead(place_of(1, 0))
    assert [index for index, flag in enumerate(flags or b"") if flag] == [1]


def test_a_sync_is_of_dirty_segments_only_and_is_made_up_for_when_it_failed(
    store: SegmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(store, 1)
    add(store, 2)
    store.mark(place_of(2, 0), [1], 0)
    synced: list[str] = []

    def failing(_fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", failing)
        with pytest.raises(OSError, match="Input/output"):
            store.sync(0)
    monkeypatch.setattr(
        os, "fdatasync", lambda fd: synced.append(Path(f"/proc/self/fd/{fd}").readlink().name)
    )
    store.sync(0)
    store.sync(0)
    assert synced == ["0000000002.seg"]


def test_a_strange_flag_is_told_and_its_record_lives(store: SegmentStore) -> None:
    segment = add(store, 1)
    (locator, entry), *_ = store.entries(1)
    with segment.path.open("r+b") as file:
        file.seek(entry.flags_at + 3)
        file.write(b"\x07\x01")
    held = reopened(store)
    assert held.findings == [f"{segment.path}, offset {entry.flags_at + 3}: delete flag 7"]
    found = held.records(locator).select(2, 6, frozenset(), True, True, held.dead(locator))
    assert [index for index, _ in found] == [2, 3, 5]


def test_a_punched_extent_gives_its_room_back_and_leaves_the_others(store: SegmentStore) -> None:
    segment = add(store, 1)
    locators = [locator for locator, _ in store.entries(1)]
    kept = [store.records(locator).blob.tobytes() for locator in locators[1:]]
    before = segment.path.stat()
    store.records(locators[0])
    store.punch([locators[0]])
    after = segment.path.stat()
    assert after.st_size == before.st_size
    assert after.st_blocks < before.st_blocks - 100_000 // 512
    for held in (store, reopened(store)):
        assert [held.records(locator).blob.tobytes() for locator in locators[1:]] == kept
        assert [held.dead(locator) is None for locator in locators] == [False, True, True]
        with pytest.raises(Damaged):
            held.records(locators[0])


@pytest.mark.parametrize(("code", "raises"), [(errno.EOPNOTSUPP, False), (errno.EIO, True)])
def test_where_holes_cannot_be_punched_the_flags_alone_are_set(
    store: SegmentStore, monkeypatch: pytest.MonkeyPatch, code: int, raises: bool
) -> None:
    class Library:
        def fallocate(self, *_: object) -> int:
            ctypes.set_errno(code)
            return -1

    add(store, 1)
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: Library())
    if raises:
        with pytest.raises(OSError, match="Input/output"):
            store.punch([place_of(1, 0)])
    else:
        store.punch([place_of(1, 0)])
    assert bytes(store.dead(place_of(1, 0)) or b"") == b"\1" * 300
    assert store.records(place_of(1, 0)).count == 300


def test_an_unlinked_segment_is_gone(store: SegmentStore, folder: Path) -> None:
    add(store, 1)
    store.mark(place_of(1, 0), [1], 0)
    store.unlink(1)
    store.sync(0)
    assert [*folder.iterdir()] == []
    assert store.segments == {}
