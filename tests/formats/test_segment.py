"""Segments: the documented bytes, and extents that answer as the writes do that they were built of."""

from __future__ import annotations

import re
import struct
from array import array
from itertools import accumulate, pairwise

import cbor2
import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.segment_support import (
    HEADER,
    TEXTS,
    Write,
    build_bytes,
    extents,
    opened,
    plain,
    source,
    writes,
)
from topics.formats.disk import segment, segment_build
from topics.formats.disk.extent_view import ExtentView
from topics.formats.disk.records import RecordFlags, RecordsView, json_nodes, live_runs
from topics.formats.disk.segment import (
    ALIGNMENT,
    CHUNK_BYTES,
    HEADER_BYTES,
    TRAILER_BYTES,
    BadSegment,
    ExtentEntry,
    ExtentKey,
    Trailer,
    check_directory,
    decode_header,
    decode_trailer,
    encode_entry,
    encode_header,
    encode_trailer,
)
from topics.formats.disk.segment_build import Source, build
from topics.formats.disk.segment_check import check_extent
from topics.formats.json_text import json_string

# The documented bytes


def rows(after: str) -> list[tuple[int, int]]:
    """``(offset, size)`` of a table in the module's docstring."""
    table = (segment.__doc__ or "").split(after)[1].split("\n\n")[1]
    return [
        (int(row[1]), int(row[2]))
        for line in table.splitlines()
        if (row := re.match(r"\s+(\d+)\s+(\d+)\s", line))
    ]


@pytest.mark.parametrize(
    ("after", "layout", "size"),
    [
        ("Header:", "<8sIIQQQI4052s", HEADER_BYTES),
        ("Trailer:", "<8sQQQQII12sI", TRAILER_BYTES),
        ("one for each extent:", "<QQQQQqqIIIIII", segment.ENTRY_BYTES),
    ],
)
def test_the_tables_are_their_structs(after: str, layout: str, size: int) -> None:
    sizes = [struct.calcsize("<" + code) for code in re.findall(r"\d*[a-zA-Z]", layout)]
    assert rows(after) == list(zip(accumulate(sizes, initial=0), sizes, strict=False))
    assert sum(sizes) == size


def test_header_entry_and_trailer_to_the_byte() -> None:
    head = encode_header(HEADER)
    assert len(head) == HEADER_BYTES
    assert (
        head[:44].hex() == "545053454730303101000000030000000700000000000000"
        "0010000000000000"
        "0020000000000000"
        "5371805c"
    )
    assert not any(head[44:])
    assert decode_header(head) == HEADER
    entry = ExtentEntry(1, 2, 3, 4, 5, -6, 7, 8, 9, 10, 11, 12)
    assert encode_entry(entry) == struct.pack("<QQQQQqqIIIIII", *entry, 0)
    trailer = Trailer(8192, 4096, 5, 8192 + 80 + 64, 1, 6)
    end = encode_trailer(trailer)
    assert end[:60] == b"TPSEGEND" + struct.pack("<QQQQII12x", *trailer)
    assert end[60:] == crc32c.crc32c(end[:60]).to_bytes(4, "little")
    assert decode_trailer(end, trailer.file_length) == trailer


def test_an_extent_to_the_byte() -> None:
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
    entry = ExtentEntry(
        9, 7, 4096, len(extent), 8192, 5, 5, 4, len(blob), len(tables), crc32c.crc32c(tables), flags
    )
    directory = encode_entry(entry)
    end = encode_trailer(Trailer(12288, 8192, 4, 12288 + 80 + 64, 1, crc32c.crc32c(directory)))
    assert data == encode_header(HEADER) + extent.ljust(4096, b"\0") + bytes(4096) + directory + end


def test_a_segment_without_records_is_whole() -> None:
    data = build_bytes([])
    assert opened(data) == (Trailer(4096, 4096, 0, 4096 + 64, 0, 0), [])
    assert build_bytes([Source(1, 1, [])]) == data


# Against the writes


def model(batch: list[Write], first_seq: int) -> list[tuple[int, RecordsView, int]]:
    """``(seq, write, index)`` of each record that the segment is to hold."""
    _, views = source(1, first_seq, batch)
    kept = [
        (view, index)
        for write, view in zip(batch, views, strict=True)
        for index in range(write.skip, view.count)
    ]
    return [(seq, view, index) for seq, (view, index) in enumerate(kept, first_seq)]


@given(writes(), st.data())
def test_an_extent_answers_as_its_writes_do(batch: list[Write], data: st.DataObject) -> None:
    (view,) = extents(build_bytes([source(5, 7, batch)[0]]))
    expected = model(batch, 7)
    assert (view.count, view.entry.first_seq) == (len(expected), 7)
    whole = [bytes(write.slice(index, index + 1)) for _, write, index in expected]
    assert view.blob == b"".join(record + b"," for record in whole)
    assert [*view.ends] == [*accumulate(len(record) + 1 for record in whole)]
    assert [view.ts(index) for index in range(view.count)] == [
        write.ts(index) for _, write, index in expected
    ]
    assert (view.entry.first_ts, view.entry.last_ts) == (view.ts(0), view.ts(view.count - 1))
    start = data.draw(st.integers(0, view.count - 1))
    stop = data.draw(st.integers(start + 1, view.count))
    assert view.slice(start, stop) == b",".join(whole[start:stop])
    assert view.size(start, stop) == len(view.slice(start, stop)) + 1
    budget = data.draw(st.integers(0, 3000))
    assert view.fit(start, stop, budget) == max(
        end for end in range(start, stop + 1) if end == start or view.size(start, end) <= budget
    )  # fmt: skip
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
def test_readers_of_less_get_the_same_of_both(
    batch: list[Write], flags: tuple[bool, bool, bool], nodes: set[str], data: st.DataObject
) -> None:
    tags, meta, with_data = flags
    (view,) = extents(build_bytes([source(5, 7, batch)[0]]))
    expected = model(batch, 7)
    dead = bytes(
        data.draw(st.lists(st.sampled_from([0, 1, 2]), min_size=view.count, max_size=view.count))
    )
    start = data.draw(st.integers(0, view.count))
    stop = data.draw(st.integers(start, view.count))
    skipped = json_nodes(nodes)
    whole = []
    for at, (_, write, index) in enumerate(expected):
        marks = bytes(index) + dead[at : at + 1] + bytes(write.count)
        (*one,) = write.select(
            index, index + 1, skipped, tags, meta, marks[: write.count], with_data
        )
        assert one == (
            write.select(index, index + 1, skipped, tags, meta, None, with_data)
            if dead[at] != 1
            else []
        )
        whole += [(at, record) for _, record in one if start <= at < stop]
    assert view.select(start, stop, skipped, tags, meta, dead, with_data) == whole
    if view.cuts_nothing(skipped, tags, meta, with_data):
        assert b",".join(view.slices(start, stop, dead)) == b",".join(record for _, record in whole)


@pytest.mark.slow
@given(st.lists(writes(), min_size=1, max_size=4), st.integers(40, 900), st.integers(1, 9))
def test_however_extents_are_cut_they_hold_every_record_once(
    topics: list[list[Write]], extent_bytes: int, extent_records: int
) -> None:
    sources = [
        source(topic_id, 10 * topic_id, batch)[0] for topic_id, batch in enumerate(topics, 1)
    ]
    data = build_bytes(sources, extent_bytes=extent_bytes, extent_records=extent_records)
    for topic_id, batch in enumerate(topics, 1):
        mine = [view for view in extents(data) if view.entry.topic_id == topic_id]
        assert [*accumulate([view.count for view in mine[:-1]], initial=10 * topic_id)] == [
            view.entry.first_seq for view in mine
        ]
        assert all(view.count <= extent_records for view in mine)
        assert all(view.count == 1 or view.entry.blob_bytes <= extent_bytes for view in mine)
        whole = [
            bytes(write.slice(index, index + 1)) + b","
            for _, write, index in model(batch, 10 * topic_id)
        ]
        assert b"".join(bytes(view.blob) for view in mine) == b"".join(whole)
        assert [found for view in mine for found in check_extent(view)] == []
        wanted = {write.key for write in batch} - {None}
        assert {key.key for view in mine for key in view.idempotency_keys()} == wanted
    assert all(view.entry.offset % ALIGNMENT == 0 for view in extents(data))


def test_a_key_stands_in_every_extent_that_holds_records_of_its_write() -> None:
    batch = [
        Write([(None, None, b"1", None)] * 5, key="first", skip=2, ts_ms=50),
        Write([(None, None, b"1", None)], key="second", ts_ms=60),
    ]
    views = extents(build_bytes([source(1, 12, batch)[0]], extent_records=2))
    first, second = ExtentKey("first", 10, 5, 50), ExtentKey("second", 15, 1, 60)
    assert [[*view.idempotency_keys()] for view in views] == [[first], [first, second]]


def test_a_text_that_only_a_skipped_record_has_is_not_kept() -> None:
    batch = [Write([("a", "old", b"1", b"{}"), ("b", "new", b"1", None)], skip=1)]
    (view,) = extents(build_bytes([source(1, 2, batch)[0]]))
    assert (len(view.nodes), len(view.tags)) == (1, 1)
    assert view.flags == RecordFlags.ONE_NODE | RecordFlags.TAGS
    assert view.find_tag(b'"old"') == ()


@pytest.mark.parametrize(
    "size", [CHUNK_BYTES - 60, CHUNK_BYTES, 3 * CHUNK_BYTES, segment_build.STEP_BYTES + 5]
)
def test_records_longer_than_a_chunk_or_a_step(size: int) -> None:
    view = plain(3, size).view(1)
    (extent,) = extents(build_bytes([Source(1, 1, [(view, 0, 3)])]))
    assert extent.blob == view.blob
    assert [*check_extent(extent)] == []


def test_pieces_that_do_not_follow_on_one_another_are_not_built() -> None:
    with pytest.raises(AssertionError, match="follow on one another"):
        build_bytes([Source(1, 6, [(plain(2).view(5), 0, 2)])])


def test_a_build_goes_in_small_steps() -> None:
    pieces = [plain(100, tag="t%d").view(1 + 100 * number) for number in range(100)]
    parts = [*build(HEADER, [Source(1, 1, [(view, 0, 100) for view in pieces])])]
    assert max(map(len, parts)) <= segment_build.STEP_BYTES
    assert len(parts) > 100 * 100 / segment_build.STEP_RECORDS


# Tags


@given(writes(), TEXTS, st.text(max_size=3))
def test_tags_are_found_whole_and_by_their_beginning(
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


@given(st.text(), st.text())
def test_the_json_string_of_a_prefix_begins_that_of_the_whole_and_of_nothing_else(
    prefix: str, text: str
) -> None:
    assert json_string(prefix + text).startswith(json_string(prefix)[:-1])
    assert json_string(text).startswith(json_string(prefix)[:-1]) == text.startswith(prefix)


CLOSE = st.text('\\"nu0/\n\b\x1f\x7fé\u2028', max_size=4)


@given(CLOSE, CLOSE)
def test_and_so_among_texts_full_of_escapes(prefix: str, text: str) -> None:
    assert json_string(text).startswith(json_string(prefix)[:-1]) == text.startswith(prefix)


def test_many_tags_are_sorted_across_runs() -> None:
    count = 2 * segment_build.RUN_TEXTS + 100
    view = plain(count, tag="t%d").view(1)
    (extent,) = extents(build_bytes([Source(1, 1, [(view, 0, count)])]))
    assert [*check_extent(extent)] == []
    assert len(extent.tags) == count
    assert [*extent.find_tag(b'"t77"')] == [77]
    assert sorted(extent.find_prefix(b'"t77')) == [
        number for number in range(count) if str(number).startswith("77")
    ]


# Deleted records


@given(st.lists(st.sampled_from([0, 0, 1, 1, 7]), max_size=40), st.data())
def test_live_runs_are_what_is_left_between_the_dead(flags: list[int], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(flags)))
    stop = data.draw(st.integers(start, len(flags)))
    for dead in (bytes(flags), bytearray(flags), memoryview(bytes(flags))):
        found = [*live_runs(dead, start, stop)]
        assert [index for run in found for index in range(*run)] == [
            index for index in range(start, stop) if flags[index] != 1
        ]
        assert all(run[1] < later[0] for run, later in pairwise(found))
    assert [*live_runs(None, start, stop)] == ([(start, stop)] if start < stop else [])


def test_flags_are_asked_for_at_the_end_and_stand_side_by_side() -> None:
    asked = []

    def dead(topic_id: int, first_seq: int, count: int) -> bytes | None:
        asked.append((topic_id, first_seq, count))
        return b"\0\1" if topic_id == 2 else None

    sources = [source(1, 5, [plain(3)])[0], source(2, 9, [plain(2)])[0]]
    data = b"".join(build(HEADER, sources, dead))
    trailer, entries = opened(data)
    assert asked == [(1, 5, 3), (2, 9, 2)]
    assert data[trailer.flags_at : trailer.flags_at + 5] == b"\0\0\0\0\1"
    assert [entry.flags_at - trailer.flags_at for entry in entries] == [0, 3]
    assert (trailer.flags_at % ALIGNMENT, trailer.directory_at % ALIGNMENT) == (0, 0)


# Any others

WHOLE = build_bytes(
    [
        source(1, 5, [plain(3, tag="t%d"), Write([("n", None, b"1", b"{}")], key="k")])[0],
        source(2, 9, [plain(2)])[0],
    ]
)


def test_another_version_is_refused_and_named() -> None:
    head = bytearray(WHOLE[:HEADER_BYTES])
    head[8] = 2
    with pytest.raises(BadSegment, match="format version 2; this program reads version 1"):
        decode_header(head)


@pytest.mark.parametrize("at", [*range(44)])
def test_a_flipped_bit_of_the_header_is_noticed(at: int) -> None:
    head = bytearray(WHOLE[:HEADER_BYTES])
    head[at] ^= 0x40
    with pytest.raises(BadSegment):
        decode_header(head)


@pytest.mark.parametrize("at", [*range(TRAILER_BYTES)])
def test_a_flipped_bit_of_the_trailer_is_noticed(at: int) -> None:
    end = bytearray(WHOLE[-TRAILER_BYTES:])
    end[at] ^= 0x40
    with pytest.raises(BadSegment):
        decode_trailer(end, len(WHOLE))


def test_a_flipped_bit_of_the_directory_is_noticed() -> None:
    trailer, _ = opened(WHOLE)
    directory = bytearray(WHOLE[trailer.directory_at : -TRAILER_BYTES])
    check_directory(directory, trailer)
    for at in range(len(directory)):
        directory[at] ^= 1
        with pytest.raises(BadSegment):
            check_directory(directory, trailer)
        directory[at] ^= 1


@given(st.binary(max_size=5000))
def test_any_bytes_give_an_answer(data: bytes) -> None:
    for read in (decode_header, lambda data: decode_trailer(data[-TRAILER_BYTES:], len(data))):
        with pytest.raises(BadSegment):
            read(data)


def test_a_flipped_bit_of_an_extent_is_noticed_when_it_is_read() -> None:
    _, entries = opened(WHOLE)
    for entry in entries:
        for at in range(entry.offset, entry.offset + entry.length):
            if entry.offset + entry.blob_bytes <= at < entry.tables_at:
                continue  # zeros that nobody reads
            data = bytearray(WHOLE)
            data[at] ^= 0x08
            with pytest.raises(BadSegment) as raised:
                ExtentView(entry, memoryview(data)).slice(0, entry.record_count)
            assert raised.value.offset in (entry.offset, entry.tables_at)


def test_a_chunk_is_checked_when_it_is_first_touched_and_not_again() -> None:
    view = plain(1000, size=400).view(1)
    data = bytearray(build_bytes([Source(1, 1, [(view, 0, 1000)])]))
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
