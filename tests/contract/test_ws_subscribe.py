"""The commands subscribe and unsubscribe of /v0/ws (§7.3)."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.api import GAP, Api, create, data, ok
from tests.support.ws import (
    Socket,
    alive,
    subscribe,
)

KIB = 1024
GAP_FIELDS = GAP | {"op", "topic"}


def test_a_subscription_reports_the_head_of_the_topic(socket: Socket, api: Api, topic: str) -> None:
    epoch = create(api, topic, *range(5), cap_records=3)
    other = f"{topic}.other"
    other_epoch = create(api, other, *range(4))
    positions = {topic: {"tail": True}, other: {"from_seq": 4}}
    body = socket.request("subscribe", "s1", topics=positions)
    assert body["op"] == "subscribed"
    assert body["topics"] == {
        topic: {"from_seq": 5, "head_seq": 5, "earliest_seq": 3, "epoch": epoch},
        other: {"from_seq": 4, "head_seq": 4, "earliest_seq": 1, "epoch": other_epoch},
    }
    messages = [socket.message() for _ in positions]
    assert sorted(messages, key=lambda one: one["topic"]) == [
        {"op": "caught_up", "topic": topic, "head_seq": 5},
        {"op": "caught_up", "topic": other, "head_seq": 4},
    ]


def test_a_record_message_has_exactly_these_fields(socket: Socket, api: Api, topic: str) -> None:
    create(api, topic)
    write = {"data": {"a": 1}, "tag": "t", "node": "n", "meta": {"m": 2}}
    ok(api.append(topic, records=[write, {"data": None}]))
    ts = [record["$ts"] for record in api.read(topic)]
    socket.request("subscribe", "s", topic=topic)
    assert socket.message() == {
        "op": "record",
        "topic": topic,
        "from_seq": 0,
        "to_seq": 2,
        "head_seq": 2,
        "records": [
            {"$seq": 1, "$ts": ts[0], "$node": "n", "data": {"a": 1}, "meta": {"m": 2}},
            {"$seq": 2, "$ts": ts[1], "data": None},
        ],
    }
    assert socket.message() == {"op": "caught_up", "topic": topic, "head_seq": 2}
    ok(api.append(topic, "live"))
    body = socket.message("record")
    assert (body["from_seq"], body["to_seq"], body["head_seq"]) == (2, 3, 3)
    assert data(body["records"]) == ["live"]


def test_a_start_below_the_floor_is_reported_as_a_tombstone(
    socket: Socket, api: Api, topic: str
) -> None:
    create(api, topic, *range(1, 11), cap_records=4)
    socket.request("subscribe", "s", topic=topic)
    body = socket.message("tombstone")
    assert GAP_FIELDS <= set(body) <= GAP_FIELDS | {"missed_estimate", "epoch"}
    assert {name: body[name] for name in GAP_FIELDS} == {
        "op": "tombstone",
        "topic": topic,
        "reason": "from_seq_too_old",
        "gap_from": 1,
        "gap_to": 6,
        "earliest_seq": 7,
        "head_seq": 10,
    }
    assert data(socket.records(4)) == [7, 8, 9, 10]


def test_a_deleted_topic_is_reported_and_ends_only_its_subscription(
    socket: Socket, api: Api, new_name: Callable[[], str]
) -> None:
    deleted, remaining = new_name(), new_name()
    for name in (deleted, remaining):
        create(api, name, 1)
        subscribe(socket, name)
    ok(api.delete(deleted))
    body = socket.message("topic_deleted")
    assert set(body) == {"op", "topic", "head_seq", "reason"}
    assert (body["topic"], body["reason"], type(body["head_seq"])) == (deleted, "deleted", int)
    ok(api.append(deleted, "again"), 201)
    ok(api.append(remaining, 2))
    assert socket.message("record")["topic"] == remaining


def test_unsubscribing_ends_one_subscription(
    socket: Socket, api: Api, new_name: Callable[[], str]
) -> None:
    left, right = new_name(), new_name()
    for name in (left, right):
        create(api, name)
        subscribe(socket, name)
    assert socket.request("unsubscribe", "u1", topic=left)["op"] == "unsubscribed"
    ok(api.append(left, "not for us"))
    ok(api.append(right, "for us"))
    assert data(socket.records(1)) == ["for us"]
    alive(socket)
    assert data(subscribe(socket, left)) == ["not for us"]
