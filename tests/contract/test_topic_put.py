"""PUT /v0/topics/:topic (§1.1) and the topic config (§0.10)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.api import Api, ok, refused
from tests.support.queues import HOUR_MS, Queue, counters, until
from tests.support.topic_configs import DEFAULTS

U64_MAX = 2**64 - 1


def test_put_creates_with_every_default(api: Api, topic: str) -> None:
    body = ok(api.put(topic), 201)
    assert (body["topic"], body["created"]) == (topic, True)
    assert body["config"] == DEFAULTS


def test_an_empty_body_needs_no_content_type_and_creates_with_defaults(
    api: Api, topic: str
) -> None:
    body = ok(api.call("PUT", f"/v0/topics/{topic}"), 201)
    assert body["config"] == DEFAULTS


def test_a_repeated_put_is_a_no_op(api: Api, topic: str) -> None:
    config = {"ttl_ms": 60_000, "cap_records": 10, "durable": True, "priority": 10}
    first = ok(api.put(topic, config), 201)
    again = ok(api.put(topic, config))
    assert again["created"] is False
    assert again["config"] == first["config"] == DEFAULTS | config | {"durability": "fsync"}
    assert ok(api.put(topic, {}))["config"] == first["config"]


def test_put_changes_only_the_given_fields(api: Api, topic: str) -> None:
    ok(api.put(topic, {"cap_records": 5, "discard": "reject", "auto_create": False}), 201)
    body = ok(api.put(topic, {"ttl_ms": 7}))
    assert body["created"] is False
    assert body["config"] == DEFAULTS | {
        "cap_records": 5,
        "discard": "reject",
        "auto_create": False,
        "ttl_ms": 7,
    }
    assert api.state(topic)["config"] == body["config"]


EVERY_FIELD: dict[str, Any] = {
    "ttl_ms": 1,
    "cap_records": 2,
    "cap_bytes": 3,
    "discard": "reject",
    "priority": -7,
    "auto_priority": False,
    "auto_create": False,
    "idempotency_window_ms": 4,
    "dedupe_node": False,
    "lease_ms": 101,
    "claim_jitter_ms": 5,
    "max_deliveries": 6,
    "dead_letter": "jobs.dlq",
    "leases_durable": True,
}


@pytest.mark.parametrize("kind", ["log", "queue"], ids=["0.10 log", "0.10 queue"])
def test_every_field_is_stored_and_returned(api: Api, topic: str, kind: str) -> None:
    body = ok(api.put(topic, {"type": kind, **EVERY_FIELD}), 201)
    assert body["config"] == DEFAULTS | EVERY_FIELD | {"type": kind}
    assert api.state(topic)["config"] == body["config"]


@pytest.mark.parametrize("field", EVERY_FIELD, ids=lambda field: f"1.1 {field}")
def test_every_field_can_be_changed_and_reset(api: Api, topic: str, field: str) -> None:
    ok(api.put(topic), 201)
    assert ok(api.put(topic, {field: EVERY_FIELD[field]}))["config"] == DEFAULTS | {
        field: EVERY_FIELD[field]
    }
    assert ok(api.put(topic, {field: DEFAULTS[field]}))["config"] == DEFAULTS


CHANGES = [
    ({}, {}, "disk"),
    ({}, {"durable": True}, "fsync"),
    ({"durability": "memory"}, {"durable": True}, "fsync"),
    ({"durability": "fsync"}, {"durable": False}, "disk"),
    ({"durability": "fsync"}, {"durable": True, "durability": "disk"}, "disk"),
    ({"durability": "ephemeral", "durable": True}, {"ttl_ms": 1}, "ephemeral"),
]


@pytest.mark.parametrize(("before", "change", "after"), CHANGES, ids=lambda value: f"0.10 {value}")
def test_the_last_body_with_durable_or_durability_determines_the_class(
    api: Api, topic: str, before: dict[str, Any], change: dict[str, Any], after: str
) -> None:
    ok(api.put(topic, before), 201)
    stored = ok(api.put(topic, change))["config"]
    assert (stored["durability"], stored["durable"]) == (after, after == "fsync")
    assert api.state(topic)["config"] == stored


CLAMPS = [
    ("priority", 1001, 1000),
    ("priority", -(10**12), -1000),
    ("priority", None, None),
    ("lease_ms", 0, 100),
    ("lease_ms", U64_MAX, 86_400_000),
    ("claim_jitter_ms", 5001, 5000),
]


@pytest.mark.parametrize(("field", "sent", "stored"), CLAMPS, ids=lambda value: f"0.10 {value}")
def test_out_of_range_values_are_stored_clamped(
    api: Api, topic: str, field: str, sent: int | None, stored: int | None
) -> None:
    assert ok(api.put(topic, {field: sent}), 201)["config"][field] == stored
    assert api.state(topic)["config"][field] == stored
    assert ok(api.put(topic, {field: sent}))["config"][field] == stored


@pytest.mark.parametrize(
    "field", ["ttl_ms", "cap_records", "cap_bytes", "idempotency_window_ms", "max_deliveries"]
)
def test_u64_fields_accept_the_largest_u64(api: Api, topic: str, field: str) -> None:
    assert ok(api.put(topic, {field: U64_MAX}), 201)["config"][field] == U64_MAX


def test_a_refused_put_changes_nothing(api: Api, topic: str) -> None:
    before = ok(api.put(topic, {"ttl_ms": 5}), 201)["config"]
    refused(api.put(topic, {"ttl_ms": 6, "cap_records": -1}), 400, "invalid_request")
    refused(api.put(topic, {"ttl_ms": 6, "type": "queue"}), 409, "topic_exists_incompatible")
    assert api.state(topic)["config"] == before


@pytest.mark.parametrize(
    ("first", "second"),
    [("log", "queue"), ("queue", "log")],
    ids=["1.1 log to queue", "1.1 queue to log"],
)
def test_type_cannot_be_changed(api: Api, topic: str, first: str, second: str) -> None:
    ok(api.put(topic, {"type": first}), 201)
    refused(api.put(topic, {"type": second}), 409, "topic_exists_incompatible")
    assert ok(api.put(topic, {"type": first}))["config"]["type"] == first
    assert ok(api.put(topic, {"ttl_ms": 1}))["config"]["type"] == first


def test_a_topic_cannot_be_its_own_dead_letter_topic(api: Api, topic: str) -> None:
    refused(api.put(topic, {"type": "queue", "dead_letter": topic}), 400, "invalid_request")
    ok(api.put(topic, {"type": "queue", "dead_letter": f"{topic}.dlq"}), 201)
    refused(api.put(topic, {"dead_letter": topic}), 400, "invalid_request")
    assert ok(api.put(topic, {"dead_letter": None}))["config"]["dead_letter"] is None


def test_put_does_not_change_the_records(api: Api, topic: str) -> None:
    ok(api.append(topic, 1, 2, 3), 201)
    before = api.state(topic)
    ok(api.put(topic, {"priority": 5, "durability": "fsync"}))
    after = api.state(topic)
    assert [after[name] for name in ("head_seq", "count", "bytes", "epoch")] == [
        3,
        3,
        before["bytes"],
        before["epoch"],
    ]
    assert [record["data"] for record in api.read(topic)] == [1, 2, 3]


def test_unknown_fields_are_listed_and_otherwise_ignored(api: Api, topic: str) -> None:
    body = {"durabilty": "fsync", "ttl_ms": 5, "TTL_MS": 7, "durabilité": 1}
    created = ok(api.put(topic, body), 201)
    assert created["ignored"] == ["durabilty", "TTL_MS", "durabilité"]
    assert created["config"] == {**DEFAULTS, "ttl_ms": 5}
    assert "ignored" not in ok(api.put(topic, {"ttl_ms": 5}))
    assert "ignored" not in ok(api.put(topic))
    many = ok(api.put(topic, {f"{number:03d}{'x' * 200}": number for number in range(99)}))
    assert many["ignored"] == [f"{number:03d}{'x' * 125}" for number in range(64)]
    router = {"source": topic, "dest": f"{topic}.dest", "guarantees": "exactly_once"}
    for status in (201, 200):
        answer = ok(api.call("PUT", f"/v0/routers/{topic}", router), status)
        assert answer["ignored"] == ["guarantees"]


# --- lowered caps and ages, and dry runs


@pytest.mark.parametrize("discard", ["old", "reject"])
def test_a_lowered_cap_applies_immediately_and_the_response_counts_dropped_records(
    api: Api, topic: str, discard: str
) -> None:
    ok(api.put(topic, {"discard": discard, "cap_records": 10}), 201)
    ok(api.append(topic, *range(8)))
    planned = ok(api.put(topic, {"cap_records": 3}, dry_run="true"))
    assert api.state(topic)["count"] == 8
    assert api.state(topic)["config"]["cap_records"] == 10
    body = ok(api.put(topic, {"cap_records": 3}))
    assert (body["dropped"], planned["dropped"]) == (5, 5)
    assert planned["dry_run"] is True
    assert "dry_run" not in body
    assert {**planned, "dry_run": 0, "performance": 0} == {**body, "dry_run": 0, "performance": 0}
    assert (api.state(topic)["count"], api.state(topic)["earliest_seq"]) == (3, 6)
    assert "dropped" not in ok(api.put(topic, {"cap_records": 3})), "nothing was lowered"
    assert ok(api.put(topic, {"cap_records": 4}))["dropped"] == 0


def test_a_lowered_age_applies_immediately(api: Api, topic: str) -> None:
    ok(api.put(topic, {"discard": "reject"}), 201)
    ok(api.append(topic, 1, 2, 3))
    until(lambda: ok(api.put(topic, {"ttl_ms": 1}, dry_run="true"))["dropped"] == 3)
    assert ok(api.put(topic, {"ttl_ms": 1}))["dropped"] == 3
    state = api.state(topic)
    assert (state["count"], state["bytes"], state["earliest_seq"]) == (0, 0, 4)


def test_leased_jobs_dropped_by_a_lowered_cap_are_no_longer_counted(api: Api, topic: str) -> None:
    queue = Queue.create(api, topic, *range(6), discard="reject", lease_ms=HOUR_MS)
    jobs = queue.claim("w", 4)
    assert ok(api.put(topic, {"cap_records": 3}))["dropped"] == 3
    assert queue.counters() == counters(ready=2, in_flight=1)
    assert [lease["$seq"] for lease in queue.leases()] == [4]
    assert queue.ack(jobs)["skipped"] == [1, 2, 3]


def test_a_lowered_cap_does_not_affect_copies_in_other_topics(api: Api, topic: str) -> None:
    dest = f"{topic}.copy"
    ok(api.put(topic), 201)
    ok(api.call("PUT", f"/v0/routers/{topic}.r", {"source": topic, "dest": dest}), 201)
    ok(api.append(topic, *range(5)))
    until(lambda: api.state(dest)["count"] == 5)
    assert ok(api.put(topic, {"cap_bytes": 1}))["dropped"] == 5
    assert (api.state(topic)["bytes"], api.state(dest)["count"]) == (0, 5)
    assert ok(api.append(topic, 9))["seqs"] == [6]


def test_a_dry_run_creates_no_topic(api: Api, topic: str) -> None:
    body = ok(api.put(topic, {"ttl_ms": 7, "wrong": 1}, dry_run="true"))
    assert (body["created"], body["dropped"], body["dry_run"]) == (True, 0, True)
    assert (body["config"], body["ignored"]) == (DEFAULTS | {"ttl_ms": 7}, ["wrong"])
    assert "epoch" not in body
    refused(api.get(topic), 404, "topic_not_found")


def test_a_dry_run_is_refused_like_the_put(api: Api, topic: str) -> None:
    ok(api.put(topic, {"type": "log"}), 201)
    for config, status, code in (
        ({"type": "queue"}, 409, "topic_exists_incompatible"),
        ({"ttl_ms": -1}, 400, "invalid_request"),
        ({"dead_letter": topic}, 400, "invalid_request"),
    ):
        refused(api.put(topic, config, dry_run="true"), status, code)
        refused(api.put(topic, config), status, code)
    refused(api.put(topic, {}, dry_run="perhaps"), 400, "invalid_request")
