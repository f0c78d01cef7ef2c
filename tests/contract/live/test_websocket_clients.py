"""WebSockets with websockets and trio-websocket."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.api import Api, ok
from tests.support.event_sources import (
    KEY,
    TIMEOUT_S,
    at,
)
from tests.support.server import Server


def talk(say: Callable[[dict[str, Any]], None], hear: Callable[[], Any], topic: str) -> None:
    """Subscribe, publish, hear it, make a mistake, go on."""
    say({"op": "subscribe", "request_id": "s", "topic": topic})
    assert hear()["op"] == "subscribed"
    assert [record["data"] for record in hear()["records"]] == ["old"]
    assert hear()["op"] == "caught_up"
    say({"op": "publish", "request_id": "p", "topic": topic, "records": [{"data": "x" * 100_000}]})
    waiting = {"ack", "record"}
    while waiting:
        waiting.discard(hear()["op"])
    say({"op": "nope", "request_id": "e"})
    assert hear_past_caught_up(hear)["op"] == "error"
    say({"op": "ping", "request_id": "g"})
    assert hear()["op"] == "pong"


def hear_past_caught_up(hear: Callable[[], Any]) -> Any:
    while (message := hear())["op"] == "caught_up":
        pass
    return message


@pytest.mark.parametrize("compression", ["deflate", None])
def test_websockets_talks(server: Server, api: Api, topic: str, compression: str | None) -> None:
    client = pytest.importorskip(
        "websockets.sync.client", reason="websockets is not installed (the dev extra has it)"
    )
    ok(api.append(topic, "old"), 201)
    with client.connect(
        at(server.address, "/v0/ws", "ws"), proxy=None, compression=compression
    ) as socket:
        talk(
            lambda command: socket.send(json.dumps(command)),
            lambda: json.loads(socket.recv(timeout=TIMEOUT_S)),
            topic,
        )
        socket.ping().wait(TIMEOUT_S)
        socket.close()
        assert socket.close_code == 1000


@pytest.mark.slow
def test_websockets_takes_the_longest_record_once_its_bound_is_lifted(
    server: Server,
    api: Api,
    topic: str,
) -> None:
    client = pytest.importorskip("websockets.sync.client", reason="the dev extra has it")
    exceptions = pytest.importorskip("websockets.exceptions", reason="the dev extra has it")
    longest = "x" * (2**20 - 2)  # with its quotes 1 MiB
    ok(api.append(topic, longest), 201)
    ask = json.dumps({"op": "subscribe", "topic": topic, "from_seq": 0})
    address = at(server.address, "/v0/ws", "ws")
    with client.connect(address, proxy=None, max_size=None) as socket:
        socket.send(ask)
        assert json.loads(socket.recv(10))["op"] == "subscribed"
        assert json.loads(socket.recv(10))["records"][0]["data"] == longest
    with client.connect(address, proxy=None) as socket:
        socket.send(ask)
        with pytest.raises(exceptions.ConnectionClosedError):
            list(socket)


def test_websockets_talks_with_a_key(guarded: Server, guarded_api: Api, topic: str) -> None:
    client = pytest.importorskip(
        "websockets.sync.client", reason="websockets is not installed (the dev extra has it)"
    )
    exceptions = pytest.importorskip(
        "websockets.exceptions", reason="websockets is not installed (the dev extra has it)"
    )
    ok(guarded_api.append(topic, "old"), 201)
    url = at(guarded.address, "/v0/ws", "ws")
    with client.connect(
        url, proxy=None, additional_headers={"Authorization": f"Bearer {KEY}"}
    ) as socket:
        talk(
            lambda command: socket.send(json.dumps(command)),
            lambda: json.loads(socket.recv(timeout=TIMEOUT_S)),
            topic,
        )
    with pytest.raises(exceptions.InvalidStatus) as refused, client.connect(url, proxy=None):
        pass
    assert refused.value.response.status_code == 401


async def test_trio_websocket_talks(server: Server, api: Api, topic: str) -> None:
    trio_websocket = pytest.importorskip(
        "trio_websocket", reason="trio-websocket is not installed (the dev extra has it)"
    )
    ok(api.append(topic, "old"), 201)
    async with trio_websocket.open_websocket_url(at(server.address, "/v0/ws", "ws")) as socket:
        for command in (
            {"op": "subscribe", "request_id": "s", "topic": topic},
            {"op": "ping", "request_id": "g"},
        ):
            await socket.send_message(json.dumps(command))
        waiting = {"subscribed", "record", "caught_up", "pong"}
        while waiting:
            waiting.remove(json.loads(await socket.get_message())["op"])
        await socket.ping(b"frame")
    assert socket.closed.code == 1000
