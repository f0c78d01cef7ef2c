"""Building a segment: extents to the byte, for any division of the records."""

from __future__ import annotations

from array import array
from itertools import accumulate

import cbor2
import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.disk.segment_support import (
    HEADER,
    Write,
    build_bytes,
    extents,
    model,
    opened,
    plain,
    source,
    writes,
)
from topics.formats.disk import extent_build
from topics.formats.disk.extent_build import check_extent
from topics.formats.disk.records import RecordFlags
from topics.formats.disk.segment import (
    PAGE_BYTES,
    ExtentEntry,
    Trailer,
    encode_entry,
    encode_header,
    encode_trailer,
)
from topics.formats.disk.segment_build import ExtentSource, build


def test_an_extent_has_the_documented_bytes() -> None:
    write = Write(
        [
            ("b", "t", b"1", None),
            ("a", None, b"2", b"{}"),
            (None, "s", b"3", None),
            ("a", "t", b"4", None),
        ],
        key="k",
        ts_ms=5,
    )
    data = build_bytes([source(9, 7, [write])[0]])
    records = [
        b'{"$seq":7,"$ts":5,"$node":"b","$tag":"t","data":1},',
        b'{"$seq":8,"$ts":5,"$node":"a","data":2,"meta":{}},',
        b'{"$seq":9,"$ts":5,"$tag":"s","data":3},',
        b'{"$seq":10,"$ts":5,"$node":"a","$tag":"t","data":4},',
    ]
    blob = b"".join(records)
    keys = b"\x9f" + cbor2.dumps(["k", 7, 4, 5]) + b"\xff"
    numbers = [
        *(2, 6, 2, 6, 3, 1, len(keys), 0),
        *accumulate(map(len, records)),
        *(2, 1, 0, 1),
        *(2, 0, 1, 2),
        *(0, len(b',"meta":{}'), 0, 0),
        crc32c.crc32c(blob),
        *(3, 6),
        *(3, 6),
        *(1, 3),
        *(2, 0, 3),
    ]
    tables = array("I", numbers).tobytes() + b'"a""b"' + b'"s""t"' + keys
    extent = blob + bytes(-len(blob) % 8) + tables
    flags = RecordFlags.NODES | RecordFlags.TAGS | RecordFlags.METAS
    crc = crc32c.crc32c(tables)
    entry = ExtentEntry(
        *(9, 7, 4096, len(extent), 8192, 5, 5, 4),
        *(len(blob), len(tables), crc, flags, len(keys)),
    )
    directory = encode_entry(entry)
    end = encode_trailer(Trailer(12288, 8192, 4, 12288 + 80 + 64, 1, crc32c.crc32c(directory)))
    assert data == encode_header(HEADER) + extent.ljust(4096, b"\0") + bytes(4096) + directory + end


def test_a_segment_without_records_is_valid() -> None:
    data = build_bytes([])
    assert opened(data) == (Trailer(4096, 4096, 0, 4096 + 64, 0, 0), [])
    assert build_bytes([ExtentSource(1, 1, [])]) == data


@pytest.mark.slow
@given(st.lists(writes(), min_size=1, max_size=4), st.integers(40, 900), st.integers(1, 9))
def test_extents_of_any_size_contain_every_record_once(
    topics: list[list[Write]], extent_bytes: int, extent_records: int
) -> None:
    sources = [
        source(topic_id, 10 * topic_id, batch)[0] for topic_id, batch in enumerate(topics, 1)
    ]
    data = build_bytes(sources, extent_bytes=extent_bytes, extent_records=extent_records)
    for topic_id, batch in enumerate(topics, 1):
        own_views = [view for view in extents(data) if view.entry.topic_id == topic_id]
        assert [*accumulate([view.count for view in own_views[:-1]], initial=10 * topic_id)] == [
            view.entry.first_seq for view in own_views
        ]
        assert all(view.count <= extent_records for view in own_views)
        assert all(view.count == 1 or view.entry.blob_bytes <= extent_bytes for view in own_views)
        expected = [
            bytes(write.slice(index, index + 1)) + b","
            for _, write, index in model(batch, 10 * topic_id)
        ]
        assert b"".join(bytes(view.blob) for view in own_views) == b"".join(expected)
        assert [found for view in own_views for found in check_extent(view)] == []
        expected_keys = {write.key for write in batch} - {None}
        assert {key.key for view in own_views for key in view.idempotency_keys()} == expected_keys
    assert all(view.entry.offset % 8 == 0 for view in extents(data))


def test_a_build_runs_in_small_steps() -> None:
    chunks = [plain(100, tag="t%d").view(1 + 100 * number) for number in range(100)]
    parts = [*build(HEADER, [ExtentSource(1, 1, [(view, 0, 100) for view in chunks])])]
    assert max(map(len, parts)) <= extent_build.STEP_BYTES
    assert len(parts) > 100 * 100 / extent_build.STEP_RECORDS


def test_delete_flags_are_requested_at_the_end_and_are_contiguous() -> None:
    requests = []

    def delete_flags(topic_id: int, first_seq: int, count: int) -> bytes | None:
        requests.append((topic_id, first_seq, count))
        return b"\0\1" if topic_id == 2 else None

    sources = [source(1, 5, [plain(3)])[0], source(2, 9, [plain(2)])[0]]
    data = b"".join(build(HEADER, sources, delete_flags))
    trailer, entries = opened(data)
    assert requests == [(1, 5, 3), (2, 9, 2)]
    assert data[trailer.flags_at : trailer.flags_at + 5] == b"\0\0\0\0\1"
    assert [entry.flags_at - trailer.flags_at for entry in entries] == [0, 3]
    assert (trailer.flags_at % PAGE_BYTES, trailer.directory_at % PAGE_BYTES) == (0, 0)
