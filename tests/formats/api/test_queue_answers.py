"""JSON answers to queue requests (§10), byte for byte."""

from __future__ import annotations

import json

import pytest

from topics.formats.api import answers, queue_answers

RECORD = b'{"$seq":480101,"$ts":5,"$tag":"t","data":{ "a": 1.10, "a": 1E400 },"meta":{"b" :1}}'


def test_a_job_is_its_lease_and_its_record_byte_for_byte() -> None:
    [job] = queue_answers.jobs_json([(9, 0x7F3A9C, 1748450039000, 2, RECORD)])
    assert job == (
        b'{"lease_id":"lease_7f3a9c","deadline":1748450039000,"deliveries":2,' + RECORD[1:]
    )


def test_a_claim() -> None:
    jobs = queue_answers.jobs_json((seq, 1, 2, 3, b'{"$seq":%d,"data":1}' % seq) for seq in (7, 8))
    assert queue_answers.claimed("jobs", jobs, 840) == (
        b'{"topic":"jobs","claimed":['
        b'{"lease_id":"lease_1","deadline":2,"deliveries":3,"$seq":7,"data":1},'
        b'{"lease_id":"lease_1","deadline":2,"deliveries":3,"$seq":8,"data":1}'
        b'],"count":2,"ready":840'
    )
    assert queue_answers.claimed("jobs", [], 0) == (
        b'{"topic":"jobs","claimed":[],"count":0,"ready":0'
    )


def test_an_ack_and_a_nack() -> None:
    assert queue_answers.settled(b"acked", "jobs", 2, [], 840, 286) == (
        b'{"topic":"jobs","acked":2,"skipped":[],"ready":840,"in_flight":286'
    )
    assert queue_answers.settled(b"nacked", "jobs", 1, (9, 2**64 - 1), 841, 285) == (
        b'{"topic":"jobs","nacked":1,"skipped":[9,18446744073709551615],"ready":841,"in_flight":285'
    )


def test_an_extend() -> None:
    assert queue_answers.extended("jobs", [480101, 480104], 1748450069000, [3]) == (
        b'{"topic":"jobs","extended":2,"skipped":[3],'
        b'"deadlines":{"480101":1748450069000,"480104":1748450069000}'
    )
    assert queue_answers.extended("jobs", [], 5, []) == (
        b'{"topic":"jobs","extended":0,"skipped":[],"deadlines":{}'
    )


def test_the_leases_show_their_ids_to_those_who_may_know_them() -> None:
    known = queue_answers.lease_json(7, 'w"1', 255, 1748450039000, 1)
    hidden = queue_answers.lease_json(8, "é", None, 5, 2)
    assert known == (
        b'{"$seq":7,"node":"w\\"1","lease_id":"lease_ff","deadline":1748450039000,"deliveries":1}'
    )
    assert hidden == '{"$seq":8,"node":"é","deadline":5,"deliveries":2}'.encode()
    assert queue_answers.leases([known, hidden]) == b"[" + known + b"," + hidden + b"]"
    assert queue_answers.leases([]) == b"[]"


def test_a_redrive() -> None:
    assert queue_answers.redriven("dead", 3, 2, 0, None) == (
        b'{"topic":"dead","moved":3,"remaining":2,"skipped":0'
    )
    assert queue_answers.redriven("dead", 0, 0, 1, "topic_full") == (
        b'{"topic":"dead","moved":0,"remaining":0,"skipped":1,"reason":"topic_full"'
    )


@pytest.mark.parametrize(
    "answer",
    [
        queue_answers.claimed("q", queue_answers.jobs_json([(1, 1, 2, 3, RECORD)]), 0),
        queue_answers.settled(b"acked", "q", 1, [1], 0, 0),
        queue_answers.extended("q", [1], 2, [3]),
        queue_answers.redriven("q", 1, 2, 3, "no_source"),
    ],
)
def test_an_answer_ends_with_its_performance(answer: bytes) -> None:
    whole = json.loads(answer + answers.performance(1.0, throttle_ms=0.0))
    assert whole["topic"] == "q"
    assert [*whole][-1] == "performance"
