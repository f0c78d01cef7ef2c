"""The cold bridge: what Hypercorn gets to see of a request, and who frees its body."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.trio.worker_context import WorkerContext

from tests.support.fake_shards import FakeBlock, FakeShards
from topics.engine.access import ANYONE
from topics.formats.api.request_heads import HeadFields
from topics.front.http.cold_bridge import ColdStack
from topics.front.http.cold_call import CALL, ColdCall
from topics.front.http.cold_lane import hypercorn_config
from topics.front.queries import EMPTY
from topics.front.request import Body, Request
from topics.front.routes.table import match

HEAD = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]}
BODY = {"type": "http.response.body", "body": b"done"}
Handler = Callable[[dict[str, Any], ColdCall], None]


def lane(handle: Handler) -> ColdStack:
    """An application that answers when ``handle`` has returned."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        handle(scope, scope["state"][CALL])
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
    return ColdCall(request, body, 0, close=False)


async def test_hypercorn_gets_a_head_of_the_servers_own_and_no_byte_of_the_client() -> None:
    seen: list[dict[str, Any]] = []
    call = call_of(b"/v0/%74opics/a%2eb?x=1", b"secret")

    def handle(scope: dict[str, Any], call: ColdCall) -> None:
        seen.append(scope)
        call.has_answered = True
        assert call.take_body() == b"secret"

    wire = await lane(handle).ask(call)
    assert wire.startswith(b"HTTP/1.1 200 ")
    assert wire.endswith(b"\r\n\r\ndone")
    assert b"content-length: 4\r\n" in wire
    (scope,) = seen
    assert (scope["type"], scope["method"], scope["path"]) == ("http", "PUT", "/v0/topics/a.b")
    assert (scope["query_string"], scope["headers"]) == (b"", [(b"host", b"topics")])


async def test_a_body_that_the_application_did_not_take_is_freed() -> None:
    shards = FakeShards()

    def handle(_: dict[str, Any], call: ColdCall) -> None:
        call.has_answered = True

    await lane(handle).ask(call_of(b"/v0/topics/a", FakeBlock(9, shards)))
    assert shards.blocks_out == 0


async def test_a_body_that_was_taken_belongs_to_the_application() -> None:
    shards = FakeShards()
    block = FakeBlock(9, shards)

    def handle(_: dict[str, Any], call: ColdCall) -> None:
        call.has_answered = True
        assert call.take_body() is block
        with pytest.raises(AssertionError):
            call.take_body()

    await lane(handle).ask(call_of(b"/v0/topics/a", block))
    assert not block.freed


async def test_an_answer_of_hypercorns_own_is_never_sent() -> None:
    with pytest.raises(AssertionError, match="without asking the application"):
        await lane(lambda *_: None).ask(call_of(b"/v0/topics/a", b""))
