"""POST /v0/topics/:topic (§2): fields, lazy creation, and values at each limit and one above it."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.support.api import Api, ok, refused

KIB = 1024
MIB = 1024 * KIB
CLOCK_SLACK_MS = 1000


def test_an_append_creates_the_topic_and_assigns_seqs(api: Api, topic: str) -> None:
    body = ok(api.append(topic, "a", "b"), 201)
    body.pop("performance")
    assert body == {
        "topic": topic,
        "first_seq": 1,
        "last_seq": 2,
        "seqs": [1, 2],
        "head_seq": 2,
        "count": 2,
        "created": True,
        "deduped": False,
    }


def test_seqs_are_consecutive_over_appends(api: Api, topic: str) -> None:
    ok(api.put(topic), 201)
    expected = 1
    for size in (1, 3, 2, 50, 1):
        body = ok(api.append(topic, *range(size)))
        assert body["seqs"] == list(range(expected, expected + size))
        assert (body["first_seq"], body["last_seq"], body["head_seq"]) == (
            expected,
            expected + size - 1,
            expected + size - 1,
        )
        assert (body["count"], body["created"], body["deduped"]) == (size, False, False)
        expected += size


@pytest.mark.parametrize(
    ("query", "shown"),
    [("", True), ("?return_seqs=true", True), ("?return_seqs=false", False)],
    ids=lambda value: f"2 {value}",
)
def test_return_seqs_adds_the_seqs_to_the_response(
    api: Api, topic: str, query: str, shown: bool
) -> None:
    body = ok(
        api.call("POST", f"/v0/topics/{topic}{query}", {"records": [{"data": 1}, {"data": 2}]}), 201
    )
    assert body.get("seqs") == ([1, 2] if shown else None)
    assert ("seqs" in body) == shown
    assert (body["first_seq"], body["last_seq"], body["count"]) == (1, 2, 2)


# --- lazy creation

LAZY: list[tuple[dict[str, Any], bool]] = [
    ({}, True),
    ({"create": True}, True),
    ({"create": False}, False),
    ({"config": {}}, True),
    ({"config": {"auto_create": True}}, True),
    ({"config": {"auto_create": False}}, False),
    ({"create": True, "config": {"auto_create": False}}, True),
    ({"create": False, "config": {"auto_create": True}}, False),
    ({"create": False, "config": {}}, False),
]


@pytest.mark.parametrize(("fields", "created"), LAZY, ids=lambda value: f"2 {value}")
def test_create_and_auto_create_decide_if_a_write_creates_the_topic(
    api: Api, topic: str, fields: dict[str, Any], created: bool
) -> None:
    answer = api.append(topic, 1, **fields)
    if not created:
        refused(answer, 404, "topic_not_found")
        refused(api.get(topic), 404, "topic_not_found")
        return
    assert ok(answer, 201)["created"] is True
    assert api.state(topic)["config"]["auto_create"] is fields.get("config", {}).get(
        "auto_create", True
    )


@pytest.mark.parametrize(
    "fields",
    [{}, {"create": True}, {"create": False}, {"config": {"auto_create": False}}],
    ids=lambda value: f"2 {value}",
)
@pytest.mark.parametrize("auto_create", [True, False])
def test_an_existing_topic_accepts_writes_with_any_create_setting(
    api: Api, topic: str, fields: dict[str, Any], auto_create: bool
) -> None:
    ok(api.put(topic, {"auto_create": auto_create}), 201)
    body = ok(api.append(topic, 1, **fields))
    assert (body["created"], body["seqs"]) == (False, [1])


def test_an_inline_config_applies_only_if_the_write_creates_the_topic(api: Api, topic: str) -> None:
    config = {
        "ttl_ms": 10**9,
        "cap_records": 100,
        "durability": "fsync",
        "priority": 5000,
        "lease_ms": 1,
    }
    ok(api.append(topic, 1, config=config), 201)
    stored = api.state(topic)["config"]
    assert [
        stored[name]
        for name in ("ttl_ms", "cap_records", "durability", "durable", "priority", "lease_ms")
    ] == [
        10**9,
        100,
        "fsync",
        True,
        1000,
        100,
    ]
    ok(
        api.append(
            topic, 2, config={"ttl_ms": 1, "durability": "memory", "priority": 1, "type": "queue"}
        )
    )
    assert api.state(topic)["config"] == stored


# --- the content of a record


def test_a_record_may_override_the_node_of_its_batch(api: Api, topic: str) -> None:
    records = [{"data": 1}, {"data": 2, "node": "mine"}, {"data": 3, "node": "batch"}]
    ok(api.append(topic, records=records, node="batch"), 201)
    ok(api.append(topic, records=[{"data": 4}, {"data": 5, "node": "é"}]))
    assert [record.get("$node") for record in api.read(topic)] == [
        "batch",
        "mine",
        "batch",
        None,
        "é",
    ]


def test_a_record_is_read_with_exactly_its_fields(api: Api, topic: str) -> None:
    before = time.time_ns() // 1_000_000
    ok(
        api.append(
            topic,
            records=[
                {"data": 1},
                {"data": None, "tag": "t", "node": "n", "meta": {"m": 1}},
                {"data": "x", "meta": {}},
            ],
        ),
        201,
    )
    after = time.time_ns() // 1_000_000
    records = api.read(topic, include_tags=True)
    stamps = [record.pop("$ts") for record in records]
    assert records == [
        {"$seq": 1, "data": 1},
        {"$seq": 2, "$node": "n", "$tag": "t", "data": None, "meta": {"m": 1}},
        {"$seq": 3, "data": "x", "meta": {}},
    ]
    assert all(
        isinstance(stamp, int) and before - CLOCK_SLACK_MS <= stamp <= after + CLOCK_SLACK_MS
        for stamp in stamps
    )


def test_unknown_fields_are_ignored(api: Api, topic: str) -> None:
    ok(
        api.append(
            topic,
            records=[{"data": 1, "$seq": 99, "$node": "fake", "extra": {"a": [1]}}],
            later={"x": 1},
        ),
        201,
    )
    (record,) = api.read(topic)
    assert (record["$seq"], record["data"]) == (1, 1)
    assert set(record) == {"$seq", "$ts", "data"}


def test_one_invalid_record_makes_the_server_refuse_the_batch(api: Api, topic: str) -> None:
    ok(api.append(topic, "first"), 201)
    good = [{"data": number} for number in range(9)]
    refused(api.append(topic, records=[*good, {"tag": "no data"}]), 400, "invalid_request")
    refused(
        api.append(topic, records=[*good, {"data": 1, "tag": "x" * 257}]), 400, "invalid_request"
    )
    refused(api.append(topic, records=[*good, {"data": "x" * MIB}]), 400, "record_too_large")
    assert ok(api.append(topic, "last"))["seqs"] == [2]
    assert [record["data"] for record in api.read(topic)] == ["first", "last"]


E_ACUTE = "é"
STRINGS: list[tuple[str, dict[str, Any], dict[str, Any], bool]] = [
    ("tag 128 é", {"tag": E_ACUTE * 128}, {}, True),
    ("tag 128 é and 1", {"tag": E_ACUTE * 128 + "x"}, {}, False),
    ("tag 64 emoji", {"tag": "😀" * 64}, {}, True),
    ("tag 65 emoji", {"tag": "😀" * 65}, {}, False),
    ("node 128", {"node": "x" * 128}, {}, True),
    ("node 129", {"node": "x" * 129}, {}, False),
    ("node 64 é", {"node": E_ACUTE * 64}, {}, True),
    ("node 65 é", {"node": E_ACUTE * 65}, {}, False),
    ("batch node 64 é", {}, {"node": E_ACUTE * 64}, True),
    ("batch node 65 é", {}, {"node": E_ACUTE * 65}, False),
    ("key 256 é", {}, {"idempotency_key": E_ACUTE * 256}, True),
    ("key 257 é", {}, {"idempotency_key": E_ACUTE * 257}, False),
    ("key 256 emoji", {}, {"idempotency_key": "😀" * 256}, True),
]


@pytest.mark.parametrize("escaped", [False, True], ids=["raw", "escaped"])
@pytest.mark.parametrize(
    ("record", "fields", "fits"),
    [row[1:] for row in STRINGS],
    ids=[f"2 {row[0]}" for row in STRINGS],
)
def test_strings_are_accepted_up_to_their_limit(
    api: Api, topic: str, record: dict[str, Any], fields: dict[str, Any], fits: bool, escaped: bool
) -> None:
    body = json.dumps({"records": [{"data": 1, **record}], **fields}, ensure_ascii=escaped).encode()
    answer = api.call("POST", f"/v0/topics/{topic}", body)
    if not fits:
        refused(answer, 400, "invalid_request")
        refused(api.get(topic), 404, "topic_not_found")
        return
    ok(answer, 201)
    (stored,) = api.read(topic, include_tags=True)
    assert stored.get("$tag") == record.get("tag")
    assert stored.get("$node") == record.get("node", fields.get("node"))


def test_a_batch_has_at_most_10000_records(api: Api, topic: str) -> None:
    body = ok(api.append(topic, *range(10_000)), 201)
    assert body["seqs"] == list(range(1, 10_001))
    refused(api.append(topic, *range(10_001)), 400, "batch_too_large")
    assert api.state(topic)["head_seq"] == 10_000
    assert [record["data"] for record in api.read(topic)] == list(range(10_000))


def record(data: str, meta: str | None = None) -> bytes:
    """Return a request body with one record from raw JSON."""
    tail = "" if meta is None else f',"meta":{meta}'
    return f'{{"records":[{{"data":{data}{tail}}}]}}'.encode()


def quoted(size: int, letter: str = "x") -> str:
    """Return a JSON string of ``size`` bytes, including its quotes."""
    width = len(letter.encode())
    assert (size - 2) % width == 0
    return '"' + letter * ((size - 2) // width) + '"'


META = '{"k":"v"}'
SIZES = [
    ("data 1 MiB", record(quoted(MIB)), True),
    ("data 1 MiB and 1", record(quoted(MIB + 1)), False),
    ("data of é, 1 MiB", record(quoted(MIB, E_ACUTE)), True),
    ("data of é, 1 MiB and 2", record(quoted(MIB + 2, E_ACUTE)), False),
    ("data and meta 1 MiB", record(quoted(MIB - len(META)), META), True),
    ("data and meta 1 MiB and 1", record(quoted(MIB - len(META) + 1), META), False),
    ("meta 16 KiB", record("1", f'{{"k":{quoted(16 * KIB - 6)}}}'), True),
    ("meta 16 KiB and 1", record("1", f'{{"k":{quoted(16 * KIB - 5)}}}'), False),
    ("meta of é, 16 KiB", record("1", f'{{"k":{quoted(16 * KIB - 6, E_ACUTE)}}}'), True),
    ("meta of é, 16 KiB and 2", record("1", f'{{"k":{quoted(16 * KIB - 4, E_ACUTE)}}}'), False),
]


@pytest.mark.parametrize(
    ("body", "fits"), [row[1:] for row in SIZES], ids=[f"2 {row[0]}" for row in SIZES]
)
def test_a_record_and_its_meta_are_accepted_up_to_their_size_limits(
    api: Api, topic: str, body: bytes, fits: bool
) -> None:
    answer = api.call("POST", f"/v0/topics/{topic}", body)
    if not fits:
        refused(answer, 400, "record_too_large")
        refused(api.get(topic), 404, "topic_not_found")
        return
    ok(answer, 201)
    sent = json.loads(body)["records"][0]
    (stored,) = api.read(topic)
    assert stored["data"] == sent["data"]
    assert stored.get("meta") == sent.get("meta")


KEYS = [
    ("64 keys", {f"k{number}": number for number in range(64)}, True),
    ("65 keys", {f"k{number}": number for number in range(65)}, False),
    ("nested keys do not count", {"a": {f"k{number}": 1 for number in range(100)}}, True),
]


@pytest.mark.parametrize(
    ("meta", "fits"), [row[1:] for row in KEYS], ids=[f"2 {row[0]}" for row in KEYS]
)
def test_meta_has_at_most_64_keys(api: Api, topic: str, meta: dict[str, Any], fits: bool) -> None:
    answer = api.append(topic, records=[{"data": 1, "meta": meta}])
    if fits:
        ok(answer, 201)
        assert api.read(topic)[0]["meta"] == meta
    else:
        refused(answer, 400, "record_too_large", "invalid_request")
