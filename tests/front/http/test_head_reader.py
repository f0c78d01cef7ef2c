"""Request heads: remembered, dripping in, not ASCII."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.fake_backend import FakeBackend
from tests.support.front import LANES, RECORD, Running, running
from tests.support.raw_client import RawClient, request
from topics.front.route import NAMES
from topics.front.routes.table import ROUTES


async def with_topic(run: Running) -> RawClient:
    client = await run.connect()
    assert (await client.ask("PUT", "/v0/topics/a")).status == 201
    return client


async def test_heads_are_remembered_by_digest_only_and_never_with_an_idempotency_key() -> None:
    async with running(keys="sesame") as run:
        client = await run.connect()
        for n in range(3):
            headers = {"authorization": "Bearer sesame"} | ({"idempotency_key": "k"} if n else {})
            assert (await client.ask("POST", "/v0/topics/a", RECORD, **headers)).status in (
                200,
                201,
            )
        assert (await client.ask("POST", "/v0/topics/a", RECORD)).status == 401
        heads = run.server.lanes.heads.remembered
        assert len(heads) == 1
        assert "sesame" not in repr(heads)


async def test_the_answer_to_a_remembered_head_depends_on_the_body() -> None:
    async with running() as run:
        client = await with_topic(run)
        for n in range(5):
            record = json.dumps({"records": [{"data": n}]}).encode()
            assert (await client.ask("POST", "/v0/topics/a", record)).status == 200
        assert run.backend.topics["a"] == [{"data": n} for n in range(5)]


@LANES
async def test_an_empty_line_in_pieces_before_a_request_means_nothing(fast: bool) -> None:
    async with running(fast=fast) as run:
        client = await run.connect()
        for piece in (
            b"\r",
            b"\n\r",
            b"\n",
            b"\r\n\r",
            b"\n\r\n" + request("POST", "/v0/topics/a", b'{"records":[]}'),
        ):
            await client.say(piece)
            await run.until(lambda: all(not c.buffer[c.pos :] for c in run.server.connections))
        assert (await client.hear()).status == 201


RECORDS = b'{"records":[]}'


ODD = ["%C3%A9", "%ED%A0%80", "%00"]  # a character, half of one, none


@pytest.mark.slow
@LANES
@pytest.mark.parametrize("keys", ["", "sesame"], ids=["open", "keys"])
async def test_a_target_that_is_not_ascii_is_answered_on_every_route(
    fast: bool, keys: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(fast=fast, keys=keys, backend=FakeBackend(topics={"a": []})) as run:
        for route in ROUTES:
            for method in route.methods:
                for target in _odd_targets(route.path):
                    for fields in ({}, {"authorization": "Bearer sesame"} if keys else None):
                        if fields is not None:
                            client = await run.connect()
                            await client.say(
                                request(
                                    method, target, RECORDS if method != "GET" else b"", **fields
                                )
                            )
                            answer = await client.hear(method=method)
                            assert answer.status < 500, (method, target, fields)
    assert not [record for record in caplog.records if record.name.startswith("topics")]


def filled(pattern: str, name: str) -> str:
    """The path of a route with ``name`` wherever it takes one."""
    for slot in NAMES:
        pattern = pattern.replace(slot, name)
    return pattern


def _odd_targets(pattern: str) -> list[str]:
    plain = filled(pattern, "a")
    names = [filled(pattern, odd) for odd in ODD if ":" in pattern]
    queries = [
        "x={}",
        "{}",
        "token={}",
        "prefix={}",
        "cursor={}",
        "return_seqs={}",
        "touch={}",
        "page_size={}",
        "lenient={}",
    ]
    return [*names, *(f"{plain}?{query.format(odd)}" for query in queries for odd in ODD)]


FIELDS = [
    "accept",
    "accept-encoding",
    "authorization",
    "content-encoding",
    "content-type",
    "idempotency-key",
    "last-event-id",
    "origin",
    "connection",
    "upgrade",
    "expect",
    "sec-websocket-key",
    "sec-websocket-version",
    "host",
    "x-other",
]


@pytest.mark.slow
@LANES
async def test_a_field_that_is_not_ascii_is_answered_on_every_route(
    fast: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(fast=fast, backend=FakeBackend(topics={"a": []})) as run:
        for route in ROUTES:
            for field in FIELDS:
                client = await run.connect()
                said: dict[str, Any] = {field.replace("-", "_"): "é\xff"}
                path = filled(route.path, "a")
                method = route.methods[0]
                await client.say(request(method, path, RECORDS if method != "GET" else b"", **said))
                answer = await client.hear(method=method)
                assert answer.status < 500, (route, field)
    assert not [record for record in caplog.records if record.name.startswith("topics")]
