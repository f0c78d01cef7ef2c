"""Delete flags: visible immediately, written to the segment once the log has synced the delete,
and synced on request.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.formats.disk.segment_support import plain
from tests.storage.segments.segments_support import add, deleted_indexes, reopened
from tests.support.log import LossyDisk
from topics.engine.locators import in_extent
from topics.storage.segments.delete_flags import BLOCK_BYTES
from topics.storage.segments.segment_store import SegmentStore


def test_delete_flags_are_visible_immediately_and_after_a_restart(store: SegmentStore) -> None:
    add(store, 1)
    locator, other = in_extent(1, 0), in_extent(1, 1)
    store.flag_deleted(locator, [0, 3, 3, 299], 0)
    store.flags.sync(0)
    for opened in (store, reopened(store)):
        flags = opened.delete_flags(locator)
        assert flags is not None
        assert [index for index, flag in enumerate(flags) if flag] == [0, 3, 299]
        assert opened.delete_flags(other) is None
        view = opened.records(locator)
        assert [index for index, _ in view.select(0, 5, frozenset(), True, True, flags)] == [
            1,
            2,
            4,
        ]
    store.flag_deleted(locator, [7], 0)
    flags = store.delete_flags(locator)
    assert flags is not None
    assert [index for index, flag in enumerate(flags) if flag] == [0, 3, 7, 299]


def test_a_delete_flag_is_written_once_the_log_is_synced_beyond_its_delete(
    store: SegmentStore,
) -> None:
    add(store, 1)
    locator, other = in_extent(1, 0), in_extent(1, 1)
    for indexes, position in (([1], 100), ([2], 100), ([3], 250)):
        store.flag_deleted(locator, indexes, position)
    store.flag_deleted(other, [0], 300)
    for position, written in ((0, []), (99, []), (100, [1, 2]), (249, [1, 2]), (300, [1, 2, 3])):
        store.flags.write(position)
        assert deleted_indexes(store, locator) == [1, 2, 3]
        assert deleted_indexes(reopened(store), locator) == written
        assert not store.flags.is_due(position)
    assert not store.flags._flags
    assert deleted_indexes(reopened(store), other) == [0]


def test_delete_flags_in_several_blocks_change_no_other_byte(store: SegmentStore) -> None:
    count = 2 * BLOCK_BYTES + 10
    segment = add(
        store, 1, [(1, 1, [plain(count // 2), plain(count - count // 2)]), (2, 1, [plain(3)])]
    )
    before = segment.path.read_bytes()
    indexes = [0, BLOCK_BYTES - 1, BLOCK_BYTES, 2 * BLOCK_BYTES + 9]
    store.flag_deleted(in_extent(1, 0), indexes, 0)
    store.flags.write(0)
    after = bytearray(segment.path.read_bytes())
    at = segment.trailer.flags_at
    assert [index for index in range(len(after)) if after[index] != before[index]] == [
        at + index for index in indexes
    ]
    store.flag_deleted(in_extent(1, 0), [], 0)
    store.flag_deleted(in_extent(1, 1), [], 0)
    assert store.delete_flags(in_extent(1, 1)) is None


def test_synced_delete_flags_survive_a_power_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = LossyDisk(monkeypatch)
    store = SegmentStore.open(tmp_path / "data" / "s", 3, [])
    add(store, 1)
    add(store, 2)
    store.flag_deleted(in_extent(1, 0), [1], 0)
    store.flag_deleted(in_extent(2, 0), [2], 0)
    store.flags.sync(0)
    store.flag_deleted(in_extent(1, 0), [5], 0)
    disk.power_loss(store.folder, tmp_path / "after")
    opened = SegmentStore.open(tmp_path / "after", 3, [1, 2])
    found = [opened.delete_flags(in_extent(number, 0)) for number in (1, 2)]
    assert [[index for index, flag in enumerate(flags or b"") if flag] for flags in found] == [
        [1],
        [2],
    ]


def test_delete_flags_that_a_killed_process_did_not_sync_are_synced_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = LossyDisk(monkeypatch)
    store = SegmentStore.open(tmp_path / "data" / "s", 3, [])
    add(store, 1)
    store.flag_deleted(in_extent(1, 0), [1], 0)
    store.flags.write(0)
    after_kill = SegmentStore.open(store.folder, 3, [1])
    after_kill.flag_deleted(in_extent(1, 0), [], 0)  # A replay finds the flag already set
    after_kill.flags.sync(0)
    disk.power_loss(store.folder, tmp_path / "after")
    flags = SegmentStore.open(tmp_path / "after", 3, [1]).delete_flags(in_extent(1, 0))
    assert [index for index, flag in enumerate(flags or b"") if flag] == [1]


def test_only_segments_with_unsynced_flags_are_synced_and_a_failed_sync_is_retried(
    store: SegmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(store, 1)
    add(store, 2)
    store.flag_deleted(in_extent(2, 0), [1], 0)
    synced: list[str] = []

    def failing(_fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", failing)
        with pytest.raises(OSError, match="Input/output"):
            store.flags.sync(0)
    monkeypatch.setattr(
        os, "fdatasync", lambda fd: synced.append(Path(f"/proc/self/fd/{fd}").readlink().name)
    )
    store.flags.sync(0)
    store.flags.sync(0)
    assert synced == ["0000000002.seg"]
