"""Helpers for tests of segments on a real disk."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.formats.disk.segment_support import Write, plain, source
from topics.formats.disk.segment_build import ExtentSource, build
from topics.storage.segments.segment_file import Segment
from topics.storage.segments.segment_store import SegmentStore

TOPICS = [
    (1, 5, [plain(300, 400, tag="t%d")]),
    (2, 9, [plain(2), Write([("n", None, b"1", None)], key="k")]),
    (3, 1, [plain(1)]),
]


def add(
    store: SegmentStore, number: int, topics: Iterable[tuple[int, int, list[Write]]] = TOPICS
) -> Segment:
    writer = store.begin(number, 100 * number, 100 * number + 100)
    sources: list[ExtentSource] = [
        source(topic_id, first_seq, batch)[0] for topic_id, first_seq, batch in topics
    ]
    for chunk in build(writer.header, sources):
        writer.write([chunk])
    segment = writer.finish()
    store.add(segment)
    return segment


def reopened(store: SegmentStore) -> SegmentStore:
    return SegmentStore.open(store.folder, 3, [*store.segments])


def maps(folder: Path) -> set[str]:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split("/")[-1] for line in lines if str(folder) in line}


def deleted_indexes(store: SegmentStore, locator: int) -> list[int]:
    return [index for index, flag in enumerate(store.delete_flags(locator) or b"") if flag]
