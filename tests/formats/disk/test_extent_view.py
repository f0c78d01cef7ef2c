"""Extent view: an extent returns the same records as the writes that it was built of."""

from __future__ import annotations

from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.disk.record_support import TEXTS
from tests.formats.disk.segment_support import (
    SEGMENT_BYTES,
    Write,
    build_bytes,
    extents,
    model,
    opened,
    plain,
    source,
    writes,
)
from topics.formats.disk.extent_view import ExtentView
from topics.formats.disk.records import json_nodes, live_runs
from topics.formats.disk.segment import (
    CHUNK_BYTES,
    HEADER_BYTES,
    BadSegment,
)
from topics.formats.disk.segment_build import ExtentSource
from topics.formats.json_text import json_string


@given(writes(), st.data())
def test_an_extent_returns_the_same_records_as_its_writes(
    batch: list[Write], data: st.DataObject
) -> None:
    (view,) = extents(build_bytes([source(5, 7, batch)[0]]))
    expected = model(batch, 7)
    assert (view.count, view.entry.first_seq) == (len(expected), 7)
    expected_records = [bytes(write.slice(index, index + 1)) for _, write, index in expected]
    assert view.blob == b"".join(record + b"," for record in expected_records)
    assert [*view.ends] == [*accumulate(len(record) + 1 for record in expected_records)]
    assert [view.ts(index) for index in range(view.count)] == [
        write.ts(index) for _, write, index in expected
    ]
    assert (view.entry.first_ts, view.entry.last_ts) == (view.ts(0), view.ts(view.count - 1))
    start = data.draw(st.integers(0, view.count - 1))
    stop = data.draw(st.integers(start + 1, view.count))
    assert view.slice(start, stop) == b",".join(expected_records[start:stop])
    assert view.size(start, stop) == len(view.slice(start, stop)) + 1
    budget = data.draw(st.integers(0, 3000))
    fitting = [end for end in range(start, stop + 1) if view.size(start, end) <= budget]
    assert view.fit(start, stop, budget) == max(fitting, default=start)
    tagged = [tag for _, write, index in expected for _, tag in write.tagged(index, index + 1)]
    found = [*view.tagged(0, view.count)]
    assert [tag for _, tag in found] == tagged
    assert [*view.tagged(start, stop)] == [pair for pair in found if start <= pair[0] < stop]


@pytest.mark.slow
@given(
    writes(),
    st.tuples(*[st.booleans()] * 3),
    st.sets(st.sampled_from(["", "a", "ab", "é", 'q"\\', "c"])),
    st.data(),
)
def test_filters_select_the_same_from_an_extent_and_its_writes(
    batch: list[Write], requested: tuple[bool, bool, bool], nodes: set[str], data: st.DataObject
) -> None:
    tags, meta, with_data = requested
    (view,) = extents(build_bytes([source(5, 7, batch)[0]]))
    expected = model(batch, 7)
    flags = bytes(
        data.draw(st.lists(st.sampled_from([0, 1, 2]), min_size=view.count, max_size=view.count))
    )
    start = data.draw(st.integers(0, view.count))
    stop = data.draw(st.integers(start, view.count))
    skipped = json_nodes(nodes)
    expected_records = []
    for at, (_, write, index) in enumerate(expected):
        own = bytes(index) + flags[at : at + 1] + bytes(write.count)
        (*one,) = write.select(index, index + 1, skipped, tags, meta, own[: write.count], with_data)
        assert one == (
            write.select(index, index + 1, skipped, tags, meta, None, with_data)
            if flags[at] != 1
            else []
        )
        expected_records += [(at, record) for _, record in one if start <= at < stop]
    assert view.select(start, stop, skipped, tags, meta, flags, with_data) == expected_records
    if view.keeps_all(skipped, tags, meta, with_data):
        assert b",".join(view.slice(*run) for run in live_runs(flags, start, stop)) == b",".join(
            record for _, record in expected_records
        )


@given(writes(), TEXTS, st.text(max_size=3))
def test_tags_are_found_by_text_and_by_prefix(
    batch: list[Write], some: str | None, other: str
) -> None:
    (view,) = extents(build_bytes([source(5, 7, batch)[0]]))
    tags = [tag for write in batch for _, tag, _, _ in write.records[write.skip :]]
    for text in (some or "", other, (some or "")[:1]):
        assert [*view.find_tag(json_string(text))] == [
            index for index, tag in enumerate(tags) if tag == text
        ]
        found = view.find_prefix(json_string(text)[:-1])
        assert sorted(found) == [
            index for index, tag in enumerate(tags) if tag is not None and tag.startswith(text)
        ]
        middle = len(tags) // 2
        for begin, end in ((0, len(tags)), (0, middle), (middle, len(tags)), (middle, middle)):
            assert [*view.with_prefix(json_string(text)[:-1], begin, end)] == sorted(
                index for index in found if begin <= index < end
            )


CLOSE = st.text('\\"nu0/\n\b\x1f\x7fé\u2028', max_size=4)


@given(st.text() | CLOSE, st.text() | CLOSE)
def test_the_json_string_of_a_prefix_is_a_prefix_of_exactly_the_matching_strings(
    prefix: str, text: str
) -> None:
    assert json_string(prefix + text).startswith(json_string(prefix)[:-1])
    assert json_string(text).startswith(json_string(prefix)[:-1]) == text.startswith(prefix)


@given(st.lists(st.sampled_from([0, 0, 1, 1, 7]), max_size=40), st.data())
def test_live_runs_are_the_records_between_deleted_ones(
    flags: list[int], data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(flags)))
    stop = data.draw(st.integers(start, len(flags)))
    for buffer in (bytes(flags), bytearray(flags), memoryview(bytes(flags))):
        found = [*live_runs(buffer, start, stop)]
        assert [index for run in found for index in range(*run)] == [
            index for index in range(start, stop) if flags[index] != 1
        ]
        assert all(run[1] < later[0] for run, later in pairwise(found))
    assert [*live_runs(None, start, stop)] == ([(start, stop)] if start < stop else [])


def test_a_flipped_bit_of_an_extent_is_detected_when_it_is_read() -> None:
    _, entries = opened(SEGMENT_BYTES)
    for entry in entries:
        for at in range(entry.offset, entry.offset + entry.length):
            if entry.offset + entry.blob_bytes <= at < entry.tables_at:
                continue  # Zeros that no reader uses
            data = bytearray(SEGMENT_BYTES)
            data[at] ^= 0x08
            with pytest.raises(BadSegment) as raised:
                ExtentView(entry, memoryview(data)).slice(0, entry.record_count)
            assert raised.value.offset in (entry.offset, entry.tables_at)


def test_a_chunk_is_checked_once_when_it_is_first_read() -> None:
    view = plain(1000, size=400).view(1)
    data = bytearray(build_bytes([ExtentSource(1, 1, [(view, 0, 1000)])]))
    _, (entry,) = opened(bytes(data))
    extent = ExtentView(entry, memoryview(data))
    extent.slice(0, 10)
    data[HEADER_BYTES + 3] ^= 1
    extent.slice(0, 10)
    data[HEADER_BYTES + CHUNK_BYTES + 3] ^= 1
    extent.slice(0, 10)
    with pytest.raises(BadSegment) as raised:
        extent.slice(0, 1000)
    assert raised.value.offset == HEADER_BYTES + CHUNK_BYTES
    with pytest.raises(BadSegment):
        extent.slice(150, 200)
