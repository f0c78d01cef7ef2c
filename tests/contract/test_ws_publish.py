"""The command publish of /v0/ws (§7.3), alone and among many."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterable, Iterator
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
        *(b"1.10", b"1E400", b"1234567890123456789012345678901234567890", rb'"\u00e9\/"'),
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


CLASSES = ["ephemeral", "memory", "disk", "fsync"]
INLINE_BYTES = 1024  # the least that may be set


def text(document: Any) -> bytes:
    """A masked frame."""
    return frame_bytes(
        TEXT,
        document if isinstance(document, bytes) else json.dumps(document).encode(),
        mask=os.urandom(4),
    )


def publish(request_id: str, topic: str, *datas: Any, **fields: Any) -> dict[str, Any]:
    return command(
        "publish", request_id, topic=topic, records=[{"data": data} for data in datas], **fields
    )


def say_at_once(socket: Socket, commands: Iterable[Any]) -> None:
    """Send all commands in one write."""
    socket.send(b"".join(map(text, commands)))


def answers(socket: Socket, count: int) -> list[Any]:
    return [socket.message("ack", "error") for _ in range(count)]


def stored(api: Api, topic: str) -> list[Any]:
    return [record["data"] for record in api.read(topic)]


def test_every_publish_of_a_batch_is_answered_for_itself(
    socket: Socket, api: Api, topic: str
) -> None:
    ok(api.put(topic), 201)
    bad: list[tuple[dict[str, Any], str]] = [
        ({"records": []}, "invalid_request"),
        ({"records": [{}]}, "invalid_request"),
        ({"records": [{"data": 1, "tag": "x" * 257}]}, "invalid_request"),
        ({"records": [{"data": 1, "meta": {"k": "x" * (17 << 10)}}]}, "record_too_large"),
        ({"records": [{"data": 1}], "idempotency_key": ""}, "invalid_request"),
        ({"records": [{"data": 1}], "config": {"type": "nope"}}, "invalid_request"),
        ({"records": [{"data": 1}], "topic": "a b"}, "invalid_request"),
        (
            {"records": [{"data": 1}], "topic": f"{topic}.absent", "create": False},
            "topic_not_found",
        ),
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
    say_at_once(socket, commands)
    told = answers(socket, 60)
    assert {each["request_id"]: each.get("code", "ack") for each in told} == expected
    acks = [each for each in told if each["op"] == "ack"]
    wanted = [number for number in range(60) if number % 3]
    assert [(int(ack["request_id"]), ack["last_seq"]) for ack in acks] == [
        (number, seq) for seq, number in enumerate(wanted, 1)
    ]
    assert stored(api, topic) == wanted


def test_an_invalid_command_among_publishes_is_an_error_and_no_more(
    socket: Socket, api: Api, topic: str
) -> None:
    ok(api.put(topic), 201)
    say_at_once(
        socket,
        [
            publish("1", topic, 1),
            b"{",
            publish("2", topic, 2),
            b'{"op":"publish","request_id":"3"}',
            publish("4", topic, 4),
        ],
    )
    told = answers(socket, 5)
    assert sorted((str(each["request_id"]), each["op"]) for each in told) == [
        ("1", "ack"),
        ("2", "ack"),
        ("3", "error"),
        ("4", "ack"),
        ("None", "error"),
    ]
    assert stored(api, topic) == [1, 2, 4]


@pytest.mark.parametrize("durability", CLASSES)
def test_a_key_is_written_once(socket: Socket, api: Api, topic: str, durability: str) -> None:
    ok(api.put(topic, {"durability": durability}), 201)
    keys = ["a", None, "a", "b", "a", None, "b"] * 6
    say_at_once(
        socket,
        [
            publish(str(at), topic, at, **({"idempotency_key": key} if key else {}))
            for at, key in enumerate(keys)
        ],
    )
    told = sorted(
        answers(socket, len(keys)), key=lambda each: int(each["request_id"])
    )  # a retry may overtake what came before it
    assert [int(each["request_id"]) for each in told] == list(range(len(keys)))
    first = {key: keys.index(key) for key in ("a", "b")}
    written = [at for at, key in enumerate(keys) if key is None or first[key] == at]
    assert stored(api, topic) == written
    assert [each["deduped"] for each in told] == [at not in written for at in range(len(keys))]
    seqs = {at: seq for seq, at in enumerate(written, 1)}
    assert [each["last_seq"] for each in told] == [
        seqs[first[key] if key else at] for at, key in enumerate(keys)
    ]


def test_a_batch_creates_its_topic_once(socket: Socket, api: Api, topic: str) -> None:
    say_at_once(
        socket,
        [
            publish(str(number), topic, number, config={"durability": "ephemeral"})
            for number in range(20)
        ],
    )
    told = answers(socket, 20)
    assert [(each["request_id"], each["last_seq"], each["created"]) for each in told] == [
        (str(number), number + 1, number == 0) for number in range(20)
    ]
    assert api.state(topic)["config"]["durability"] == "ephemeral"


def test_one_read_may_publish_to_topics_of_all_classes(
    socket: Socket, api: Api, new_name: Callable[[], str]
) -> None:
    names = {durability: new_name() for durability in CLASSES}
    for durability, name in names.items():
        ok(api.put(name, {"durability": durability}), 201)
    order = [CLASSES[number * 7 % 11 % 4] for number in range(200)]
    say_at_once(
        socket,
        [
            publish(str(number), names[durability], number)
            for number, durability in enumerate(order)
        ],
    )
    told = answers(socket, 200)
    assert {each["op"] for each in told} == {"ack"}
    for durability, name in names.items():
        mine = [number for number, each in enumerate(order) if each == durability]
        acks = [
            (int(each["request_id"]), each["last_seq"]) for each in told if each["topic"] == name
        ]
        assert acks == [(number, seq) for seq, number in enumerate(mine, 1)]
        assert stored(api, name) == mine


def test_return_seqs_counts_for_each_publish(socket: Socket, topic: str) -> None:
    wishes = [True, False, False, True, True, True, False] * 5
    say_at_once(
        socket,
        [publish(str(at), topic, at, at, return_seqs=wish) for at, wish in enumerate(wishes)],
    )
    told = answers(socket, len(wishes))
    assert [(each["request_id"], each.get("seqs")) for each in told] == [
        (str(at), [2 * at + 1, 2 * at + 2] if wish else None) for at, wish in enumerate(wishes)
    ]


def test_a_subscription_finds_the_topic_that_a_publish_before_it_created(
    socket: Socket, topic: str
) -> None:
    say_at_once(
        socket,
        [
            publish("p1", topic, 1),
            publish("p2", topic, 2),
            command("subscribe", "s", topic=topic),
            publish("p3", topic, 3),
        ],
    )
    told: dict[str, list[Any]] = {"ack": [], "subscribed": [], "record": [], "caught_up": []}
    while len(told["ack"]) < 3 or sum(len(each["records"]) for each in told["record"]) < 3:
        message = socket.message(*told)
        told[message["op"]].append(message)
    assert [each["request_id"] for each in told["ack"] + told["subscribed"]] == [
        "p1",
        "p2",
        "p3",
        "s",
    ]
    assert [record["data"] for each in told["record"] for record in each["records"]] == [1, 2, 3]


def test_publishes_before_a_close_are_written(server: Server, api: Api, topic: str) -> None:
    ok(api.put(topic), 201)
    with Socket(server.address) as socket:
        socket.send(
            b"".join(text(publish(str(number), topic, number)) for number in range(5))
            + frame_bytes(CLOSE, b"", mask=b"abcd")
        )
        socket.closed()
    assert ok(api.diff(topic, wait_ms=5000))["next_from_seq"] == 5
    assert stored(api, topic) == list(range(5))


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose messages leave the ring as soon as they may."""
    folder = tmp_path_factory.mktemp("narrow") / "data"
    with Server(folder, shards=1, inline_bytes=INLINE_BYTES, ring_bytes=64 << 10) as server:
        yield server


@pytest.mark.parametrize("durability", CLASSES)
def test_long_and_short_publishes_keep_their_order(narrow: Server, durability: str) -> None:
    sizes = [
        10,
        300,
        INLINE_BYTES * 5,
        10,
        INLINE_BYTES - 150,
        1,
        300,
        300,
        300,
        300,
        70_000,
        2,
    ] * 8
    values = [f"{at}:" + "x" * size for at, size in enumerate(sizes)]
    with Api(narrow.address) as api, Socket(narrow.address) as socket:
        ok(api.put(durability, {"durability": durability}), 201)
        say_at_once(
            socket, [publish(str(at), durability, value) for at, value in enumerate(values)]
        )
        told = answers(socket, len(values))
        assert [(each["request_id"], each["last_seq"]) for each in told] == [
            (str(at), at + 1) for at in range(len(values))
        ]
        assert stored(api, durability) == values


def test_answers_longer_than_their_publishes_arrive_whole(narrow: Server) -> None:
    with Socket(narrow.address) as socket:
        say_at_once(
            socket, [publish(str(at), "seqs", *range(400), return_seqs=True) for at in range(40)]
        )
        told = answers(socket, 40)
    assert [each["seqs"] for each in told] == [
        list(range(400 * at + 1, 400 * at + 401)) for at in range(40)
    ]


@pytest.mark.slow
def test_a_shard_that_dies_leaves_no_publish_unanswered(tmp_path: Path) -> None:
    """What was acknowledged is there, once; what was refused may be there, as with every write that
    was cut off.
    """
    with (
        Server(tmp_path / "data", shards=1) as server,
        Api(server.address) as api,
        Socket(server.address) as socket,
    ):
        ok(api.put("t", {"durability": "disk"}), 201)
        say_at_once(socket, [publish(str(number), "t", number) for number in range(100)])
        told = [socket.message("ack")]
        shard = server.roles()["shard 0"]
        os.kill(shard, signal.SIGSTOP)
        say_at_once(socket, [publish(str(number), "t", number) for number in range(100, 200)])
        socket.say("ping", "taken")
        told += socket.until("pong")[:-1]
        os.kill(shard, signal.SIGKILL)
        told += answers(socket, 200 - len(told))
        codes = {int(each["request_id"]): each.get("code") for each in told}
        assert set(codes) == set(range(200))
        assert {codes[number] for number in range(100, 200)} == {"not_ready"}
        server.wait_ready()
        kept = stored(api, "t")
        assert len(set(kept)) == len(kept)
        assert {number for number, code in codes.items() if code is None} <= set(kept)
        assert socket.ask("publish", "again", topic="t", records=[{"data": "again"}])["op"] == "ack"
