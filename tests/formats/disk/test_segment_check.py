"""Extent check: every table that contradicts the records is found, behind a right checksum."""

from __future__ import annotations

import struct

import crc32c
import pytest

from tests.formats.disk.segment_support import Write, build_bytes, extents, opened, source
from topics.formats.disk.extent_view import ExtentView
from topics.formats.disk.segment import TABLES_HEAD_BYTES
from topics.formats.disk.segment_check import check_extent

RECORDS = [("b", "t", b"1", b"{}"), ("a", None, b"2", None), (None, "s", b"3", None)]
DATA = build_bytes([source(9, 7, [Write(RECORDS, key="k")])[0]])
COUNT = len(RECORDS)


def test_a_whole_extent_has_no_findings() -> None:
    (view,) = extents(DATA)
    assert [*check_extent(view)] == []


@pytest.mark.parametrize(
    ("row", "value", "reason"),
    [
        (0, 1, "the record of seq 7 is not that of the tables"),
        (COUNT - 1, 1, "do not ascend to the end of the blob"),
        (COUNT, 9, "a record has a node that is not in the dictionary"),
        (COUNT, 1, "the record of seq 7 is not that of the tables"),
        (2 * COUNT, 1, "the postings are not those of the tags"),
        (3 * COUNT, 3, "the record of seq 7 lacks the meta of the tables"),
    ],
)
def test_a_wrong_row_of_a_table_is_found(row: int, value: int, reason: str) -> None:
    data = bytearray(DATA)
    _, (entry,) = opened(DATA)
    struct.pack_into("<I", data, entry.tables_at + TABLES_HEAD_BYTES + 4 * row, value)
    tables = data[entry.tables_at : entry.tables_at + entry.tables_len]
    view = ExtentView(entry._replace(tables_crc=crc32c.crc32c(tables)), memoryview(data))
    assert any(reason in found for _, found in check_extent(view))


def test_damaged_records_are_found_with_their_offset() -> None:
    data = bytearray(DATA)
    _, (entry,) = opened(DATA)
    data[entry.offset + 3] ^= 1
    found = [*check_extent(ExtentView(entry, memoryview(data)))]
    assert found == [(entry.offset, "records are damaged")]


def test_other_times_in_the_directory_are_found() -> None:
    _, (entry,) = opened(DATA)
    view = ExtentView(entry._replace(last_ts=entry.last_ts + 1), memoryview(DATA))
    assert [reason for _, reason in check_extent(view)] == [
        "the directory has other times than the records"
    ]
