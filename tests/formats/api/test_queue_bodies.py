"""Queue bodies (§10): defaults, clamps, and what is refused by its field."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.formats.api.body_support import LIMITS, refused
from tests.support import wrong_types
from topics.errors import BatchTooLarge, InvalidRequest
from topics.formats.api.diff_body import TagMatch
from topics.formats.api.limits import Limits
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

U64_MAX = 2**64 - 1
JOB_CALLS: list[Callable[[bytes, Limits], JobsRequest]] = [decode_ack, decode_nack, decode_extend]


def jobs(members: str) -> bytes:
    """A body that any of `JOB_CALLS` takes, with these members in place of the usual ones."""
    return b'{"node":"w","seqs":[7,8],"lease_ms":5000,%b}' % members.encode()


@pytest.mark.parametrize(
    ("members", "claim"),
    [
        ("", Claim("w", 1, None, 0)),
        (',"max":16,"lease_ms":30000,"wait_ms":20,"more":[]', Claim("w", 16, 30_000, 20)),
        (',"max":1000', Claim("w", 1000, None, 0)),
        (f',"max":{U64_MAX},"wait_ms":{U64_MAX}', Claim("w", 1000, None, 30_000)),
        (',"lease_ms":0', Claim("w", 1, 100, 0)),
        (',"lease_ms":99', Claim("w", 1, 100, 0)),
        (f',"lease_ms":{U64_MAX}', Claim("w", 1, 86_400_000, 0)),
        (',"lease_ms":null', Claim("w", 1, None, 0)),
    ],
)
def test_a_claim_has_defaults_and_clamps(members: str, claim: Claim) -> None:
    assert decode_claim(b'{"node":"w"%b}' % members.encode(), LIMITS) == claim


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("max", "0"),
        *wrong_types.rows([*wrong_types.UNSIGNED, "null", str(2**64)], "max", "wait_ms"),
        *wrong_types.rows([*wrong_types.UNSIGNED, str(2**64)], "lease_ms"),
        *wrong_types.rows(["5", "true", "null", "[]", '["w"]', '""', '"seventy"'], "node"),
    ],
)
def test_a_claim_of_another_kind_is_refused_by_its_field(field: str, text: str) -> None:
    body = b'{"node":"w","%b":%b}' % (field.encode(), text.encode())
    assert refused(InvalidRequest, decode_claim, body, LIMITS).detail["field"] == field


def test_an_ack_names_seqs_and_maybe_their_leases() -> None:
    assert decode_ack(b'{"node":"w","seqs":[7,7,0],"x":1}', LIMITS) == JobsRequest("w", [7, 7, 0])
    fenced = b'{"node":"worker","seqs":[7,%d],"lease_ids":["lease_1","?"]}' % U64_MAX
    assert decode_ack(fenced, LIMITS) == JobsRequest("worker", [7, U64_MAX], ["lease_1", "?"])
    assert decode_ack(b'{"node":"w","seqs":[7],"lease_ids":null}', LIMITS).lease_ids is None


@pytest.mark.parametrize(
    ("given", "kept"), [("0", 0), ("5", 5), ("86400000", 86_400_000), (str(U64_MAX), 86_400_000)]
)
def test_a_nack_may_hide_a_job_for_a_day(given: str, kept: int) -> None:
    assert decode_nack(jobs(f'"delay_ms":{given}'), LIMITS) == Nack("w", [7, 8], None, kept)
    assert decode_nack(jobs('"x":1'), LIMITS) == Nack("w", [7, 8], None, 0)


@pytest.mark.parametrize(
    ("given", "kept"), [("0", 100), ("100", 100), ("101", 101), (str(U64_MAX), 86_400_000)]
)
def test_an_extend_sets_a_clamped_lease(given: str, kept: int) -> None:
    asked = decode_extend(jobs(f'"lease_ms":{given}'), LIMITS)
    assert asked == Extend("w", [7, 8], None, lease_ms=kept)


@pytest.mark.parametrize("decode", JOB_CALLS)
@pytest.mark.parametrize(
    ("field", "text"),
    [
        *wrong_types.rows(["5", "true", "null", "[]", '""', '"seventy"'], "node"),
        *wrong_types.rows(["[]", "7", "null", '"7"', "{}", "[-1]", f"[{2**64}]"], "seqs"),
        *wrong_types.rows(['"x"', "{}", "[]", '["a"]', '["a","b","c"]'], "lease_ids"),
    ],
)
def test_jobs_of_another_kind_are_refused_by_their_field(
    decode: Callable[[bytes, Limits], JobsRequest], field: str, text: str
) -> None:
    error = refused(InvalidRequest, decode, jobs(f'"{field}":{text}'), LIMITS)
    assert error.detail["field"] == field


@pytest.mark.parametrize("decode", JOB_CALLS)
@pytest.mark.parametrize("element", ["null", "true", "1.5", '"7"', "[7]"])
def test_a_seq_and_a_lease_id_of_another_kind_are_refused_by_their_place(
    decode: Callable[[bytes, Limits], JobsRequest], element: str
) -> None:
    error = refused(InvalidRequest, decode, jobs(f'"seqs":[7,{element}]'), LIMITS)
    assert error.detail["field"] == "seqs[1]"
    if element != '"7"':
        error = refused(InvalidRequest, decode, jobs(f'"lease_ids":["a",{element}]'), LIMITS)
        assert error.detail["field"] == "lease_ids[1]"


@pytest.mark.parametrize("decode", JOB_CALLS)
def test_there_are_no_more_seqs_than_a_claim_may_have(
    decode: Callable[[bytes, Limits], JobsRequest],
) -> None:
    assert len(decode(jobs(f'"seqs":{[*range(1000)]}'), LIMITS).seqs) == 1000
    error = refused(BatchTooLarge, decode, jobs(f'"seqs":{[*range(1001)]}'), LIMITS)
    assert error.detail == {"seqs": 1001, "max": 1000}


@pytest.mark.parametrize(
    ("decode", "field", "texts"),
    [
        (decode_nack, "delay_ms", (*wrong_types.UNSIGNED, "null", str(2**64))),
        (decode_extend, "lease_ms", (*wrong_types.UNSIGNED, "null", str(2**64))),
    ],
)
def test_times_of_another_kind_are_refused(
    decode: Callable[[bytes, Limits], JobsRequest], field: str, texts: tuple[str, ...]
) -> None:
    for text in texts:
        error = refused(InvalidRequest, decode, jobs(f'"{field}":{text}'), LIMITS)
        assert error.detail["field"] == field


@pytest.mark.parametrize(
    ("body", "asked"),
    [
        (b"", Redrive(None, None, None, 1000)),
        (b"{}", Redrive(None, None, None, 1000)),
        (b'{"to":null,"match":null,"before_seq":null}', Redrive(None, None, None, 1000)),
        (
            b'{"to":"jobs","match":["tag","Glob","a*"],"before_seq":0,"limit":1}',
            Redrive("jobs", TagMatch("Glob", "a"), 0, 1),
        ),
        (b'{"match":"a*","limit":10000}', Redrive(None, TagMatch("Eq", "a*"), None, 10_000)),
        (b'{"limit":%d}' % U64_MAX, Redrive(None, None, None, 10_000)),
    ],
)
def test_a_redrive_says_which_records_go_where(body: bytes, asked: Redrive) -> None:
    assert decode_redrive(body) == asked


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("limit", "0"),
        *wrong_types.rows([*wrong_types.UNSIGNED, "null", str(2**64)], "limit"),
        *wrong_types.rows([text for text in wrong_types.SEQ if text != "null"], "before_seq"),
        *wrong_types.rows([f'"{name}"' for name in wrong_types.TOPIC_NAMES], "to"),
        *wrong_types.rows(["5", "true", "[]", "{}"], "to"),
        *wrong_types.rows(["5", "true", "[]", "{}", '["tag","Glob","a"]'], "match"),
    ],
)
def test_a_redrive_of_another_kind_is_refused_by_its_field(field: str, text: str) -> None:
    body = b'{"%b":%b}' % (field.encode(), text.encode())
    assert refused(InvalidRequest, decode_redrive, body).detail["field"] == field


@pytest.mark.parametrize("body", [b"[]", b"null", b"{", b'{"node":"\xff"}', b'{"x":' + b"[" * 9999])
def test_what_is_no_object_is_refused_by_every_decoder(body: bytes) -> None:
    for decode in (decode_claim, *JOB_CALLS):
        refused(InvalidRequest, decode, body, LIMITS)
    refused(InvalidRequest, decode_redrive, body)
