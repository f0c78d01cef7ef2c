"""Blob file: its layout, and detection of any damage."""

from __future__ import annotations

import re

import crc32c
import pytest

from topics.formats.disk import blob
from topics.formats.disk.blob import (
    HEADER_BYTES,
    BadBlob,
    body_crc,
    body_of,
    check,
    check_header,
    checking,
    encode_header,
)

BODY = b"the records of a long write"
BLOB = encode_header(7, 9, len(BODY), crc32c.crc32c(BODY, body_crc(7, 9, len(BODY)))) + BODY


def test_a_blob_has_the_documented_bytes() -> None:
    assert blob.__doc__ is not None
    table = re.findall(r"^ {4}(\d+) +(\w+) +(\w+)", blob.__doc__, re.MULTILINE)
    at = {name: (int(offset), size) for offset, size, name in table}
    fields = {
        name: BLOB[offset : offset + (int(size) if size.isdigit() else len(BODY))]
        for name, (offset, size) in at.items()
    }
    assert fields == {
        "magic": b"TPBLOB01",
        "version": (1).to_bytes(4, "little"),
        "crc32c": crc32c.crc32c(BLOB[16:]).to_bytes(4, "little"),
        "topic_id": (7).to_bytes(8, "little"),
        "first_seq": (9).to_bytes(8, "little"),
        "body_len": len(BODY).to_bytes(8, "little"),
        "zero": bytes(24),
        "body": BODY,
    }
    assert b"".join(fields.values()) == BLOB


def test_an_intact_blob_returns_its_body() -> None:
    assert bytes(check(memoryview(BLOB), 7, 9)) == BODY
    assert bytes(body_of(memoryview(BLOB))) == BODY


@pytest.mark.parametrize("at", range(len(BLOB)))
def test_a_flipped_bit_is_detected_at_any_place(at: int) -> None:
    damaged = bytearray(BLOB)
    damaged[at] ^= 0x10
    with pytest.raises(BadBlob) as raised:
        check(memoryview(damaged), 7, 9)
    assert raised.value.offset in (0, 8, 16, HEADER_BYTES)


@pytest.mark.parametrize("length", [0, 1, HEADER_BYTES - 1, HEADER_BYTES, len(BLOB) - 1])
def test_a_blob_that_is_cut_or_longer_is_rejected(length: int) -> None:
    for data in (BLOB[:length], BLOB + b"x"):
        with pytest.raises(BadBlob):
            check(memoryview(data), 7, 9)


def test_the_header_alone_shows_that_a_file_is_cut_or_longer() -> None:
    header = BLOB[:HEADER_BYTES]
    assert check_header(header, len(BLOB), 7, 9)[0] == body_crc(7, 9, len(BODY))
    for length in (len(BLOB) - 1, len(BLOB) + 1):
        with pytest.raises(BadBlob, match="is truncated"):
            check_header(header, length, 7, 9)


@pytest.mark.parametrize(("topic_id", "first_seq"), [(8, 9), (7, 10)])
def test_the_blob_of_another_write_is_rejected(topic_id: int, first_seq: int) -> None:
    with pytest.raises(BadBlob, match="another write"):
        check(memoryview(BLOB), topic_id, first_seq)


def test_a_blob_is_checked_in_steps() -> None:
    assert len([*checking(memoryview(BLOB), 7, 9, 10)]) == 3
    steps = checking(memoryview(BLOB[:-1] + b"!"), 7, 9, 10)
    for _ in range(3):
        next(steps)
    with pytest.raises(BadBlob, match="damaged"):
        next(steps)
