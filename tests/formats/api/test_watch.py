"""Watch requests: what is taken, what is clamped, and what is refused by its name."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.limits import LIMITS
from topics.errors import InvalidRequest
from topics.formats.api.limits import DEFAULT_LIMIT
from topics.formats.api.watch import (
    DEFAULT_EVENT_BYTES,
    HEARTBEAT_MAX_MS,
    HEARTBEAT_MIN_MS,
    HEARTBEAT_MS,
    Start,
    View,
    WatchRequest,
    decode_watch,
)
from topics.formats.json_text import json_bytes


def asked(topics: dict[str, Any] | None = None, **fields: Any) -> WatchRequest:
    chosen = {"a": {}} if topics is None else topics
    return decode_watch(json_bytes({"topics": chosen, **fields}), LIMITS, 2)


def test_a_name_alone_has_the_documented_defaults() -> None:
    assert asked() == WatchRequest(
        {"a": Start(from_seq=0, tail=False, epoch=None)},
        View((), False, True, True, DEFAULT_LIMIT, DEFAULT_EVENT_BYTES, False),
        HEARTBEAT_MS,
    )


def test_each_topic_has_a_start_of_its_own() -> None:
    starts = asked({"a": {"from_seq": 7, "epoch": 3}, "b": {"tail": True}}).starts
    assert starts == {"a": Start(7, epoch=3), "b": Start(tail=True)}


def test_equal_views_are_equal_however_their_nodes_are_written() -> None:
    assert asked(node="x").view == asked(node=["x", "x"]).view
    assert asked(node=["b", "a"]).view.nodes == ("a", "b")
    assert asked(consistency="strong").view.strong


def test_a_reader_of_no_data_gets_no_meta() -> None:
    view = asked(include_data=False, include_tags=True).view
    assert (view.data, view.meta, view.tags) == (False, False, True)


@pytest.mark.parametrize(
    ("given", "used"),
    [(0, HEARTBEAT_MIN_MS), (2000, 2000), (10**9, HEARTBEAT_MAX_MS)],
)
def test_a_heartbeat_is_clamped(given: int, used: int) -> None:
    assert asked(heartbeat_ms=given).heartbeat_ms == used


def test_a_limit_is_clamped_to_that_of_the_server() -> None:
    limits = replace(LIMITS, limit=5)
    request = decode_watch(b'{"topics":{"a":{}},"limit":1000000}', limits, 2)
    assert request.view.limit == 5


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"topics":{}}', "topics"),
        (b'{"topics":{"a":{},"b":{},"c":{}}}', "topics"),
        (b'{"topics":{"-a":{}}}', "topics"),
        (b'{"topics":{"a":{"from_seq":-1}}}', "from_seq"),
        (b'{"topics":{"a":{"epoch":-1}}}', "epoch"),
        (b'{"topics":{"a":{}},"limit":-1}', "limit"),
        (b'{"topics":{"a":{}},"max_batch_bytes":-1}', "max_batch_bytes"),
        (b'{"topics":{"a":{}},"heartbeat_ms":-1}', "heartbeat_ms"),
        (b'{"topics":{"a":{}},"consistency":"total"}', "consistency"),
        (b'{"topics":{"a":{}},"node":"%b"}' % (b"n" * 1000), "node"),
    ],
)
def test_what_is_out_of_bounds_is_refused_by_its_name(body: bytes, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        decode_watch(body, LIMITS, 2)
    assert refused.value.detail["field"] == field
