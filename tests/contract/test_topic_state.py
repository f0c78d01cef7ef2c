"""GET /v0/topics/:topic (§1.2), GET /v0/topics (§1.3), DELETE /v0/topics/:topic (§1.4)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.api import Api, ok, refused

CLOCK_SLACK_MS = 1000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_a_fresh_topic_is_empty(api: Api, topic: str) -> None:
    config = ok(api.put(topic), 201)["config"]
    state = api.state(topic)
    assert {
        name: state[name]
        for name in ("topic", "head_seq", "earliest_seq", "next_seq", "count", "bytes")
    } == {
        "topic": topic,
        "head_seq": 0,
        "earliest_seq": 1,
        "next_seq": 1,
        "count": 0,
        "bytes": 0,
    }
    assert state.get("type", "log") == "log"
    assert state["config"] == config
    assert state["last_write_ts"] is None
    assert state["last_read_ts"] is None
    assert isinstance(state["effective_priority"], int)
    assert state["epoch"] is not None


def test_the_state_reflects_appends(api: Api, topic: str) -> None:
    before = now_ms()
    ok(api.append(topic, *["x" * 100] * 5), 201)
    after = now_ms()
    state = api.state(topic)
    assert [state[name] for name in ("head_seq", "earliest_seq", "next_seq", "count")] == [
        5,
        1,
        6,
        5,
    ]
    assert 5 * 102 <= state["bytes"] <= 5 * 102 + 5 * 256
    assert before - CLOCK_SLACK_MS <= state["last_write_ts"] <= after + CLOCK_SLACK_MS
    assert state["last_write_ts"] == api.read(topic)[-1]["$ts"]


def test_meta_counts_as_bytes(api: Api, topic: str) -> None:
    ok(api.append(topic, records=[{"data": 1}]), 201)
    one = api.state(topic)["bytes"]
    ok(api.append(topic, records=[{"data": 1, "meta": {"k": "x" * 1000}}]))
    assert api.state(topic)["bytes"] - one >= one + 1000


def test_last_read_ts_changes_only_with_touch(api: Api, topic: str) -> None:
    ok(api.append(topic, 1), 201)
    assert api.state(topic)["last_read_ts"] is None
    before = now_ms()
    ok(api.get(topic))
    first = api.state(topic)["last_read_ts"]
    assert before - CLOCK_SLACK_MS <= first <= now_ms() + CLOCK_SLACK_MS
    ok(api.get(topic, touch="false"))
    ok(api.listing(prefix=topic))
    ok(api.listing(prefix=topic, touch="false"))
    assert api.state(topic)["last_read_ts"] == first


READS: list[tuple[str, Callable[[Api, str], Any]]] = [
    ("1.2 state", lambda api, topic: api.get(topic)),
    ("1.2 touch=true", lambda api, topic: api.get(topic, touch="true")),
    ("3 diff", lambda api, topic: api.diff(topic)),
    ("1.3 list touch=true", lambda api, topic: api.listing(prefix=topic, touch="true")),
]


@pytest.mark.parametrize("read", [read for _, read in READS], ids=[name for name, _ in READS])
def test_reads_update_last_read_ts(api: Api, topic: str, read: Callable[[Api, str], Any]) -> None:
    ok(api.put(topic), 201)
    ok(read(api, topic))
    assert isinstance(api.state(topic)["last_read_ts"], int)


@pytest.mark.parametrize("priority", [-1000, -1, 0, 500, 1000], ids=lambda value: f"1.2 {value}")
def test_a_manual_priority_is_the_effective_priority(api: Api, topic: str, priority: int) -> None:
    ok(api.put(topic, {"priority": priority}), 201)
    assert api.state(topic)["effective_priority"] == priority
    ok(api.get(topic))
    assert api.state(topic)["effective_priority"] == priority


def test_names_are_case_sensitive(api: Api, topic: str) -> None:
    ok(api.append(topic, 1), 201)
    refused(api.get(topic.upper()), 404, "topic_not_found")
    ok(api.append(topic.upper(), 1), 201)
    assert api.state(topic)["count"] == 1


# --- list


def test_a_list_shows_summaries(api: Api, topic: str) -> None:
    ok(api.put(topic, {"durability": "fsync", "priority": 9}), 201)
    ok(api.append(topic, 1, 2))
    (item,) = ok(api.listing(prefix=topic))["topics"]
    state = api.state(topic)
    assert {
        name: item[name]
        for name in (
            *("topic", "head_seq", "earliest_seq", "count", "bytes", "epoch", "last_write_ts"),
            *("durable", "effective_priority"),
        )
    } == {
        "topic": topic,
        "head_seq": 2,
        "earliest_seq": 1,
        "count": 2,
        "bytes": state["bytes"],
        "epoch": state["epoch"],
        "last_write_ts": state["last_write_ts"],
        "durable": True,
        "effective_priority": 9,
    }


# --- delete


def test_a_deleted_topic_no_longer_exists(api: Api, topic: str) -> None:
    ok(api.append(topic, 1), 201)
    body = ok(api.delete(topic))
    assert (body["topic"], body["deleted"], body["routers_removed"]) == (topic, True, [])
    refused(api.get(topic), 404, "topic_not_found")
    refused(api.diff(topic), 404, "topic_not_found")
    assert ok(api.listing(prefix=topic))["topics"] == []


def test_deleting_a_missing_topic_gets_200(api: Api, topic: str) -> None:
    for query in ({}, {"if_empty": "true"}):
        body = ok(api.delete(topic, **query))
        assert (body["topic"], body["deleted"], body["routers_removed"]) == (topic, False, [])


def test_if_empty_deletes_only_an_empty_topic(api: Api, topic: str) -> None:
    ok(api.append(topic, 1), 201)
    refused(api.delete(topic, if_empty="true"), 409, "topic_not_empty")
    assert api.state(topic)["count"] == 1
    assert ok(api.delete(topic, if_empty="false"))["deleted"] is True
    ok(api.put(topic), 201)
    assert ok(api.delete(topic, if_empty="true"))["deleted"] is True
    refused(api.get(topic), 404, "topic_not_found")


def test_a_recreated_topic_starts_without_old_state(api: Api, topic: str) -> None:
    ok(api.put(topic, {"ttl_ms": 10**9, "priority": 7}), 201)
    ok(api.append(topic, 1, 2, 3, idempotency_key="k"))
    old = api.state(topic)
    ok(api.delete(topic))
    again = ok(api.append(topic, 4, idempotency_key="k"), 201)
    assert (again["created"], again["deduped"], again["seqs"]) == (True, False, [1])
    new = api.state(topic)
    assert new["epoch"] != old["epoch"]
    assert (new["config"]["ttl_ms"], new["config"]["priority"]) == (0, None)
    assert [record["data"] for record in api.read(topic)] == [4]


def test_every_incarnation_has_its_own_epoch(api: Api, topic: str) -> None:
    epochs = []
    for _ in range(5):
        ok(api.put(topic), 201)
        epochs.append(api.state(topic)["epoch"])
        ok(api.delete(topic))
    assert len(set(epochs)) == 5
