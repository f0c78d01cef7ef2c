"""The command publish of /v0/ws (§7.3)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.api import SLACK_S, Api, create, data, ok, refused
from tests.support.server import Server
from tests.support.ws import (
    Socket,
    failed,
    subscribe,
)


def test_an_ack_has_the_documented_fields(socket: Socket, api: Api, topic: str) -> None:
    create(api, topic, "old")
    body = socket.ask(
        "publish", "p1", topic=topic, records=[{"data": 1}, {"data": 2}], return_seqs=False
    )
    assert isinstance(body.pop("performance"), dict)
    assert {"op", "request_id", "topic", "last_seq", "head_seq"} <= set(body)
    assert (body["op"], body["request_id"], body["topic"]) == ("ack", "p1", topic)
    assert (body["last_seq"], body["head_seq"]) == (3, 3)
    assert "seqs" not in body
    assert data(api.read(topic)) == ["old", 1, 2]


def test_seqs_are_returned_when_asked_for(socket: Socket, api: Api, topic: str) -> None:
    create(api, topic, "old")
    assert socket.ask(
        "publish", "p1", topic=topic, records=[{"data": 1}, {"data": 2}], return_seqs=True
    )["seqs"] == [2, 3]


def test_records_are_published_with_all_their_fields(socket: Socket, api: Api, topic: str) -> None:
    create(api, topic)
    writes = [{"data": {"a": None}, "tag": "t", "node": "mine", "meta": {"m": [1]}}, {"data": None}]
    assert (
        socket.ask(
            "publish", "p", topic=topic, node="batch", records=writes, disable_backpressure=True
        )["op"]
        == "ack"
    )
    first, second = api.read(topic, include_tags=True)
    assert (first["data"], first["$tag"], first["$node"], first["meta"]) == (
        {"a": None},
        "t",
        "mine",
        {"m": [1]},
    )
    assert (second["data"], second["$node"], "$tag" in second, "meta" in second) == (
        None,
        "batch",
        False,
        False,
    )


@pytest.mark.parametrize(
    "value",
    [
        b"1.10",
        b"1E400",
        b"1234567890123456789012345678901234567890",
        rb'"\u00e9\/"',
        b'{"b" : 1,\n "a":2}',
    ],
)
def test_payloads_come_back_verbatim(socket: Socket, api: Api, topic: str, value: bytes) -> None:
    create(api, topic)
    subscribe(socket, topic)
    socket.text(
        b'{"op":"publish","request_id":"p","topic":"%s","records":[{"data":%s}]}'
        % (topic.encode(), value)
    )
    shown = b""
    waiting = {"ack", "record"}
    while waiting:
        payload = socket.receive().payload
        op = json.loads(payload)["op"]
        waiting.discard(op)
        shown += payload if op == "record" else b""
    assert b'"data":' + value + b"}" in shown
    assert b'"data":' + value + b"}" in api.diff(topic).body


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_every_class_is_published_to(socket: Socket, api: Api, topic: str, durability: str) -> None:
    create(api, topic, durability=durability)
    for number in range(1, 4):
        assert (
            socket.ask("publish", f"p{number}", topic=topic, records=[{"data": number}])["last_seq"]
            == number
        )
    assert data(api.read(topic)) == [1, 2, 3]


def test_publishing_may_make_the_topic(socket: Socket, api: Api, topic: str) -> None:
    failed(
        socket.ask("publish", "p1", topic=topic, records=[{"data": 1}], create=False),
        "p1",
        "topic_not_found",
    )
    refused(api.get(topic), 404, "topic_not_found")
    fields = {"create": True, "config": {"cap_records": 2, "durability": "memory"}}
    assert (
        socket.ask(
            "publish", "p2", topic=topic, records=[{"data": at} for at in range(5)], **fields
        )["last_seq"]
        == 5
    )
    state = api.state(topic)
    assert (state["count"], state["config"]["cap_records"], state["config"]["durability"]) == (
        2,
        2,
        "memory",
    )
    assert (
        socket.ask("publish", "p3", topic=f"{topic}.other", records=[{"data": 1}])["last_seq"] == 1
    )


def test_a_config_is_ignored_when_the_topic_is_there(socket: Socket, api: Api, topic: str) -> None:
    create(api, topic)
    assert (
        socket.ask("publish", "p", topic=topic, records=[{"data": 1}], config={"cap_records": 1})[
            "op"
        ]
        == "ack"
    )
    assert api.state(topic)["config"]["cap_records"] == 0


def test_an_idempotency_key_makes_a_repeated_publish_harmless(
    socket: Socket, api: Api, topic: str
) -> None:
    create(api, topic)
    for number in range(3):
        body = socket.ask(
            "publish", f"p{number}", topic=topic, records=[{"data": number}], idempotency_key="once"
        )
        assert (body["op"], body["last_seq"], body["head_seq"]) == ("ack", 1, 1)
    body = ok(api.append(topic, "again", idempotency_key="once"))
    assert (body["seqs"], body["deduped"]) == ([1], True)
    assert data(api.read(topic)) == [0]


def test_acks_of_one_topic_come_in_order(socket: Socket, api: Api, topic: str) -> None:
    create(api, topic)
    for number in range(200):
        socket.say("publish", f"p{number}", topic=topic, records=[{"data": number}])
    acks = [socket.message("ack") for _ in range(200)]
    assert [(ack["request_id"], ack["last_seq"]) for ack in acks] == [
        (f"p{number}", number + 1) for number in range(200)
    ]
    assert data(api.read(topic)) == list(range(200))


def test_every_publish_is_answered_whatever_the_topics(
    socket: Socket, api: Api, new_name: Callable[[], str]
) -> None:
    names = [new_name() for _ in range(4)]
    for at, name in enumerate(names):
        create(api, name, durability=("ephemeral", "memory", "disk", "fsync")[at])
    for number in range(80):
        socket.say("publish", str(number), topic=names[number % 4], records=[{"data": number}])
    acks = [socket.message("ack") for _ in range(80)]
    assert sorted(int(ack["request_id"]) for ack in acks) == list(range(80))
    assert all(ack["topic"] == names[int(ack["request_id"]) % 4] for ack in acks)
    for name in names:
        assert [ack["last_seq"] for ack in acks if ack["topic"] == name] == list(range(1, 21))


def test_what_a_socket_publishes_comes_back_to_it(socket: Socket, api: Api, topic: str) -> None:
    create(api, topic)
    subscribe(socket, topic)
    socket.say("publish", "p", topic=topic, records=[{"data": "x"}])
    waiting = {"ack", "record"}
    while waiting:
        waiting.discard(socket.message("ack", "record", "caught_up")["op"])


def test_two_sockets_in_a_room_hear_each_other_and_not_themselves(
    server: Server, api: Api, topic: str
) -> None:
    create(api, topic, durability="ephemeral")
    with Socket(server.address) as anna, Socket(server.address) as otto:
        subscribe(anna, topic, tail=True, node="anna")
        subscribe(otto, topic, tail=True, node="otto")
        heard: dict[str, list[Any]] = {"anna": [], "otto": []}
        for number in range(20):
            anna.say(
                "publish",
                f"a{number}",
                topic=topic,
                records=[{"node": "anna", "data": ["anna", number]}],
            )
            otto.say(
                "publish",
                f"o{number}",
                topic=topic,
                records=[{"node": "otto", "data": ["otto", number]}],
            )
        for name, socket in (("anna", anna), ("otto", otto)):
            acks = 0
            while acks < 20 or len(heard[name]) < 20:
                message = socket.message("ack", "record", "caught_up")
                acks += message["op"] == "ack"
                heard[name] += data(message.get("records", []))
    assert heard == {
        "anna": [["otto", at] for at in range(20)],
        "otto": [["anna", at] for at in range(20)],
    }


def test_a_publish_over_http_is_heard_on_a_socket_while_it_is_new(
    socket: Socket, api: Api, topic: str
) -> None:
    create(api, topic)
    subscribe(socket, topic)
    for number in range(20):
        sent = time.monotonic()
        ok(api.append(topic, number))
        assert data(socket.records(1)) == [number]
        assert time.monotonic() - sent < SLACK_S
