"""Append bodies (§2): strict JSON, limits at the edge and one above, payloads byte for byte."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.api.body_support import LIMITS, append, data, one, refused
from tests.support.limits import LIMITS as WIDE
from topics.errors import BatchTooLarge, InvalidRequest, RecordTooLarge
from topics.formats.api.append_body import PlainAppend, has_delays
from topics.formats.api.decoding import decode_config
from topics.formats.api.diff_body import decode_diff
from topics.formats.json_text import json_bytes

# Payloads


@pytest.mark.parametrize(
    "value",
    [
        *(b"null", b"true", b"0", b"-0", b"1.10", b"1E400", b"1e-999", b"1" * 40),
        *(b'"\\u00e9\\/\\n"', '"é€😀"'.encode(), b'"\x7f"', b'"\\ud83d\\ude00"', b"[]", b"{}"),
        *(b'{ "b" : 1 ,\n\t"a":[ 1 , 2 ] }', b'{"a":1,"a":2}', b'{"$seq":1}'),
        *(b'""', b"[" * 500 + b"]" * 500),
    ],
)
def test_data_is_kept_byte_for_byte(value: bytes) -> None:
    assert data(value) == value
    assert data(b" \t\r\n" + value + b" \t\r\n") == value


@pytest.mark.parametrize(
    "value",
    [
        *(b"", b"NaN", b"Infinity", b"-Infinity", b"nan", b"01", b"-01", b"1.", b".5", b"+1"),
        *(b"-", b"1e", b"1e+", b"0x1", b"1_0", b"tru", b"'a'", b'"a\nb"', b'"a\tb"', b'"\0"'),
        *(b'"\\x41"', b'"\\u12"', b'"\\u12g4"', b'"', b'"\\"', b"[1,]", b"[1 2]", b"[", b"]"),
        *(b'{"a"}', b'{"a":}', b"{a:1}", b"{1:2}", b'{"a":1,}', b"1 2", b"/**/1"),
        *(b"undefined", b"\x00"),
    ],
)
@pytest.mark.parametrize(
    "place",
    [
        b'{"records":[{"data":%b}]}',
        b'{"x":%b,"records":[{"data":1}]}',
        b'{"records":[{"data":1,"x":%b}]}',
    ],
)
def test_what_is_no_json_is_refused_wherever_it_stands(value: bytes, place: bytes) -> None:
    refused(InvalidRequest, append, place % value, limits=WIDE)


@pytest.mark.parametrize(
    "place",
    [
        b'{"records":[{"data":"%b"}]}',
        b'{"records":[{"data":1,"tag":"%b"}]}',
        b'{"x":"%b","records":[]}',
    ],
)
@pytest.mark.parametrize(
    "text", [b"\xff", b"\xc3", b"\xc0\x80", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\xe2\x82"]
)
def test_invalid_utf8_is_refused(place: bytes, text: bytes) -> None:
    for buffer in (place % text, bytearray(place % text), memoryview(place % text)):
        refused(InvalidRequest, append, buffer, limits=WIDE)


@pytest.mark.parametrize(
    "text", [b"\\ud800", b"\\udc00", b"\\ud800\\ud800", b"\\udc00\\ud800", b"\\ud800x"]
)
@pytest.mark.parametrize(
    "place", [b'{"records":[{"data":"%b"}]}', b'{"records":[{"data":1,"node":"%b"}]}']
)
def test_a_lone_surrogate_is_refused(text: bytes, place: bytes) -> None:
    refused(InvalidRequest, append, place % text, limits=WIDE)


@pytest.mark.parametrize("depth", [1_000, 100_000])
@pytest.mark.parametrize("pair", [(b"[", b"]"), (b'{"a":', b"1" + b"}")])
def test_a_body_nested_without_end_is_refused_and_not_a_crash(
    depth: int, pair: tuple[bytes, bytes]
) -> None:
    opened, closed = pair
    value = opened * depth + (b"1" if closed == b"]" else b"") + closed[:-1] + closed[-1:] * depth
    for body in (
        b'{"records":[{"data":%b}]}',
        b'{"x":%b}',
        b'{"records":[{"data":1,"meta":{"a":%b}}]}',
    ):
        refused(InvalidRequest, append, body % value, limits=WIDE)
    refused(InvalidRequest, decode_diff, b'{"x":%b}' % value, WIDE)
    refused(InvalidRequest, decode_config, b'{"x":%b}' % value)


def test_a_meta_of_any_depth_has_an_answer() -> None:
    many = b",".join(b'"k%d":0' % number for number in range(70))
    for depth in range(900, 1000):
        body = b'{"records":[{"data":1,"meta":{"d":%b,%b}}]}' % (b"[" * depth + b"]" * depth, many)
        with pytest.raises((InvalidRequest, RecordTooLarge)):
            append(body, limits=WIDE)


# Shape


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{}", b"null", b"[]", b"7", b'"x"', b'{"records":null}', b'{"records":{}}'),
        *(b'{"records":[]}', b'{"records":[null]}', b'{"records":[1]}', b'{"records":[{}]}'),
        *(b'{"records":[{"tag":"t"}]}', b'{"records":[{"data":1}]}x'),
        *(b'\xef\xbb\xbf{"records":[]}', b'{"records":[{"data":1}]'),
    ],
)
def test_a_body_without_records_is_refused(body: bytes) -> None:
    refused(InvalidRequest, append, body)


@pytest.mark.parametrize(
    "more",
    [
        *(b'"node":1', b'"node":["a"]', b'"idempotency_key":1', b'"create":1', b'"create":"true"'),
        *(b'"config":[]', b'"config":{"ttl_ms":"1"}'),
        *(b'"disable_backpressure":null', b'"disable_backpressure":1'),
    ],
)
def test_a_field_of_another_type_is_refused(more: bytes) -> None:
    refused(InvalidRequest, append, b'{"records":[{"data":1}],%b}' % more)


@pytest.mark.parametrize(
    "more",
    [
        *(b'"tag":1', b'"node":true', b'"meta":[]', b'"meta":"x"', b'"meta":1', b'"meta":true'),
        *(b'"delay_ms":"1"', b'"delay_ms":1.5', b'"delay_ms":true', b'"deliver_at":[]'),
    ],
)
def test_a_field_of_a_record_of_another_type_is_refused(more: bytes) -> None:
    refused(InvalidRequest, one, b'{"data":1,%b}' % more)


def test_null_is_absence_where_a_field_is_optional() -> None:
    record = one(b'{"data":null,"tag":null,"node":null,"meta":null}')
    assert (bytes(record.data), record.tag, record.node, bytes(record.meta)) == (
        b"null",
        None,
        None,
        b"",
    )
    body = append(
        b'{"records":[{"data":1}],"node":null,"idempotency_key":null,"create":null,"config":null}'
    )
    assert (body.node, body.idempotency_key, body.create, body.config) == (None, None, None, None)


def test_unknown_fields_are_ignored() -> None:
    assert bytes(one(b'{"data":1,"later":[{}],"$seq":9}').data) == b"1"
    append(b'{"records":[{"data":1}],"later":null}')


def test_a_delay_is_a_time_to_wait_or_a_time_of_day() -> None:
    body = append(
        b'{"records":[{"data":1},{"data":2,"delay_ms":0},{"data":3,"deliver_at":%d}]}' % (2**64 - 1)
    )
    assert [(record.delay_ms, record.deliver_at) for record in body.records] == [
        (None, None),
        (0, None),
        (None, 2**64 - 1),
    ]
    assert has_delays(body.records)
    assert one(b'{"delay_ms":5,"data":3,"deliver_at":null}').delay_ms == 5


def test_most_appends_are_without_delays() -> None:
    for record in (b'{"data":1}', b'{"data":1,"tag":"t"}', b'{"data":1,"delay_ms":null}'):
        records = append(b'{"records":[%b]}' % record).records
        assert not has_delays(records)
        assert (records[0].delay_ms, records[0].deliver_at) == (None, None)


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
def test_a_delay_out_of_range_or_told_twice_is_refused_by_its_record(
    members: bytes, field: str
) -> None:
    body = b'{"records":[{"data":1,"tag":"t"},{"data":2,%b}]}' % members
    assert refused(InvalidRequest, append, body).detail == {"index": 1, "field": field}


@pytest.mark.parametrize(
    "more", [b'"tag":"t"', b'"node":"n"', b'"meta":{"a":1}', b'"delay_ms":1', b'"deliver_at":1']
)
@pytest.mark.parametrize("at", [0, 1, 2])
def test_one_record_with_more_than_data_makes_the_others_no_different(more: bytes, at: int) -> None:
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


def test_the_last_of_two_equal_members_counts() -> None:
    assert bytes(one(b'{"data":1,"tag":"a","data":2,"tag":"b"}').data) == b"2"


def test_meta_is_kept_byte_for_byte() -> None:
    assert (
        bytes(one(b'{"data":1,"meta": { "b" : 1.10,"a":"\\u00e9" } }').meta)
        == b'{ "b" : 1.10,"a":"\\u00e9" }'
    )


@given(st.binary(max_size=60))
def test_any_bytes_have_an_answer(body: bytes) -> None:
    for decode in (
        lambda: append(body),
        lambda: decode_diff(body, LIMITS),
        lambda: decode_config(body),
    ):
        with suppress(InvalidRequest, BatchTooLarge, RecordTooLarge):
            decode()


@given(st.integers(0, 200), st.binary(min_size=1, max_size=3))
def test_any_damage_to_a_good_body_has_an_answer(at: int, noise: bytes) -> None:
    records = b'[{"data":{"a":[1,"\\u00e9"]},"meta":{"m":1},"tag":"t"}]'
    good = b'{"records":%b,"node":"n","config":{"ttl_ms":1}}' % records
    body = good[: at % len(good)] + noise + good[at % len(good) + len(noise) :]
    with suppress(InvalidRequest, BatchTooLarge, RecordTooLarge):
        append(body)


# Limits, at the edge and one above


def test_the_number_of_records() -> None:
    append(b'{"records":[%b]}' % b",".join([b'{"data":1}'] * 3))
    error = refused(BatchTooLarge, append, b'{"records":[%b]}' % b",".join([b'{"data":1}'] * 4))
    assert error.detail == {"records": 4, "max": 3}


def test_the_size_of_a_record() -> None:
    assert len(one(b'{"data":"%b"}' % (b"x" * 98)).data) == 100
    error = refused(RecordTooLarge, append, b'{"records":[{"data":1},{"data":"%b"}]}' % (b"x" * 99))
    assert error.detail == {"index": 1, "max": 100}


def test_the_size_of_a_record_counts_meta_but_no_null() -> None:
    one(b'{"data":"%b","meta":{"a":1}}' % (b"x" * 91))
    refused(RecordTooLarge, one, b'{"data":"%b","meta":{"a":1}}' % (b"x" * 92))
    one(b'{"data":"%b","meta":null}' % (b"x" * 98))


def test_the_size_of_a_record_counts_utf8_bytes() -> None:
    one(b'{"data":"%b"}' % ("é" * 49).encode())
    refused(RecordTooLarge, one, b'{"data":"%b"}' % ("é" * 50).encode())


def test_the_size_of_meta() -> None:
    one(b'{"data":1,"meta":{"a":"%b"}}' % (b"x" * 42))
    refused(RecordTooLarge, one, b'{"data":1,"meta":{"a":"%b"}}' % (b"x" * 43))
    refused(RecordTooLarge, one, b'{"data":1,"meta":{%b"a":1}}' % (b" " * 50))


def test_the_number_of_keys_of_meta() -> None:
    def meta(count: int, value: bytes = b"0") -> bytes:
        return b'{"data":1,"meta":{%b}}' % b",".join(
            b'"%d":%b' % (key, value) for key in range(count)
        )

    one(meta(64), WIDE)
    one(meta(64, b'"::"'), WIDE)
    one(meta(10, b'{"a":1,"b":2,"c":3,"d":4,"e":5,"f":6,"g":7,"h":8}'), WIDE)
    assert refused(RecordTooLarge, one, meta(65), WIDE).detail == {"index": 0, "max_keys": 64}


@pytest.mark.parametrize(("field", "most"), [("tag", 8), ("node", 6)])
def test_the_length_of_tags_and_nodes_in_utf8_bytes(field: str, most: int) -> None:
    for text in ("x" * most, "é" * (most // 2), ""):
        assert getattr(one(json_bytes({"data": 1, field: text})), field) == text
    for text in ("x" * (most + 1), "é" * (most // 2) + "x", "😀" * 3):
        error = refused(InvalidRequest, one, json_bytes({"data": 1, field: text}))
        assert error.detail == {"field": field, "max": most}


def test_the_length_of_the_batch_node() -> None:
    append(b'{"records":[{"data":1}],"node":"xxxxxx"}')
    refused(InvalidRequest, append, b'{"records":[{"data":1}],"node":"xxxxxxx"}')


def test_the_length_of_a_key_in_characters() -> None:
    for key in ("k", "k" * 256, "😀" * 256):
        assert (
            append(json_bytes({"records": [{"data": 1}], "idempotency_key": key})).idempotency_key
            == key
        )
        assert append(b'{"records":[{"data":1}]}', key).idempotency_key == key
    for key in ("", "k" * 257):
        refused(
            InvalidRequest, append, json_bytes({"records": [{"data": 1}], "idempotency_key": key})
        )
        refused(InvalidRequest, append, b'{"records":[{"data":1}]}', key)


def test_the_key_of_the_body_wins_over_the_headers() -> None:
    assert (
        append(b'{"records":[{"data":1}],"idempotency_key":"body"}', "header").idempotency_key
        == "body"
    )
    assert (
        append(b'{"records":[{"data":1}],"idempotency_key":null}', "header").idempotency_key
        == "header"
    )
    assert (
        append(b'{"records":[{"data":1}],"idempotency_key":"body"}', "").idempotency_key == "body"
    )
