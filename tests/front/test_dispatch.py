"""Dispatch: every failure becomes a response, and every unexpected error a logged 500."""

from __future__ import annotations

from typing import Any

import pytest

from tests.front.conftest import Logged
from tests.support.front import APPEND, RECORD, running
from topics.front.answers import Answer
from topics.front.dispatch import OnResult
from topics.front.table import ROUTES


@pytest.mark.slow
async def test_an_unexpected_error_closes_only_its_connection(
    logged: Logged, monkeypatch: Any
) -> None:
    async with running() as run:
        broken = await run.connect()

        def raise_error(*_: object) -> None:
            raise ZeroDivisionError("in the machinery")

        with monkeypatch.context() as patch:
            patch.setattr("topics.front.http.head_reader.parse_head", raise_error)
            await broken.send(APPEND)
            assert (await broken.receive()).code == "internal"
            assert await broken.is_closed()
        healthy = await run.connect()
        assert (await healthy.request("POST", "/v0/topics/a", RECORD)).status == 201
    assert "in the machinery" in logged[0]["exception"]


async def test_an_unexpected_error_is_logged_with_its_traceback(logged: Logged) -> None:
    async with running() as run:
        client = await run.connect()
        assert (await client.request("POST", "/v0/topics/bug", RECORD)).code == "internal"
    (event,) = logged
    assert (event["event"], event["log_level"]) == ("request failed", "error")
    assert "a secret of the inside" in event["exception"]
    assert "Traceback" in event["exception"]


async def test_a_compressed_response_keeps_its_media_type() -> None:
    def page(_request: object, _body: object, _at: int, then: OnResult) -> None:
        then(Answer(200, b"up 1\n" * 1000, media_type=b"text/plain; version=0.0.4"))

    async with running() as run:
        run.server.dispatcher.operations = dict.fromkeys(ROUTES, page)
        client = await run.connect()
        for codings in ("", "gzip"):
            answer = await client.request("GET", "/v0/health", accept_encoding=codings)
            assert answer.headers["content-type"] == "text/plain; version=0.0.4"
            assert answer.headers.get("content-encoding", "") == codings
