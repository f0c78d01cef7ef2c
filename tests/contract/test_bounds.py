"""Bounds of lists and of stored or returned texts, over HTTP and WebSocket."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from tests.support.api import Api, refused
from tests.support.ws import Socket

pytestmark = pytest.mark.slow

NODES = [f"{number:03}".ljust(128, "n") for number in range(65)]
TAG, NODE, KEY, MATCH = "t" * 257, "n" * 129, "k" * 257, "m" * 65_536
SEQS = [*range(1, 1002)]
TOKENS = ["lease_ff"] * 1001


class Row(NamedTuple):
    """A field with a bound, in a request to ``path`` of a topic or in a WebSocket command.

    ``too_large`` is a value that exceeds the bound by one, and ``code`` is the error code for it.
    ``fields`` are the other fields of the request.
    """

    path: str
    field: str
    too_large: Any
    code: str = "invalid_request"
    fields: dict[str, Any] = {}  # noqa: RUF012 - never modified

    def body_with(self, value: Any) -> dict[str, Any]:
        body = {**self.fields, self.field: value}
        if self.field == "seqs":
            body["lease_ids"] = TOKENS[: len(value)]
        return body


RECORD = {"data": 1}
ROWS = [
    Row("", "records", [RECORD] * 10_001, "batch_too_large"),
    Row("", "node", NODE, fields={"records": [RECORD]}),
    Row("", "idempotency_key", KEY, fields={"records": [RECORD]}),
    Row("/diff", "node", NODES),
    Row("/diff", "node", NODE),
    Row("/delete", "match", MATCH),
    Row("/redrive", "match", MATCH),
    Row("/claim", "node", NODE),
    *(
        Row(path, "seqs", SEQS, "batch_too_large", {"node": "w", "lease_ms": 1000})
        for path in ("/ack", "/nack", "/extend")
    ),
    Row("watch", "node", NODES, fields={"topics": {"TOPIC": {}}}),
    Row("watch", "node", NODE, fields={"topics": {"TOPIC": {}}}),
    Row("router", "filter", TAG),
    Row("publish", "records", [RECORD] * 10_001, "batch_too_large"),
    Row("publish", "node", NODE, fields={"records": [RECORD]}),
    Row("publish", "idempotency_key", KEY, fields={"records": [RECORD]}),
    Row("subscribe", "node", NODES),
    Row("subscribe", "node", NODE),
]


def reply_of(socket: Socket) -> Any:
    """Return the next reply to a command."""
    while "request_id" not in (message := socket.message()):
        pass
    return message


def row_id(row: Row) -> str:
    return f"{row.path or 'append'}-{row.field}-{len(row.too_large)}"


@pytest.mark.parametrize("row", ROWS, ids=row_id)
def test_a_list_or_text_is_accepted_up_to_its_bound(
    row: Row, api: Api, socket: Socket, topic: str
) -> None:
    api.put(topic, {"type": "queue"})
    for value, is_accepted in ((row.too_large[:-1], True), (row.too_large, False)):
        body = json.loads(json.dumps(row.body_with(value)).replace("TOPIC", topic))
        if row.path in ("publish", "subscribe"):
            socket.send_command(row.path, "r", topic=topic, **body)
            answer = reply_of(socket)
            code, detail = answer.get("code"), answer.get("detail")
        else:
            method, path = {
                "watch": ("POST", "/v0/watch"),
                "router": ("PUT", f"/v0/routers/{topic}"),
            }.get(row.path, ("POST", f"/v0/topics/{topic}{row.path}"))
            if row.path == "router":
                body |= {"source": topic, "dest": f"{topic}.dest"}
            reply = api.call(method, path, body)
            if is_accepted:
                assert reply.status in (200, 201), reply
                continue
            error = refused(reply, 400, row.code)
            code, detail = error["code"], error["detail"]
        assert code == (None if is_accepted else row.code)
        if not is_accepted and row.field != "idempotency_key":
            assert detail["max"] == len(row.too_large) - 1


def test_a_tag_is_accepted_up_to_its_bound(api: Api, topic: str) -> None:
    for tag, status in ((TAG[1:], 201), (TAG, 400)):
        assert (
            api.call("POST", f"/v0/topics/{topic}", {"records": [RECORD | {"tag": tag}]}).status
            == status
        )


@pytest.mark.parametrize("members", [256, 257])
def test_a_watch_and_a_socket_have_a_bounded_number_of_topics(
    api: Api, socket: Socket, topic: str, members: int
) -> None:
    names = [f"{topic}.{number}" for number in range(members)]
    for name in names:
        api.put(name)
    topics: dict[str, Any] = {name: {} for name in names}
    reply = api.call("POST", "/v0/watch", {"topics": topics})
    message = socket.request("subscribe", "r", topics=topics)
    if members <= 256:
        assert (reply.status, message["op"]) == (200, "subscribed")
    else:
        assert refused(reply, 400, "invalid_request")["detail"]["max"] == 256
        assert (message["code"], message["detail"]["max"]) == ("invalid_request", 256)


@pytest.mark.parametrize("op", ["ping", "publish", "subscribe", "unsubscribe", "nothing"])
@pytest.mark.parametrize("text", ["x" * 254, "é" * 127, '\\"' * 127])
def test_a_request_id_is_echoed_up_to_256_bytes(
    socket: Socket, api: Api, topic: str, op: str, text: str
) -> None:
    api.put(topic)
    for request_id, is_echoed in (
        (f'"{text}"', True),
        (f'"{text}"' + " ", True),
        (f'"{text}x"', False),
    ):
        fields = f'"op":"{op}","topic":"{topic}","records":[{{"data":1}}]'
        socket.text(f'{{{fields},"request_id":{request_id}}}')
        message = reply_of(socket)
        if is_echoed:
            assert message["request_id"] == json.loads(request_id)
            assert (message["op"] == "error") == (op == "nothing")
        else:
            assert message["request_id"] is None
            assert (message["op"], message["code"], message["detail"]["max"]) == (
                "error",
                "invalid_request",
                256,
            )
    socket.send_command("ping", "alive")
    assert reply_of(socket)["op"] == "pong"
