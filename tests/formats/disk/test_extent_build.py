"""Building an extent: records of any length, contiguous sources, and only the keys and texts of
its records.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.disk.segment_support import (
    Write,
    build_bytes,
    extents,
    plain,
    source,
    writes,
)
from topics.formats.disk import extent_build
from topics.formats.disk.extent_build import check_extent
from topics.formats.disk.records import RecordFlags
from topics.formats.disk.segment import (
    CHUNK_BYTES,
    ExtentKey,
)
from topics.formats.disk.segment_build import ExtentSource


def test_every_extent_with_records_of_a_write_contains_its_key() -> None:
    batch = [
        Write([(None, None, b"1", None)] * 5, key="first", skip=2, ts_ms=50),
        Write([(None, None, b"1", None)], key="second", ts_ms=60),
    ]
    views = extents(build_bytes([source(1, 12, batch)[0]], extent_records=2))
    first, second = ExtentKey("first", 10, 5, 50), ExtentKey("second", 15, 1, 60)
    assert [[*view.idempotency_keys()] for view in views] == [[first], [first, second]]


def test_texts_of_skipped_records_are_not_stored() -> None:
    batch = [Write([("a", "old", b"1", b"{}"), ("b", "new", b"1", None)], skip=1)]
    (view,) = extents(build_bytes([source(1, 2, batch)[0]]))
    assert (len(view.nodes), len(view.tags)) == (1, 1)
    assert view.flags == RecordFlags.ONE_NODE | RecordFlags.TAGS
    assert view.find_tag(b'"old"') == ()


@given(writes())
def test_an_extent_of_delayed_jobs_equals_that_of_other_records(batch: list[Write]) -> None:
    delayed = [replace(write, due=[*range(1, 1 + len(write.records))]) for write in batch]
    _, views = source(1, 10, delayed)
    assert all(view.flags & RecordFlags.DELAYS for view in views)
    built = build_bytes([source(1, 10, delayed)[0]], extent_records=4)
    assert built == build_bytes([source(1, 10, batch)[0]], extent_records=4)
    assert not any(view.flags & RecordFlags.DELAYS for view in extents(built))


@pytest.mark.parametrize(
    "size", [CHUNK_BYTES - 60, CHUNK_BYTES, 3 * CHUNK_BYTES, extent_build.STEP_BYTES + 5]
)
def test_records_may_be_longer_than_a_chunk_or_a_step(size: int) -> None:
    view = plain(3, size).view(1)
    (extent,) = extents(build_bytes([ExtentSource(1, 1, [(view, 0, 3)])]))
    assert extent.blob == view.blob
    assert [*check_extent(extent)] == []


def test_sources_that_are_not_contiguous_are_rejected() -> None:
    with pytest.raises(AssertionError, match="are contiguous"):
        build_bytes([ExtentSource(1, 6, [(plain(2).view(5), 0, 2)])])


@given(writes(), st.integers(1, 7), st.integers(1, 9))
def test_extents_built_of_extents_equal_those_built_of_writes(
    batch: list[Write], first_records: int, records: int
) -> None:
    original, _ = source(1, 10, batch)
    views = extents(build_bytes([original], extent_records=first_records))
    copied = ExtentSource(1, original.first_seq, [(view, 0, view.count) for view in views])
    original, _ = source(1, 10, batch)
    assert build_bytes([copied], extent_records=records) == build_bytes(
        [original], extent_records=records
    )


def test_a_part_of_an_extent_contains_only_the_keys_of_its_writes() -> None:
    batch = [
        Write([(None, None, b"1", None)] * 2, key=f"k{number}", ts_ms=number) for number in range(5)
    ]
    (view,) = extents(build_bytes([source(1, 1, batch)[0]]))
    parts = [ExtentSource(1, 1 + start, [(view, start, stop)]) for start, stop in ((0, 3), (7, 8))]
    found = [[key.key for key in part.idempotency_keys()] for part in extents(build_bytes(parts))]
    assert found == [["k0", "k1"], ["k3"]]
    assert [*view.keys_one_by_one()] == [*view.idempotency_keys()]


def test_a_source_without_records_builds_no_extent() -> None:
    batch = plain(3)
    sources = [ExtentSource(1, 0, ()), source(1, 10, [batch])[0], ExtentSource(2, 0, ())]
    assert build_bytes(sources) == build_bytes([source(1, 10, [batch])[0]])
