"""The header of a log file: the documented bytes, and the rejection of any other bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.checksums import slow_crc32c
from tests.support.tables import byte_rows
from topics.formats.disk import wal
from topics.formats.disk.wal import (
    FILE_HEADER_BYTES,
    BadHeader,
    FileHeader,
    decode_file_header,
    encode_file_header,
)

HEADER = FileHeader(shard=3, base=0x1122334455667788, salt=0x0102030405060708, size=64 << 20)


def test_the_table_of_the_file_header_matches_its_struct() -> None:
    table = byte_rows(wal.__doc__ or "", "Layout of the file header")
    assert [(offset, size) for offset, size, _ in table] == [
        *((0, 8), (8, 4), (12, 4), (16, 8), (24, 8), (32, 8), (40, 4), (44, 4052)),
    ]
    assert sum(size for _, size, _ in table) == FILE_HEADER_BYTES


def test_a_file_header_has_the_documented_bytes() -> None:
    data = encode_file_header(HEADER)
    assert len(data) == FILE_HEADER_BYTES
    expected = (
        "545057414c30303102000000030000008877665544332211080706050403020100000004000000002c8c719b"
    )
    assert data[:44].hex() == expected
    assert not any(data[44:])
    assert decode_file_header(data) == HEADER


def test_the_checksums_are_computed_as_documented() -> None:
    header = encode_file_header(HEADER)
    assert int.from_bytes(header[40:44], "little") == slow_crc32c(header[:40])
    assert slow_crc32c(header[24:32]) == HEADER.seed


@pytest.mark.parametrize("length", [0, 1, 43, 44, FILE_HEADER_BYTES - 1])
def test_a_short_file_header_is_rejected(length: int) -> None:
    with pytest.raises(BadHeader, match="shorter than its header"):
        decode_file_header(encode_file_header(HEADER)[:length])


def test_any_flipped_bit_of_a_file_header_is_detected() -> None:
    good = encode_file_header(HEADER)
    for bit in range(8 * 44):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadHeader):
            decode_file_header(bad)


@given(st.binary(max_size=64))
def test_any_bytes_are_rejected_as_a_file_header(start: bytes) -> None:
    with pytest.raises(BadHeader):
        decode_file_header(start.ljust(FILE_HEADER_BYTES, b"\0"))
