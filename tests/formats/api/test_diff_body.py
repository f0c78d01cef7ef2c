"""Diff bodies (§3): defaults, clamps and wrong types."""

from __future__ import annotations

import pytest

from tests.formats.api.body_support import LIMITS, refused
from topics.errors import InvalidRequest
from topics.formats.api.diff_body import Diff, decode_diff
from topics.formats.api.limits import BATCH_BYTES_MAX, DEFAULT_BATCH_BYTES, Limits


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
    assert decode_diff(b"", Limits(1, 1, 1, 1, 1, limit=10, claim=1)).limit == 10


@pytest.mark.parametrize("field", ["from_seq", "limit", "wait_ms", "max_batch_bytes", "epoch"])
@pytest.mark.parametrize(
    "value",
    [b"-1", b"18446744073709551616", b"1.0", b"1e2", b"true", b'"1"', b"[]", b"1" + b"0" * 5000],
)
def test_a_number_of_a_diff_is_an_integer_from_zero(field: str, value: bytes) -> None:
    refused(InvalidRequest, decode_diff, b'{"%b":%b}' % (field.encode(), value), LIMITS)


@pytest.mark.parametrize(
    "body",
    [
        *(b'{"node":1}', b'{"node":[1]}', b'{"node":{}}', b'{"include_tags":1}'),
        *(b'{"from_seq":null}', b"[]", b"null", b'{"node":"xxxxxxx"}'),
    ],
)
def test_other_types_in_a_diff_are_refused(body: bytes) -> None:
    refused(InvalidRequest, decode_diff, body, LIMITS)
