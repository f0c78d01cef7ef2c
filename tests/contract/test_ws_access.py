"""Keys on /v0/ws (§0.2, §7.3)."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.api import Api, ok, refused
from tests.support.server import Server
from tests.support.ws import (
    KEY,
    Socket,
    alive,
    command,
    failed,
    handshake,
    shake,
)

KEYS = ",".join(
    [
        "full-key",
        "reader:read",
        "writer:write",
        "rw-key:rw",
        "remover:delete",
        "admin:rw+a",
        "tenant:rw:t42:|shared.",
        "config:w+a",
    ]
)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("guarded-ws") / "data", api_keys=KEYS, shards=2) as server:
        with Api(server.address, token="full-key") as api:
            for name in ("t42:a", "shared.x", "other"):
                ok(api.append(name, name), 201)
        yield server


@pytest.mark.parametrize(
    "headers",
    [
        [],
        ["Authorization: Bearer nope"],
        ["Authorization: Basic full-key"],
        ["Authorization: Bearer "],
    ],
)
def test_without_a_known_key_there_is_no_upgrade(guarded: Server, headers: list[str]) -> None:
    refused(shake(guarded, handshake(KEY, *headers)), 401, "unauthorized")


def test_a_key_in_the_query_opens_no_socket(guarded: Server) -> None:
    refused(shake(guarded, handshake(KEY, path="/v0/ws?token=full-key")), 401, "unauthorized")


@pytest.mark.parametrize("token", ["full-key", "reader", "writer", "remover", "tenant"])
def test_any_key_opens_a_socket(guarded: Server, token: str) -> None:
    with Socket(guarded.address, token=token) as socket:
        alive(socket)


SUBSCRIBE, PUBLISH, CONFIGURE = "subscribe", "publish", "publish with config"
ALLOWED = [
    ("full-key", "other", {SUBSCRIBE, PUBLISH, CONFIGURE}),
    ("reader", "other", {SUBSCRIBE}),
    ("writer", "other", {PUBLISH}),
    ("rw-key", "other", {SUBSCRIBE, PUBLISH}),
    ("remover", "other", set()),
    ("admin", "other", {SUBSCRIBE, PUBLISH, CONFIGURE}),
    ("config", "other", {PUBLISH, CONFIGURE}),
    ("tenant", "t42:a", {SUBSCRIBE, PUBLISH}),
    ("tenant", "shared.x", {SUBSCRIBE, PUBLISH}),
    ("tenant", "other", set()),
    ("tenant", "t4", set()),
]


@pytest.mark.parametrize(
    ("token", "topic", "allowed"), ALLOWED, ids=[f"0.2 {row[0]} {row[1]}" for row in ALLOWED]
)
def test_every_command_is_authorized_by_itself(
    guarded: Server, token: str, topic: str, allowed: set[str]
) -> None:
    commands = {
        PUBLISH: command("publish", "p", topic=topic, records=[{"data": 1}]),
        CONFIGURE: command(
            "publish", "c", topic=topic, records=[{"data": 1}], config={"cap_records": 10}
        ),
        SUBSCRIBE: command("subscribe", "s", topic=topic, tail=True),
    }
    with Socket(guarded.address, token=token) as socket:
        for name, body in commands.items():
            socket.text(json.dumps(body))
            answer = socket.message()
            if name in allowed:
                assert (answer["op"], answer["request_id"]) == (
                    "subscribed" if name == SUBSCRIBE else "ack",
                    body["request_id"],
                )
            else:
                failed(answer, body["request_id"], "forbidden")
        if SUBSCRIBE in allowed:
            assert socket.message("caught_up")["topic"] == topic
        alive(socket)


def test_one_forbidden_topic_forbids_the_whole_subscription(guarded: Server) -> None:
    with Socket(guarded.address, token="tenant") as socket:
        failed(socket.ask("subscribe", "s", topics={"t42:a": {}, "other": {}}), "s", "forbidden")
        failed(
            socket.ask("subscribe", "t", topics={"t42:a": {}, "other-that-is-absent": {}}),
            "t",
            "forbidden",
        )
        alive(socket)
        with Api(guarded.address, token="full-key") as api:
            ok(api.append("t42:a", 1))
        alive(socket)
