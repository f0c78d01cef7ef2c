"""Append bodies (§2): any bytes have a result, and each limit holds exactly at its edge.

`tests.contract` tests the values that a field rejects, and that payloads are kept unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.limits import LIMITS as WIDE
from topics.errors import BatchTooLarge, InvalidRequest, RecordTooLarge, TopicsError
from topics.formats.api.append_body import (
    AppendBody,
    PlainAppend,
    RecordIn,
    decode_append,
    has_delays,
)
from topics.formats.api.decoding import decode_config
from topics.formats.api.diff_body import decode_diff
from topics.formats.api.limits import Limits
from topics.formats.json_text import json_bytes
from topics.front.pressure.pressure import opts_out

LIMITS = Limits(
    batch_records=3,
    record_bytes=100,
    meta_bytes=50,
    tag_bytes=8,
    node_bytes=6,
    limit=1000,
    claim=1000,
)


def append(body: bytes, key: str | None = None, limits: Limits = LIMITS) -> AppendBody:
    return decode_append(body, key, limits)


def only_record(record: bytes, limits: Limits = LIMITS) -> RecordIn:
    """Return the only record of a body that contains it."""
    (found,) = append(b'{"records":[%b]}' % record, limits=limits).records
    return found


def error_of(
    code: type[TopicsError], function: Callable[..., Any], *arguments: Any, **more: Any
) -> TopicsError:
    with pytest.raises(code) as raised:
        function(*arguments, **more)
    assert raised.type is code
    return raised.value


# Payloads


@pytest.mark.parametrize(
    "template",
    [
        b'{"records":[{"data":"%b"}]}',
        b'{"records":[{"data":1,"tag":"%b"}]}',
        b'{"x":"%b","records":[]}',
    ],
)
@pytest.mark.parametrize(
    "text", [b"\xff", b"\xc3", b"\xc0\x80", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\xe2\x82"]
)
def test_invalid_utf8_is_rejected(template: bytes, text: bytes) -> None:
    for buffer in (template % text, bytearray(template % text), memoryview(template % text)):
        error_of(InvalidRequest, append, buffer, limits=WIDE)


@pytest.mark.parametrize(
    "text", [b"\\ud800", b"\\udc00", b"\\ud800\\ud800", b"\\udc00\\ud800", b"\\ud800x"]
)
@pytest.mark.parametrize(
    "template", [b'{"records":[{"data":"%b"}]}', b'{"records":[{"data":1,"node":"%b"}]}']
)
def test_a_lone_surrogate_is_rejected(text: bytes, template: bytes) -> None:
    error_of(InvalidRequest, append, template % text, limits=WIDE)


@pytest.mark.parametrize("depth", [10_000, 100_000])
@pytest.mark.parametrize("pair", [(b"[", b"]"), (b'{"a":', b"1" + b"}")])
def test_an_endlessly_nested_body_is_rejected_without_a_crash(
    depth: int, pair: tuple[bytes, bytes]
) -> None:
    opened, closed = pair
    value = opened * depth + (b"1" if closed == b"]" else b"") + closed[:-1] + closed[-1:] * depth
    for body in (
        b'{"records":[{"data":%b}]}',
        b'{"x":%b}',
        b'{"records":[{"data":1,"meta":{"a":%b}}]}',
    ):
        error_of(InvalidRequest, append, body % value, limits=WIDE)
    error_of(InvalidRequest, decode_diff, b'{"x":%b}' % value, WIDE)
    error_of(InvalidRequest, decode_config, b'{"x":%b}' % value)


def test_a_meta_of_any_depth_is_rejected_with_an_api_error() -> None:
    many = b",".join(b'"k%d":0' % number for number in range(70))
    for depth in range(900, 1000):
        body = b'{"records":[{"data":1,"meta":{"d":%b,%b}}]}' % (b"[" * depth + b"]" * depth, many)
        with pytest.raises((InvalidRequest, RecordTooLarge)):
            append(body, limits=WIDE)


# Shape


def test_null_means_absent_for_optional_fields() -> None:
    record = only_record(b'{"data":null,"tag":null,"node":null,"meta":null}')
    assert (bytes(record.data), record.tag, record.node, bytes(record.meta)) == (
        *(b"null", None),
        *(None, b""),
    )
    nulls = b'"node":null,"idempotency_key":null,"create":null,"config":null'
    body = append(b'{"records":[{"data":1}],%b}' % nulls)
    assert {body.node, body.idempotency_key, body.create, body.config} == {None}


def test_a_delay_is_a_duration_or_a_time() -> None:
    body = append(
        b'{"records":[{"data":1},{"data":2,"delay_ms":0},{"data":3,"deliver_at":%d}]}' % (2**64 - 1)
    )
    assert [(record.delay_ms, record.deliver_at) for record in body.records] == [
        (None, None),
        (0, None),
        (None, 2**64 - 1),
    ]
    assert has_delays(body.records)
    assert only_record(b'{"delay_ms":5,"data":3,"deliver_at":null}').delay_ms == 5


@pytest.mark.parametrize(
    ("members", "field"),
    [
        (b'"delay_ms":-1', "delay_ms"),
        (b'"delay_ms":%d' % 2**64, "delay_ms"),
        (b'"deliver_at":-1', "deliver_at"),
        (b'"deliver_at":%d' % 2**64, "deliver_at"),
        (b'"delay_ms":1,"deliver_at":1', "deliver_at"),
        (b'"deliver_at":0,"delay_ms":0', "deliver_at"),
    ],
)
def test_a_delay_out_of_range_or_given_twice_is_rejected_with_the_index_of_its_record(
    members: bytes, field: str
) -> None:
    body = b'{"records":[{"data":1,"tag":"t"},{"data":2,%b}]}' % members
    assert error_of(InvalidRequest, append, body).detail == {"index": 1, "field": field}


@pytest.mark.parametrize(
    "more", [b'"tag":"t"', b'"node":"n"', b'"meta":{"a":1}', b'"delay_ms":1', b'"deliver_at":1']
)
@pytest.mark.parametrize("at", [0, 1, 2])
def test_further_fields_of_one_record_do_not_affect_the_others(more: bytes, at: int) -> None:
    records = [b'{"data":%d%b}' % (n, b"," + more if n == at else b"") for n in range(3)]
    body = append(b'{"records":[%b]}' % b",".join(records))
    assert not isinstance(body, PlainAppend)
    assert [bytes(record.data) for record in body.records] == [b"0", b"1", b"2"]
    found = [
        (record.tag, record.node, bytes(record.meta), record.delay_ms, record.deliver_at)
        for record in body.records
    ]
    assert found.count((None, None, b"", None, None)) == 2
    assert found[at] != (None, None, b"", None, None)


def test_the_last_of_two_equal_members_is_used() -> None:
    assert bytes(only_record(b'{"data":1,"tag":"a","data":2,"tag":"b"}').data) == b"2"


@given(st.binary(max_size=60))
def test_any_bytes_are_decoded_or_rejected_with_an_api_error(body: bytes) -> None:
    for decode in (
        lambda: append(body),
        lambda: decode_diff(body, LIMITS),
        lambda: decode_config(body),
    ):
        with suppress(InvalidRequest, BatchTooLarge, RecordTooLarge):
            decode()


@given(st.integers(0, 200), st.binary(min_size=1, max_size=3))
def test_a_damaged_body_is_decoded_or_rejected_with_an_api_error(at: int, noise: bytes) -> None:
    records = b'[{"data":{"a":[1,"\\u00e9"]},"meta":{"m":1},"tag":"t"}]'
    good = b'{"records":%b,"node":"n","config":{"ttl_ms":1}}' % records
    body = good[: at % len(good)] + noise + good[at % len(good) + len(noise) :]
    with suppress(InvalidRequest, BatchTooLarge, RecordTooLarge):
        append(body)


# Limits, at the edge and one above


def test_the_number_of_records_is_limited() -> None:
    append(b'{"records":[%b]}' % b",".join([b'{"data":1}'] * 3))
    error = error_of(BatchTooLarge, append, b'{"records":[%b]}' % b",".join([b'{"data":1}'] * 4))
    assert error.detail == {"records": 4, "max": 3}


@pytest.mark.parametrize(
    ("record", "max_bytes"),
    [
        (b'{"data":"%b"}', 98),
        (b'{"data":"%b","meta":{"a":1}}', 91),
        (b'{"data":"%b","meta":null}', 98),
        (b'{"data":1,"meta":{"a":"%b"}}', 42),
    ],
)
def test_the_size_of_a_record_and_of_its_meta_is_limited(record: bytes, max_bytes: int) -> None:
    for text, more in (
        (b"x" * max_bytes, b"x"),
        (b"\xc3\xa9" * (max_bytes // 2) + b"x" * (max_bytes % 2), b"x"),
    ):
        only_record(record % text)
        error = error_of(RecordTooLarge, only_record, record % (text + more))
        assert error.detail == {"index": 0, "max": 50 if max_bytes == 42 else 100}
    error_of(RecordTooLarge, only_record, b'{"data":1,"meta":{%b"a":1}}' % (b" " * 50))


def test_the_number_of_keys_of_meta_is_limited() -> None:
    def meta(count: int, value: bytes = b"0") -> bytes:
        return b'{"data":1,"meta":{%b}}' % b",".join(
            b'"%d":%b' % (key, value) for key in range(count)
        )

    only_record(meta(64), WIDE)
    only_record(meta(64, b'"::"'), WIDE)
    only_record(meta(10, b'{"a":1,"b":2,"c":3,"d":4,"e":5,"f":6,"g":7,"h":8}'), WIDE)
    assert error_of(RecordTooLarge, only_record, meta(65), WIDE).detail == {
        "index": 0,
        "max_keys": 64,
    }


@pytest.mark.parametrize(("field", "max_bytes"), [("tag", 8), ("node", 6)])
def test_tags_and_nodes_are_limited_in_utf8_bytes(field: str, max_bytes: int) -> None:
    for text in ("x" * max_bytes, "é" * (max_bytes // 2), ""):
        assert getattr(only_record(json_bytes({"data": 1, field: text})), field) == text
    for text in ("x" * (max_bytes + 1), "é" * (max_bytes // 2) + "x", "😀" * 3):
        error = error_of(InvalidRequest, only_record, json_bytes({"data": 1, field: text}))
        assert error.detail == {"index": 0, "field": field, "max": max_bytes}


def test_an_idempotency_key_is_limited_in_characters() -> None:
    for key in ("k", "k" * 256, "😀" * 256):
        assert (
            append(json_bytes({"records": [{"data": 1}], "idempotency_key": key})).idempotency_key
            == key
        )
        assert append(b'{"records":[{"data":1}]}', key).idempotency_key == key
    for key in ("", "k" * 257):
        error_of(
            InvalidRequest, append, json_bytes({"records": [{"data": 1}], "idempotency_key": key})
        )
        error_of(InvalidRequest, append, b'{"records":[{"data":1}]}', key)


def test_the_key_of_the_body_takes_precedence_over_the_header() -> None:
    for in_body, in_head, key in (('"b"', "h", "b"), ("null", "h", "h"), ('"b"', "", "b")):
        body = f'{{"records":[{{"data":1}}],"idempotency_key":{in_body}}}'.encode()
        assert append(body, in_head).idempotency_key == key


# disable_backpressure, which is searched for before the body is decoded

ESCAPED = "".join(f"\\u{ord(letter):04x}" for letter in "disable_backpressure").encode()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"records":[{"data":1}],"disable_backpressure":true}', True),
        (b'{"disable_backpressure" \t:\n true}', True),
        (b'{"disable_\\u0062ackpressure":true}', True),
        (b'{"%b":true}' % ESCAPED, True),
        (b'{"%b":true}' % ESCAPED.replace(b"f", b"F"), True),
        (b'{"disable_backpressure":false,"disable_backpressure":true}', True),
        (bytearray(b'{"disable_backpressure":true}'), True),
        (memoryview(b'{"disable_backpressure":true}'), True),
        (b"", False),
        (b'{"disable_backpressure":true,"disable_backpressure":false}', False),
        (b'{"records":[{"data":{"disable_backpressure":true}}]}', False),
        (b'{"records":[{"data":"\\"disable_backpressure\\":true"}]}', False),
        (b'{"config":{"disable_backpressure":true}}', False),
        (b'{"Disable_Backpressure":true}', False),
        (b'{"disable_backpressure":"true"}', False),
        (b'{"disable_backpressure":true', False),
        (b'["disable_backpressure",true]', False),
        (b'{"records":"\\ud800","disable_backpressure"', False),
        (b'{"backpressure\xff":true}', False),
        (b'{"x":%b"backpressure"%b}' % (b"[" * 100_000, b"]" * 100_000), False),
    ],
)
def test_only_a_top_level_true_member_in_any_spelling_disables_backpressure(
    body: bytes, expected: bool
) -> None:
    assert opts_out(body) is expected
