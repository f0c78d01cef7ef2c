"""Frames of the log: the documented bytes, and a result for any other bytes."""

from __future__ import annotations

import re
import struct
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.checksums import slow_crc32c
from tests.support.tables import byte_rows
from topics.formats.disk import frames
from topics.formats.disk.frames import (
    APPEND_FIELDS,
    FRAME,
    FRAME_HEADER_BYTES,
    Frame,
    FrameHeader,
    FrameKind,
    ScanStop,
    check_frame,
    encode_frame,
    scan_frames,
)
from topics.formats.disk.wal import FileHeader

HEADER = FileHeader(shard=3, base=0x1122334455667788, salt=0x0102030405060708, size=64 << 20)
SEED = HEADER.seed


def encoded(frame: Frame, lsn: int = 0, durable_lsn: int = 0, seed: int = SEED) -> bytes:
    return b"".join(encode_frame(frame, lsn, durable_lsn, seed))


def check(data: bytes, lsn: int = 0, seed: int = SEED, offset: int = 0) -> FrameHeader | ScanStop:
    return check_frame(memoryview(data), offset, lsn, seed)


# The documented bytes


def test_the_table_of_the_frame_matches_its_struct() -> None:
    table = byte_rows(frames.__doc__ or "", "Header:")
    sizes = [struct.calcsize("<" + code) for code in re.findall(r"\d*[a-zA-Z]", FRAME.format)]
    assert [size for _, size, _ in table] == sizes
    assert [offset for offset, _, _ in table] == [
        sum(sizes[:number]) for number in range(len(sizes))
    ]
    assert [field.replace("crc32c", "crc") for _, _, field in table] == list(FrameHeader._fields)
    assert sum(sizes) == FRAME_HEADER_BYTES


CONFIG = cbor2.dumps({"name": "a"})
# Frames at LSN 8 of a log that is synced up to 16.
GOLDEN: list[tuple[Frame, list[str]]] = [
    (
        Frame(FrameKind.APPEND, 5, 7, 1000, 1, 2, 0, (b"\x04\0\0\0", b"abc,"), named_bytes=9),
        [
            "57463031665f4d74080000000000000010000000000000000500000000000000",
            "0700000000000000e80300000000000008000000010000000000000001020000",
            "040000006162632c",
        ],
    ),
    (
        Frame(FrameKind.START, ts_ms=-1, ext_len=len(CONFIG), parts=(CONFIG,)),
        [
            "574630311702ac54080000000000000010000000000000000000000000000000",
            "0000000000000000ffffffffffffffff08000000000000000800000006000000",
            "a1646e616d656161",
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
]


@pytest.mark.parametrize(
    ("frame", "expected"), GOLDEN, ids=[frame.kind.name for frame, _ in GOLDEN]
)
def test_a_frame_has_the_documented_bytes(frame: Frame, expected: list[str]) -> None:
    data = encoded(frame, lsn=8, durable_lsn=16)
    assert data.hex() == "".join(expected)
    assert len(data) == frame.length


def test_the_fields_of_an_append_frame_match_its_header() -> None:
    data = encoded(GOLDEN[0][0])
    header = FrameHeader._make(FRAME.unpack_from(data))
    names = (
        *("magic", "lsn", "topic_id", "first_seq"),
        *("body_len", "record_count", "ext_len", "kind", "flags"),
    )
    assert APPEND_FIELDS.unpack_from(data) == tuple(getattr(header, name) for name in names)


def test_the_checksums_are_computed_as_documented() -> None:
    assert slow_crc32c(b"123456789") == 0xE3069283
    for frame, _ in GOLDEN:
        data = encoded(frame, lsn=8, durable_lsn=16)
        end = FRAME_HEADER_BYTES + sum(map(len, frame.parts))
        assert int.from_bytes(data[4:8], "little") == slow_crc32c(data[8:end], SEED)


def test_the_numbers_of_frame_kinds_never_change() -> None:
    assert {kind.name: kind.value for kind in FrameKind} == {
        "APPEND": 1,
        "DELETE": 2,
        "TOPIC": 3,
        "LEASE": 4,
        "START": 6,
        "TOPIC_DELETED": 7,
        "SEQS_RESERVED": 8,
        "FLOOR": 9,
        "TS_RESERVED": 10,
        "ROUTER_SET": 12,
        "ROUTERS_GONE": 13,
        "LOST": 14,
        "FORWARD": 15,
    }


# Frames

any_frame = st.builds(
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
lsns = st.integers(0, 2**60).map(lambda number: number * 8)


@given(any_frame, lsns, lsns)
def test_a_frame_is_read_as_it_was_encoded(frame: Frame, lsn: int, durable_lsn: int) -> None:
    data = encoded(frame, lsn, durable_lsn)
    header = check(data, lsn)
    assert isinstance(header, FrameHeader)
    body = b"".join(map(bytes, frame.parts))
    assert (header.lsn, header.durable_lsn, header.body_len) == (lsn, durable_lsn, len(body))
    for field in ("kind", "topic_id", "first_seq", "ts_ms", "record_count", "ext_len", "flags"):
        assert getattr(header, field) == getattr(frame, field), field
    assert data[FRAME_HEADER_BYTES : FRAME_HEADER_BYTES + len(body)] == body
    assert not any(data[FRAME_HEADER_BYTES + len(body) :])
    assert header.end == lsn + len(data) == lsn + frame.length
    assert len(data) % 8 == 0


LOG = [Frame(FrameKind.APPEND, 1, seq, 5, 1, 0, 0, (b"%d" % seq * seq,)) for seq in range(1, 6)]


def log_bytes() -> tuple[bytes, list[int]]:
    """Return consecutive frames, their start offsets and the end."""
    data, starts = b"", [0]
    for frame in LOG:
        data += encoded(frame, lsn=len(data))
        starts.append(len(data))
    return data, starts


def scan(data: bytes) -> tuple[list[int], ScanStop]:
    """Return the first seqs of the frames, and the reason why the scan ended."""
    seqs: list[int] = []
    lsn = 0
    while isinstance(header := check(data, lsn, offset=lsn), FrameHeader):
        seqs.append(header.first_seq)
        lsn = header.end
    scanned = [header.first_seq for header in scan_frames(memoryview(data), 0, 0, SEED)]
    assert scanned == seqs, "a scan returns the same frames as single checks"
    return seqs, header


@pytest.mark.parametrize("filled", [True, False])
def test_any_cut_of_the_log_is_a_prefix(filled: bool) -> None:
    data, starts = log_bytes()
    ends = [
        end - len(data[:end]) + len(data[:end].rstrip(b"\0")) for end in starts[1:]
    ]  # Padding may be missing
    for cut in range(len(data) + 1):
        cut_data = data[:cut].ljust(len(data) + 128, b"\0") if filled else data[:cut]
        seqs, stop = scan(cut_data)
        complete = sum(end <= cut for end in ends)
        assert seqs == list(range(1, complete + 1)), cut
        assert stop is (ScanStop.END if cut <= starts[complete] else ScanStop.BAD), cut


def test_any_flipped_bit_of_the_log_is_detected() -> None:
    data, starts = log_bytes()
    for bit in range(8 * len(data)):
        bad = bytearray(data)
        bad[bit // 8] ^= 1 << bit % 8
        damaged = max(number for number, start in enumerate(starts[:-1]) if 8 * start <= bit)
        seqs, stop = scan(bytes(bad))
        if bit // 8 >= starts[damaged] + FRAME_HEADER_BYTES + sum(map(len, LOG[damaged].parts)):
            assert len(seqs) == len(LOG), "padding is not checked"
        else:
            assert (seqs, stop) == (list(range(1, damaged + 1)), ScanStop.BAD), bit


@given(st.binary(max_size=200), st.integers(0, 64), lsns)
def test_any_bytes_have_a_scan_result(data: bytes, offset: int, lsn: int) -> None:
    found = check(data, lsn, offset=offset)
    assert list(scan_frames(memoryview(data), offset, lsn, SEED)) == []
    assert found is (
        ScanStop.BAD if any(data[offset : offset + FRAME_HEADER_BYTES]) else ScanStop.END
    )


@given(any_frame, st.binary(max_size=80))
def test_bytes_after_a_frame_do_not_affect_it(frame: Frame, noise: bytes) -> None:
    assert isinstance(check(encoded(frame) + noise), FrameHeader)


def test_a_frame_with_another_lsn_or_of_another_file_is_rejected() -> None:
    data = encoded(LOG[0], lsn=64)
    assert check(data, 64) is not ScanStop.BAD
    assert check(data, 72) is ScanStop.BAD
    assert check(data, 64, seed=FileHeader(3, 0, HEADER.salt + 1, 0).seed) is ScanStop.BAD


def test_a_frame_with_a_wrong_body_length_is_rejected() -> None:
    fields: list[Any] = list(FRAME.unpack_from(encoded(LOG[0])))
    for body_len in (2**32 - 1, 2, 0):
        fields[FrameHeader._fields.index("body_len")] = body_len
        assert check(FRAME.pack(*fields) + b"\0" * 64) is ScanStop.BAD
