"""Origins (decisions 0019, 0033): a page of another site reaches nothing through a visitor's
browser, with keys or without.
"""

from __future__ import annotations

import pytest

from tests.support.front import HANDSHAKE, Running, running
from tests.support.raw_client import Answered, request
from topics.config import Settings

ANY_HOST = Settings(allowed_hosts=("*",))


async def shaken(run: Running, **headers: str) -> Answered:
    client = await run.connect()
    await client.say(request("GET", "/v0/ws", b"", **HANDSHAKE, **headers))
    return await client.hear(method="HEAD")


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost", ""),
        ("127.0.0.1:4000", "http://127.0.0.1:4000"),
        ("127.0.0.1:4000", "http://127.0.0.1:8000"),
        ("127.0.0.1:4000", "https://LocalHost"),
        ("[::1]:4000", "http://[::1]:3000"),
        ("[fd00::1]:4000", "http://[FD00::1]"),
        ("topics.internal", "https://topics.internal:8443"),
        ("10.0.0.7:4000", "http://localhost:3000"),
        ("10.0.0.7:4000", "http://10.0.0.7:3000"),
    ],
)
async def test_a_page_of_this_host_or_of_this_machine_opens_a_websocket(
    host: str, origin: str
) -> None:
    async with running(settings=ANY_HOST) as run:
        assert (await shaken(run, host=host, origin=origin)).status == 101


@pytest.mark.parametrize(
    "origin",
    [
        "http://elsewhere",
        "https://elsewhere.example:4000",
        "http://localhost.elsewhere.example",
        "http://127.0.0.1.elsewhere.example:4000",
        "http://localhost@elsewhere.example",
        "http://elsewhere.example/localhost",
        "http://[::2]:4000",
        "null",
        "file://",
        "localhost",
        "//localhost",
        "http://localhost http://elsewhere",
        "http://localhost:4000\r\norigin: http://elsewhere",
    ],
)
async def test_a_page_of_another_site_is_refused(origin: str) -> None:
    async with running() as run:
        client = await run.connect()
        answer = await client.ask(
            "GET", "/v0/ws", b"", host="127.0.0.1:4000", origin=origin, **HANDSHAKE
        )
        assert (answer.status, answer.code) == (403, "forbidden")


@pytest.mark.parametrize(
    "line", ["GET /v0/topics/a/work?node=n", "POST /v0/topics/a/redrive"], ids=["work", "redrive"]
)
async def test_a_page_of_another_site_leases_and_moves_no_jobs(line: str) -> None:
    """Browsers send both without a preflight."""
    method, path = line.split()
    async with running() as run:
        client = await run.connect()
        answer = await client.ask(method, path, origin="http://elsewhere")
        assert (answer.status, answer.code, run.shards.calls) == (403, "forbidden", [])
        assert (await client.ask(method, path, origin="http://localhost:3000")).status == 404


async def test_forbidden_comes_before_a_malformed_handshake() -> None:
    async with running() as run:
        client = await run.connect()
        assert (await client.ask("GET", "/v0/ws", origin="http://elsewhere")).code == "forbidden"
        assert (await client.ask("GET", "/v0/ws", origin="http://localhost")).status == 426


async def test_with_keys_a_foreign_origin_needs_to_be_listed_and_every_one_a_token() -> None:
    fields = {"origin": "https://app.example", "authorization": "Bearer k"}
    async with running(keys="k") as run:
        assert (await shaken(run, **fields)).status == 403
        assert (await shaken(run, authorization="Bearer k")).status == 101
        assert (await shaken(run, **{**fields, "origin": "http://localhost"})).status == 101
        client = await run.connect()
        assert (
            await client.ask("GET", "/v0/ws", b"", origin="http://localhost", **HANDSHAKE)
        ).code == "unauthorized"


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize(
    "kind",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""],
)
async def test_a_body_that_a_browser_would_send_for_any_page_is_refused(
    fast: bool, kind: str
) -> None:
    """These types need no preflight; application/json does, and no preflight is ever answered."""
    async with running(fast=fast) as run:
        client = await run.connect()
        for path, body in (
            ("/v0/topics/a", b'{"records":[{"data":1}]}'),
            ("/v0/topics/a/delete", b'{"before_seq":9}'),
            ("/v0/topics/a/diff", b'{"from_seq":0}'),
            ("/v0/watch", b'{"topics":{"a":{}}}'),
        ):
            answer = await client.ask(
                "POST", path, body, content_type=kind, origin="http://elsewhere"
            )
            assert answer.code == "unsupported_media_type"
        for path in ("/v0/topics/a", "/v0/watch"):
            answer = await client.ask(
                "OPTIONS", path, origin="http://elsewhere", access_control_request_method="POST"
            )
            assert answer.status == 405
            assert not [name for name in answer.headers if name.startswith("access-control")]
        assert run.shards.calls == []
