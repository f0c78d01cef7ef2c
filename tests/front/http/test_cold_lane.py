"""The cold lane: what Hypercorn gets to see of a request, who frees its body, what is answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.trio.worker_context import WorkerContext

from tests.support.fake_shards import FakeBlock, FakeShards
from tests.support.front import RECORD, running
from topics.engine.access import ANYONE
from topics.formats.api.request_heads import HeadFields
from topics.front.answers import Answer
from topics.front.http.cold_lane import ColdStack, hypercorn_config
from topics.front.http.cold_loader import CALL, ColdCall
from topics.front.queries import EMPTY
from topics.front.request import Body, Request
from topics.front.route import Lane
from topics.front.routes.table import ROUTES, match

HEAD = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]}
BODY = {"type": "http.response.body", "body": b"done"}
Handler = Callable[[dict[str, Any], ColdCall], None]


def lane(handle: Handler, answer: Answer | None) -> ColdStack:
    """An application that answers when ``handle`` has returned."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        call = scope["state"][CALL]
        handle(scope, call)
        call.answer = answer
        for message in (HEAD, BODY):
            await send(message)

    return ColdStack(ASGIWrapper(cast("Any", app)), hypercorn_config(), WorkerContext(None))


def call_of(target: bytes, body: Body) -> ColdCall:
    """A PUT with this target, admitted."""
    found = match("PUT", target)
    fields = HeadFields([(b"x-client", b"1")])
    request = Request(
        "PUT",
        found.route,
        found.topic or "",
        "",
        found.router or "",
        0,
        ANYONE,
        EMPTY,
        None,
        False,
        False,
        None,
        fields,
    )
    return ColdCall(request, body, 0)


async def test_hypercorn_gets_a_head_of_the_servers_own_and_no_byte_of_the_client() -> None:
    seen: list[dict[str, Any]] = []
    call = call_of(b"/v0/%74opics/a%2eb?x=1", b"secret")

    def handle(scope: dict[str, Any], call: ColdCall) -> None:
        seen.append(scope)
        assert call.take_body() == b"secret"

    given = Answer(201)
    answer = await lane(handle, given).ask(call)
    assert answer is given
    assert answer.body == b"done"
    (scope,) = seen
    assert (scope["type"], scope["method"], scope["path"]) == ("http", "PUT", "/v0/topics/a.b")
    assert (scope["query_string"], scope["headers"]) == (b"", [(b"host", b"topics")])


async def test_a_body_that_the_application_did_not_take_is_freed() -> None:
    shards = FakeShards()
    await lane(lambda *_: None, Answer(200)).ask(call_of(b"/v0/topics/a", FakeBlock(9, shards)))
    assert shards.blocks_out == 0


async def test_an_answer_of_hypercorns_own_is_never_sent() -> None:
    with pytest.raises(AssertionError, match="without asking the application"):
        await lane(lambda *_: None, None).ask(call_of(b"/v0/topics/a", b""))


@pytest.mark.parametrize("is_taken", [True, False])
def test_a_body_has_one_owner_who_frees_it(is_taken: bool) -> None:
    body = FakeBlock(9, FakeShards())
    call = call_of(b"/v0/topics/a", body)
    if is_taken:
        assert call.take_body() is body
    for _ in range(2):
        call.drop_body()
        assert body.freed is not is_taken
    with pytest.raises(AssertionError, match="taken once"):
        call.take_body()


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
    """Creations come by the thousand a second (decision 0045); moves of many jobs do not."""
    lanes = {route.name: route.lane for route in ROUTES}
    hot = ("append", "diff", "topic.put", "topic.get", "topic.list", "queue.claim", "router.put")
    assert {lanes[name] for name in hot} == {Lane.HOT}
    assert {lanes[name] for name in ("queue.leases", "queue.redrive")} == {Lane.COLD}


def test_a_route_that_needs_no_key_costs_no_task() -> None:
    """Any client may request such a route at any rate."""
    keyless = [route for route in ROUTES if route.is_open]
    assert {route.name for route in keyless} == {"health", "ready", "root", "console", "spec"}
    assert all(route.lane is Lane.HOT and route.is_plain for route in keyless)


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
