"""Request heads: cached heads, heads that arrive slowly, and bytes outside ASCII."""

from __future__ import annotations

import gc
import json
from functools import reduce
from itertools import product
from typing import Any

import pytest

from tests.front.conftest import Logged
from tests.support.fake_shards import FakeShards
from tests.support.front import HANDSHAKE, RECORD, Running, bearer, running
from tests.support.raw_client import request
from topics.formats.api.request_heads import Head, HeadFields
from topics.front.request import Request
from topics.front.route import NAMES, Route
from topics.front.table import ROUTES


async def test_heads_are_cached_by_digest_and_never_with_an_idempotency_key() -> None:
    async with running(keys="sesame") as run:
        client = await run.connect()
        for n in range(3):
            headers = {"authorization": "Bearer sesame"} | ({"idempotency_key": "k"} if n else {})
            assert (await client.request("POST", "/v0/topics/a", RECORD, **headers)).status in (
                200,
                201,
            )
        assert (await client.request("POST", "/v0/topics/a", RECORD)).status == 401
        heads = run.server.parts.heads
        for memory in (heads.cache, heads.topic_cache):
            assert len(memory) == 1
            assert "sesame" not in repr(memory.entries)


def kept(run: Running, token: bytes) -> list[object]:
    """Return the objects that hold the token in a head's fields or in unread input."""
    gc.collect()
    fields = [one for one in gc.get_objects() if isinstance(one, HeadFields)]
    return [
        *[one for one in fields if any(token in value for value in one.values(b"authorization"))],
        *[one for one in run.server.connections if token in one.buffer],
    ]


@pytest.mark.parametrize(
    ("path", "token", "status"),
    [("/v0/metrics", "sesame", 200), ("/v0/topics/a", "sesame-street", 401)],
)
async def test_no_object_keeps_the_token_of_an_answered_request(
    path: str, token: str, status: int
) -> None:
    async with running(keys="sesame") as run:
        client = await run.connect()
        assert (await client.request("GET", path, authorization=f"Bearer {token}")).status == status
        await run.until(lambda: all(c.idle for c in run.server.connections))
        assert kept(run, token.encode()) == []


async def test_a_stream_does_not_keep_the_token_that_opened_it() -> None:
    async with running(keys="sesame") as run:
        client = await run.connect()
        auth = {"authorization": "Bearer sesame"}
        await client.send(request("GET", "/v0/ws", b"", **auth, **HANDSHAKE))
        assert (await client.receive(method="HEAD")).status == 101
        assert kept(run, b"sesame") == []


@pytest.mark.parametrize("path", ["/v0/metrics", "/v0/ws"])
async def test_a_long_head_is_neither_cached_nor_kept_by_a_stream(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be thousands of cached heads and of streams."""
    async with running() as run:
        guard, admitted = run.server.parts.guard, list[Request]()
        admit = guard.admit

        def note(head: Head) -> Request:
            admitted.append(admit(head))
            return admitted[-1]

        monkeypatch.setattr(guard, "admit", note)
        client = await run.connect()
        fields = HANDSHAKE if path == "/v0/ws" else {}
        long = {f"x_{number}": "x" * 9000 for number in range(6)}
        await client.send(request("GET", path, b"", **fields, **long))
        assert (await client.receive(method="HEAD")).status in (200, 101)
        assert len(run.server.parts.heads.cache) == 0
        [admitted_one] = admitted
        assert admitted_one.head is not None
        if path == "/v0/ws":
            await run.until(lambda: len(run.server.live.streams) == 1)
            assert len(admitted_one.head) == 0


async def test_fragmented_empty_lines_before_a_request_are_ignored() -> None:
    async with running() as run:
        client = await run.connect()
        for fragment in (
            b"\r",
            b"\n\r",
            b"\n",
            b"\r\n\r",
            b"\n\r\n" + request("POST", "/v0/topics/a", b'{"records":[]}'),
        ):
            await client.send(fragment)
            await run.until(lambda: all(not c.buffer[c.pos :] for c in run.server.connections))
        assert (await client.receive()).status == 201


ODD = ["%C3%A9", "%ED%A0%80", "%00"]  # a character, a surrogate, a control character
QUERIES = (
    "",
    *("x=", "token=", "prefix=", "cursor=", "return_seqs=", "touch=", "page_size=", "lenient="),
)
FIELDS = (
    *("accept", "accept-encoding", "authorization", "content-encoding", "content-type"),
    *("idempotency-key", "last-event-id", "origin", "connection", "upgrade", "expect"),
    *("sec-websocket-key", "sec-websocket-version", "host", "x-other"),
)


def path_of(route: Route, name: str) -> str:
    """Return the path of the route with ``name`` for each of its names."""
    return reduce(lambda path, slot: path.replace(slot, name), NAMES, route.path)


@pytest.mark.slow
@pytest.mark.parametrize("key", ["", "sesame"], ids=["open", "keys"])
async def test_bytes_outside_ascii_get_a_valid_response_on_every_route(
    key: str, logged: Logged
) -> None:
    routes = [route for route in ROUTES if not route.is_public or route.path == "/console"]
    async with running(keys=key, shards=FakeShards(topics={"a": []})) as run:
        client = await run.connect()
        for route, auth in product(routes, [{}, {"authorization": bearer(key)}] if key else [{}]):
            odd = [path_of(route, text) for text in ODD]
            odd += [f"{path_of(route, 'a')}?{query}{text}" for query in QUERIES for text in ODD]
            requests: list[tuple[str, dict[str, Any]]] = [(target, auth) for target in odd]
            if not key:
                requests += [
                    (path_of(route, "a"), {name.replace("-", "_"): "é\xff"}) for name in FIELDS
                ]
            for method, (target, fields) in product(route.methods, requests):
                body = b"" if method == "GET" else b'{"records":[]}'
                await client.send(request(method, target, body, **fields))
                answer = await client.receive(method=method)
                assert answer.status < 500, (method, target, fields)
                is_over = answer.headers.get("connection") == "close" or answer.status == 101
                if is_over or "transfer-encoding" in answer.headers:  # its body is not read
                    client = await run.connect()
    assert logged == []


async def test_a_head_cached_without_its_topic_applies_to_the_requested_topic() -> None:
    async with running() as run:
        client = await run.connect()
        for n, topic in enumerate(("a", "b", "a", "c")):
            record = json.dumps({"records": [{"data": n}]}).encode()
            assert (await client.request("POST", f"/v0/topics/{topic}", record)).status in (
                200,
                201,
            )
        assert run.shards.topics == {
            "a": [{"data": 0}, {"data": 2}],
            "b": [{"data": 1}],
            "c": [{"data": 3}],
        }
        heads = run.server.parts.heads
        assert (len(heads.cache), len(heads.topic_cache)) == (3, 1)


async def test_a_head_cached_without_its_topic_keeps_its_trace_fields() -> None:
    async with running() as run:
        client = await run.connect()
        for topic in ("a", "b"):
            answer = await client.request("PUT", f"/v0/topics/{topic}", b"{}", x_request_id=topic)
            assert (answer.status, answer.headers["x-request-id"]) == (201, topic)
        assert len(run.server.parts.heads.topic_cache) == 1


@pytest.mark.slow
async def test_the_prefixes_of_a_key_are_checked_for_each_topic_despite_cached_heads() -> None:
    async with running(keys="writer:write+admin:t.,boss") as run:
        client = await run.connect()
        for key, topic, status in (
            ("writer", "t.a", 201),
            ("writer", "t.b", 201),
            ("writer", "u.a", 403),
            ("writer", "t.c", 201),
            ("boss", "u.a", 201),
            ("writer", "u.a", 403),
            ("nobody", "t.a", 401),
        ):
            fields = {"authorization": f"Bearer {key}"}
            answer = await client.request("PUT", f"/v0/topics/{topic}", b"{}", **fields)
            assert answer.status == status, (key, topic)
        assert sorted(run.shards.topics) == ["t.a", "t.b", "t.c", "u.a"]
        await run.replace_keys("boss")
        fields = {"authorization": "Bearer writer"}
        assert (await client.request("PUT", "/v0/topics/t.d", b"{}", **fields)).status == 401


LISTS = ["/v0/topics", "/v0/routers", "/v0/topics/a/leases"]


@pytest.mark.slow
async def test_a_cached_head_contains_no_long_text() -> None:
    """There are thousands of cached heads. A key with only the scope read can fill all of them."""
    async with running() as run:
        client = await run.connect()
        texts = {parameter.name for route in ROUTES for parameter in route.parameters}
        for path, name, length in product(LISTS, sorted(texts), (300, 2_000, 20_000)):
            answer = await client.request("GET", f"{path}?{name}={'x' * length}")
            assert answer.status in (200, 400, 404)
        for path in ("/v0/watch/" + "x" * 8000, "/v0/topics/" + "x" * 8000):
            assert (await client.request("GET", path)).status in (400, 404)
        heads = run.server.parts.heads
        for head in (*heads.cache.entries.values(), *heads.topic_cache.entries.values()):
            request = head.request
            texts_of = [*request.query._values.values(), request.topic, request.wid]
            assert max(len(str(text)) for text in texts_of) <= 512
