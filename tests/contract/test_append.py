"""POST /v0/topics/:topic (§2): fields, lazy creation, batching limits."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.support.api import Api, ok, refused

KIB = 1024
MIB = 1024 * KIB
CLOCK_SLACK_MS = 1000


def test_an_append_creates_the_topic_and_assigns_seqs(api: Api, topic: str) -> None:
    body = ok(api.append(topic, "a", "b"), 201)
    body.pop("performance")
    assert body == {
        "topic": topic,
        "first_seq": 1,
        "last_seq": 2,
        "seqs": [1, 2],
        "head_seq": 2,
        "count": 2,
        "created": True,
        "deduped": False,
    }


def test_seqs_go_on_without_holes(api: Api, topic: str) -> None:
    ok(api.put(topic), 201)
    expected = 1
    for size in (1, 3, 2, 50, 1):
        body = ok(api.append(topic, *range(size)))
        assert body["seqs"] == list(range(expected, expected + size))
        assert (body["first_seq"], body["last_seq"], body["head_seq"]) == (
            expected,
            expected + size - 1,
            expected + size - 1,
        )
        assert (body["count"], body["created"], body["deduped"]) == (size, False, False)
        expected += size


@pytest.mark.parametrize(
    ("query", "shown"),
    [("", True), ("?return_seqs=true", True), ("?return_seqs=false", False)],
    ids=lambda value: f"2 {value}",
)
def test_return_seqs(api: Api, topic: str, query: str, shown: bool) -> None:
    body = ok(
        api.call("POST", f"/v0/topics/{topic}{query}", {"records": [{"data": 1}, {"data": 2}]}), 201
    )
    assert body.get("seqs") == ([1, 2] if shown else None)
    assert ("seqs" in body) == shown
    assert (body["first_seq"], body["last_seq"], body["count"]) == (1, 2, 2)


def test_return_seqs_is_a_bool(api: Api, topic: str) -> None:
    refused(
        api.call("POST", f"/v0/topics/{topic}?return_seqs=banana", {"records": [{"data": 1}]}),
        400,
        "invalid_request",
    )
    refused(api.get(topic), 404, "topic_not_found")


# --- lazy creation

LAZY: list[tuple[dict[str, Any], bool]] = [
    ({}, True),
    ({"create": True}, True),
    ({"create": False}, False),
    ({"config": {}}, True),
    ({"config": {"auto_create": True}}, True),
    ({"config": {"auto_create": False}}, False),
    ({"create": True, "config": {"auto_create": False}}, True),
    ({"create": False, "config": {"auto_create": True}}, False),
    ({"create": False, "config": {}}, False),
]


@pytest.mark.parametrize(("fields", "created"), LAZY, ids=lambda value: f"2 {value}")
def test_who_may_create_a_topic_by_writing(
    api: Api, topic: str, fields: dict[str, Any], created: bool
) -> None:
    answer = api.append(topic, 1, **fields)
    if not created:
        refused(answer, 404, "topic_not_found")
        refused(api.get(topic), 404, "topic_not_found")
        return
    assert ok(answer, 201)["created"] is True
    assert api.state(topic)["config"]["auto_create"] is fields.get("config", {}).get(
        "auto_create", True
    )


@pytest.mark.parametrize(
    "fields",
    [{}, {"create": True}, {"create": False}, {"config": {"auto_create": False}}],
    ids=lambda value: f"2 {value}",
)
@pytest.mark.parametrize("auto_create", [True, False])
def test_an_existing_topic_takes_every_write(
    api: Api, topic: str, fields: dict[str, Any], auto_create: bool
) -> None:
    ok(api.put(topic, {"auto_create": auto_create}), 201)
    body = ok(api.append(topic, 1, **fields))
    assert (body["created"], body["seqs"]) == (False, [1])


def test_inline_config_counts_only_for_the_write_that_creates(api: Api, topic: str) -> None:
    config = {
        "ttl_ms": 10**9,
        "cap_records": 100,
        "durability": "fsync",
        "priority": 5000,
        "lease_ms": 1,
    }
    ok(api.append(topic, 1, config=config), 201)
    stored = api.state(topic)["config"]
    assert [
        stored[name]
        for name in ("ttl_ms", "cap_records", "durability", "durable", "priority", "lease_ms")
    ] == [
        10**9,
        100,
        "fsync",
        True,
        1000,
        100,
    ]
    ok(
        api.append(
            topic, 2, config={"ttl_ms": 1, "durability": "memory", "priority": 1, "type": "queue"}
        )
    )
    assert api.state(topic)["config"] == stored


BAD_CONFIGS = [
    5,
    "x",
    [],
    {"ttl_ms": -1},
    {"ttl_ms": True},
    {"type": "nope"},
    {"durable": 1},
    {"dead_letter": 5},
]


@pytest.mark.parametrize("config", BAD_CONFIGS, ids=lambda value: f"2 {value}")
def test_a_bad_inline_config_creates_nothing(api: Api, topic: str, config: Any) -> None:
    refused(api.append(topic, 1, config=config), 400, "invalid_request")
    refused(api.get(topic), 404, "topic_not_found")


def test_inline_dead_letter_must_be_another_topic(api: Api, topic: str) -> None:
    refused(
        api.append(topic, 1, config={"type": "queue", "dead_letter": topic}), 400, "invalid_request"
    )
    refused(api.get(topic), 404, "topic_not_found")


# --- what a record may hold


def test_node_has_a_default_and_an_override(api: Api, topic: str) -> None:
    records = [{"data": 1}, {"data": 2, "node": "mine"}, {"data": 3, "node": "batch"}]
    ok(api.append(topic, records=records, node="batch"), 201)
    ok(api.append(topic, records=[{"data": 4}, {"data": 5, "node": "é"}]))
    assert [record.get("$node") for record in api.read(topic)] == [
        "batch",
        "mine",
        "batch",
        None,
        "é",
    ]


def test_a_record_comes_back_with_exactly_its_fields(api: Api, topic: str) -> None:
    before = time.time_ns() // 1_000_000
    ok(
        api.append(
            topic,
            records=[
                {"data": 1},
                {"data": None, "tag": "t", "node": "n", "meta": {"m": 1}},
                {"data": "x", "meta": {}},
            ],
        ),
        201,
    )
    after = time.time_ns() // 1_000_000
    records = api.read(topic, include_tags=True)
    stamps = [record.pop("$ts") for record in records]
    assert records == [
        {"$seq": 1, "data": 1},
        {"$seq": 2, "$node": "n", "$tag": "t", "data": None, "meta": {"m": 1}},
        {"$seq": 3, "data": "x", "meta": {}},
    ]
    assert all(
        isinstance(stamp, int) and before - CLOCK_SLACK_MS <= stamp <= after + CLOCK_SLACK_MS
        for stamp in stamps
    )


def test_unknown_fields_are_ignored(api: Api, topic: str) -> None:
    ok(
        api.append(
            topic,
            records=[{"data": 1, "$seq": 99, "$node": "fake", "extra": {"a": [1]}}],
            later={"x": 1},
        ),
        201,
    )
    (record,) = api.read(topic)
    assert (record["$seq"], record["data"]) == (1, 1)
    assert set(record) == {"$seq", "$ts", "data"}


WRONG_BODIES = [
    "{}",
    "[]",
    '"x"',
    "null",
    "1",
    "",
    '{"records":[]}',
    '{"records":null}',
    '{"records":{}}',
    '{"records":"x"}',
    '{"records":[1]}',
    '{"records":[null]}',
    '{"records":[[]]}',
    '{"records":[{}]}',
    '{"records":[{"data":1},{}]}',
    '{"records":[{"data":1},{"tag":"t"}]}',
    '{"records":[{"data":1,"tag":5}]}',
    '{"records":[{"data":1,"tag":["a"]}]}',
    '{"records":[{"data":1,"node":5}]}',
    '{"records":[{"data":1,"node":{}}]}',
    '{"records":[{"data":1,"meta":[]}]}',
    '{"records":[{"data":1,"meta":"x"}]}',
    '{"records":[{"data":1,"meta":5}]}',
    '{"records":[{"data":1}],"node":5}',
    '{"records":[{"data":1}],"node":["a"]}',
    '{"records":[{"data":1}],"idempotency_key":5}',
    '{"records":[{"data":1}],"idempotency_key":""}',
    '{"records":[{"data":1}],"create":"yes"}',
    '{"records":[{"data":1}],"create":1}',
    '{"records":[{"data":1}],"disable_backpressure":"yes"}',
    '{"records":[{"data":1}],"disable_backpressure":1}',
    '{"records":[{"data":1}]',
    '{"records":[{"data":1}]}}',
    '{"records":[{"data":1}]}{}',
    '{"records":[{"data":1},]}',
    '{"records":[{"data":}]}',
]


@pytest.mark.parametrize("body", WRONG_BODIES, ids=lambda value: f"2 {value}")
def test_a_wrong_body_is_a_400_and_appends_nothing(api: Api, topic: str, body: str) -> None:
    refused(api.call("POST", f"/v0/topics/{topic}", body.encode()), 400, "invalid_request")
    refused(api.get(topic), 404, "topic_not_found")


def test_one_bad_record_refuses_the_whole_batch(api: Api, topic: str) -> None:
    ok(api.append(topic, "first"), 201)
    good = [{"data": number} for number in range(9)]
    refused(api.append(topic, records=[*good, {"tag": "no data"}]), 400, "invalid_request")
    refused(
        api.append(topic, records=[*good, {"data": 1, "tag": "x" * 257}]), 400, "invalid_request"
    )
    refused(api.append(topic, records=[*good, {"data": "x" * MIB}]), 400, "record_too_large")
    assert ok(api.append(topic, "last"))["seqs"] == [2]
    assert [record["data"] for record in api.read(topic)] == ["first", "last"]
