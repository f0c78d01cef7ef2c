"""Prefetch: the ranges that the kernel is advised to load while a topic is read from its
segments.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.formats.disk.segment_support import plain, source
from topics.engine.locators import in_extent, split_locator
from topics.formats.disk.segment import ENTRY_BYTES
from topics.formats.disk.segment_build import build
from topics.storage.segments import prefetch
from topics.storage.segments.prefetch import Prefetch
from topics.storage.segments.segment_store import SegmentStore

AHEAD = 4000
RECORDS, SIZE = 100, 100


class Disk:
    """Record the advised ranges by path, as ``(offset, length)``."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.advised: list[tuple[Path, int, int]] = []
        patch.setattr(
            prefetch,
            "will_need",
            lambda path, offset, length: self.advised.append((path, offset, length)),
        )

    def taken(self) -> list[tuple[Path, int, int]]:
        advised, self.advised = self.advised, []
        return advised


@pytest.fixture
def advised(monkeypatch: pytest.MonkeyPatch) -> Disk:
    monkeypatch.setattr(prefetch, "AHEAD_BYTES", AHEAD)
    return Disk(monkeypatch)


@pytest.fixture
def store(tmp_path: Path) -> SegmentStore:
    """Return a store of three segments with an extent of topic 1 each. The last segment begins
    with an extent of another topic.
    """
    segments = SegmentStore.open(tmp_path, 0, [])
    for number, topics in ((1, [1]), (2, [1]), (3, [0, 1])):
        writer = segments.begin(number, number, number + 1)
        for chunk in build(
            writer.header,
            [source(topic, number * RECORDS, [plain(RECORDS, SIZE)])[0] for topic in topics],
        ):
            writer.write([chunk])
        segments.add(writer.finish())
    return segments


LOCATORS = [in_extent(1, 0), in_extent(2, 0), in_extent(3, 1)]


def test_every_byte_ahead_of_a_reader_is_requested_exactly_once(
    store: SegmentStore, advised: Disk
) -> None:
    ahead = Prefetch(store)
    wanted: dict[Path, list[range]] = {}
    for number, locator in enumerate(LOCATORS):
        following = LOCATORS[number + 1] if locator != LOCATORS[-1] else None
        of_segment, extent = split_locator(locator)
        segment, entry, ends = (
            store.segments[of_segment],
            store.records(locator).entry,
            store.records(locator).ends,
        )
        for index in range(0, RECORDS, 5):
            ahead.read_on(locator, index, following)
            for path, offset, length in advised.taken():
                wanted.setdefault(path, []).append(range(offset, offset + length))
            at = entry.offset + (ends[index - 1] if index else 0)
            end = min(at + AHEAD // 2, entry.offset + entry.blob_bytes)
            known = wanted[segment.path]
            assert all(any(byte in part for part in known) for byte in (at, end - 1)), (
                f"at {index} of {locator:x}"
            )
        if number:
            assert (
                range(entry.tables_at, entry.tables_at + entry.tables_len) in wanted[segment.path]
            )
            entry_at = segment.trailer.directory_at + ENTRY_BYTES * extent
            assert range(entry_at, entry_at + ENTRY_BYTES) in wanted[segment.path]
        blobs = [
            part
            for part in wanted[segment.path]
            if part.start < entry.offset + entry.blob_bytes and part.stop > entry.offset
        ]
        assert sum(map(len, blobs)) == entry.blob_bytes


def test_the_next_extent_is_requested_when_the_reader_approaches_it(
    store: SegmentStore, advised: Disk
) -> None:
    first, second, _ = LOCATORS
    ends, after = store.records(first).ends, store.segments[2].path
    size = store.records(first).entry.blob_bytes
    seen = []
    for index in range(1, RECORDS):
        Prefetch(store).read_on(first, index, second)
        seen.append((size - ends[index - 1], sum(path == after for path, _, _ in advised.taken())))
    assert {count for distance, count in seen if distance > 2 * AHEAD} == {0}
    # One request: the entry of the directory
    assert {count for distance, count in seen if AHEAD < distance <= 2 * AHEAD} == {1}
    assert {count for distance, count in seen if distance <= AHEAD} == {2}


def test_an_unreadable_segment_does_not_fail_the_prefetch(
    store: SegmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.records(LOCATORS[0])
    for number in (1, 2):
        store.segments[number].path.unlink()
    ahead = Prefetch(store)
    ahead.read_on(LOCATORS[0], 0, LOCATORS[1])
    ahead.read_on(LOCATORS[0], RECORDS - 1, LOCATORS[1])
    ahead.read_on(LOCATORS[1], 0, None)
