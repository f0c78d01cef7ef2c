"""Segment store: it opens exactly the named segments, and reads records as they were written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.formats.disk.segment_support import source
from tests.storage.segments.segments_support import TOPICS, add, reopened
from topics.engine.locators import in_extent, split_locator
from topics.storage.disk import Damaged
from topics.storage.segments.segment_store import SegmentStore


def test_records_are_read_as_they_were_written_immediately_and_after_a_restart(
    store: SegmentStore,
) -> None:
    add(store, 1)
    for opened in (store, reopened(store)):
        found = [
            (split_locator(locator), entry.topic_id, entry.first_seq, entry.record_count)
            for locator, entry in opened.entries(1)
        ]
        assert found == [((1, 0), 1, 5, 300), ((1, 1), 2, 9, 3), ((1, 2), 3, 1, 1)]
        for (locator, entry), (_, first_seq, batch) in zip(opened.entries(1), TOPICS, strict=True):
            expected = b",".join(
                bytes(view.slice(0, view.count)) for view in source(1, first_seq, batch)[1]
            )
            assert opened.records(locator).slice(0, entry.record_count) == expected
            assert opened.delete_flags(locator) is None
        assert opened.segments[1].header.base == 100
        assert opened.segments[1].header.end == 200
        assert opened.segments[1].findings == []


def test_a_sweep_keeps_open_and_listed_segments_and_damaged_copies(
    store: SegmentStore, folder: Path
) -> None:
    for number in (1, 2, 3, 300):
        add(store, number)
    store.begin(4, 0, 1).write([b"half"])
    (folder / "0000000005.seg.damaged").write_bytes(b"damaged copy")
    before = sorted(folder.iterdir())
    opened = SegmentStore.open(folder, 3, [1, 300])
    assert sorted(folder.iterdir()) == before
    opened.sweep(frozenset({3}))
    names = ["0000000001.seg", "0000000003.seg", "0000000005.seg.damaged", "000000012c.seg"]
    assert sorted(path.name for path in folder.iterdir()) == names
    assert sorted(opened.segments) == [1, 300]


def test_a_missing_segment_is_refused(store: SegmentStore, folder: Path) -> None:
    with pytest.raises(Damaged, match="is missing"):
        SegmentStore.open(folder, 3, [1])


def test_an_unlinked_segment_is_removed(store: SegmentStore, folder: Path) -> None:
    add(store, 1)
    store.flag_deleted(in_extent(1, 0), [1], 0)
    store.unlink(1)
    store.flags.sync(0)
    assert [*folder.iterdir()] == []
    assert store.segments == {}
