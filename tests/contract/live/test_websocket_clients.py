"""WebSockets with websockets and trio-websocket."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.api import Api, ok
from tests.support.event_sources import KEY, TIMEOUT_S, at
from tests.support.server import Server

client = pytest.importorskip("websockets.sync.client", reason="the dev extra has it")
exceptions = pytest.importorskip("websockets.exceptions", reason="the dev extra has it")


def talk(socket: Any, topic: str) -> None:
    """Subscribe, publish, receive the record, send an invalid command, continue."""

    def send(op: str, **fields: Any) -> None:
        socket.send(json.dumps({"op": op, "request_id": op, **fields}))

    def receive() -> Any:
        return json.loads(socket.recv(timeout=TIMEOUT_S))

    def read_past_caught_up() -> Any:
        while (message := receive())["op"] == "caught_up":
            pass
        return message

    send("subscribe", topic=topic)
    assert receive()["op"] == "subscribed"
    assert [record["data"] for record in receive()["records"]] == ["old"]
    assert receive()["op"] == "caught_up"
    send("publish", topic=topic, records=[{"data": "x" * 100_000}])
    waiting = {"ack", "record"}
    while waiting:
        waiting.discard(receive()["op"])
    send("nope")
    assert read_past_caught_up()["op"] == "error"
    send("ping")
    assert receive()["op"] == "pong"


@pytest.mark.parametrize("compression", ["deflate", None])
def test_websockets_can_publish_and_subscribe(
    api: Api, topic: str, compression: str | None
) -> None:
    ok(api.append(topic, "old"), 201)
    url = at(api.address, "/v0/ws", "ws")
    with client.connect(url, proxy=None, compression=compression) as socket:
        talk(socket, topic)
        socket.ping().wait(TIMEOUT_S)
        socket.close()
        assert socket.close_code == 1000


@pytest.mark.slow
def test_websockets_accepts_the_longest_record_with_a_higher_bound(api: Api, topic: str) -> None:
    longest = "x" * (2**20 - 2)  # 1 MiB including its quotes
    ok(api.append(topic, longest), 201)
    request_text = json.dumps({"op": "subscribe", "topic": topic, "from_seq": 0})
    address = at(api.address, "/v0/ws", "ws")
    with client.connect(address, proxy=None, max_size=None) as socket:
        socket.send(request_text)
        assert json.loads(socket.recv(10))["op"] == "subscribed"
        assert json.loads(socket.recv(10))["records"][0]["data"] == longest
    with client.connect(address, proxy=None) as socket:
        socket.send(request_text)
        with pytest.raises(exceptions.ConnectionClosedError):
            list(socket)


def test_websockets_can_use_a_key(guarded: Server, guarded_api: Api, topic: str) -> None:
    ok(guarded_api.append(topic, "old"), 201)
    url = at(guarded.address, "/v0/ws", "ws")
    headers = {"Authorization": f"Bearer {KEY}"}
    with client.connect(url, proxy=None, additional_headers=headers) as socket:
        talk(socket, topic)
    with pytest.raises(exceptions.InvalidStatus) as refused, client.connect(url, proxy=None):
        pass
    assert refused.value.response.status_code == 401


async def test_trio_websocket_can_publish_and_subscribe(api: Api, topic: str) -> None:
    trio_websocket = pytest.importorskip("trio_websocket", reason="the dev extra has it")
    ok(api.append(topic, "old"), 201)
    async with trio_websocket.open_websocket_url(at(api.address, "/v0/ws", "ws")) as socket:
        for command in ({"op": "subscribe", "topic": topic}, {"op": "ping"}):
            await socket.send_message(json.dumps(command))
        waiting = {"subscribed", "record", "caught_up", "pong"}
        while waiting:
            waiting.remove(json.loads(await socket.get_message())["op"])
        await socket.ping(b"frame")
    assert socket.closed.code == 1000
