"""The cold lane: its answers are those of the operations, and every failure has the envelope."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.fake_shards import FakeShards
from tests.support.front import RECORD, running
from topics.front.route import Lane
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
    async with running(fast=False, shards=FakeShards(topics={"a": []})) as run:
        client = await run.connect()

        async def explode(*_: object, **__: object) -> None:
            raise ZeroDivisionError("in the machinery")

        with monkeypatch.context() as patch:
            patch.setattr(where, explode)
            answer = await client.ask("PUT", "/v0/topics/a", b"{}" + b" " * 9000)
        assert (answer.status, answer.code) == (500, "internal")
        assert run.shards.blocks_out == 0
        other = await run.connect()
        assert (await other.ask("GET", "/v0/health")).status == 200


async def test_routes_of_either_lane_keep_their_lane() -> None:
    """Creations come by the thousand a second (decision 0045); lists and routers do not."""
    lanes = {route.name: route.lane for route in ROUTES}
    hot = ("append", "diff", "topic.put", "topic.get", "topic.delete", "queue.claim", "queue.ack")
    assert {lanes[name] for name in hot} == {Lane.HOT}
    assert {lanes[name] for name in ("topic.list", "router.put", "router.get")} == {Lane.COLD}


async def test_an_answer_of_the_cold_lane_says_when_it_is_the_last_of_its_connection() -> None:
    async with running(fast=False) as run:
        client = await run.connect()
        answer = await client.ask("PUT", "/v0/topics/a", b"{}")
        assert (answer.status, "connection" in answer.headers) == (201, False)
        answer = await client.ask("PUT", "/v0/topics/a", b"{}", connection="close")
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert await client.is_closed()


async def test_the_cold_lane_has_a_rule_for_every_route_but_streams() -> None:
    shards = FakeShards(topics={"a": []}, routers={"a": {}})
    async with running(fast=False, shards=shards) as run:
        client = await run.connect()
        for route in ROUTES:
            if not route.streams:
                answer = await client.ask(route.methods[0], route.path_of("a"), RECORD)
                assert answer.status in (200, 201, 400), route.name
                assert "server" not in answer.headers
