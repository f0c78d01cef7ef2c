"""Request bodies (§1 to §3): strict JSON, every limit at its edge and one above, payloads byte for
byte.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.errors import BatchTooLarge, InvalidRequest, RecordTooLarge, TopicsError
from topics.formats.api.requests import (
    BATCH_BYTES_MAX,
    DEFAULT_BATCH_BYTES,
    AppendBody,
    Diff,
    Limits,
    PlainAppend,
    RecordIn,
    TagMatch,
    decode_append,
    decode_config,
    decode_delete,
    decode_diff,
)
from topics.formats.json_text import json_bytes, json_string

LIMITS = Limits(
    batch_records=3, record_bytes=100, meta_bytes=50, tag_bytes=8, node_bytes=6, limit=1000
)
WIDE = Limits(
    batch_records=10_000,
    record_bytes=1 << 20,
    meta_bytes=16 << 10,
    tag_bytes=256,
    node_bytes=128,
    limit=1000,
)


def append(body: bytes, key: str | None = None, limits: Limits = LIMITS) -> AppendBody:
    return decode_append(body, key, limits)


def one(record: bytes, limits: Limits = LIMITS) -> RecordIn:
    """The only record of a body that holds it."""
    (found,) = append(b'{"records":[%b]}' % record, limits=limits).records
    return found


def data(value: bytes) -> bytes:
    return bytes(one(b'{"data":%b}' % value, WIDE).data)


def refused(
    code: type[TopicsError], function: Callable[..., Any], *arguments: Any, **more: Any
) -> TopicsError:
    with pytest.raises(code) as raised:
        function(*arguments, **more)
    assert raised.type is code
    return raised.value


# Payloads


@pytest.mark.parametrize(
    "value",
    [
        b"null", b"true", b"0", b"-0", b"1.10", b"1E400", b"1e-999", b"1" * 40, b'"\\u00e9\\/\\n"', '"é€😀"'.encode(), b'"\x7f"',
        b'"\\ud83d\\ude00"', b"[]", b"{}", b'{ "b" : 1 ,\n\t"a":[ 1 , 2 ] }', b'{"a":1,"a":2}', b'{"$seq":1}', b'""',
        b"[" * 500 + b"]" * 500,
    ],
)  # fmt: skip
def test_data_is_kept_byte_for_byte(value: bytes) -> None:
    assert data(value) == value
    assert data(b" \t\r\n" + value + b" \t\r\n") == value


@pytest.mark.parametrize(
    "value",
    [
        b"", b"NaN", b"Infinity", b"-Infinity", b"nan", b"01", b"-01", b"1.", b".5", b"+1", b"-", b"1e", b"1e+", b"0x1", b"1_0",
        b"tru",
        b"'a'", b'"a\nb"', b'"a\tb"', b'"\0"', b'"\\x41"', b'"\\u12"', b'"\\u12g4"', b'"', b'"\\"', b"[1,]", b"[1 2]", b"[", b"]",
        b'{"a"}', b'{"a":}', b"{a:1}", b"{1:2}", b'{"a":1,}', b"1 2", b"/**/1", b"undefined", b"\x00",
    ],
)  # fmt: skip
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
        b"", b"{}", b"null", b"[]", b"7", b'"x"', b'{"records":null}', b'{"records":{}}', b'{"records":[]}', b'{"records":[null]}',
        b'{"records":[1]}', b'{"records":[{}]}', b'{"records":[{"tag":"t"}]}', b'{"records":[{"data":1}]}x',
        b'\xef\xbb\xbf{"records":[]}',
        b'{"records":[{"data":1}]',
    ],
)  # fmt: skip
def test_a_body_without_records_is_refused(body: bytes) -> None:
    refused(InvalidRequest, append, body)


@pytest.mark.parametrize(
    "more",
    [
        b'"node":1', b'"node":["a"]', b'"idempotency_key":1', b'"create":1', b'"create":"true"', b'"config":[]',
        b'"config":{"ttl_ms":"1"}',
        b'"disable_backpressure":null', b'"disable_backpressure":1',
    ],
)  # fmt: skip
def test_a_field_of_another_type_is_refused(more: bytes) -> None:
    refused(InvalidRequest, append, b'{"records":[{"data":1}],%b}' % more)


@pytest.mark.parametrize(
    "more", [b'"tag":1', b'"node":true', b'"meta":[]', b'"meta":"x"', b'"meta":1', b'"meta":true']
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


@pytest.mark.parametrize("more", [b'"tag":"t"', b'"node":"n"', b'"meta":{"a":1}'])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_one_record_with_more_than_data_makes_the_others_no_different(more: bytes, at: int) -> None:
    records = [b'{"data":%d%b}' % (n, b"," + more if n == at else b"") for n in range(3)]
    body = append(b'{"records":[%b]}' % b",".join(records))
    assert not isinstance(body, PlainAppend)
    assert [bytes(record.data) for record in body.records] == [b"0", b"1", b"2"]
    found = [(record.tag, record.node, bytes(record.meta)) for record in body.records]
    assert found.count((None, None, b"")) == 2
    assert found[at] != (None, None, b"")


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
    good = b'{"records":[{"data":{"a":[1,"\\u00e9"]},"meta":{"m":1},"tag":"t"}],"node":"n","config":{"ttl_ms":1}}'
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


# Diff


def test_an_empty_diff_has_the_defaults() -> None:
    for body in (b"", b"{}", b'{"node":null,"epoch":null,"x":1}'):
        assert decode_diff(body, LIMITS) == Diff(
            0, 256, frozenset(), False, True, 0, DEFAULT_BATCH_BYTES, None
        )


@pytest.mark.parametrize(
    ("body", "field", "expected"),
    [
        (b'{"limit":0}', "limit", 256),
        (b'{"limit":1000}', "limit", 1000),
        (b'{"limit":1001}', "limit", 1000),
        (b'{"limit":18446744073709551615}', "limit", 1000),
        (b'{"wait_ms":30000}', "wait_ms", 30_000),
        (b'{"wait_ms":30001}', "wait_ms", 30_000),
        (b'{"max_batch_bytes":1}', "max_batch_bytes", 1),
        (b'{"max_batch_bytes":0}', "max_batch_bytes", DEFAULT_BATCH_BYTES),
        (b'{"max_batch_bytes":8388608}', "max_batch_bytes", BATCH_BYTES_MAX),
        (b'{"max_batch_bytes":8388609}', "max_batch_bytes", BATCH_BYTES_MAX),
        (b'{"from_seq":18446744073709551615}', "from_seq", 2**64 - 1),
        (b'{"epoch":7}', "epoch", 7),
        (b'{"node":"a"}', "nodes", frozenset({"a"})),
        (b'{"node":["a","b","a"]}', "nodes", frozenset({"a", "b"})),
        (b'{"node":[]}', "nodes", frozenset()),
        (b'{"node":""}', "nodes", frozenset({""})),
        (b'{"include_tags":true}', "include_tags", True),
        (b'{"include_meta":false}', "include_meta", False),
    ],
)
def test_a_diff_is_clamped_not_refused(body: bytes, field: str, expected: object) -> None:
    assert getattr(decode_diff(body, LIMITS), field) == expected


def test_the_default_limit_stays_below_the_configured_one() -> None:
    assert decode_diff(b"", Limits(1, 1, 1, 1, 1, limit=10)).limit == 10


@pytest.mark.parametrize("field", ["from_seq", "limit", "wait_ms", "max_batch_bytes", "epoch"])
@pytest.mark.parametrize(
    "value",
    [b"-1", b"18446744073709551616", b"1.0", b"1e2", b"true", b'"1"', b"[]", b"1" + b"0" * 5000],
)
def test_a_number_of_a_diff_is_an_integer_from_zero(field: str, value: bytes) -> None:
    refused(InvalidRequest, decode_diff, b'{"%b":%b}' % (field.encode(), value), LIMITS)


@pytest.mark.parametrize(
    "body", [b'{"node":1}', b'{"node":[1]}', b'{"node":{}}', b'{"include_tags":1}', b'{"from_seq":null}', b"[]", b"null",
    b'{"node":"xxxxxxx"}']
)  # fmt: skip
def test_other_types_in_a_diff_are_refused(body: bytes) -> None:
    refused(InvalidRequest, decode_diff, body, LIMITS)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_text_has_one_form_as_json(text: str) -> None:
    rendered = json_string(text)
    assert rendered == json_bytes(text)
    assert data(rendered) == rendered
    assert one(b'{"data":1,"tag":%b}' % rendered, Limits(1, 1 << 20, 1, 1 << 20, 1, 1)).tag == text


# Deletes


@pytest.mark.parametrize(
    ("body", "before_seq", "match"),
    [
        (b'{"before_seq":0}', 0, None),
        (b'{"before_seq":18446744073709551615}', 2**64 - 1, None),
        (b'{"before_seq":7,"match":null,"more":1}', 7, None),
        (b'{"match":"t"}', None, TagMatch("Eq", "t")),
        (b'{"match":"t*"}', None, TagMatch("Eq", "t*")),
        (b'{"match":""}', None, TagMatch("Eq", "")),
        (b'{"match":["tag","Eq","t*"],"before_seq":3}', 3, TagMatch("Eq", "t*")),
        (b'{"match":["tag","Glob","t*"]}', None, TagMatch("Glob", "t")),
        (b'{"match":["tag","Glob","*"],"before_seq":null}', None, TagMatch("Glob", "")),
    ],
)
def test_a_delete_is_by_seq_or_by_tag_or_both(
    body: bytes, before_seq: int | None, match: TagMatch | None
) -> None:
    assert decode_delete(body) == (before_seq, match)


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{}", b"[]", b"null", b'{"before_seq":null}', b'{"match":null}'),
        *(
            b'{"before_seq":-1}',
            b'{"before_seq":1.5}',
            b'{"before_seq":true}',
            b'{"before_seq":"1"}',
            b'{"before_seq":18446744073709551616}',
        ),
        *(
            b'{"match":1}',
            b'{"match":true}',
            b'{"match":{}}',
            b'{"match":[]}',
            b'{"match":["tag","Eq"]}',
            b'{"match":["tag","Eq","t",1]}',
        ),
        *(
            b'{"match":["node","Eq","t"]}',
            b'{"match":["tag","eq","t"]}',
            b'{"match":["tag","Regex","t*"]}',
            b'{"match":["tag","Eq",1]}',
        ),
        *(
            b'{"match":["tag","Glob","t"]}',
            b'{"match":["tag","Glob",""]}',
            b'{"match":["tag","Glob","t**"]}',
            b'{"match":["tag","Glob","*t"]}',
        ),
        *(
            b'{"match":["tag","Glob","a*b*"]}',
            b'{"match":["tag",["Eq"],"t"]}',
            b'{"match":"\xff"}',
            b'{"match":' + b"[" * 100_000,
        ),
        b'{"before_seq":1,"match":["tag","Glob","t"]}',
    ],
)
def test_any_other_delete_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode_delete(body)
