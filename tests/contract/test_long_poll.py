"""Long polls (``wait_ms`` of a diff, §3): events that end a wait, and events that do not."""

from __future__ import annotations

import json
import select
import time
from typing import Any

import pytest

from tests.support.api import SLACK_S, Api, Wire, ok, reached, request


def diff(topic: str, **fields: Any) -> bytes:
    return request("POST", f"/v0/topics/{topic}/diff", json.dumps(fields).encode())


def is_answered(wire: Wire) -> bool:
    return bool(select.select([wire.socket], [], [], 0)[0])


def test_a_long_poll_ends_with_the_first_record_that_passes_its_filter(
    wire: Wire, api: Api, topic: str
) -> None:
    ok(api.append(topic, 1), 201)
    wire.send(diff(topic, from_seq=1, node="me", wait_ms=20_000))
    reached(api, topic)
    sent = time.monotonic()
    ok(api.append(topic, "mine", node="me"))
    reached(api, topic)
    assert not is_answered(wire)
    ok(api.append(topic, 2, 3))
    page = ok(wire.answer())
    assert [record["data"] for record in page["records"]] == [2, 3]
    assert (page["next_from_seq"], page["caught_up"]) == (4, True)
    assert time.monotonic() - sent < SLACK_S


def test_a_cursor_above_the_head_waits_for_records_above_itself(
    wire: Wire, api: Api, topic: str
) -> None:
    epoch = ok(api.put(topic), 201)["epoch"]
    ok(api.append(topic, 1, 2, 3))
    wire.send(diff(topic, from_seq=5, epoch=epoch, wait_ms=20_000))
    reached(api, topic)
    ok(api.append(topic, 4))
    reached(api, topic)
    ok(api.append(topic, 5, 6))
    page = ok(wire.answer())
    assert [record["data"] for record in page["records"]] == [6]
    assert page["next_from_seq"] == 6


@pytest.mark.parametrize("wait_ms", [1, 300])
def test_a_long_poll_ends_on_time(api: Api, topic: str, wait_ms: int) -> None:
    ok(api.append(topic, 1), 201)
    sent = time.monotonic()
    page = ok(api.diff(topic, from_seq=1, wait_ms=wait_ms))
    took_s = time.monotonic() - sent
    assert wait_ms / 1000 - 0.005 <= took_s < wait_ms / 1000 + SLACK_S
    assert (page["records"], page["next_from_seq"]) == ([], 1)
    assert (page["caught_up"], page["tombstone"]) == (True, None)


READY = {
    "records are there": {"from_seq": 0, "wait_ms": 20_000},
    "no wait": {"from_seq": 1, "wait_ms": 0},
    "no wait by default": {"from_seq": 1},
    "a tombstone": {"from_seq": 50, "wait_ms": 20_000},
}


@pytest.mark.parametrize("fields", READY.values(), ids=[f"3 {name}" for name in READY])
def test_a_long_poll_returns_existing_records_immediately(
    api: Api, topic: str, fields: dict[str, Any]
) -> None:
    ok(api.append(topic, 1), 201)
    sent = time.monotonic()
    ok(api.diff(topic, **fields))
    assert time.monotonic() - sent < SLACK_S


@pytest.mark.slow
def test_requests_pipelined_after_a_long_poll_are_answered_in_order(
    wire: Wire, api: Api, topic: str
) -> None:
    ok(api.append(topic, 1), 201)
    poll = diff(topic, from_seq=1, wait_ms=300)
    append = request("POST", f"/v0/topics/{topic}", b'{"records":[{"data":2}]}')
    wire.send(poll + request("GET", f"/v0/topics/{topic}") + poll + append)
    assert ok(wire.answer())["records"] == []
    assert ok(wire.answer())["count"] == 1
    assert ok(wire.answer())["records"] == []
    assert ok(wire.answer())["seqs"] == [2]
