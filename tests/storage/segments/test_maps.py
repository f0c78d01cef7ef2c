"""Segment maps: a bounded number at a time, each kept alive while a reader references it."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from tests.formats.disk.segment_support import plain
from tests.storage.segments.segments_support import add, maps
from topics.engine.locators import in_extent
from topics.storage.segments import maps as segment_maps
from topics.storage.segments.segment_store import SegmentStore


@pytest.mark.slow
def test_the_number_of_mapped_segments_is_limited(folder: Path) -> None:
    store = SegmentStore.open(folder, 3, [], mapped_max=2)
    for number in range(1, 6):
        add(store, number, [(1, number, [plain(5)])])
    gc.collect()
    gc.disable()  # A map must be closed when it is released, not at the next collection
    try:
        for number in (1, 2, 3, 2, 4, 2, 5, 1):
            assert (
                store.records(in_extent(number, 0))
                .slice(0, 1)
                .tobytes()
                .startswith(b'{"$seq":%d,' % number)
            )
            assert len(store.maps) <= 2
            assert len(maps(folder)) == len(store.maps)
        assert maps(folder) == {"0000000001.seg", "0000000005.seg"}
    finally:
        gc.enable()


def test_the_least_recently_used_map_is_released(folder: Path) -> None:
    store = SegmentStore.open(folder, 3, [], mapped_max=2)
    for number in (1, 2, 3):
        add(store, number)
    for number in (1, 2, 1, 3):
        store.records(in_extent(number, 0))
    assert maps(folder) == {"0000000001.seg", "0000000003.seg"}


def test_data_that_a_reader_holds_outlives_the_map_and_the_file(folder: Path) -> None:
    store = SegmentStore.open(folder, 3, [], mapped_max=1)
    add(store, 1)
    add(store, 2)
    chunk = store.records(in_extent(1, 0)).slice(0, 300)
    before = chunk.tobytes()
    store.records(in_extent(2, 0))
    store.unlink(1)
    assert chunk == before
    assert maps(folder) == {"0000000001.seg (deleted)", "0000000002.seg"}
    del chunk
    assert maps(folder) == {"0000000002.seg"}
    store.maps.close()
    assert maps(folder) == set()


def test_a_view_is_created_once_while_its_segment_is_mapped(
    store: SegmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(store, 1)
    locators = [locator for locator, _ in store.entries(1)]
    assert store.records(locators[0]) is store.records(locators[0])
    monkeypatch.setattr(segment_maps, "VIEWS_MAX", 2)
    first = store.records(locators[0])
    for locator in locators:
        store.records(locator)
    assert store.records(locators[0]) is not first
