"""The topic config (§0.10): defaults, changes by a request, clamps, and rejected values."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.topic_configs import DEFAULTS
from topics.errors import InvalidRequest, TopicExistsIncompatible
from topics.formats.api.decoding import decode_config
from topics.formats.api.limits import U64_MAX
from topics.formats.api.topic_config import (
    TopicConfig,
    TopicConfigPatch,
    merge,
    shared_config,
)
from topics.formats.json_text import json_bytes

OTHERS: dict[str, Any] = {
    "type": "queue",
    "ttl_ms": 1,
    "cap_records": 2,
    "cap_bytes": 3,
    "discard": "reject",
    "durability": "memory",
    "priority": 4,
    "auto_priority": False,
    "auto_create": False,
    "idempotency_window_ms": 0,
    "dedupe_node": False,
    "lease_ms": 500,
    "claim_jitter_ms": 6,
    "max_deliveries": 7,
    "dead_letter": "dlq",
    "leases_durable": True,
}


def patch(**fields: Any) -> TopicConfigPatch:
    return decode_config(json_bytes(fields))


def merged(base: TopicConfig | None = None, /, **fields: Any) -> TopicConfig:
    return merge("topic", base, patch(**fields))


def test_an_empty_request_has_the_defaults_in_the_order_of_the_document() -> None:
    assert list(merged().as_json().items()) == list(DEFAULTS.items())


def test_a_returned_config_is_accepted_as_a_request() -> None:
    base = merged(**OTHERS)
    assert merge("topic", base, decode_config(json_bytes(base.as_json()))) == base


@pytest.mark.parametrize("base", ["ephemeral", "memory", "disk", "fsync"])
@pytest.mark.parametrize(
    ("requested", "expected"),
    [
        ({"durable": True}, "fsync"),
        ({"durable": False}, "disk"),
        ({"durability": "memory"}, "memory"),
        ({"durability": "ephemeral", "durable": True}, "ephemeral"),
        ({"durability": "fsync", "durable": False}, "fsync"),
        ({}, None),
    ],
)
def test_the_latest_of_durable_and_durability_determines_the_class(
    base: str, requested: dict[str, Any], expected: str | None
) -> None:
    config = merged(merged(durability=base), **requested)
    assert config.durability == (expected or base)
    assert config.as_json()["durable"] is (config.durability == "fsync")


@pytest.mark.parametrize(
    ("field", "requested", "stored"),
    [
        ("priority", -1001, -1000),
        ("priority", -1000, -1000),
        ("priority", 1000, 1000),
        ("priority", 1001, 1000),
        ("priority", 10**30, 1000),
        ("lease_ms", 0, 100),
        ("lease_ms", 99, 100),
        ("lease_ms", 86_400_000, 86_400_000),
        ("lease_ms", 86_400_001, 86_400_000),
        ("claim_jitter_ms", 5000, 5000),
        ("claim_jitter_ms", 5001, 5000),
        ("claim_jitter_ms", U64_MAX, 5000),
    ],
)
def test_values_documented_as_clamped_are_stored_clamped(
    field: str, requested: int, stored: int
) -> None:
    assert merged(**{field: requested}).as_json()[field] == stored
    assert merged(TopicConfig(), **{field: requested}).as_json()[field] == stored


UNSIGNED = [
    *("ttl_ms", "cap_records", "cap_bytes", "idempotency_window_ms", "lease_ms"),
    *("claim_jitter_ms", "max_deliveries"),
]


@pytest.mark.parametrize("field", UNSIGNED)
def test_an_unsigned_number_has_64_bits(field: str) -> None:
    merged(**{field: U64_MAX})
    for value in (-1, U64_MAX + 1, 10**40):
        with pytest.raises(InvalidRequest, match=field) as raised:
            merge("topic", None, decode_config(b'{"%b":%d}' % (field.encode(), value)))
        assert raised.value.detail == {"field": field}


@pytest.mark.parametrize("name", ["topic", "", "-x", "a b", "a\n"])
def test_a_dead_letter_must_be_the_name_of_another_topic(name: str) -> None:
    with pytest.raises(InvalidRequest, match="dead_letter"):
        merged(dead_letter=name)


@pytest.mark.parametrize(("before", "requested"), [("log", "queue"), ("queue", "log")])
def test_the_type_of_a_topic_never_changes(before: str, requested: str) -> None:
    with pytest.raises(TopicExistsIncompatible) as raised:
        merged(merged(type=before), type=requested)
    assert raised.value.detail == {"topic": "topic", "type": before}
    assert merged(merged(type=before), type=before).type == before
    assert merged(merged(type=before)).type == before


@given(st.sets(st.sampled_from(sorted(OTHERS))))
def test_a_merge_replaces_only_the_named_fields(chosen: set[str]) -> None:
    requested = {name: OTHERS[name] for name in chosen if name != "type"}
    assert merged(TopicConfig(), **requested).as_json() == {**DEFAULTS, **requested}
    assert merged(merged(TopicConfig(), **requested), **requested) == merged(
        TopicConfig(), **requested
    )


def test_topics_with_equal_configs_share_one_object() -> None:
    first, second = (merge("t", None, decode_config(b'{"ttl_ms":17}')) for _ in range(2))
    assert first is second
    assert merge("t", first, decode_config(b"{}")) is first
    assert merge("t", first, decode_config(b'{"ttl_ms":0}')) == TopicConfig()
    assert shared_config(TopicConfig(ttl_ms=17)) is first
