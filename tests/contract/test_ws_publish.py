"""The command publish of /v0/ws (§7.3), alone and in batches."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.support.api import Api, create, data, ok, refused
from tests.support.server import Server
from tests.support.ws import (
    CLOSE,
    TEXT,
    Socket,
    command,
    failed,
    frame_bytes,
)


def test_an_ack_has_the_documented_fields(socket: Socket, api: Api, topic: str) -> None:
    create(api, topic, "old")
    body = socket.request(
        "publish", "p1", topic=topic, records=[{"data": 1}, {"data": 2}], return_seqs=False
    )
    assert isinstance(body.pop("performance"), dict)
    assert {"op", "request_id", "topic", "last_seq", "head_seq"} <= set(body)
    assert (body["op"], body["request_id"], body["topic"]) == ("ack", "p1", topic)
    assert (body["last_seq"], body["head_seq"]) == (3, 3)
    assert "seqs" not in body
    assert data(api.read(topic)) == ["old", 1, 2]


def test_a_publish_may_create_the_topic(socket: Socket, api: Api, topic: str) -> None:
    refusal = socket.request("publish", "p1", topic=topic, records=[{"data": 1}], create=False)
    failed(refusal, "p1", "topic_not_found")
    refused(api.get(topic), 404, "topic_not_found")
    config = {"cap_records": 2, "durability": "memory"}
    writes = [{"data": at} for at in range(5)]
    assert (
        socket.request("publish", "p2", topic=topic, records=writes, config=config)["last_seq"] == 5
    )
    state = api.state(topic)
    assert (state["count"], state["config"]["durability"]) == (2, "memory")


INLINE_BYTES = 1024  # the minimum of the setting


def text(document: Any) -> bytes:
    """Return a masked frame."""
    return frame_bytes(TEXT, json.dumps(document).encode(), mask=os.urandom(4))


def publish(request_id: str, topic: str, *datas: Any, **fields: Any) -> dict[str, Any]:
    return command(
        "publish", request_id, topic=topic, records=[{"data": data} for data in datas], **fields
    )


def send_batch(socket: Socket, commands: Iterable[Any]) -> None:
    """Send all commands in one write."""
    socket.send(b"".join(map(text, commands)))


def answers(socket: Socket, count: int) -> list[Any]:
    return [socket.message("ack", "error") for _ in range(count)]


def stored(api: Api, topic: str) -> list[Any]:
    return [record["data"] for record in api.read(topic)]


def test_every_publish_of_a_batch_gets_its_own_reply(socket: Socket, api: Api, topic: str) -> None:
    ok(api.put(topic), 201)
    bad: list[tuple[dict[str, Any], str]] = [
        ({"records": []}, "invalid_request"),
        ({"records": [{}]}, "invalid_request"),
        ({"records": [{"data": 1, "tag": "x" * 257}]}, "invalid_request"),
        ({"records": [{"data": 1, "meta": {"k": "x" * (17 << 10)}}]}, "record_too_large"),
        ({"records": [{"data": 1}], "idempotency_key": ""}, "invalid_request"),
        ({"records": [{"data": 1}], "config": {"type": "nope"}}, "invalid_request"),
        ({"records": [{"data": 1}], "topic": "a b"}, "invalid_request"),
        ({"records": [{"data": 1}], "topic": f"{topic}.a", "create": False}, "topic_not_found"),
    ]
    commands, expected = [], {}
    for number in range(60):
        request_id = f"{number}"
        if number % 3:
            commands.append(publish(request_id, topic, number))
            expected[request_id] = "ack"
        else:
            fields, expected[request_id] = bad[number // 3 % len(bad)]
            commands.append({**command("publish", request_id, topic=topic), **fields})
    send_batch(socket, commands)
    replies = answers(socket, 60)
    assert {each["request_id"]: each.get("code", "ack") for each in replies} == expected
    acks = [each for each in replies if each["op"] == "ack"]
    accepted = [number for number in range(60) if number % 3]
    assert [(int(ack["request_id"]), ack["last_seq"]) for ack in acks] == [
        (number, seq) for seq, number in enumerate(accepted, 1)
    ]
    assert stored(api, topic) == accepted


def test_a_subscription_finds_a_topic_that_an_earlier_publish_created(
    socket: Socket, topic: str
) -> None:
    first, second, third = (publish(f"p{number}", topic, number) for number in (1, 2, 3))
    send_batch(socket, [first, second, command("subscribe", "s", topic=topic), third])
    by_op: dict[str, list[Any]] = {"ack": [], "subscribed": [], "record": [], "caught_up": []}
    while len(by_op["ack"]) < 3 or sum(len(each["records"]) for each in by_op["record"]) < 3:
        message = socket.message(*by_op)
        by_op[message["op"]].append(message)
    answered = [each["request_id"] for each in by_op["ack"] + by_op["subscribed"]]
    assert answered == ["p1", "p2", "p3", "s"]
    assert [record["data"] for each in by_op["record"] for record in each["records"]] == [1, 2, 3]


def test_publishes_sent_before_a_close_are_stored(server: Server, api: Api, topic: str) -> None:
    ok(api.put(topic), 201)
    with Socket(server.address) as socket:
        frames = b"".join(text(publish(str(number), topic, number)) for number in range(5))
        socket.send(frames + frame_bytes(CLOSE, b"", mask=b"abcd"))
        socket.closed()
    assert ok(api.diff(topic, wait_ms=5000))["next_from_seq"] == 5
    assert stored(api, topic) == list(range(5))


def test_long_and_short_publishes_keep_their_order(tmp_path: Path) -> None:
    """The server has the smallest possible limit for messages that are sent within the ring."""
    sizes = [*(10, 300, INLINE_BYTES * 5, 10, INLINE_BYTES - 150, 1), *[300] * 4, 70_000, 2] * 8
    values = [f"{at}:" + "x" * size for at, size in enumerate(sizes)]
    narrow = Server(tmp_path / "data", shards=1, inline_bytes=INLINE_BYTES, ring_bytes=64 << 10)
    with narrow, Api(narrow.address) as api, Socket(narrow.address) as socket:
        for topic in ("memory", "disk"):
            ok(api.put(topic, {"durability": topic}), 201)
            send_batch(socket, [publish(str(at), topic, one) for at, one in enumerate(values)])
            replies = answers(socket, len(values))
            assert [(each["request_id"], each["last_seq"]) for each in replies] == [
                (str(at), at + 1) for at in range(len(values))
            ]
            assert stored(api, topic) == values


@pytest.mark.slow
def test_every_publish_is_answered_if_the_shard_crashes(tmp_path: Path) -> None:
    """Acknowledged records are stored once. Refused records may be stored, like those of every
    interrupted write.
    """
    with (
        Server(tmp_path / "data", shards=1) as server,
        Api(server.address) as api,
        Socket(server.address) as socket,
    ):
        ok(api.put("t", {"durability": "disk"}), 201)
        send_batch(socket, [publish(str(number), "t", number) for number in range(100)])
        replies = [socket.message("ack")]
        shard = server.roles()["shard 0"]
        os.kill(shard, signal.SIGSTOP)
        send_batch(socket, [publish(str(number), "t", number) for number in range(100, 200)])
        socket.send_command("ping", "taken")
        replies += socket.until("pong")[:-1]
        os.kill(shard, signal.SIGKILL)
        replies += answers(socket, 200 - len(replies))
        codes = {int(each["request_id"]): each.get("code") for each in replies}
        assert set(codes) == set(range(200))
        assert {codes[number] for number in range(100, 200)} == {"not_ready"}
        server.wait_ready()
        kept = stored(api, "t")
        assert len(set(kept)) == len(kept)
        assert {number for number, code in codes.items() if code is None} <= set(kept)
        assert (
            socket.request("publish", "again", topic="t", records=[{"data": "again"}])["op"]
            == "ack"
        )
