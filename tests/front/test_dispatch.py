"""Dispatch: every failure becomes an answer, every bug a logged 500."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.fake_backend import FakeBackend
from tests.support.front import APPEND, LANES, RECORD, running
from topics.front.answers import Answer
from topics.front.routes.table import ROUTES


@pytest.mark.slow
@pytest.mark.parametrize(
    "where",
    [
        "quart_trio.app.QuartTrio.full_dispatch_request",
        "quart_trio.asgi.TrioASGIHTTPConnection.handle_request",
    ],
)
async def test_a_bug_in_the_framework_is_answered_with_the_envelope(
    where: str, monkeypatch: Any
) -> None:
    async with running(backend=FakeBackend(topics={"a": []})) as run:
        client = await run.connect()

        async def explode(*_: object, **__: object) -> None:
            raise ZeroDivisionError("in the machinery")

        with monkeypatch.context() as patch:
            patch.setattr(where, explode)
            answer = await client.ask("PUT", "/v0/topics/a", b"{}" + b" " * 9000)
        assert (answer.status, answer.code) == (500, "internal")
        assert run.backend.blocks_out == 0
        other = await run.connect()
        assert (await other.ask("GET", "/v0/health")).status == 200


@pytest.mark.slow
@LANES
async def test_an_unexpected_error_ends_its_connection_and_no_other(
    fast: bool, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    async with running(fast=fast) as run:
        broken = await run.connect()

        def explode(*_: object) -> None:
            raise ZeroDivisionError("in the machinery")

        with monkeypatch.context() as patch:
            patch.setattr("topics.front.http.head_reader.parse_head", explode)
            await broken.say(APPEND)
            assert (await broken.hear()).code == "internal"
            assert await broken.is_closed()
        healthy = await run.connect()
        assert (await healthy.ask("POST", "/v0/topics/a", RECORD)).status == 201
    assert "in the machinery" in caplog.text


@LANES
async def test_a_bug_is_logged_with_its_traceback(
    fast: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(fast=fast) as run:
        client = await run.connect()
        assert (await client.ask("POST", "/v0/topics/bug", RECORD)).code == "internal"
    assert "a secret of the inside" in caplog.text
    assert "Traceback" in caplog.text


@LANES
async def test_an_answer_keeps_its_media_type_also_under_gzip(fast: bool) -> None:
    async def metrics(_request: object, _body: object, _at: int) -> Answer:
        return Answer(200, b"up 1\n" * 1000, media_type=b"text/plain; version=0.0.4")

    async with running(fast=fast) as run:
        run.server.dispatcher._operations = dict.fromkeys(ROUTES, metrics)
        client = await run.connect()
        for codings in ("", "gzip"):
            answer = await client.ask("GET", "/v0/health", accept_encoding=codings)
            assert answer.headers["content-type"] == "text/plain; version=0.0.4"
            assert answer.headers.get("content-encoding", "") == codings
