"""Envelopes: golden bytes, round trips, and a result for any bytes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.formats.wire.envelope import (
    UNREADABLE,
    Envelope,
    ErrorCode,
    Failure,
    Notification,
    Refusal,
    Request,
    Success,
    decode,
    decode_refusal,
    encode,
)

CID_MAX = 2**64 - 1
packed = msgspec.msgpack.encode

cids = st.integers(0, CID_MAX)
numbers = st.integers(-(2**63), 2**64 - 1)
texts = st.text(st.characters(codec="utf-8"))
values = st.recursive(
    st.none() | st.booleans() | numbers | st.floats(allow_nan=False) | texts | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
envelopes = (
    st.builds(Request, cids, texts, values)
    | st.builds(Success, cids, values)
    | st.builds(Failure, cids, st.integers(-(2**63), 2**63 - 1), texts, values)
    | st.builds(Notification, texts, values)
)


@pytest.mark.parametrize(
    ("envelope", "fields"),
    [
        (
            Request(7, "append", {"topic": "a"}),
            {"t": "Q", "cid": 7, "method": "append", "params": {"topic": "a"}},
        ),
        (Success(CID_MAX, [200]), {"t": "R", "cid": CID_MAX, "result": [200]}),
        (
            Failure(7, ErrorCode.TIMEOUT, "x"),
            {"t": "E", "cid": 7, "code": 1103, "message": "x"},
        ),
        (
            Failure(7, 2001, "x", {"a": 1}),
            {"t": "E", "cid": 7, "code": 2001, "message": "x", "data": {"a": 1}},
        ),
        (
            Notification("call.cancelled", [7]),
            {"t": "N", "method": "call.cancelled", "params": [7]},
        ),
        (Refusal(1002, "bad", 9), {"code": 1002, "message": "bad", "about": 9}),
    ],
    ids=["request", "success", "failure without data", "failure", "notification", "refusal"],
)
def test_an_envelope_is_the_map_that_the_document_specifies(
    envelope: Envelope | Refusal, fields: dict[str, Any]
) -> None:
    assert encode(envelope) == packed(fields)
    read: Callable[[bytes], Any] = decode_refusal if type(envelope) is Refusal else decode
    assert read(packed(fields | {"trace": "x"})) == envelope, "unknown keys are ignored"
    assert read(memoryview(packed(fields))) == envelope  # type: ignore[arg-type]
    for end in range(len(packed(fields))):
        with pytest.raises(UNREADABLE):
            read(packed(fields)[:end])


def test_the_numbers_of_error_codes_never_change() -> None:
    assert [*map(int, ErrorCode)] == [1002, 1003, 1101, 1103, 2000]
    assert [code.name for code in ErrorCode][2:4] == ["UNSUPPORTED_METHOD", "TIMEOUT"]


@given(envelopes)
def test_an_envelope_is_decoded_as_it_was_encoded(envelope: Envelope) -> None:
    assert decode(encode(envelope)) == envelope


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"t": "Q", "cid": 1, "method": "m"}, Request(1, "m", None)),
        ({"t": "R", "cid": 0}, Success(0, None)),
        ({"t": "N", "method": "m"}, Notification("m", None)),
        ({"t": "E", "cid": 1, "code": 2000, "message": ""}, Failure(1, 2000, "", None)),
    ],
)
def test_absent_values_are_decoded_as_none(fields: dict[str, Any], expected: Envelope) -> None:
    assert decode(packed(fields)) == expected


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b'{"t":"Q"}', id="JSON"),
        pytest.param(packed({"t": "R", "cid": 1})[:-1] + b"\x91" * 5000, id="nested 5000 deep"),
        pytest.param(b"\x83\xa1t\xa1N\xa6method\xa1\xff", id="not UTF-8"),
        *(
            pytest.param(packed(fields), id=str(fields))
            for fields in (
                ["Q", 1],
                {},
                {"t": "X", "cid": 1},
                {"t": ["Q"], "cid": 1},
                {"t": b"Q", "cid": 1, "method": "m"},
                {"t": "Q", "method": "m"},
                {"t": "Q", "cid": -1, "method": "m"},
                {"t": "Q", "cid": True, "method": "m"},
                {"t": "Q", "cid": 1.5, "method": "m"},
                {"t": "Q", "cid": 1},
                {"t": "Q", "cid": 1, "method": b"m"},
                {"t": "R", "result": 1},
                {"t": "E", "cid": 1, "message": "x"},
                {"t": "E", "cid": 1, "code": 2000},
                {"t": "E", "code": 2000, "message": "x"},
                {"t": "N", "params": 1},
            )
        ),
    ],
)
def test_a_payload_that_is_not_an_envelope_is_unreadable(payload: bytes) -> None:
    with pytest.raises(UNREADABLE):
        decode(payload)


@given(
    st.binary(max_size=64),
    st.dictionaries(
        st.sampled_from(["t", "cid", "method", "params", "code", "message", "about"]), values
    ),
    st.data(),
)
def test_any_bytes_are_decoded_or_unreadable(
    junk: bytes, fields: dict[str, Any], data: st.DataObject
) -> None:
    modified = bytearray(packed(fields | {"t": data.draw(st.sampled_from("QREN"))}))
    modified[data.draw(st.integers(0, len(modified) - 1))] = data.draw(st.integers(0, 255))
    for payload in (junk, packed(fields), bytes(modified)):
        for read in (decode, decode_refusal):
            with contextlib.suppress(*UNREADABLE):
                read(payload)
