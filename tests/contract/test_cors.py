"""CORS of a real server: access for pages of listed origins, and none for others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.api import Answer, Api, Wire, ok, refused, request
from tests.support.server import Server
from tests.support.sse import Stream, session
from tests.support.ws import Socket

APP, OTHER = "https://app.example", "https://other.example"
KEY = "cors-key"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data_dir = tmp_path_factory.mktemp("cors") / "data"
    with Server(data_dir, cors_origins=f"{APP},http://localhost:3000", api_keys=KEY) as server:
        yield server


@pytest.fixture
def page(listed: Server) -> Iterator[Api]:
    """The client of a page that has the key."""
    with Api(listed.address, token=KEY) as api:
        yield api


def is_readable_by(answer: Answer, origin: str = APP) -> bool:
    fields = answer.headers
    assert "access-control-allow-credentials" not in fields
    return (
        fields.get("access-control-allow-origin") == origin
        and fields.get("access-control-expose-headers") == "Retry-After, X-Request-Id"
        and fields.get("vary") == "Origin"
    )


def test_a_page_of_a_listed_origin_can_read_every_response(page: Api, topic: str) -> None:
    for method, path, body, status in (
        ("PUT", f"/v0/topics/{topic}", {}, 201),
        ("POST", f"/v0/topics/{topic}", {"records": [{"data": 1}]}, 200),
        ("POST", f"/v0/topics/{topic}/diff", {}, 200),
        ("POST", f"/v0/topics/{topic}", {"records": 1}, 400),
        ("GET", "/v0/topics/none", None, 404),
        ("GET", "/v0/health", None, 200),
        ("DELETE", f"/v0/topics/{topic}", None, 200),
    ):
        answer = page.call(method, path, body, {"Origin": APP})
        assert answer.status == status
        assert is_readable_by(answer), (path, answer.headers)
        answer = page.call(method, path, body, {"Origin": OTHER})
        assert "access-control-allow-origin" not in answer.headers


def test_a_page_without_a_key_can_read_the_401(listed: Server) -> None:
    with Api(listed.address) as api:
        answer = api.call("GET", "/v0/topics", None, {"Origin": APP})
        refused(answer, 401, "unauthorized")
        assert is_readable_by(answer)


def test_a_page_of_a_listed_origin_can_read_a_stream(page: Api, topic: str) -> None:
    ok(page.put(topic), 201)
    url = session(page, [topic])["stream_url"]
    headers = [f"Origin: {APP}", "Accept: text/event-stream"]
    with Stream(page.address, url, token=KEY, headers=headers) as stream:
        assert ("access-control-allow-origin", APP) in stream.headers


def test_a_preflight_needs_no_key(listed: Server) -> None:
    preflight = [f"Origin: {APP}", "Access-Control-Request-Method: POST"]
    with Wire(listed.address) as wire:
        for path, status in (("/v0/topics/a", 204), ("/v0/ws", 204), ("/v0/nothing", 404)):
            wire.send(request("OPTIONS", path, None, *preflight))
            answer = wire.answer()
            assert answer.status == status
            assert is_readable_by(answer)
        wire.send(request("OPTIONS", "/v0/topics/a", None))
        refused(wire.answer(), 401, "unauthorized")


def test_a_foreign_origin_opens_no_stream_and_leases_no_jobs(page: Api, topic: str) -> None:
    for origin in (OTHER, "null"):
        for path in ("/v0/ws", f"/v0/topics/{topic}/work?node=n", f"/v0/watch?topic={topic}"):
            refused(page.call("GET", path, None, {"Origin": origin}), 403, "forbidden")
        path = f"/v0/topics/{topic}/redrive"
        refused(page.call("POST", path, None, {"Origin": origin}), 403, "forbidden")
    with Socket(page.address, token=KEY, headers=[f"Origin: {APP}"]) as socket:
        assert socket.headers["access-control-allow-origin"] == APP


def test_without_the_setting_responses_have_no_cors_fields_and_no_preflight_succeeds(
    api: Api, topic: str
) -> None:
    preflight = {"Origin": APP, "Access-Control-Request-Method": "POST"}
    answer = api.call("OPTIONS", f"/v0/topics/{topic}", None, preflight)
    refused(answer, 405, "method_not_allowed")
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert "vary" not in answer.headers
