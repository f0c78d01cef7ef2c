"""Extent on its way: records of any length, contiguous pieces, keys and texts of what is taken."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from tests.formats.disk.segment_support import (
    Write,
    build_bytes,
    extents,
    plain,
    source,
    writes,
)
from topics.formats.disk import extent_build
from topics.formats.disk.records import RecordFlags
from topics.formats.disk.segment import (
    CHUNK_BYTES,
    ExtentKey,
)
from topics.formats.disk.segment_build import Source
from topics.formats.disk.segment_check import check_extent


def test_every_extent_with_records_of_a_write_has_its_key() -> None:
    batch = [
        Write([(None, None, b"1", None)] * 5, key="first", skip=2, ts_ms=50),
        Write([(None, None, b"1", None)], key="second", ts_ms=60),
    ]
    views = extents(build_bytes([source(1, 12, batch)[0]], extent_records=2))
    first, second = ExtentKey("first", 10, 5, 50), ExtentKey("second", 15, 1, 60)
    assert [[*view.idempotency_keys()] for view in views] == [[first], [first, second]]


def test_texts_of_skipped_records_are_not_kept() -> None:
    batch = [Write([("a", "old", b"1", b"{}"), ("b", "new", b"1", None)], skip=1)]
    (view,) = extents(build_bytes([source(1, 2, batch)[0]]))
    assert (len(view.nodes), len(view.tags)) == (1, 1)
    assert view.flags == RecordFlags.ONE_NODE | RecordFlags.TAGS
    assert view.find_tag(b'"old"') == ()


@given(writes())
def test_an_extent_of_delayed_jobs_is_that_of_any_records(batch: list[Write]) -> None:
    delayed = [replace(write, due=[*range(1, 1 + len(write.records))]) for write in batch]
    _, views = source(1, 10, delayed)
    assert all(view.flags & RecordFlags.DELAYS for view in views)
    built = build_bytes([source(1, 10, delayed)[0]], extent_records=4)
    assert built == build_bytes([source(1, 10, batch)[0]], extent_records=4)
    assert not any(view.flags & RecordFlags.DELAYS for view in extents(built))


@pytest.mark.parametrize(
    "size", [CHUNK_BYTES - 60, CHUNK_BYTES, 3 * CHUNK_BYTES, extent_build.STEP_BYTES + 5]
)
def test_records_longer_than_a_chunk_or_a_step(size: int) -> None:
    view = plain(3, size).view(1)
    (extent,) = extents(build_bytes([Source(1, 1, [(view, 0, 3)])]))
    assert extent.blob == view.blob
    assert [*check_extent(extent)] == []


def test_pieces_that_are_not_contiguous_are_not_built() -> None:
    with pytest.raises(AssertionError, match="are contiguous"):
        build_bytes([Source(1, 6, [(plain(2).view(5), 0, 2)])])
