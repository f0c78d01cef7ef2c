"""JSON responses (§0.9, §2, §3, §10), byte for byte. The contract tests check their members."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from topics.formats.api import answers, queue_answers

WAL = b'"wal_append_ms":0.500'


@pytest.mark.parametrize(
    ("times", "members"),
    [
        ({}, b'"server_total_ms":0.413'),
        ({"wal_ms": 0.5}, b'"server_total_ms":0.413,%b,"fsync_ms":0.000' % WAL),
        ({"throttle_ms": 0.0}, b'"server_total_ms":0.413,"throttle_wait_ms":0.0'),
        ({"throttle_ms": 12.3456}, b'"server_total_ms":0.413,"throttle_wait_ms":12.346'),
        (
            {"wal_ms": 0.5, "fsync_ms": 1.25, "throttle_ms": 0.0},
            b'"server_total_ms":0.413,"throttle_wait_ms":0.0,%b,"fsync_ms":1.250' % WAL,
        ),
    ],
)
def test_performance_is_the_last_member_of_a_response(
    times: dict[str, float], members: bytes
) -> None:
    assert answers.performance(0.4126, **times) == b',"performance":{%b}}' % members


def test_the_bytes_of_an_append_response() -> None:
    assert answers.appended("jobs", 8, 3, b"", with_seqs=True, created=False, deduped=False) == (
        b'{"topic":"jobs","first_seq":8,"last_seq":10,"seqs":[8,9,10],"head_seq":10,"count":3,'
        b'"created":false,"deduped":false'
    )
    assert answers.appended("jobs", 1, 1, b"", with_seqs=True, created=True, deduped=False) == (
        b'{"topic":"jobs","first_seq":1,"last_seq":1,"seqs":[1],"head_seq":1,"count":1,'
        b'"created":true,"deduped":false'
    )
    assert answers.appended("jobs", 1, 2, b"", with_seqs=False, created=False, deduped=True) == (
        b'{"topic":"jobs","first_seq":1,"last_seq":2,"head_seq":2,"count":2,'
        b'"created":false,"deduped":true'
    )


def difference(chunks: list[Any], next_from_seq: int) -> bytes:
    end = answers.difference_end(
        next_from_seq=next_from_seq,
        head_seq=5,
        earliest_seq=1,
        epoch=17,
        tombstone=None,
        scanned=2,
        total_ms=0.3,
    )
    return answers.difference("jobs", chunks, end)


def test_the_bytes_of_a_diff_response() -> None:
    assert difference([b'{"$seq":1}', memoryview(b'{"$seq":2}')], 2) == (
        b'{"topic":"jobs","records":[{"$seq":1},{"$seq":2}],"next_from_seq":2,"head_seq":5,'
        b'"earliest_seq":1,"caught_up":false,"tombstone":null,"lag":3,"epoch":17,"performance":'
        b'{"server_total_ms":0.300,"records_scanned":2,"throttle_wait_ms":0.0}}'
    )
    found = msgspec.json.decode(difference([], 5))
    assert (found["records"], found["caught_up"], found["lag"]) == ([], True, 0)


def test_a_claim_response_contains_the_records_unchanged() -> None:
    record = b'{"$seq":%d,"data":{ "a": 1.10, "a": 1E400 }}'
    jobs = queue_answers.jobs_json((seq, 0x7F, 2, 3, record % seq) for seq in (7, 8))
    assert queue_answers.claimed("jobs", jobs, 840) == (
        b'{"topic":"jobs","claimed":['
        b'{"lease_id":"lease_7f","deadline":2,"deliveries":3,"$seq":7,"data":{ "a": 1.10, "a": '
        b"1E400 }},"
        b'{"lease_id":"lease_7f","deadline":2,"deliveries":3,"$seq":8,"data":{ "a": 1.10, "a": '
        b'1E400 }}],"count":2,"ready":840'
    )
    assert queue_answers.claimed("jobs", [], 0) == (
        b'{"topic":"jobs","claimed":[],"count":0,"ready":0'
    )
