"""Linked copies: bodies of ROUTER frames of version 0.1."""

from __future__ import annotations

import re
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tables import byte_rows
from topics.formats.disk import linked_copies
from topics.formats.disk.copies import BadCopies, Run, Stamp
from topics.formats.disk.frames import FrameHeader, FrameKind
from topics.formats.disk.linked_copies import ROW, LinkedCopies, decode

EXT = bytes.fromhex("a6617209616318506174182861680261731902bc616d81846172637372630502")
ROWS = bytes.fromhex("0010000000000000070000000000000003000100020000000400000009000000")


def header(ext_len: int = len(EXT), count: int = 5) -> FrameHeader:
    return FrameHeader(b"", 0, 0, 0, 5, 7, 1000, 0, count, ext_len, FrameKind.ROUTER, 0, 0)


def test_the_table_of_a_row_is_its_struct() -> None:
    codes = re.findall(r"[A-Z]|x+", ROW.format)
    rows = byte_rows(linked_copies.__doc__ or "", "A row:")
    assert [size for _, size, _ in rows] == [struct.calcsize("<" + code) for code in codes]
    assert sum(size for _, size, _ in rows) == ROW.size


def test_the_bytes_of_version_0_1_are_read() -> None:
    assert decode(header(), EXT + ROWS) == LinkedCopies(
        *(9, 80, 40, 2, 700, 0, [Stamp("r", "src", 5, 2)], [(3, Run(0x1000, 7, 4, 9, 1, 2))])
    )
    assert decode(header(count=0), EXT).rows == []


@given(st.binary(max_size=80), st.integers(0, 90), st.integers(0, 6))
def test_any_bytes_are_a_body_or_bad_copies(data: bytes, ext_len: int, count: int) -> None:
    try:
        found = decode(header(ext_len, count), data)
    except BadCopies:
        return
    assert sum(run.stop - run.start for _, run in found.rows) == count


def test_any_cut_is_bad() -> None:
    for length in range(len(EXT + ROWS)):
        with pytest.raises(BadCopies):
            decode(header(), (EXT + ROWS)[:length])
