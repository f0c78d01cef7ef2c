"""Admission: every refusal with its status and code, in the documented order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.front import KEYS, LANES, RECORD, running
from topics.errors import Forbidden
from topics.formats.api.request_heads import parse_head
from topics.front.request import Request
from topics.front.routes.records import RETURN_SEQS


@LANES
@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status", "code"),
    [
        ("GET", "/v0/nothing", b"", {}, 404, "not_found"),
        ("POST", "/v0/metrics", b"", {}, 405, "method_not_allowed"),
        ("GET", "/v0/topics/", b"", {}, 400, "invalid_request"),
        ("GET", "/v0//topics", b"", {}, 404, "not_found"),
        ("GET", "/v0/topics/a/b", b"", {}, 404, "not_found"),
        ("GET", "/v0/topics/a%2Fb", b"", {}, 404, "not_found"),
        ("POST", "/v0/topics/a%0A", RECORD, {}, 400, "invalid_request"),
        ("POST", "/v0/topics/%C3%A9", RECORD, {}, 400, "invalid_request"),
        ("POST", "/v0/topics/" + "a" * 256, RECORD, {}, 400, "invalid_request"),
        ("GET", "/v0/routers/", b"", {}, 400, "invalid_request"),
        ("GET", "/v0/routers/a->b%0A", b"", {}, 400, "invalid_request"),
        ("GET", "/v0/routers/->b", b"", {}, 400, "invalid_request"),
        ("GET", "/v0/routers/a%2Fb", b"", {}, 404, "not_found"),
        ("DELETE", "/v0/routers/" + "a" * 256, b"", {}, 400, "invalid_request"),
        ("PUT", "/v0/routers/a", b"", {}, 400, "invalid_request"),
        ("PUT", "/v0/routers/a", b"{}", {"content_type": ""}, 415, "unsupported_media_type"),
        ("POST", "/v0/routers/a", b"{}", {}, 405, "method_not_allowed"),
        ("PUT", "/v0/routers", b"{}", {}, 405, "method_not_allowed"),
        ("PATCH", "/v0/topics/a", b"", {}, 405, "method_not_allowed"),
        ("OPTIONS", "/v0/topics/a", b"", {}, 405, "method_not_allowed"),
        ("TRACE", "/v0/topics/a", b"", {}, 405, "method_not_allowed"),
        ("BREW", "/v0/topics/a", b"", {}, 405, "method_not_allowed"),
        ("post", "/v0/topics/a", b"", {}, 405, "method_not_allowed"),
        ("POST", "/v0/topics", b"", {}, 405, "method_not_allowed"),
        ("POST", "/v0/topics/a", RECORD, {"content_type": ""}, 415, "unsupported_media_type"),
        (
            *("POST", "/v0/topics/a", RECORD, {"content_type": "text/json"}),
            *(415, "unsupported_media_type"),
        ),
        (
            "POST",
            "/v0/topics/a",
            RECORD,
            {"content_type": "application/json; charset=latin-1"},
            415,
            "unsupported_media_type",
        ),
        ("POST", "/v0/topics/a", RECORD, {"content_encoding": "br"}, 415, "unsupported_media_type"),
        (
            *("PUT", "/v0/topics/a", b"{}", {"content_type": "text/plain"}),
            *(415, "unsupported_media_type"),
        ),
        ("POST", "/v0/topics/a", b"", {}, 400, "invalid_request"),
        ("POST", "/v0/topics/a", b"{", {}, 400, "invalid_request"),
        ("POST", "/v0/topics/a?return_seqs=1", RECORD, {}, 400, "invalid_request"),
        ("POST", "/v0/topics/a", RECORD, {"content_encoding": "gzip"}, 400, "invalid_request"),
        ("POST", "/v0/topics/a/diff", b"{}", {}, 404, "topic_not_found"),
        ("GET", "/v0/topics?cursor=%21", b"", {}, 400, "invalid_request"),
        ("GET", "/v0/topics?cursor=e30", b"", {}, 400, "invalid_request"),
        ("GET", "/v0/topics?page_size=ten", b"", {}, 400, "invalid_request"),
        ("GET", "/v0/topics?touch=yes", b"", {}, 400, "invalid_request"),
        ("GET", "/v0/topics?prefix=%ff", b"", {}, 400, "invalid_request"),
        ("POST", "/v0/topics/bug", RECORD, {}, 500, "internal"),
        ("POST", "/v0/topics/shard-bug", RECORD, {}, 500, "internal"),
    ],
)
async def test_every_refusal_has_its_status_and_code_and_the_connection_goes_on(
    fast: bool, method: str, path: str, body: bytes, headers: dict[str, str], status: int, code: str
) -> None:
    async with running(fast=fast) as run:
        client = await run.connect()
        answer = await client.ask(method, path, body, **headers)
        assert (answer.status, answer.code) == (status, code)
        assert answer.headers["content-type"] == "application/json"
        if status == 405:
            assert answer.headers["allow"]
        assert b"secret" not in answer.body
        if "content_encoding" in headers and code == "invalid_request":
            assert await client.is_closed()
        else:
            assert (await client.ask("GET", "/v0/health")).status == 200


@LANES
@pytest.mark.parametrize(
    ("method", "path", "key", "status"),
    [
        ("POST", "/v0/topics/t.a", None, 401),
        ("POST", "/v0/topics/t.a", "Bearer unknown", 401),
        ("POST", "/v0/topics/t.a", "Basic boss", 401),
        ("POST", "/v0/topics/t.a?token=boss", None, 401),
        ("GET", "/v0/topics/t.a/leases?token=boss", None, 401),
        ("GET", "/v0/topics/t.a/work?token=unknown", None, 401),
        ("GET", "/v0/topics/t.a/work?token=boss", None, 400),
        ("GET", "/v0/watch/w?token=boss", None, 404),
        ("GET", "/v0/nothing", None, 401),
        ("BREW", "/v0/topics/t.a", None, 401),
        ("GET", "/v0/nothing", "Bearer reader", 404),
        ("PATCH", "/v0/topics/t.a", "Bearer reader", 405),
        ("POST", "/v0/topics/t.a", "bearer reader", 403),
        ("POST", "/v0/topics/other", "Bearer writer", 403),
        ("POST", "/v0/topics/t.a", "Bearer writer", 201),
        ("GET", "/v0/health", None, 200),
    ],
)
async def test_keys_scopes_and_prefixes(
    fast: bool, method: str, path: str, key: str | None, status: int
) -> None:
    async with running(fast=fast, keys=KEYS) as run:
        client = await run.connect()
        body = RECORD if method == "POST" else b""
        for _ in range(2):  # the second time the head is known
            answer = await client.ask(method, path, body, **({"authorization": key} if key else {}))
            assert answer.status == (200 if status == 201 and run.shards.calls[1:] else status)
        if status == 401:
            assert answer.headers["www-authenticate"] == "Bearer"


@LANES
async def test_forbidden_comes_before_a_wrong_body_and_unauthorized_before_all(fast: bool) -> None:
    async with running(fast=fast, keys=KEYS) as run:
        client = await run.connect()
        bad = {"content_type": "text/plain"}
        assert (
            await client.ask("POST", "/v0/topics/%20?return_seqs=x", RECORD, **bad)
        ).status == 401
        bad["authorization"] = "Bearer writer"
        assert (
            await client.ask("POST", "/v0/topics/%20?return_seqs=x", RECORD, **bad)
        ).status == 403
        bad["authorization"] = "Bearer boss"
        assert (
            await client.ask("POST", "/v0/topics/%20?return_seqs=x", RECORD, **bad)
        ).status == 415


async def test_a_renamed_request_is_the_one_that_the_other_name_would_have_got() -> None:
    async with running(keys="writer:write:t.,other:write:u.") as run:
        guard = run.server.guard

        def admitted(topic: str, key: str = "writer") -> Request:
            line = f"POST /v0/topics/{topic}?return_seqs=false&x=y HTTP/1.1\r\n"
            fields = f"Host: localhost\r\nAuthorization: Bearer {key}\r\nAccept-Encoding: gzip\r\n"
            body = (
                "Content-Type: application/json\r\nContent-Encoding: gzip\r\nContent-Length: 9\r\n"
            )
            return guard.admit(parse_head(f"{line}{fields}{body}\r\n".encode()))

        first, other = admitted("t.a"), admitted("t.b")
        renamed = guard.renamed(first, "t.b")
        assert renamed == replace(other, query=first.query)
        assert first.query[RETURN_SEQS] is other.query[RETURN_SEQS] is False
        assert guard.renamed(first, "u.a") is None
        with pytest.raises(Forbidden):
            admitted("u.a")
