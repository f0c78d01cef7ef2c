"""Topics: what a put, a get and a list answer, and when."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from tests.support.shard import Desk
from topics.formats.wire.calls import TOPIC_GET, TOPIC_LIST, TopicGetParams, TopicListParams
from topics.formats.wire.envelope import Success, decode


def get(desk: Desk, topic: str, *, touch: bool = False) -> dict[str, Any]:
    """The state of a topic, or its error's code."""
    desk.ask(TOPIC_GET, TopicGetParams(topic, touch, time.monotonic_ns()))
    ((_, state),) = desk.bodies()
    return state


def listed(desk: Desk, prefix: str = "", **more: Any) -> list[dict[str, Any]]:
    fields = {"after": None, "limit": 100, "touch": False, "prefixes": None} | more
    desk.ask(TOPIC_LIST, TopicListParams(prefix, **fields))
    (frame,) = desk.wire.take()
    answer = decode(frame.payload)
    assert isinstance(answer, Success)
    items = TOPIC_LIST.result._make(answer.result).items
    rows = [msgspec.json.decode(row) for _, row in items]
    assert [row["topic"] for row in rows] == [name for name, _ in items]
    return rows


async def test_a_put_is_answered_once_its_config_is_on_the_disk(desk: Desk) -> None:
    made = desk.put("a", ttl_ms=7)
    desk.written()
    assert desk.answers() == []
    desk.synced()
    ((number, answer),) = desk.bodies()
    assert (number, answer["status"], answer["config"]["ttl_ms"]) == (made, 201, 7)
    again = desk.put("a", ttl_ms=8)
    desk.synced()
    assert desk.answers() == [(again, 200)]


async def test_the_state_of_a_topic_counts_what_is_committed(desk: Desk) -> None:
    desk.make("a", cap_records=2)
    desk.append("a", 1, 2, 3)
    assert get(desk, "a")["head_seq"] == 0
    desk.synced()
    desk.answers()
    state = get(desk, "a")
    assert (state["head_seq"], state["next_seq"], state["earliest_seq"]) == (3, 4, 2)
    assert (state["count"], state["config"]["cap_records"]) == (2, 2)
    assert get(desk, "none")["code"] == "topic_not_found"


async def test_only_a_get_that_touches_counts_as_a_read(desk: Desk) -> None:
    desk.make("a")
    get(desk, "a")
    assert get(desk, "a")["last_read_ts"] is None
    get(desk, "a", touch=True)
    state = get(desk, "a")
    assert state["last_read_ts"] is not None
    assert 490 <= state["effective_priority"] <= 500


async def test_a_list_goes_on_by_name_and_ends_at_its_limit(desk: Desk) -> None:
    for name in ("b", "a.2", "a.1", "c"):
        desk.make(name)
    desk.append("b", 1)
    desk.synced()
    desk.answers()
    assert [row["topic"] for row in listed(desk, limit=3)] == ["a.1", "a.2", "b"]
    assert [(row["topic"], row["count"]) for row in listed(desk, after="a.2")] == [
        ("b", 1),
        ("c", 0),
    ]
    assert [row["topic"] for row in listed(desk, "a.")] == ["a.1", "a.2"]
    assert [row["topic"] for row in listed(desk, prefixes=["c"])] == ["c"]


async def test_the_state_of_a_queue_counts_its_jobs_and_that_of_a_log_has_none(
    desk: Desk,
) -> None:
    desk.make("log", durability="ephemeral")
    desk.make("q", type="queue", durability="ephemeral")
    desk.append("q", 1, 2)
    desk.append_raw("q", b'{"records":[{"data":3,"delay_ms":60000}]}')
    desk.answers()
    queue = {"ready": 2, "in_flight": 0, "dead_lettered": 0, "delayed": 1}
    assert get(desk, "q")["queue"] == queue
    assert "queue" not in get(desk, "log")
