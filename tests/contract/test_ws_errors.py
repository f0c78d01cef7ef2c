"""Errors on /v0/ws (§7.3), which leave the socket open."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support import wrong_types
from tests.support.api import Api, create, data
from tests.support.ws import (
    BINARY,
    Socket,
    alive,
    command,
    failed,
    subscribe,
)

KIB = 1024


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "nope",
        "[]",
        "null",
        "5",
        '"ping"',
        '{"op":"ping",}',
        '{"op":NaN}',
        "{}{}",
        "[" * 100_000,
    ],
)
def test_an_invalid_command_is_an_error(socket: Socket, text: str) -> None:
    socket.text(text)
    failed(socket.message(), None, "invalid_request")
    alive(socket)


def test_a_binary_message_is_an_error(socket: Socket) -> None:
    socket.frame(BINARY, json.dumps(command("ping", "b")).encode())
    assert socket.message()["op"] == "error"
    alive(socket)


COMMANDS: list[tuple[dict[str, Any], str]] = [
    ({"op": "nope"}, "invalid_request"),
    ({"op": "PING"}, "invalid_request"),
    ({"op": 5}, "invalid_request"),
    ({"op": None}, "invalid_request"),
    ({}, "invalid_request"),
    ({"op": "subscribe"}, "invalid_request"),
    ({"op": "subscribe", "topic": 5}, "invalid_request"),
    ({"op": "subscribe", "topic": "a b"}, "invalid_request"),
    ({"op": "subscribe", "topic": "TOPIC.absent"}, "topic_not_found"),
    ({"op": "subscribe", "topics": {"TOPIC": {}, "TOPIC.absent": {}}}, "topic_not_found"),
    ({"op": "subscribe", "topics": {f"TOPIC.{at}": {} for at in range(257)}}, "invalid_request"),
    ({"op": "unsubscribe"}, "invalid_request"),
    ({"op": "unsubscribe", "topic": 5}, "invalid_request"),
    ({"op": "publish", "records": [{"data": 1}]}, "invalid_request"),
    ({"op": "publish", "topic": "TOPIC"}, "invalid_request"),
    ({"op": "publish", "topic": "TOPIC", "records": []}, "invalid_request"),
    ({"op": "publish", "topic": "TOPIC", "records": [{}]}, "invalid_request"),
    ({"op": "publish", "topic": "TOPIC", "records": [{"data": 1, "tag": 5}]}, "invalid_request"),
    (
        {"op": "publish", "topic": "TOPIC", "records": [{"data": 1, "tag": "x" * 257}]},
        "invalid_request",
    ),
    ({"op": "publish", "topic": "TOPIC", "records": [{"data": 1}], "node": 5}, "invalid_request"),
    (
        {"op": "publish", "topic": "TOPIC", "records": [{"data": 1}], "idempotency_key": ""},
        "invalid_request",
    ),
    (
        {"op": "publish", "topic": "TOPIC", "records": [{"data": 1}], "return_seqs": "no"},
        "invalid_request",
    ),
    ({"op": "publish", "topic": "a/b", "records": [{"data": 1}]}, "invalid_request"),
    (
        {"op": "publish", "topic": "TOPIC.absent", "records": [{"data": 1}], "create": False},
        "topic_not_found",
    ),
    (
        {"op": "publish", "topic": "TOPIC", "records": [{"data": "x" * (1024 * KIB)}]},
        "record_too_large",
    ),
    (
        {
            "op": "publish",
            "topic": "TOPIC",
            "records": [{"data": 1, "meta": {"k": "x" * 17 * KIB}}],
        },
        "record_too_large",
    ),
    ({"op": "publish", "topic": "TOPIC", "records": [{"data": 1}] * 10_001}, "batch_too_large"),
]


WRONG = [
    *(f'"topic":"TOPIC","{field}":{raw}' for field, raw in wrong_types.LIVE_VIEW),
    *(f'"topic":"TOPIC","{field}":{raw}' for field, raw in wrong_types.START),
    *(f'"topics":{raw}' for raw in wrong_types.TOPICS),
]


@pytest.mark.parametrize("members", WRONG, ids=lambda value: f"7.3 {value[:60]}")
def test_a_wrong_type_in_a_subscription_is_an_error(
    socket: Socket, api: Api, topic: str, members: str
) -> None:
    create(api, topic)
    socket.text(f'{{"op":"subscribe","request_id":"bad",{members}}}'.replace("TOPIC", topic))
    failed(socket.message(), "bad", "invalid_request")
    alive(socket)


@pytest.mark.parametrize(
    ("fields", "code"), COMMANDS, ids=[f"7.3 {str(row[0])[:70]}" for row in COMMANDS]
)
def test_a_command_that_fails_is_an_error_and_no_more(
    socket: Socket, api: Api, topic: str, fields: dict[str, Any], code: str
) -> None:
    create(api, topic, "kept")
    socket.text(json.dumps({"request_id": "bad", **fields}).replace("TOPIC", topic))
    failed(socket.message(), "bad", code)
    alive(socket)
    assert data(api.read(topic)) == ["kept"]
    assert data(subscribe(socket, topic)) == ["kept"]


def test_a_full_topic_refuses_a_publish(socket: Socket, api: Api, topic: str) -> None:
    create(api, topic, 1, cap_records=1, discard="reject")
    failed(socket.ask("publish", "p", topic=topic, records=[{"data": 2}]), "p", "topic_full")
    alive(socket)


def test_errors_and_acks_keep_their_order(socket: Socket, api: Api, topic: str) -> None:
    create(api, topic)
    for number in range(20):
        socket.say(
            "publish", str(number), topic=topic, records=[{"data": number}] if number % 2 else []
        )
    answers = {
        message["request_id"]: message["op"]
        for message in (socket.message("ack", "error") for _ in range(20))
    }
    assert answers == {str(number): "ack" if number % 2 else "error" for number in range(20)}
    assert data(api.read(topic)) == list(range(1, 20, 2))


def test_a_command_needs_no_request_id(socket: Socket, api: Api, topic: str) -> None:
    create(api, topic)
    socket.say("ping")
    body = socket.message("pong")
    assert body.get("request_id") is None
    socket.say("publish", topic=topic, records=[{"data": 1}])
    assert socket.message("ack").get("request_id") is None


def test_unknown_fields_are_ignored(socket: Socket, api: Api, topic: str) -> None:
    create(api, topic, 1)
    assert data(subscribe(socket, topic, colour="red")) == [1]
    assert socket.ask("ping", "p", colour="red")["op"] == "pong"
