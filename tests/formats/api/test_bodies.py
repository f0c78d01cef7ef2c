"""Bodies of reads, deletes, watches and queues (§3, §5, §7, §10): defaults, clamps, and bounds.

`tests.contract.refusal_rows` tests the values that each field rejects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.formats.api.test_append_body import LIMITS, error_of
from topics.errors import BatchTooLarge, InvalidRequest
from topics.formats.api.diff_body import Diff, TagMatch, decode_delete, decode_diff
from topics.formats.api.limits import BATCH_BYTES_MAX, DEFAULT_BATCH_BYTES, Limits
from topics.formats.api.queue_bodies import (
    Claim,
    Extend,
    JobsRequest,
    Nack,
    Redrive,
    decode_ack,
    decode_claim,
    decode_extend,
    decode_nack,
    decode_redrive,
)
from topics.formats.api.watch import Start, View, WatchRequest, decode_watch
from topics.formats.api.websocket_commands import decode_subscribe, request_id_of

U64_MAX = 2**64 - 1
JOB_CALLS: list[Callable[[bytes, Limits], JobsRequest]] = [decode_ack, decode_nack, decode_extend]


def test_an_empty_diff_has_the_defaults() -> None:
    for body in (b"", b"{}", b'{"node":null,"epoch":null,"x":1}'):
        assert decode_diff(body, LIMITS) == Diff(
            0, 256, frozenset(), False, True, 0, DEFAULT_BATCH_BYTES, None
        )


@pytest.mark.parametrize(
    ("member", "field", "expected"),
    [
        ('"limit":0', "limit", 256),
        ('"limit":1000', "limit", 1000),
        (f'"limit":{U64_MAX}', "limit", 1000),
        ('"wait_ms":30000', "wait_ms", 30_000),
        ('"wait_ms":30001', "wait_ms", 30_000),
        ('"max_batch_bytes":1', "max_batch_bytes", 1),
        ('"max_batch_bytes":0', "max_batch_bytes", DEFAULT_BATCH_BYTES),
        ('"max_batch_bytes":8388609', "max_batch_bytes", BATCH_BYTES_MAX),
        (f'"from_seq":{U64_MAX}', "from_seq", U64_MAX),
        ('"epoch":7', "epoch", 7),
        ('"node":"a"', "nodes", frozenset({"a"})),
        ('"node":["a","b","a"]', "nodes", frozenset({"a", "b"})),
        ('"node":""', "nodes", frozenset({""})),
        ('"include_tags":true', "include_tags", True),
        ('"include_meta":false', "include_meta", False),
    ],
)
def test_values_of_a_diff_are_clamped_and_not_rejected(
    member: str, field: str, expected: object
) -> None:
    assert getattr(decode_diff(b"{%b}" % member.encode(), LIMITS), field) == expected


@pytest.mark.parametrize(
    ("body", "before_seq", "match"),
    [
        (b'{"before_seq":18446744073709551615}', U64_MAX, None),
        (b'{"before_seq":7,"match":null,"more":1}', 7, None),
        (b'{"match":""}', None, TagMatch("Eq", "")),
        (b'{"match":"t*"}', None, TagMatch("Eq", "t*")),
        (b'{"match":["tag","Eq","t*"],"before_seq":0}', 0, TagMatch("Eq", "t*")),
        (b'{"match":["tag","Glob","t*"]}', None, TagMatch("Glob", "t")),
        (b'{"match":["tag","Glob","*"],"before_seq":null}', None, TagMatch("Glob", "")),
    ],
)
def test_a_delete_selects_by_seq_or_by_tag_or_both(
    body: bytes, before_seq: int | None, match: TagMatch | None
) -> None:
    assert decode_delete(body) == (before_seq, match)


# Watch and subscribe


def view(more: bytes) -> View:
    return decode_watch(b'{"topics":{"a":{}},%b}' % more, LIMITS, 2).view


def test_a_watch_has_a_start_for_each_topic_and_the_documented_defaults() -> None:
    body = b'{"topics":{"a":{"from_seq":7,"epoch":3},"b":{"tail":true}}}'
    starts = {"a": Start(7, epoch=3), "b": Start(0, tail=True)}
    default = View((), False, True, True, 256, 256 << 10, False)
    assert decode_watch(body, LIMITS, 2) == WatchRequest(starts, default, 15_000)
    assert decode_subscribe(body, LIMITS, 2) == decode_watch(body, LIMITS, 2)


def test_views_with_the_same_nodes_are_equal() -> None:
    assert view(b'"node":"x"') == view(b'"node":["x","x"]')
    assert view(b'"node":["b","a"]').nodes == ("a", "b")
    assert view(b'"consistency":"strong"').strong
    without_data = view(b'"include_data":false,"include_tags":true')
    assert (without_data.data, without_data.meta, without_data.tags) == (False, False, True)


def test_a_subscription_names_one_topic_or_several() -> None:
    one = decode_subscribe(b'{"topic":"a","from_seq":3,"epoch":9,"limit":5}', LIMITS, 2)
    assert (one.starts, one.view.limit) == ({"a": Start(3, False, 9)}, 5)
    for members in (b"", b'"topic":"a","topics":{"b":{}}'):
        error_of(InvalidRequest, decode_subscribe, b"{%b}" % members, LIMITS, 2)


@pytest.mark.parametrize(
    ("message", "request_id"),
    [
        (b'{"request_id": "x\\u00e9" }', b'"x\\u00e9"'),
        (b'{"op":7,"request_id":{"n":1.10}}', b'{"n":1.10}'),
        (b'{"op":"ping"}', b"null"),
        (b'{"op":7,"request_id":"%b"}' % (b"x" * 255), b"null"),
        (b"no JSON", b"null"),
        (b"[1]", b"null"),
        (b'{"x":' + b"[" * 100_000, b"null"),
    ],
)
def test_a_request_id_is_returned_unchanged_from_any_message(
    message: bytes, request_id: bytes
) -> None:
    assert request_id_of(message) == request_id


# Queues


def jobs(members: str) -> bytes:
    """Return a body that any of `JOB_CALLS` accepts, with these members in place of the usual
    ones.
    """
    return b'{"node":"w","seqs":[7,8],"lease_ms":5000,%b}' % members.encode()


@pytest.mark.parametrize(
    ("members", "claim"),
    [
        ("", Claim("w", 1, None, 0)),
        (',"max":16,"lease_ms":30000,"wait_ms":20,"more":[]', Claim("w", 16, 30_000, 20)),
        (f',"max":{U64_MAX},"wait_ms":{U64_MAX}', Claim("w", 1000, None, 30_000)),
        (',"max":1000,"lease_ms":99', Claim("w", 1000, 100, 0)),
        (f',"lease_ms":{U64_MAX}', Claim("w", 1, 86_400_000, 0)),
        (',"lease_ms":null', Claim("w", 1, None, 0)),
    ],
)
def test_a_claim_has_defaults_and_clamps(members: str, claim: Claim) -> None:
    assert decode_claim(b'{"node":"w"%b}' % members.encode(), LIMITS) == claim


@pytest.mark.parametrize(
    ("decode", "members", "expected_request"),
    [
        (decode_ack, '"seqs":[7,7,0],"x":1', JobsRequest("w", [7, 7, 0])),
        (decode_ack, f'"seqs":[{U64_MAX}]', JobsRequest("w", [U64_MAX])),
        (decode_ack, '"lease_ids":["1","?"]', JobsRequest("w", [7, 8], ["1", "?"])),
        (decode_nack, '"lease_ids":null', Nack("w", [7, 8], None, 0)),
        (decode_nack, '"delay_ms":5', Nack("w", [7, 8], None, 5)),
        (decode_nack, f'"delay_ms":{U64_MAX}', Nack("w", [7, 8], None, 86_400_000)),
        (decode_extend, '"lease_ms":0', Extend("w", [7, 8], None, lease_ms=100)),
        (decode_extend, '"lease_ms":101', Extend("w", [7, 8], None, lease_ms=101)),
        (decode_extend, f'"lease_ms":{U64_MAX}', Extend("w", [7, 8], None, lease_ms=86_400_000)),
    ],
)
def test_calls_for_jobs_have_defaults_and_clamps(
    decode: Any, members: str, expected_request: object
) -> None:
    assert decode(jobs(members), LIMITS) == expected_request


@pytest.mark.parametrize("decode", JOB_CALLS)
def test_seqs_are_limited_to_the_claim_limit_and_need_one_lease_id_each(
    decode: Callable[[bytes, Limits], JobsRequest],
) -> None:
    assert len(decode(jobs(f'"seqs":{[*range(1000)]}'), LIMITS).seqs) == 1000
    error = error_of(BatchTooLarge, decode, jobs(f'"seqs":{[*range(1001)]}'), LIMITS)
    assert error.detail == {"seqs": 1001, "max": 1000}
    for lease_ids in ('["a"]', '["a","b","c"]'):
        error_of(InvalidRequest, decode, jobs(f'"lease_ids":{lease_ids}'), LIMITS)


@pytest.mark.parametrize(
    ("body", "expected_request"),
    [
        (b"", Redrive(None, None, None, 1000)),
        (b'{"to":null,"match":null,"before_seq":null}', Redrive(None, None, None, 1000)),
        (
            b'{"to":"jobs","match":["tag","Glob","a*"],"before_seq":0,"limit":1}',
            Redrive("jobs", TagMatch("Glob", "a"), 0, 1),
        ),
        (b'{"match":"a*","limit":%d}' % U64_MAX, Redrive(None, TagMatch("Eq", "a*"), None, 10_000)),
    ],
)
def test_a_redrive_selects_records_and_a_target(body: bytes, expected_request: Redrive) -> None:
    assert decode_redrive(body) == expected_request
