"""The start and the options of live readers (§7.1 to §7.3), for sessions, single requests and
WebSockets.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.support.api import SLACK_S, Api, create, data, ok
from tests.support.server import Server
from tests.support.sse import RECORD, Stream, seqs, session, watch
from tests.support.ws import Socket

KIB, MIB = 1024, 1 << 20
START = ("from_seq", "tail")


def url_of(kind: str, api: Api, topic: str, fields: dict[str, Any]) -> str:
    if kind == "session":
        start = {name: value for name, value in fields.items() if name in START}
        options = {name: value for name, value in fields.items() if name not in START}
        return str(session(api, {topic: start}, **options)["stream_url"])
    query = {name: str(value).lower() for name, value in fields.items()}
    return f"/v0/watch?{urlencode({'topic': topic, **query})}"


@contextmanager
def reading(
    kind: str, api: Api, topic: str, *, receive_bytes: int | None = None, **fields: Any
) -> Iterator[tuple[list[Any], Socket | Stream]]:
    """Yield the bodies of the records up to the head, and the open socket or stream."""
    if kind == "socket":
        with Socket(api.address, receive_bytes=receive_bytes) as socket:
            socket.request("subscribe", "s", topic=topic, **fields)
            seen = socket.until("caught_up")
            yield [message for message in seen if message["op"] == "record"], socket
    else:
        url = url_of(kind, api, topic, fields)
        with Stream(api.address, url, receive_bytes=receive_bytes) as stream:
            yield stream.read_until_caught_up([topic]).of(RECORD), stream


def records(bodies: list[Any]) -> list[Any]:
    return [record for body in bodies for record in body["records"]]


KINDS = pytest.mark.parametrize("kind", ["session", "request", "socket"])


@KINDS
@pytest.mark.parametrize(
    ("fields", "seen"),
    [
        ({}, [0, 1, 2]),
        ({"from_seq": 2}, [2]),
        ({"tail": True}, []),
        ({"from_seq": 1, "tail": True}, []),
        ({"node": "n"}, []),
    ],
    ids=str,
)
def test_a_reader_starts_at_the_seq_that_it_requests(
    api: Api, topic: str, kind: str, fields: dict[str, Any], seen: list[int]
) -> None:
    create(api, topic)
    ok(api.append(topic, 0, 1, 2, node="n"))
    with reading(kind, api, topic, **fields) as (bodies, live):
        assert data(records(bodies)) == seen
        ok(api.append(topic, "live"))
        assert data(live.records(1)) == ["live"]


@KINDS
@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({}, ["data", "meta"]),
        ({"include_tags": True}, ["data", "meta", "$tag"]),
        ({"include_meta": False}, ["data"]),
        ({"include_data": False}, []),
        ({"include_data": False, "include_tags": True, "include_meta": True}, ["$tag"]),
    ],
    ids=str,
)
def test_a_reader_chooses_the_fields_of_records(
    api: Api, topic: str, kind: str, fields: dict[str, bool], shown: list[str]
) -> None:
    create(api, topic)
    writes = [{"data": 1, "tag": "t", "node": "n", "meta": {"m": 1}}]
    ok(api.append(topic, records=writes))
    with reading(kind, api, topic, **fields) as (bodies, live):
        (old,) = records(bodies)
        ok(api.append(topic, records=writes))
        (new,) = live.records(1)
    assert set(old) == set(new) == {"$seq", "$ts", "$node", *shown}


@KINDS
@pytest.mark.parametrize(("limit", "most"), [(3, 3), (0, 256), (None, 256), (2**32 - 1, 1000)])
def test_a_batch_has_at_most_limit_records(
    api: Api, topic: str, kind: str, limit: int | None, most: int
) -> None:
    count = min(2 * most + 1, 1100)
    create(api, topic, *range(count))
    with reading(kind, api, topic, **({} if limit is None else {"limit": limit})) as (bodies, _):
        assert data(records(bodies)) == [*range(count)]
    assert max(len(body["records"]) for body in bodies) <= most
    assert [body["from_seq"] for body in bodies] == [0, *(body["to_seq"] for body in bodies[:-1])]
    assert [body["to_seq"] for body in bodies] == [body["records"][-1]["$seq"] for body in bodies]
    assert {body["head_seq"] for body in bodies} == {count}


BUDGETS: dict[str, tuple[int, int, dict[str, int], int]] = {
    "256 KiB by default": (6, 100 * KIB, {}, 256 * KIB),
    "1 MiB for 0": (6, 300 * KIB, {"max_batch_bytes": 0}, MIB),
    "one byte still gives one record": (5, 1000, {"max_batch_bytes": 1}, 1),
    "a larger record comes alone": (3, 900 * KIB, {"max_batch_bytes": 10 * KIB}, 10 * KIB),
    "at most 8 MiB": (20, 512 * KIB, {"max_batch_bytes": 64 * MIB}, 8 * MIB),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * ("8 MiB" in name)) for name in BUDGETS]
)
def test_a_batch_stops_once_it_reaches_the_byte_budget(api: Api, topic: str, name: str) -> None:
    """§7.1: a read stops once the batch reaches the budget."""
    count, size, fields, budget = BUDGETS[name]
    create(api, topic)
    for start in range(0, count, 5):
        ok(api.append(topic, *["x" * (size - 2)] * min(5, count - start)))
    with reading("session", api, topic, **fields) as (bodies, _):
        assert seqs(records(bodies)) == [*range(1, count + 1)]
    counts = [len(body["records"]) for body in bodies]
    assert min(counts) >= 1
    assert (max(counts) - 1) * size < budget


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["session", "socket"])
def test_a_stalled_reader_delays_no_other_reader_and_reads_everything_later(
    api: Api, topic: str, kind: str
) -> None:
    create(api, topic)
    writes, slowest = 16, 0.0  # 16 MB, which exceed the buffers of the sockets
    with (
        reading(kind, api, topic, receive_bytes=16 * KIB) as (_, stalled),
        reading(kind, api, topic, consistency="strong") as (_, quick),
    ):
        for number in range(writes):
            sent = time.monotonic()
            ok(api.append(topic, *[[number, "x" * 100 * KIB]] * 10))
            assert [record["data"][0] for record in quick.records(10)] == [number] * 10
            slowest = max(slowest, time.monotonic() - sent)
        found = stalled.records(10 * writes, timeout_s=30)
        assert seqs(found) == [*range(1, 10 * writes + 1)]
        ok(api.append(topic, "live again"))
        assert data(stalled.records(1)) == ["live again"]
    assert slowest < SLACK_S


@pytest.mark.slow
def test_readers_that_join_while_records_flow_see_each_record_once(
    server: Server, api: Api, topic: str
) -> None:
    create(api, topic)
    count = 400

    def read(delay_s: float) -> list[Any]:
        time.sleep(delay_s)
        with Api(server.address) as own, watch(own, [topic]) as stream:
            return data(stream.records(count))

    with ThreadPoolExecutor(10) as pool:
        readers = [pool.submit(read, number * 0.03) for number in range(10)]
        for number in range(count):
            ok(api.append(topic, number))
        for reader in readers:
            assert reader.result(60) == [*range(count)]
