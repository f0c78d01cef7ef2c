"""The admin plane: the request that Hypercorn receives, the release of its body, the response."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.trio.worker_context import WorkerContext
from quart import Response

from tests.front.conftest import Logged
from tests.support.fake_shards import FakeBlock, FakeShards
from tests.support.front import RECORD, running
from topics.engine.access import ANYONE
from topics.formats.api.request_heads import HeadFields
from topics.front.admin import paging
from topics.front.admin.application import VIEWS, Application, hypercorn_config
from topics.front.admin.rows import ROWS
from topics.front.admin.views import CALL
from topics.front.answers import Answer
from topics.front.http.admin_plane import AdminCall, AdminPlane
from topics.front.queries import EMPTY
from topics.front.request import Body, Request
from topics.front.table import ROUTES, match

HEAD = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]}
BODY = {"type": "http.response.body", "body": b"done"}
Handler = Callable[[dict[str, Any], AdminCall], None]


async def run_call(handle: Handler, call: AdminCall, response: Response | None) -> Answer:
    """Return the answer of an application that responds after ``handle`` has returned."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        call = scope["state"][CALL]
        handle(scope, call)
        call.response = response
        for message in (HEAD, BODY):
            await send(message)

    wrapped = ASGIWrapper(cast("Any", app))
    application = Application(wrapped, hypercorn_config(), WorkerContext(None), cast("Any", None))
    plane = AdminPlane(lambda: application)
    plane._application = application
    return await plane.call(call)


def call_of(target: bytes, body: Body) -> AdminCall:
    """Return an admitted PUT with this target."""
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
    return AdminCall(request, body, 0)


async def test_hypercorn_gets_a_generated_head_and_no_bytes_of_the_client() -> None:
    seen: list[dict[str, Any]] = []
    call = call_of(b"/v0/%72outers/a%2eb?x=1", b"secret")

    def handle(scope: dict[str, Any], call: AdminCall) -> None:
        seen.append(scope)
        assert call.take_body() == b"secret"

    answer = await run_call(handle, call, Response(b"", 201, {"Location": "/v0/routers/a.b"}))
    assert (answer.status, answer.body) == (201, b"done")
    assert answer.headers == ((b"location", b"/v0/routers/a.b"),)
    (scope,) = seen
    assert (scope["type"], scope["method"], scope["path"]) == ("http", "PUT", "/v0/routers/a.b")
    assert (scope["query_string"], scope["headers"]) == (b"", [(b"host", b"topics")])


async def test_a_body_that_the_application_does_not_take_is_freed() -> None:
    shards = FakeShards()
    await run_call(lambda *_: None, call_of(b"/v0/routers/a", FakeBlock(9, shards)), Response(b""))
    assert shards.blocks_out == 0


async def test_a_response_that_hypercorn_creates_itself_is_never_sent() -> None:
    with pytest.raises(AssertionError, match="without calling the application"):
        await run_call(lambda *_: None, call_of(b"/v0/routers/a", b""), None)


@pytest.mark.parametrize("is_taken", [True, False])
def test_a_body_has_one_owner_which_frees_it(is_taken: bool) -> None:
    body = FakeBlock(9, FakeShards())
    call = call_of(b"/v0/routers/a", body)
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
async def test_an_error_in_the_framework_gets_the_error_envelope(
    where: str, monkeypatch: Any
) -> None:
    async with running() as run:
        client = await run.connect()

        async def raise_error(*_: object, **__: object) -> None:
            raise ZeroDivisionError("in the machinery")

        with monkeypatch.context() as patch:
            patch.setattr(where, raise_error)
            answer = await client.request("PUT", "/v0/routers/a", b"{}" + b" " * 9000)
        assert (answer.status, answer.code) == (500, "internal")
        assert run.shards.blocks_out == 0
        other = await run.connect()
        assert (await other.request("GET", "/v0/health")).status == 200


def test_every_row_of_the_admin_plane_has_a_view() -> None:
    assert set(VIEWS) == set(ROWS)
    names = {"topic.list", "queue.leases", "queue.redrive", "metrics"}
    routers = {"router.put", "router.get", "router.delete", "router.list"}
    assert {row.name for row in ROWS} == names | routers


def test_a_route_that_needs_no_key_is_in_the_data_plane() -> None:
    """Any client may request such a route at any rate."""
    keyless = [route for route in ROUTES if route.is_open]
    assert {route.name for route in keyless} == {"health", "ready", "root", "console", "spec"}
    assert set(keyless).isdisjoint(ROWS)


@pytest.mark.slow
async def test_the_last_response_of_a_connection_has_connection_close() -> None:
    async with running() as run:
        client = await run.connect()
        answer = await client.request("PUT", "/v0/routers/a", b"{}")
        assert (answer.status, "connection" in answer.headers) == (201, False)
        answer = await client.request("PUT", "/v0/routers/a", b"{}", connection="close")
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert await client.is_closed()


async def test_the_application_answers_every_row() -> None:
    shards = FakeShards(topics={"a": []}, routers={"a": {}})
    async with running(shards=shards) as run:
        client = await run.connect()
        for row in ROWS:
            answer = await client.request(row.methods[0], row.path_of("a"), RECORD)
            assert answer.status == 200, row.name
            assert "server" not in answer.headers


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v0/routers/none", 404, "router_not_found"),
        ("/v0/topics/shard-bug/leases", 500, "internal"),
    ],
)
async def test_a_failure_of_a_view_gets_the_error_envelope(
    path: str, status: int, code: str
) -> None:
    async with running() as run:
        client = await run.connect()
        answer = await client.request("GET", path, b"")
        assert (answer.status, answer.code) == (status, code)
        assert "secret" not in answer.body.decode()


async def test_an_unexpected_error_in_a_view_gets_500_and_is_logged(
    monkeypatch: pytest.MonkeyPatch, logged: Logged
) -> None:
    async with running() as run:
        client = await run.connect()
        assert (await client.request("GET", "/v0/routers", b"")).status == 200
        monkeypatch.setattr(paging, "answer", lambda *_: 1 // 0)
        answer = await client.request("GET", "/v0/routers", b"")
        assert (answer.status, answer.code) == (500, "internal")
    assert [(event["event"], event["route"]) for event in logged] == [
        ("request failed", "router.list")
    ]
