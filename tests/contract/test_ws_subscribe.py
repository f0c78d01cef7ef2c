"""The commands subscribe and unsubscribe of /v0/ws (§7.3)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.api import GAP, SLACK_S, Api, create, data, ok
from tests.support.server import Server
from tests.support.ws import (
    Socket,
    alive,
    subscribe,
)

KIB = 1024
STONE = GAP | {"op", "topic"}


def test_a_subscription_tells_where_the_topic_stands(socket: Socket, api: Api, topic: str) -> None:
    epoch = create(api, topic, *range(5), cap_records=3)
    body = socket.ask("subscribe", "s1", topic=topic, tail=True)
    assert {name: body[name] for name in ("op", "request_id")} == {
        "op": "subscribed",
        "request_id": "s1",
    }
    shown = body["topics"]
    assert set(shown) == {topic}
    assert shown[topic].pop("epoch", epoch) == epoch
    assert shown[topic] == {"from_seq": 5, "head_seq": 5, "earliest_seq": 3}
    assert socket.message() == {"op": "caught_up", "topic": topic, "head_seq": 5}


def test_a_record_message_has_exactly_these_fields(socket: Socket, api: Api, topic: str) -> None:
    create(api, topic)
    ok(
        api.append(
            topic,
            records=[{"data": {"a": 1}, "tag": "t", "node": "n", "meta": {"m": 2}}, {"data": None}],
        )
    )
    ts = [record["$ts"] for record in api.read(topic)]
    socket.ask("subscribe", "s", topic=topic)
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
    assert (body["from_seq"], body["to_seq"], body["head_seq"], data(body["records"])) == (
        2,
        3,
        3,
        ["live"],
    )


def test_a_map_subscribes_to_many_topics(
    socket: Socket, api: Api, new_name: Callable[[], str]
) -> None:
    names = [new_name() for _ in range(3)]
    for name in names:
        create(api, name, *range(4))
    body = socket.ask(
        "subscribe", "s", topics={names[0]: {}, names[1]: {"from_seq": 3}, names[2]: {"tail": True}}
    )
    assert {name: body["topics"][name]["from_seq"] for name in names} == {
        names[0]: 0,
        names[1]: 3,
        names[2]: 4,
    }
    seen: dict[str, list[Any]] = {name: [] for name in names}
    waiting = set(names)
    while waiting:
        message = socket.message("record", "caught_up")
        seen[message["topic"]] += data(message.get("records", []))
        waiting -= {message["topic"]} if message["op"] == "caught_up" else set()
    assert seen == {names[0]: [0, 1, 2, 3], names[1]: [3], names[2]: []}
    ok(api.append(names[2], "x"))
    assert socket.message("record")["topic"] == names[2]


def test_a_start_below_the_floor_is_a_tombstone(socket: Socket, api: Api, topic: str) -> None:
    create(api, topic, *range(1, 11), cap_records=4)
    socket.ask("subscribe", "s", topic=topic)
    body = socket.message("tombstone")
    assert STONE <= set(body) <= STONE | {"missed_estimate", "epoch"}
    assert {name: body[name] for name in STONE} == {
        "op": "tombstone",
        "topic": topic,
        "reason": "from_seq_too_old",
        "gap_from": 1,
        "gap_to": 6,
        "earliest_seq": 7,
        "head_seq": 10,
    }
    assert data(socket.records(4)) == [7, 8, 9, 10]


def test_a_deleted_topic_is_told_and_ends_for_itself_only(
    socket: Socket, api: Api, new_name: Callable[[], str]
) -> None:
    gone, stays = new_name(), new_name()
    for name in (gone, stays):
        create(api, name, 1)
        subscribe(socket, name)
    ok(api.delete(gone))
    body = socket.message("topic_deleted")
    assert set(body) == {"op", "topic", "head_seq", "reason"}
    assert (body["topic"], body["reason"], type(body["head_seq"])) == (gone, "deleted", int)
    ok(api.append(gone, "again"), 201)
    ok(api.append(stays, 2))
    assert socket.message("record")["topic"] == stays


def test_unsubscribing_ends_one_subscription(
    socket: Socket, api: Api, new_name: Callable[[], str]
) -> None:
    left, right = new_name(), new_name()
    for name in (left, right):
        create(api, name)
        subscribe(socket, name)
    assert socket.ask("unsubscribe", "u1", topic=left)["op"] == "unsubscribed"
    ok(api.append(left, "not for us"))
    ok(api.append(right, "for us"))
    assert data(socket.records(1)) == ["for us"]
    alive(socket)
    assert data(subscribe(socket, left)) == ["not for us"]


@pytest.mark.slow
def test_a_stalled_socket_delays_nobody_and_reads_everything_later(
    server: Server, api: Api, topic: str
) -> None:
    create(api, topic)
    block = "x" * 100 * KIB
    with Socket(server.address, receive_bytes=16 * KIB) as stalled, Socket(server.address) as quick:
        subscribe(stalled, topic)
        subscribe(quick, topic)
        slowest = 0.0
        for number in range(200):
            sent = time.monotonic()
            ok(api.append(topic, [number, block]))
            assert quick.records(1)[0]["data"][0] == number
            slowest = max(slowest, time.monotonic() - sent)
        assert [record["data"][0] for record in stalled.records(200)] == list(range(200))
        stalled.say("ping", "alive")
        *told, _ = stalled.until("pong", request_id="alive")
        assert told in ([], [{"op": "caught_up", "topic": topic, "head_seq": 200}])
    assert slowest < SLACK_S
