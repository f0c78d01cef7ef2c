"""Envelopes: golden bytes, round trips, and an answer for any bytes."""

from __future__ import annotations

from typing import Any

import cbor2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from topics.formats.wire.envelope import (
    CID_MAX,
    Encoded,
    Envelope,
    ErrorCode,
    Failure,
    Malformed,
    Notification,
    Refusal,
    Request,
    Success,
    decode,
    decode_refusal,
    encode_failure,
    encode_notification,
    encode_refusal,
    encode_request,
    encode_success,
)

ENVELOPES = (Request, Success, Failure, Notification, Malformed)

cids = st.integers(0, CID_MAX)
texts = st.text(st.characters(codec="utf-8"))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
anything = st.recursive(
    values | st.just(cbor2.undefined) | st.builds(cbor2.CBORTag, st.integers(0, 300), values),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.integers() | texts, inner, max_size=3)
    ),
    max_leaves=8,
)


def test_a_result_that_is_encoded_already_travels_as_it_is() -> None:
    assert encode_success(7, Encoded.of(["a", 1])) == encode_success(7, ["a", 1])


@pytest.mark.parametrize(
    ("encoded", "expected"),
    [
        pytest.param(
            encode_request(7, "append", {"topic": "a"}),
            "a4 6174 6151 63636964 1b0000000000000007 666d6574686f64 66617070656e64 66706172616d73"
            " a165746f7069636161",
            id="request",
        ),
        pytest.param(
            encode_success(CID_MAX, {"status": 200}),
            "a3 6174 6152 63636964 1bffffffffffffffff 66726573756c74 a16673746174757318c8",
            id="success",
        ),
        pytest.param(
            encode_failure(7, ErrorCode.TIMEOUT, "x"),
            "a4 6174 6145 63636964 07 64636f6465 19044f 676d657373616765 6178",
            id="failure without data",
        ),
        pytest.param(
            encode_failure(7, 2001, "x", {"a": 1}),
            "a5 6174 6145 63636964 07 64636f6465 1907d1 676d657373616765 6178 6464617461 a1616101",
            id="failure with data",
        ),
        pytest.param(
            encode_notification("call.cancelled", {"cid": 7}),
            "a3 6174 614e 666d6574686f64 6e63616c6c2e63616e63656c6c6564 66706172616d73"
            " a16363696407",
            id="notification",
        ),
        pytest.param(
            encode_refusal(1002, "bad", 9),
            "a3 64636f6465 1903ea 676d657373616765 63626164 6561626f7574 09",
            id="refusal",
        ),
    ],
)
def test_bytes_are_golden(encoded: bytes, expected: str) -> None:
    assert encoded.hex() == expected.replace(" ", "")


@pytest.mark.parametrize(
    ("code", "number"),
    [
        (ErrorCode.INVALID_FRAME, 1002),
        (ErrorCode.UNSUPPORTED_FEATURE, 1003),
        (ErrorCode.UNSUPPORTED_METHOD, 1101),
        (ErrorCode.TIMEOUT, 1103),
        (ErrorCode.APPLICATION, 2000),
    ],
)
def test_error_codes_keep_their_numbers(code: ErrorCode, number: int) -> None:
    assert code == number


@given(cids, texts, values)
def test_a_request_means_what_the_document_says(cid: int, method: str, params: Any) -> None:
    encoded = encode_request(cid, method, params)
    assert cbor2.loads(encoded) == {"t": "Q", "cid": cid, "method": method, "params": params}
    assert decode(encoded) == Request(cid, method, params)


@given(cids, values)
def test_a_success_means_what_the_document_says(cid: int, result: Any) -> None:
    encoded = encode_success(cid, result)
    assert cbor2.loads(encoded) == {"t": "R", "cid": cid, "result": result}
    assert decode(encoded) == Success(cid, result)


@given(cids, st.integers(-(2**63), 2**63), texts, values)
def test_a_failure_comes_back(cid: int, code: int, message: str, data: Any) -> None:
    encoded = encode_failure(cid, code, message, data)
    assert decode(encoded) == Failure(cid, code, message, data)
    assert ("data" in cbor2.loads(encoded)) == (data is not None)


@given(texts, values)
def test_a_notification_comes_back(method: str, params: Any) -> None:
    assert decode(encode_notification(method, params)) == Notification(method, params)


@given(st.integers(0, 9999), texts, cids)
def test_an_error_frame_comes_back(code: int, message: str, about: int) -> None:
    assert decode_refusal(encode_refusal(code, message, about)) == Refusal(code, message, about)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"t": "Q", "cid": 1, "method": "m"}, Request(1, "m", None)),
        ({"t": "R", "cid": 0}, Success(0, None)),
        ({"t": "N", "method": "m"}, Notification("m", None)),
        ({"t": "E", "cid": 1, "code": 2000, "message": ""}, Failure(1, 2000, "", None)),
        ({"t": "Q", "cid": 1, "method": "m", "params": 5, "trace": "x", 3: 4}, Request(1, "m", 5)),
    ],
)
def test_absent_values_are_none_and_unknown_keys_are_ignored(
    fields: dict[Any, Any], expected: Envelope
) -> None:
    assert decode(cbor2.dumps(fields)) == expected


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        pytest.param(b"", "not CBOR", id="empty"),
        pytest.param(b'{"t":"Q"}', "not CBOR", id="JSON"),
        pytest.param(b"\x9f" * 5000, "not CBOR", id="nested 5000 deep"),
        pytest.param(b"\x5b\x7f" + b"\xff" * 7, "not CBOR", id="a length of 2**63"),
        pytest.param(cbor2.dumps(["Q", 1]), "not a map", id="array"),
        pytest.param(cbor2.dumps({}), "t is none of", id="no t"),
        pytest.param(cbor2.dumps({"t": "X", "cid": 1}), "t is none of", id="unknown t"),
        pytest.param(cbor2.dumps({"t": ["Q"], "cid": 1}), "t is none of", id="t unhashable"),
        pytest.param(
            cbor2.dumps({"t": b"Q", "cid": 1, "method": "m"}), "t is none of", id="t as bytes"
        ),
        pytest.param(cbor2.dumps({"t": "Q", "method": "m"}), "cid", id="request without cid"),
        pytest.param(cbor2.dumps({"t": "Q", "cid": -1, "method": "m"}), "cid", id="negative cid"),
        pytest.param(cbor2.dumps({"t": "Q", "cid": True, "method": "m"}), "cid", id="boolean cid"),
        pytest.param(
            cbor2.dumps({"t": "Q", "cid": 2**64, "method": "m"}), "cid", id="cid of 65 bits"
        ),
        pytest.param(cbor2.dumps({"t": "Q", "cid": 1.0, "method": "m"}), "cid", id="float cid"),
        pytest.param(cbor2.dumps({"t": "Q", "cid": 1}), "method", id="request without method"),
        pytest.param(
            cbor2.dumps({"t": "Q", "cid": 1, "method": b"m"}), "method", id="method as bytes"
        ),
        pytest.param(cbor2.dumps({"t": "R", "result": 1}), "cid", id="success without cid"),
        pytest.param(
            cbor2.dumps({"t": "E", "cid": 1, "message": "x"}), "code", id="failure without code"
        ),
        pytest.param(
            cbor2.dumps({"t": "E", "cid": 1, "code": 2000}), "message", id="failure without message"
        ),
        pytest.param(
            cbor2.dumps({"t": "E", "code": 2000, "message": "x"}), "cid", id="failure without cid"
        ),
        pytest.param(
            cbor2.dumps({"t": "N", "params": 1}), "method", id="notification without method"
        ),
    ],
)
def test_what_is_no_envelope_says_why(payload: bytes, reason: str) -> None:
    answer = decode(payload)
    assert isinstance(answer, Malformed)
    assert reason in answer.reason


@given(st.binary(max_size=64) | anything.map(cbor2.dumps))
@example(bytes.fromhex("a1617481d81c81d81d00"))  # a list that holds itself, as "t"
def test_any_bytes_give_an_answer(payload: bytes) -> None:
    assert isinstance(decode(payload), ENVELOPES)
    assert isinstance(decode_refusal(payload), Refusal | Malformed)


@pytest.mark.slow
@given(
    st.dictionaries(
        st.sampled_from(["t", "cid", "method", "params", "code", "message", "about"]), anything
    )
)
def test_any_types_under_the_known_keys_give_an_answer(fields: dict[str, Any]) -> None:
    for kind in ("Q", "R", "E", "N"):
        assert isinstance(decode(cbor2.dumps(fields | {"t": kind})), ENVELOPES)
    assert isinstance(decode_refusal(cbor2.dumps(fields)), Refusal | Malformed)


@pytest.mark.parametrize(
    "whole",
    [
        encode_request(1, "append", {"topic": "a", "seqs": [1, 2]}),
        encode_success(1, {"status": 200}),
        encode_failure(1, 2001, "no", {"a": 1}),
        encode_notification("m", [1]),
    ],
    ids=["request", "success", "failure", "notification"],
)
def test_any_cut_is_noticed(whole: bytes) -> None:
    assert not isinstance(decode(whole), Malformed)
    assert all(isinstance(decode(whole[:end]), Malformed) for end in range(len(whole)))


def test_a_view_is_as_good_as_bytes() -> None:
    assert decode(memoryview(encode_success(1, 2))) == Success(1, 2)
    assert decode_refusal(memoryview(encode_refusal(1, "x", 2))) == Refusal(1, "x", 2)
