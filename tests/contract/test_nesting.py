"""Data and meta may be nested at most 900 levels deep (§2), for every way to write a record. An
accepted record can be moved to any topic.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.contract.test_large_bodies import MIB
from tests.support.api import Api, ok, raw_records, refused
from tests.support.copies import passed
from tests.support.queues import Queue
from tests.support.routers import put
from tests.support.ws import Socket
from topics.formats.api.nesting import NESTING_MAX

FIELDS = ["data", "meta"]


def nested(field: str, depth: int) -> bytes:
    """Return a record whose data or meta has ``depth`` levels."""
    if field == "meta":
        return b'{"data":1,"meta":{"a":%b}}' % (b"[" * (depth - 1) + b"]" * (depth - 1))
    return b'{"data":%b}' % (b'{"a":[' * (depth // 2) + b"]}" * (depth // 2)).replace(
        b"[]", b"[[]]" if depth % 2 else b"[]"
    )


def single(api: Api, socket: Socket, topic: str, record: bytes) -> int:
    return api.call("POST", f"/v0/topics/{topic}", b'{"records":[%b]}' % record).status


def bulk(api: Api, socket: Socket, topic: str, record: bytes) -> int:
    records = b",".join([b'{"data":{"a":[1,{}]}}'] * 900 + [record])
    return api.call("POST", f"/v0/topics/{topic}", b'{"records":[%b]}' % records).status


def streamed(api: Api, socket: Socket, topic: str, record: bytes) -> int:
    large = b'{"data":"%b"}' % (b"x" * (MIB - 100))
    records = b",".join([large] * 4 + [record] + [large])
    return api.call("POST", f"/v0/topics/{topic}", b'{"records":[%b]}' % records).status


def published(api: Api, socket: Socket, topic: str, record: bytes) -> int:
    answer = socket.request("publish", "p", topic=topic, records=[json.loads(record)])
    return 201 if answer["op"] == "ack" else {"invalid_request": 400}[answer["code"]]


WAYS = [single, bulk, streamed, published]


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("way", WAYS)
def test_each_way_to_write_accepts_900_levels_and_refuses_901(
    api: Api, socket: Socket, topic: str, field: str, way: Callable[..., int]
) -> None:
    refused(api.get(topic), 404, "topic_not_found")
    assert way(api, socket, topic, nested(field, NESTING_MAX + 1)) == 400
    refused(api.get(topic), 404, "topic_not_found")
    record = nested(field, NESTING_MAX)
    assert way(api, socket, topic, record) == 201
    shown = api.diff(topic, limit=10_000, max_batch_bytes=8 * MIB).body
    assert record.removeprefix(b"{").replace(b" ", b"") in shown.replace(b" ", b"")


@pytest.mark.parametrize("field", FIELDS)
def test_a_record_at_the_limit_is_routed(api: Api, ends: tuple[str, str], field: str) -> None:
    source, dest = ends
    ok(api.put(source), 201)
    ok(put(api, "deep", source=source, dest=dest), 201)
    record = nested(field, NESTING_MAX)
    ok(api.call("POST", f"/v0/topics/{source}", b'{"records":[%b]}' % record))
    passed(api, "deep")
    (copy,), (original,) = raw_records(api.diff(dest)), raw_records(api.diff(source))
    assert bytes(copy.data) == bytes(original.data)


@pytest.mark.parametrize("field", FIELDS)
def test_a_job_at_the_limit_can_be_dead_lettered_and_redriven(
    pair: tuple[Queue, str], field: str
) -> None:
    queue, dead = pair
    record = nested(field, NESTING_MAX)
    body = b'{"records":[%b]}' % record
    ok(queue.api.call("POST", f"/v0/topics/{queue.name}", body))
    original = queue.api.diff(queue.name).body
    queue.spend(1, 2)
    queue.bury(1)
    assert record[1:-2] in queue.api.diff(dead).body
    assert Queue(queue.api, dead).redrive()["moved"] == 1
    assert queue.live() == [2]
    assert record[1:-1] in original
    assert record[1:-1] in queue.api.diff(queue.name).body
