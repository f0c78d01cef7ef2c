"""The routes of routers: what reaches the owner, pages of the list, and every refusal."""

from __future__ import annotations

import base64

import pytest

from tests.support.fake_shards import FakeShards
from tests.support.front import LANES, bearer, running
from topics.formats.wire import calls

BODY = b'{"source":"t.a","dest":"t.b"}'


@LANES
@pytest.mark.parametrize("name", ["a-%3Eb", "a->b", "%61%2d%3eb"])
async def test_the_name_reaches_the_owner_decoded_and_the_body_as_it_was_sent(
    fast: bool, name: str
) -> None:
    async with running(fast=fast, shards=FakeShards(count=5)) as run:
        client = await run.connect()
        for method in ("PUT", "GET", "DELETE"):
            body = BODY if method == "PUT" else b""
            answer = await client.ask(method, f"/v0/routers/{name}?x=y", body)
            assert answer.status in (200, 201)
        puts, gets, deletes = run.shards.calls
        at = puts[1].at
        assert puts == ("router.put", calls.RouterParams("a->b", None, at), BODY)
        assert gets[:2] == ("router.get", calls.RouterParams("a->b", None, gets[1].at))
        assert deletes[0] == "router.delete"
        assert deletes[1] == calls.RouterParams("a->b", None, deletes[1].at)
        assert at > 0


async def test_a_long_body_reaches_the_owner_whole() -> None:
    body = BODY[:-1] + b',"later":"' + b"x" * 20_000 + b'"}'
    async with running() as run:
        client = await run.connect()
        assert (await client.ask("PUT", "/v0/routers/a", body)).status == 201
        assert run.shards.calls[0][2] == body


# Who may


@LANES
async def test_the_owner_is_told_the_prefixes_of_the_key(fast: bool) -> None:
    keys = "some::t.|u.,all"
    async with running(fast=fast, keys=keys) as run:
        client = await run.connect()
        for key, prefixes in (("some", ["t.", "u."]), ("all", None)):
            for method, path, body in (
                ("PUT", "/v0/routers/t.r", BODY),
                ("GET", "/v0/routers/t.r", b""),
                ("DELETE", "/v0/routers/t.r", b""),
                ("GET", "/v0/routers", b""),
            ):
                answer = await client.ask(method, path, body, authorization=bearer(key))
                assert answer.status in (200, 201)
                assert run.shards.calls[-1][1].prefixes == prefixes


# Refusals


@pytest.mark.parametrize("path", ["/v0/routers", "/v0/routers/r"])
async def test_an_owner_that_is_away_is_a_503(path: str) -> None:
    async with running(shards=FakeShards(ready=False)) as run:
        client = await run.connect()
        answer = await client.ask("GET", path)
        assert (answer.status, answer.code) == (503, "not_ready")
        assert answer.headers["retry-after"]


# The list


@LANES
async def test_the_owner_is_asked_for_one_more_than_the_page(fast: bool) -> None:
    async with running(fast=fast) as run:
        client = await run.connect()
        cursor = base64.urlsafe_b64encode(b'{"after":"a->b"}').decode()
        for query, params in (
            ("", calls.RouterListParams("", None, None, None, 101, None)),
            ("?page_size=5000", calls.RouterListParams("", None, None, None, 1001, None)),
            ("?page_size=0", calls.RouterListParams("", None, None, None, 2, None)),
            ("?source=&dest=", calls.RouterListParams("", "", "", None, 101, None)),
            (
                f"?prefix=a-%3E&source=a&dest=b&page_size=7&cursor={cursor}&later=1",
                calls.RouterListParams("a->", "a", "b", "a->b", 8, None),
            ),
        ):
            answer = await client.ask("GET", f"/v0/routers{query}")
            assert answer.status == 200
            assert answer.json()["routers"] == []
            assert run.shards.calls[-1] == ("router.list", params, b"")
