"""JSON answers (§0.9, §1 to §3), byte for byte."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from topics.formats.api import answers
from topics.formats.api.topic_config import TopicConfig


def whole(body: bytes) -> dict[str, Any]:
    """The answer with its ``performance`` member."""
    found: dict[str, Any] = msgspec.json.decode(body + answers.performance(1.0))
    return found


def test_performance_ends_the_object() -> None:
    assert answers.performance(0.4126) == b',"performance":{"server_total_ms":0.413}}'
    assert (
        answers.performance(2.0, wal_ms=0.5)
        == b',"performance":{"server_total_ms":2.000,"wal_append_ms":0.500,"fsync_ms":0.000}}'
    )
    assert (
        answers.performance(2.0, wal_ms=0.0, fsync_ms=1.25)
        == b',"performance":{"server_total_ms":2.000,"wal_append_ms":0.000,"fsync_ms":1.250}}'
    )
    assert (
        answers.performance(0.42, throttle_ms=0.0)
        == b',"performance":{"server_total_ms":0.420,"throttle_wait_ms":0.0}}'
    )
    assert (
        answers.performance(0.42, throttle_ms=12.3456)
        == b',"performance":{"server_total_ms":0.420,"throttle_wait_ms":12.346}}'
    )
    assert (
        answers.performance(2.0, wal_ms=0.5, fsync_ms=1.25, throttle_ms=0.0)
        == b',"performance":{"server_total_ms":2.000,"throttle_wait_ms":0.0,'
        b'"wal_append_ms":0.500,"fsync_ms":1.250}}'
    )


def test_an_append() -> None:
    assert answers.appended(
        "jobs", 480232, 3, b"", with_seqs=True, created=False, deduped=False
    ) == (
        b'{"topic":"jobs","first_seq":480232,"last_seq":480234,"seqs":[480232,480233,480234],"head_seq":480234,"count":3,'
        b'"created":false,"deduped":false'
    )
    assert answers.appended("jobs", 1, 1, b"", with_seqs=True, created=True, deduped=False) == (
        b'{"topic":"jobs","first_seq":1,"last_seq":1,"seqs":[1],"head_seq":1,"count":1,"created":true,"deduped":false'
    )
    assert answers.appended("jobs", 1, 2, b"", with_seqs=False, created=False, deduped=True) == (
        b'{"topic":"jobs","first_seq":1,"last_seq":2,"head_seq":2,"count":2,"created":false,"deduped":true'
    )


def test_a_retry_differs_in_created_and_deduped_only() -> None:
    first = whole(answers.appended("t", 5, 4, b"", with_seqs=True, created=True, deduped=False))
    again = whole(answers.appended("t", 5, 4, b"", with_seqs=True, created=False, deduped=True))
    assert {name for name in first if first[name] != again[name]} == {"created", "deduped"}


def difference(**changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "next_from_seq": 2,
        "head_seq": 5,
        "earliest_seq": 1,
        "epoch": 17,
        "tombstone": None,
        "scanned": 2,
        "total_ms": 0.3,
    } | changes
    pieces = fields.pop("pieces", [b'{"$seq":1}', memoryview(b'{"$seq":2}')])
    return answers.difference("jobs", pieces, answers.difference_end(**fields))


def test_a_diff() -> None:
    assert difference() == (
        b'{"topic":"jobs","records":[{"$seq":1},{"$seq":2}],"next_from_seq":2,"head_seq":5,"earliest_seq":1,"caught_up":false,'
        b'"tombstone":null,"lag":3,"epoch":17,"performance":{"server_total_ms":0.300,"records_scanned":2,"throttle_wait_ms":0.0}}'
    )


def test_a_diff_without_records_at_the_head() -> None:
    found = msgspec.json.decode(difference(pieces=[], next_from_seq=5))
    assert (found["records"], found["caught_up"], found["lag"]) == ([], True, 0)


def test_a_diff_with_a_tombstone() -> None:
    tombstone = {
        "gap_from": 1,
        "gap_to": 4,
        "reason": "recreated",
        "missed_estimate": 4,
        "earliest_seq": 1,
        "head_seq": 4,
    }
    assert msgspec.json.decode(difference(tombstone=tombstone))["tombstone"] == tombstone


@pytest.mark.parametrize("created", [True, False])
def test_a_put(created: bool) -> None:
    found = whole(
        answers.configured(
            "jobs", TopicConfig(ttl_ms=60_000, durability="fsync"), created=created, epoch=9
        )
    )
    assert list(found) == ["topic", "created", "config", "epoch", "performance"]
    assert found["created"] is created
    assert found["config"]["durable"] is True
    assert found["config"] == TopicConfig(ttl_ms=60_000, durability="fsync").as_json()


@pytest.mark.parametrize("existed", [True, False])
def test_a_delete(existed: bool) -> None:
    assert whole(answers.deleted("jobs", existed=existed)) == {
        "topic": "jobs",
        "deleted": existed,
        "routers_removed": [],
        "performance": {"server_total_ms": 1.0},
    }


def test_a_delete_lists_the_routers_that_went_with_the_topic_by_name() -> None:
    body = answers.deleted("jobs", existed=True, routers={"jobs->mirror", "a", "jobs->audit"})
    assert body == (
        b'{"topic":"jobs","deleted":true,"routers_removed":["a","jobs->audit","jobs->mirror"]'
    )


def test_a_state() -> None:
    fields = {
        "topic": "jobs",
        "head_seq": 0,
        "last_write_ts": None,
        "config": TopicConfig().as_json(),
    }
    assert whole(answers.state(fields)) == {**fields, "performance": {"server_total_ms": 1.0}}


def test_a_delete_of_records_says_what_is_left() -> None:
    body = answers.records_deleted(
        "jobs", 14, earliest_seq=480001, head_seq=480234, count=234, size=478820
    )
    assert (
        body == b'{"topic":"jobs","deleted":14,"earliest_seq":480001,"head_seq":480234'
        b',"count":234,"bytes":478820'
    )
