"""Bytes of the log: the documented ones, and an answer for any others."""

from __future__ import annotations

import re
import struct
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.formats.disk import wal
from topics.formats.disk.wal import (
    FILE_HEADER_BYTES,
    FRAME,
    FRAME_HEADER_BYTES,
    BadHeader,
    FileHeader,
    Frame,
    FrameHeader,
    FrameKind,
    Stop,
    check_frame,
    decode_file_header,
    encode_file_header,
    encode_frame,
    padded,
    scan_frames,
)

HEADER = FileHeader(shard=3, base=0x1122334455667788, salt=0x0102030405060708, size=64 << 20)
SEED = HEADER.seed


def encoded(frame: Frame, position: int = 0, durable: int = 0, seed: int = SEED) -> bytes:
    return b"".join(encode_frame(frame, position, durable, seed))


def check(data: bytes, position: int = 0, seed: int = SEED, offset: int = 0) -> FrameHeader | Stop:
    return check_frame(memoryview(data), offset, position, seed)


# The documented bytes


def rows(first: str, after: str) -> list[tuple[int, int, str]]:
    """``(offset, size, field)`` of a table in the module's docstring."""
    table = (wal.__doc__ or "").split(after)[1].split("\n\n")[1]
    found = [re.match(r"\s+(\d+)\s+(\d+)\s+(\w+)", line) for line in table.splitlines()[1:]]
    named = [(int(row[1]), int(row[2]), row[3]) for row in found if row]
    assert named[0][2] == first
    return named


def test_the_table_of_the_file_header_is_its_struct() -> None:
    table = rows("magic", "File header")
    assert [(offset, size) for offset, size, _ in table] == [
        (0, 8),
        (8, 4),
        (12, 4),
        (16, 8),
        (24, 8),
        (32, 8),
        (40, 4),
        (44, 4052),
    ]
    assert sum(size for _, size, _ in table) == FILE_HEADER_BYTES


def test_the_table_of_the_frame_is_its_struct() -> None:
    table = rows("magic", "Frame: header")
    sizes = [struct.calcsize("<" + code) for code in re.findall(r"\d*[a-zA-Z]", FRAME.format)]
    assert [size for _, size, _ in table] == sizes
    assert [offset for offset, _, _ in table] == [
        sum(sizes[:number]) for number in range(len(sizes))
    ]
    assert [field.replace("crc32c", "crc") for _, _, field in table] == list(FrameHeader._fields)
    assert sum(sizes) == FRAME_HEADER_BYTES


def test_a_file_header_is_the_documented_bytes() -> None:
    data = encode_file_header(HEADER)
    assert len(data) == FILE_HEADER_BYTES
    expected = (
        "545057414c30303102000000030000008877665544332211080706050403020100000004000000002c8c719b"
    )
    assert data[:44].hex() == expected
    assert not any(data[44:])
    assert decode_file_header(data) == HEADER


def test_a_file_header_of_version_1_is_read_and_tells_no_size() -> None:
    data = bytes.fromhex("545057414c303031010000000300000088776655443322110807060504030201ed748f37")
    assert decode_file_header(data.ljust(FILE_HEADER_BYTES, b"\0")) == HEADER._replace(size=0)


CONFIG = cbor2.dumps({"name": "a"})
# One frame of each kind, at position 8 of a log that is synced up to 16.
GOLDEN: list[tuple[Frame, list[str]]] = [
    (
        Frame(FrameKind.APPEND, 5, 7, 1000, 1, 2, 0, (b"\x04\0\0\0", b"abc,")),
        [
            "57463031665f4d74080000000000000010000000000000000500000000000000",
            "0700000000000000e80300000000000008000000010000000000000001020000",
            "040000006162632c",
        ],
    ),
    (
        Frame(FrameKind.DELETE, 5, 0, 1000, 1, parts=(b"\x07\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0",)),
        [
            "57463031a6748259080000000000000010000000000000000500000000000000",
            "0000000000000000e80300000000000010000000010000000000000002000000",
            "07000000000000000200000000000000",
        ],
    ),
    (
        Frame(FrameKind.TOPIC, 5, 4096, 1000, ext_len=len(CONFIG), parts=(CONFIG,)),
        [
            "574630311aa26c98080000000000000010000000000000000500000000000000",
            "0010000000000000e80300000000000008000000000000000800000003000000",
            "a1646e616d656161",
        ],
    ),
    (
        Frame(FrameKind.LEASE, 5),
        [
            "57463031fa030696080000000000000010000000000000000500000000000000",
            "0000000000000000000000000000000000000000000000000000000004000000",
        ],
    ),
    (
        Frame(FrameKind.ROUTER, 5),
        [
            "5746303142a9434b080000000000000010000000000000000500000000000000",
            "0000000000000000000000000000000000000000000000000000000005000000",
        ],
    ),
    (
        Frame(FrameKind.MARK, ts_ms=-1, ext_len=len(CONFIG), parts=(CONFIG,)),
        [
            "574630311702ac54080000000000000010000000000000000000000000000000",
            "0000000000000000ffffffffffffffff08000000000000000800000006000000",
            "a1646e616d656161",
        ],
    ),
    (
        Frame(FrameKind.TOPIC_DELETED, 5, ts_ms=1000),
        [
            "57463031db595483080000000000000010000000000000000500000000000000",
            "0000000000000000e80300000000000000000000000000000000000007000000",
        ],
    ),
    (
        Frame(FrameKind.SEQS_RESERVED, 5, 2**64 - 1),
        [
            "574630312ca03866080000000000000010000000000000000500000000000000",
            "ffffffffffffffff000000000000000000000000000000000000000008000000",
        ],
    ),
    (
        Frame(FrameKind.FLOOR, 5, 7, ext_len=4, parts=(b"\x83\x07\x01\x01",)),
        [
            "57463031fbdae5fd080000000000000010000000000000000500000000000000",
            "0700000000000000000000000000000004000000000000000400000009000000",
            "8307010100000000",
        ],
    ),
    (
        Frame(FrameKind.TS_RESERVED, ts_ms=1000),
        [
            "57463031e27b8377080000000000000010000000000000000000000000000000",
            "0000000000000000e8030000000000000000000000000000000000000a000000",
        ],
    ),
]


@pytest.mark.parametrize(
    ("frame", "expected"), GOLDEN, ids=[frame.kind.name for frame, _ in GOLDEN]
)
def test_a_frame_is_the_documented_bytes(frame: Frame, expected: list[str]) -> None:
    data = encoded(frame, position=8, durable=16)
    assert data.hex() == "".join(expected)
    assert len(data) == frame.length


def slow_crc32c(data: bytes, start: int = 0) -> int:
    """CRC-32C bit by bit, as its specification has it."""
    crc = ~start & 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return ~crc & 0xFFFFFFFF


def test_the_checksums_are_the_documented_ones() -> None:
    assert slow_crc32c(b"123456789") == 0xE3069283
    header = encode_file_header(HEADER)
    assert int.from_bytes(header[40:44], "little") == slow_crc32c(header[:40])
    assert slow_crc32c(header[24:32]) == SEED
    for frame, _ in GOLDEN:
        data = encoded(frame, position=8, durable=16)
        end = FRAME_HEADER_BYTES + sum(map(len, frame.parts))
        assert int.from_bytes(data[4:8], "little") == slow_crc32c(data[8:end], SEED)


def test_numbers_of_kinds_never_change() -> None:
    assert {kind.name: kind.value for kind in FrameKind} == {
        "APPEND": 1, "DELETE": 2, "TOPIC": 3, "LEASE": 4, "ROUTER": 5, "MARK": 6, "TOPIC_DELETED": 7, "SEQS_RESERVED": 8,
            "FLOOR": 9, "TS_RESERVED": 10,
    }  # fmt: skip
    assert {frame.kind for frame, _ in GOLDEN} == set(FrameKind)


# File headers


@pytest.mark.parametrize("length", [0, 1, 43, 44, FILE_HEADER_BYTES - 1])
def test_a_short_file_header_is_refused(length: int) -> None:
    with pytest.raises(BadHeader, match="shorter than its header"):
        decode_file_header(encode_file_header(HEADER)[:length])


def test_any_flipped_bit_of_a_file_header_is_noticed() -> None:
    good = encode_file_header(HEADER)
    for bit in range(8 * 44):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadHeader):
            decode_file_header(bad)


def test_another_version_is_refused_with_both_numbers() -> None:
    data = bytearray(encode_file_header(HEADER))
    data[8] = 9
    with pytest.raises(
        BadHeader, match="has format version 9; this program reads versions up to 2"
    ):
        decode_file_header(data)


@given(st.binary(max_size=64))
def test_any_bytes_are_no_file_header(start: bytes) -> None:
    with pytest.raises(BadHeader):
        decode_file_header(start.ljust(FILE_HEADER_BYTES, b"\0"))


# Frames

frames = st.builds(
    Frame,
    st.sampled_from(FrameKind),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 255),
    st.integers(0, 2**32 - 1),
    st.lists(st.binary(max_size=20), max_size=4).map(tuple),
)
positions = st.integers(0, 2**60).map(lambda number: number * 8)


@given(frames, positions, positions)
def test_what_is_encoded_is_read_again(frame: Frame, position: int, durable: int) -> None:
    data = encoded(frame, position, durable)
    header = check(data, position)
    assert isinstance(header, FrameHeader)
    body = b"".join(map(bytes, frame.parts))
    assert header[2:12] == (
        position, durable, frame.topic_id, frame.first_seq, frame.ts_ms, len(body), frame.record_count, frame.ext_len, frame.kind,
        frame.flags,
    )  # fmt: skip
    assert data[FRAME_HEADER_BYTES : FRAME_HEADER_BYTES + len(body)] == body
    assert not any(data[FRAME_HEADER_BYTES + len(body) :])
    assert header.end == position + len(data) == position + frame.length
    assert len(data) % 8 == 0


def test_lengths_are_padded_to_eight() -> None:
    assert [padded(length) for length in (0, 1, 7, 8, 9, 16, 17)] == [0, 8, 8, 8, 16, 16, 24]


LOG = [Frame(FrameKind.APPEND, 1, seq, 5, 1, 0, 0, (b"%d" % seq * seq,)) for seq in range(1, 6)]


def log_bytes() -> tuple[bytes, list[int]]:
    """A row of frames, and where each begins, the end last."""
    data, starts = b"", [0]
    for frame in LOG:
        data += encoded(frame, position=len(data))
        starts.append(len(data))
    return data, starts


def scan(data: bytes) -> tuple[list[int], Stop]:
    """First seqs of the frames from the start, and why the scan ended."""
    seqs: list[int] = []
    position = 0
    while isinstance(header := check(data, position, offset=position), FrameHeader):
        seqs.append(header.first_seq)
        position = header.end
    at_once = [header.first_seq for header in scan_frames(memoryview(data), 0, 0, SEED)]
    assert at_once == seqs, "a scan takes what single looks take"
    return seqs, header


@pytest.mark.parametrize("filled", [True, False])
def test_any_cut_is_a_prefix(filled: bool) -> None:
    data, starts = log_bytes()
    ends = [
        end - len(data[:end]) + len(data[:end].rstrip(b"\0")) for end in starts[1:]
    ]  # padding may be missing
    for cut in range(len(data) + 1):
        left = data[:cut].ljust(len(data) + 128, b"\0") if filled else data[:cut]
        seqs, stop = scan(left)
        whole = sum(end <= cut for end in ends)
        assert seqs == list(range(1, whole + 1)), cut
        assert stop is (Stop.END if cut <= starts[whole] else Stop.BAD), cut


def test_any_flipped_bit_is_noticed() -> None:
    data, starts = log_bytes()
    for bit in range(8 * len(data)):
        bad = bytearray(data)
        bad[bit // 8] ^= 1 << bit % 8
        hurt = max(number for number, start in enumerate(starts[:-1]) if 8 * start <= bit)
        seqs, stop = scan(bytes(bad))
        if bit // 8 >= starts[hurt] + FRAME_HEADER_BYTES + sum(map(len, LOG[hurt].parts)):
            assert len(seqs) == len(LOG), "padding says nothing"
        else:
            assert (seqs, stop) == (list(range(1, hurt + 1)), Stop.BAD), bit


@given(st.binary(max_size=200), st.integers(0, 64), positions)
def test_any_bytes_have_an_answer(data: bytes, offset: int, position: int) -> None:
    found = check(data, position, offset=offset)
    assert list(scan_frames(memoryview(data), offset, position, SEED)) == []
    assert found is (Stop.BAD if any(data[offset : offset + FRAME_HEADER_BYTES]) else Stop.END)


@given(frames, st.binary(max_size=80))
def test_what_follows_a_frame_does_not_matter_to_it(frame: Frame, noise: bytes) -> None:
    assert isinstance(check(encoded(frame) + noise), FrameHeader)


def test_a_frame_of_another_place_or_another_file_is_none() -> None:
    data = encoded(LOG[0], position=64)
    assert check(data, 64) is not Stop.BAD
    assert check(data, 72) is Stop.BAD
    assert check(data, 64, seed=FileHeader(3, 0, HEADER.salt + 1).seed) is Stop.BAD


def test_a_body_length_is_never_believed() -> None:
    fields: list[Any] = list(FRAME.unpack_from(encoded(LOG[0])))
    for body_len in (2**32 - 1, 2, 0):
        fields[7] = body_len
        assert check(FRAME.pack(*fields) + b"\0" * 64) is Stop.BAD
