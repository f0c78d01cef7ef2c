"""Writes of many megabytes (§2) follow the same rules as small ones and block no other client."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.api import Answer, Api, ok, raw_records, refused
from tests.support.server import Server

pytestmark = pytest.mark.slow
MIB = 2**20
CLASSES = ["ephemeral", "memory", "disk", "fsync"]
PADDING: list[dict[str, Any]] = [{"data": "x" * (MIB - 100)}] * 6


def body(*last: Any, **fields: Any) -> bytes:
    """Return a body of six records of almost 1 MiB, then ``last``, whose bytes are raw JSON."""
    records = [json.dumps(record).encode() for record in PADDING]
    records += [
        record if isinstance(record, bytes) else json.dumps(record).encode() for record in last
    ]
    tail = b"".join(
        b',"%s":%s' % (name.encode(), json.dumps(value).encode()) for name, value in fields.items()
    )
    return b'{"records":[' + b",".join(records) + b"]" + tail + b"}"


def post(api: Api, topic: str, raw: bytes) -> Answer:
    return api.call("POST", f"/v0/topics/{topic}", raw)


@pytest.mark.parametrize("durability", CLASSES)
def test_a_large_write_may_create_its_topic(api: Api, topic: str, durability: str) -> None:
    answer = ok(post(api, topic, body(config={"durability": durability, "priority": 7})), 201)
    assert (answer["created"], answer["deduped"], answer["seqs"], answer["count"]) == (
        True,
        False,
        [1, 2, 3, 4, 5, 6],
        6,
    )
    config = api.state(topic)["config"]
    assert (config["durability"], config["priority"]) == (durability, 7)
    again = ok(post(api, topic, body(config={"priority": 8})))
    assert (again["created"], again["first_seq"], again["head_seq"]) == (False, 7, 12)
    assert api.state(topic)["config"] == config
    assert (answer["performance"]["fsync_ms"] > 0) == (durability == "fsync")


def test_a_large_write_with_create_false_creates_no_topic(api: Api, topic: str) -> None:
    refused(post(api, topic, body(create=False)), 404, "topic_not_found")
    refused(post(api, topic, body(config={"auto_create": False})), 404, "topic_not_found")
    refused(api.get(topic), 404, "topic_not_found")


WRONG: list[tuple[str, bytes, str]] = [
    ("no data", body({"tag": "t"}), "invalid_request"),
    ("not an object", body(5), "invalid_request"),
    ("long tag", body({"data": 1, "tag": "x" * 257}), "invalid_request"),
    ("long node", body({"data": 1, "node": "x" * 129}), "invalid_request"),
    ("long batch node", body(node="x" * 129), "invalid_request"),
    ("long key", body(idempotency_key="x" * 257), "invalid_request"),
    ("empty key", body(idempotency_key=""), "invalid_request"),
    ("large record", body({"data": "x" * MIB}), "record_too_large"),
    ("large meta", body({"data": 1, "meta": {"k": "x" * 16384}}), "record_too_large"),
    ("many records", body(*[{"data": 1}] * 9995), "batch_too_large"),
    ("broken UTF-8", body(b'{"data":"\xff"}'), "invalid_request"),
    ("broken JSON", body(b'{"data":1]'), "invalid_request"),
    ("NaN", body(b'{"data":NaN}'), "invalid_request"),
    ("raw control character", body(b'{"data":"\n"}'), "invalid_request"),
    ("deep nesting", body(b'{"data":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), "invalid_request"),
    ("cut", body()[:-2], "invalid_request"),
    ("trailing data", body() + b"{}", "invalid_request"),
]


@pytest.mark.parametrize(
    ("raw", "code"), [row[1:] for row in WRONG], ids=[f"2 {row[0]}" for row in WRONG]
)
def test_a_refused_large_write_stores_nothing(api: Api, topic: str, raw: bytes, code: str) -> None:
    refused(post(api, topic, raw), 400, code)
    refused(api.get(topic), 404, "topic_not_found")
    ok(api.append(topic, "kept"), 201)
    refused(post(api, topic, raw), 400, code)
    assert ok(api.append(topic, "next"))["seqs"] == [2]


def test_the_bytes_of_a_large_write_are_unchanged(api: Api, topic: str) -> None:
    values = [
        b'{ "b" : 1.10, "a":[1E400 ,2] }',
        b"1234567890123456789012345678901234567890",
        b"null",
        b'"\\u0041\\/"',
        '"é😀"'.encode(),
    ]
    records = [b'{"meta":{ "k":1.0 },"data":' + value + b',"tag":"\\u00e9"}' for value in values]
    ok(post(api, topic, body(*records, node="n")), 201)
    stored = raw_records(api.diff(topic, from_seq=6, include_tags=True))
    assert [bytes(record.data) for record in stored] == values
    assert all(bytes(record.meta) == b'{ "k":1.0 }' for record in stored)
    page = ok(api.diff(topic, from_seq=6, include_tags=True))
    assert {(record["$tag"], record["$node"]) for record in page["records"]} == {("é", "n")}
    assert len({record["$ts"] for record in page["records"]}) == 1
    assert ok(api.diff(topic, node="n"))["next_from_seq"] == 11


@pytest.mark.parametrize("durability", CLASSES)
def test_a_large_write_is_deduplicated_by_its_key(api: Api, topic: str, durability: str) -> None:
    raw = body(idempotency_key="k", config={"durability": durability})
    first = ok(post(api, topic, raw), 201)
    ok(api.append(topic, "between"))
    again = ok(post(api, topic, raw))
    assert (again["created"], again["deduped"]) == (False, True)
    assert [again[name] for name in ("seqs", "head_seq", "count")] == [
        first[name] for name in ("seqs", "head_seq", "count")
    ]
    assert ok(api.append(topic, 1, idempotency_key="k"))["deduped"] is True
    assert api.state(topic)["head_seq"] == 7


def test_concurrent_large_duplicates_append_once(server: Server, api: Api, topic: str) -> None:
    raw, barrier = body(idempotency_key="k"), threading.Barrier(5, timeout=30)

    def client(number: int) -> Answer:
        with Api(server.address) as mine:
            barrier.wait()
            return (
                post(mine, topic, raw)
                if number
                else mine.append(topic, *range(6), idempotency_key="k")
            )

    with ThreadPoolExecutor(5) as pool:
        answers = list(pool.map(client, range(5)))
    assert sorted(answer.status for answer in answers) == [200] * 4 + [201]
    assert [answer.json()["deduped"] for answer in answers].count(False) == 1
    assert all(answer.json()["seqs"] == [1, 2, 3, 4, 5, 6] for answer in answers)
    assert api.state(topic)["head_seq"] == 6


def test_a_concurrent_delete_keeps_or_removes_a_large_write_completely(
    server: Server, api: Api, topic: str
) -> None:
    """Afterwards the topic can be created again."""
    ok(api.append(topic, "old"), 201)
    with ThreadPoolExecutor(1) as pool, Api(server.address) as writer:
        write = pool.submit(post, writer, topic, body())
        ok(api.delete(topic))
        answer = write.result(30)
    assert answer.status in (200, 201), str(answer)
    count = api.state(topic)["count"] if api.get(topic).status == 200 else 0
    assert count == (6 if answer.status == 201 else 0)
    ok(api.delete(topic))
    assert ok(api.append(topic, "new"), 201)["seqs"] == [1]
