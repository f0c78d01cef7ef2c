"""Segment format: header, directory and trailer to the byte, and detection of any flipped bit."""

from __future__ import annotations

import re
import struct
from itertools import accumulate

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.disk.segment_support import (
    HEADER,
    SEGMENT_BYTES,
    Write,
    build_bytes,
    extents,
    opened,
    source,
)
from topics.formats.disk import segment
from topics.formats.disk.extent_build import check_extent
from topics.formats.disk.extent_view import ExtentView
from topics.formats.disk.segment import (
    HEADER_BYTES,
    TABLES_HEAD_BYTES,
    TRAILER_BYTES,
    BadSegment,
    ExtentEntry,
    Trailer,
    check_directory,
    decode_header,
    decode_trailer,
    encode_entry,
    encode_header,
    encode_trailer,
)


def rows(after: str) -> list[tuple[int, int]]:
    """Return ``(offset, size)`` of each row of a table in the docstring of the module."""
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
def test_the_byte_tables_match_the_structs(after: str, layout: str, size: int) -> None:
    sizes = [struct.calcsize("<" + code) for code in re.findall(r"\d*[a-zA-Z]", layout)]
    assert rows(after) == list(zip(accumulate(sizes, initial=0), sizes, strict=False))
    assert sum(sizes) == size


def test_header_entry_and_trailer_have_the_documented_bytes() -> None:
    head = encode_header(HEADER)
    assert len(head) == HEADER_BYTES
    assert (
        head[:44].hex() == "545053454730303102000000030000000700000000000000"
        "0010000000000000"
        "0020000000000000"
        "0e006b1a"
    )
    assert not any(head[44:])
    assert decode_header(head) == HEADER
    entry = ExtentEntry(1, 2, 3, 4, 5, -6, 7, 8, 9, 10, 11, 12, 13)
    assert encode_entry(entry) == struct.pack("<QQQQQqqIIIIII", *entry)
    trailer = Trailer(8192, 4096, 5, 8192 + 80 + 64, 1, 6)
    end = encode_trailer(trailer)
    assert end[:60] == b"TPSEGEND" + struct.pack("<QQQQII12x", *trailer)
    assert end[60:] == crc32c.crc32c(end[:60]).to_bytes(4, "little")
    assert decode_trailer(end, trailer.file_length) == trailer


@pytest.mark.parametrize("at", [*range(44)])
def test_a_flipped_bit_of_the_header_is_detected(at: int) -> None:
    head = bytearray(SEGMENT_BYTES[:HEADER_BYTES])
    head[at] ^= 0x40
    with pytest.raises(BadSegment):
        decode_header(head)


@pytest.mark.parametrize("at", [*range(TRAILER_BYTES)])
def test_a_flipped_bit_of_the_trailer_is_detected(at: int) -> None:
    end = bytearray(SEGMENT_BYTES[-TRAILER_BYTES:])
    end[at] ^= 0x40
    with pytest.raises(BadSegment):
        decode_trailer(end, len(SEGMENT_BYTES))


def test_a_flipped_bit_of_the_directory_is_detected() -> None:
    trailer, _ = opened(SEGMENT_BYTES)
    directory = bytearray(SEGMENT_BYTES[trailer.directory_at : -TRAILER_BYTES])
    check_directory(directory, trailer)
    for at in range(len(directory)):
        directory[at] ^= 1
        with pytest.raises(BadSegment):
            check_directory(directory, trailer)
        directory[at] ^= 1


@given(st.binary(max_size=5000))
def test_any_other_bytes_are_rejected(data: bytes) -> None:
    for read in (decode_header, lambda data: decode_trailer(data[-TRAILER_BYTES:], len(data))):
        with pytest.raises(BadSegment):
            read(data)


# Check of extents


RECORDS = [("b", "t", b"1", b"{}"), ("a", None, b"2", None), (None, "s", b"3", None)]
DATA = build_bytes([source(9, 7, [Write(RECORDS, key="k")])[0]])
COUNT = len(RECORDS)


def test_an_intact_extent_has_no_findings() -> None:
    (view,) = extents(DATA)
    assert [*check_extent(view)] == []


@pytest.mark.parametrize(
    ("row", "value"),
    [(0, 1), (COUNT - 1, 1), (COUNT, 9), (COUNT, 1), (2 * COUNT, 1), (3 * COUNT, 3)],
)
def test_a_wrong_row_of_a_table_is_a_finding(row: int, value: int) -> None:
    data = bytearray(DATA)
    _, (entry,) = opened(DATA)
    struct.pack_into("<I", data, entry.tables_at + TABLES_HEAD_BYTES + 4 * row, value)
    tables = data[entry.tables_at : entry.tables_at + entry.tables_len]
    view = ExtentView(entry._replace(tables_crc=crc32c.crc32c(tables)), memoryview(data))
    assert [*check_extent(view)]


def test_damaged_records_are_a_finding_with_their_offset() -> None:
    data = bytearray(DATA)
    _, (entry,) = opened(DATA)
    data[entry.offset + 3] ^= 1
    found = [*check_extent(ExtentView(entry, memoryview(data)))]
    assert found == [(entry.offset, "records are damaged")]


def test_wrong_times_in_the_directory_are_a_finding() -> None:
    _, (entry,) = opened(DATA)
    view = ExtentView(entry._replace(last_ts=entry.last_ts + 1), memoryview(DATA))
    assert [reason for _, reason in check_extent(view)] == [
        "the times in the directory do not match the records"
    ]
