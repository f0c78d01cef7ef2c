"""GET /v0/ws (§7.3): the handshake, subscribing and publishing over one socket, errors that leave
it open, keys.
"""

from __future__ import annotations

import json
import os
import socket as sockets
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.contract.api import GAP, SLACK_S, Answer, Api, Wire, create, data, ok, refused, request
from tests.server import Server
from tests.support.ws import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    Frame,
    Socket,
    accept_of,
    command,
    frame_bytes,
    handshake,
)

KIB = 1024
KEY = "dGhlIHNhbXBsZSBub25jZQ=="
STONE = GAP | {"op", "topic"}


@pytest.fixture
def socket(server: Server) -> Iterator[Socket]:
    with Socket(server.address) as socket:
        yield socket


def subscribe(socket: Socket, topic: str, **fields: Any) -> list[Any]:
    """Subscribe and read up to the first caught_up; the records that came."""
    assert socket.ask("subscribe", f"s-{topic}", topic=topic, **fields)["op"] == "subscribed"
    seen = socket.until("caught_up", topic=topic)
    return [
        record for message in seen if message["op"] == "record" for record in message["records"]
    ]


def alive(socket: Socket) -> None:
    """The socket is open and answers."""
    assert socket.ask("ping", "alive")["op"] == "pong"


def failed(message: Any, request_id: str | None, *codes: str) -> None:
    """An error frame (§7.3); ``codes`` are the codes that may stand in it, none means any."""
    assert message["op"] == "error", message
    assert {"op", "code", "message"} <= set(message), message
    assert message.get("request_id") == request_id, message
    assert isinstance(message["code"], str)
    assert not codes or message["code"] in codes, message
    assert isinstance(message["message"], str)
    assert message["message"]


# --- the handshake


def shake(server: Server, content: bytes) -> Answer:
    with Wire(server.address) as wire:
        wire.send(content)
        status, headers = wire.head()
        body = wire._take(int(headers["content-length"])) if "content-length" in headers else b""
        return Answer(status, headers, body)


def test_a_handshake_is_answered_as_the_rfc_says(server: Server) -> None:
    answer = shake(server, handshake(KEY))
    assert answer.status == 101
    assert answer.headers["upgrade"].lower() == "websocket"
    assert answer.headers["connection"].lower() == "upgrade"
    assert (
        answer.headers["sec-websocket-accept"] == accept_of(KEY) == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    )
    assert not {
        "content-length",
        "transfer-encoding",
        "sec-websocket-extensions",
        "sec-websocket-protocol",
    } & set(answer.headers)


@pytest.mark.parametrize(
    "lines",
    [
        ["Upgrade: WebSocket", "Connection: upgrade"],
        ["upgrade: websocket", "connection: keep-alive, Upgrade"],
        ["UPGRADE: websocket", "CONNECTION: Upgrade", "ORIGIN: HTTP://LOCALHOST:8000"],
        ["Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Extensions: x-unheard-of"],
    ],
)
def test_header_names_and_tokens_have_no_case(server: Server, lines: list[str]) -> None:
    content = request(
        "GET", "/v0/ws", None, *lines, f"Sec-WebSocket-Key: {KEY}", "Sec-WebSocket-Version: 13"
    )
    answer = shake(server, content)
    assert answer.status == 101
    assert "x-unheard-of" not in answer.headers.get("sec-websocket-extensions", "")


@pytest.mark.parametrize("version", ["8", "12", "14", "abc", None])
def test_another_version_is_refused(server: Server, version: str | None) -> None:
    answer = shake(server, handshake(KEY, version=version))
    assert answer.status in (400, 426)
    if answer.status == 426:
        assert answer.headers["sec-websocket-version"] == "13"


@pytest.mark.parametrize(
    "key",
    [None, "", "short", "dGhlIHNhbXBsZSBub25jZQ", "!" * 24, "dGhlIHNhbXBsZSBub25jZSBsb25nZXI="],
)
def test_a_key_that_is_no_16_bytes_is_refused(server: Server, key: str | None) -> None:
    assert shake(server, handshake(key)).status == 400


def test_a_plain_get_is_refused(api: Api) -> None:
    assert api.call("GET", "/v0/ws").status in (400, 426)


def test_a_websocket_is_opened_with_get_only(api: Api) -> None:
    refused(api.call("POST", "/v0/ws", {}), 405, "method_not_allowed")


def test_a_refused_handshake_leaves_the_server_well(server: Server, api: Api) -> None:
    for _ in range(20):
        shake(server, handshake(None))
    with Socket(server.address) as socket:
        alive(socket)


# --- ping, close, frames (RFC 6455)


def test_a_ping_command_is_answered(socket: Socket) -> None:
    assert socket.ask("ping", "ping-1")["op"] == "pong"


@pytest.mark.parametrize("payload", [b"", b"hello", bytes(125)], ids=len)
def test_a_ping_frame_is_answered_with_its_payload(socket: Socket, payload: bytes) -> None:
    socket.frame(PING, payload)
    assert socket.receive() == Frame(PONG, payload)


def test_a_pong_that_nobody_asked_for_is_ignored(socket: Socket) -> None:
    socket.frame(PONG, b"x")
    alive(socket)


def test_a_message_may_come_in_pieces(socket: Socket) -> None:
    text = json.dumps(command("ping", "pieces-é"), ensure_ascii=False).encode()
    cut = text.index("é".encode()) + 1  # inside a character
    socket.frame(TEXT, text[:5], fin=False)
    socket.frame(PING, b"between")
    socket.frame(CONTINUATION, text[5:cut], fin=False)
    socket.frame(CONTINUATION, b"", fin=False)
    socket.frame(CONTINUATION, text[cut:])
    assert socket.receive() == Frame(PONG, b"between")
    assert socket.message("pong")["request_id"] == "pieces-é"


def test_frames_may_come_byte_by_byte_or_many_at_once(socket: Socket) -> None:
    pings = b"".join(ping_bytes(number) for number in range(30))
    for at in range(200):
        socket.send(pings[at : at + 1])
    socket.send(pings[200:])
    assert [socket.message()["request_id"] for _ in range(30)] == [
        str(number) for number in range(30)
    ]


def ping_bytes(number: int) -> bytes:
    return frame_bytes(TEXT, json.dumps(command("ping", str(number))).encode(), mask=os.urandom(4))


@pytest.mark.parametrize("size", [125, 126, 127, 65_535, 65_536, 65_537, 300_000])
def test_every_length_of_frame_goes_both_ways(
    socket: Socket, api: Api, topic: str, size: int
) -> None:
    create(api, topic)
    subscribe(socket, topic)
    text = json.dumps(command("publish", "p", topic=topic, records=[{"data": ""}]))
    socket.text(
        text.replace('"data": ""', f'"data": "{"x" * (size - len(text))}"')
        if size > len(text)
        else text
    )
    seen = socket.until("ack", request_id="p")
    records = [
        record for message in seen for record in message.get("records", [])
    ] or socket.records(1)
    assert len(records[0]["data"]) == max(size - len(text), 0)


@pytest.mark.parametrize("code", [1000, 1001, 3000, None])
def test_a_close_is_answered_with_a_close(socket: Socket, code: int | None) -> None:
    socket.frame(CLOSE, b"" if code is None else struct.pack("!H", code) + b"bye")
    frame = socket.receive()
    assert frame.opcode == CLOSE
    assert frame.code in (code, 1000, None)
    assert socket.rest() == b""


@pytest.mark.parametrize(
    "content",
    [
        b"\x81\x02{}",
        b"\x83\x80abcd",
        b"\x8b\x80abcd",
        b"\xc1\x80abcd",
        b"\x09\x80abcd",
        b"\x89\xfe\x00\x80abcd" + bytes(128),
        b"\x80\x80abcd",
        b"\x88\x81abcd" + b"x",
    ],
    ids=[
        "unmasked",
        "opcode 3",
        "opcode 11",
        "reserved bit",
        "ping in pieces",
        "ping of 128",
        "nothing to continue",
        "close of 1 byte",
    ],
)
def test_a_client_that_breaks_the_protocol_is_closed(server: Server, content: bytes) -> None:
    with Socket(server.address) as socket:
        socket.send(content)
        assert socket.closed() in (1002, None)
    with Socket(server.address) as socket:
        alive(socket)


def test_text_that_is_not_utf_8_is_not_taken(server: Server, api: Api, topic: str) -> None:
    create(api, topic)
    with Socket(server.address) as socket:
        socket.text(b'{"op":"publish","topic":"%s","records":[{"data":"\xff"}]}' % topic.encode())
        frame = socket.receive()
        assert (
            frame.code == 1007
            if frame.opcode == CLOSE
            else json.loads(frame.payload)["op"] == "error"
        )
    assert api.read(topic) == []


def test_a_client_that_vanishes_leaves_the_others(server: Server, api: Api, topic: str) -> None:
    create(api, topic)
    with Socket(server.address) as stays:
        subscribe(stays, topic)
        for _ in range(10):
            with Socket(server.address) as leaves:
                subscribe(leaves, topic)
                leaves.socket.setsockopt(
                    sockets.SOL_SOCKET, sockets.SO_LINGER, struct.pack("ii", 1, 0)
                )
        ok(api.append(topic, "x"))
        assert data(stays.records(1)) == ["x"]


# --- subscribe


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


@pytest.mark.parametrize(
    ("fields", "seen"),
    [
        ({}, [0, 1, 2]),
        ({"from_seq": 0}, [0, 1, 2]),
        ({"from_seq": 2}, [2]),
        ({"tail": True}, []),
        ({"from_seq": 1, "tail": True}, []),
        ({"from_seq": 1, "tail": False}, [1, 2]),
    ],
    ids=lambda value: f"7.3 {value}",
)
def test_a_subscription_chooses_its_start(
    socket: Socket, api: Api, topic: str, fields: dict[str, Any], seen: list[int]
) -> None:
    create(api, topic, 0, 1, 2)
    assert data(subscribe(socket, topic, **fields)) == seen
    ok(api.append(topic, "live"))
    assert data(socket.records(1)) == ["live"]


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


def test_several_subscriptions_share_a_socket(
    socket: Socket, api: Api, new_name: Callable[[], str]
) -> None:
    names = [new_name() for _ in range(5)]
    for name in names:
        create(api, name)
        subscribe(socket, name)
    for number in range(50):
        ok(api.append(names[number % 5], number))
    seen: dict[str, list[Any]] = {name: [] for name in names}
    while sum(map(len, seen.values())) < 50:
        message = socket.message("record", "caught_up")
        seen[message["topic"]] += data(message.get("records", []))
    assert seen == {name: list(range(at, 50, 5)) for at, name in enumerate(names)}


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({}, ["data", "meta"]),
        ({"include_tags": True}, ["data", "meta", "$tag"]),
        ({"include_meta": False}, ["data"]),
        ({"include_data": False}, []),
        ({"include_data": False, "include_tags": True}, ["$tag"]),
    ],
    ids=lambda value: f"7.3 {value}",
)
def test_a_subscription_chooses_what_records_show(
    socket: Socket, api: Api, topic: str, fields: dict[str, bool], shown: list[str]
) -> None:
    create(api, topic)
    writes = [{"data": 1, "tag": "t", "node": "n", "meta": {"m": 1}}]
    ok(api.append(topic, records=writes))
    (old,) = subscribe(socket, topic, **fields)
    ok(api.append(topic, records=writes))
    (live,) = socket.records(1)
    assert set(old) == set(live) == {"$seq", "$ts", "$node", *shown}


@pytest.mark.parametrize("node", ["me", ["me"], ["me", "other"]])
def test_a_node_is_not_told_what_it_wrote(socket: Socket, api: Api, topic: str, node: Any) -> None:
    create(api, topic)
    ok(api.append(topic, 1, 2, node="me"))
    assert subscribe(socket, topic, node=node) == []
    ok(api.append(topic, 3, node="me"))
    ok(api.append(topic, 4, node="you"))
    assert data(socket.records(1)) == [4]


@pytest.mark.parametrize(
    ("fields", "most"), [({}, 256), ({"limit": 0}, 256), ({"limit": 3}, 3), ({"limit": 5000}, 1000)]
)
def test_a_message_holds_at_most_limit_records(
    socket: Socket, api: Api, topic: str, fields: dict[str, int], most: int
) -> None:
    create(api, topic, *range(min(2 * most + 1, 1100)))
    socket.ask("subscribe", "s", topic=topic, **fields)
    seen = [message for message in socket.until("caught_up") if message["op"] == "record"]
    assert [value for message in seen for value in data(message["records"])] == list(
        range(min(2 * most + 1, 1100))
    )
    assert max(len(message["records"]) for message in seen) <= most
    assert [message["from_seq"] for message in seen] == [
        0,
        *(message["to_seq"] for message in seen[:-1]),
    ]


@pytest.mark.parametrize(
    ("fields", "budget"),
    [({}, 262_144), ({"max_batch_bytes": 1}, 1), ({"max_batch_bytes": 0}, 1024 * KIB)],
)
def test_the_byte_budget_holds(
    socket: Socket, api: Api, topic: str, fields: dict[str, int], budget: int
) -> None:
    create(api, topic, *["x" * 200 * KIB] * 6)
    socket.ask("subscribe", "s", topic=topic, **fields)
    counts = [
        len(message["records"])
        for message in socket.until("caught_up")
        if message["op"] == "record"
    ]
    assert sum(counts) == 6
    assert (max(counts) - 1) * 200 * KIB < budget


@pytest.mark.parametrize(
    "durability", ["memory", pytest.param("disk", marks=pytest.mark.slow), "fsync"]
)
def test_a_strong_subscription_sees_every_class(
    socket: Socket, api: Api, topic: str, durability: str
) -> None:
    create(api, topic, durability=durability)
    subscribe(socket, topic, consistency="strong")
    ok(api.append(topic, "x"))
    assert data(socket.records(1)) == ["x"]


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


def test_a_start_above_the_head_means_that_the_topic_was_made_again(
    socket: Socket, api: Api, topic: str
) -> None:
    create(api, topic, 1, 2)
    socket.ask("subscribe", "s", topic=topic, from_seq=50)
    body = socket.message("tombstone")
    assert (body["reason"], body["gap_from"], body["gap_to"]) == ("recreated", 1, 2)
    assert data(socket.records(2)) == [1, 2]


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


# --- unsubscribe


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


# --- publish


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


# --- errors leave the socket open


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
def test_what_is_no_command_is_an_error(socket: Socket, text: str) -> None:
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
    ({"op": "subscribe", "topics": {}}, "invalid_request"),
    ({"op": "subscribe", "topics": ["TOPIC"]}, "invalid_request"),
    ({"op": "subscribe", "topics": {"TOPIC": {"from_seq": -1}}}, "invalid_request"),
    ({"op": "subscribe", "topics": {f"TOPIC.{at}": {} for at in range(257)}}, "invalid_request"),
    ({"op": "subscribe", "topic": "TOPIC", "from_seq": -1}, "invalid_request"),
    ({"op": "subscribe", "topic": "TOPIC", "from_seq": "1"}, "invalid_request"),
    ({"op": "subscribe", "topic": "TOPIC", "tail": 1}, "invalid_request"),
    ({"op": "subscribe", "topic": "TOPIC", "limit": "5"}, "invalid_request"),
    ({"op": "subscribe", "topic": "TOPIC", "max_batch_bytes": 1.5}, "invalid_request"),
    ({"op": "subscribe", "topic": "TOPIC", "node": 5}, "invalid_request"),
    ({"op": "subscribe", "topic": "TOPIC", "include_data": "yes"}, "invalid_request"),
    ({"op": "subscribe", "topic": "TOPIC", "consistency": "weak"}, "invalid_request"),
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


def test_errors_come_in_their_place_among_acks(socket: Socket, api: Api, topic: str) -> None:
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


# --- slow readers


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
        alive(stalled)
    assert slowest < 2.0


# --- keys (§0.2)

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
