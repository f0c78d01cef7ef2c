"""Request ids and traceparents on the answers of a real server, streams and WebSockets included."""

from __future__ import annotations

import re

import pytest

from tests.support.api import Api, Wire, ok
from tests.support.sse import Stream, session
from tests.support.ws import Socket

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
TRACED = {"X-Request-Id": "mine-1", "traceparent": PARENT}
MADE = re.compile(r"[0-9a-f]{12}-[0-9a-f]+")


@pytest.mark.parametrize("traced", [True, False], ids=["traced", "plain"])
def test_every_answer_has_an_id(api: Api, topic: str, traced: bool) -> None:
    headers = TRACED if traced else {}
    seen = set()
    for method, path, body in (
        ("PUT", f"/v0/topics/{topic}", {}),
        ("POST", f"/v0/topics/{topic}", {"records": [{"data": 1}]}),
        ("POST", f"/v0/topics/{topic}", {"records": 1}),
        ("POST", f"/v0/topics/{topic}/diff", {}),
        ("GET", f"/v0/topics/{topic}", None),
        ("GET", "/v0/topics", None),
        ("GET", "/v0/nothing", None),
        ("POST", "/v0/health", {}),
        ("HEAD", "/v0/health", None),
        ("DELETE", f"/v0/topics/{topic}", None),
    ):
        answer = api.call(method, path, body, headers)
        seen.add(answer.headers["x-request-id"])
        assert answer.headers.get("traceparent") == headers.get("traceparent"), answer
    if traced:
        assert seen == {"mine-1"}
    else:
        assert len(seen) == 10
        assert all(MADE.fullmatch(one) for one in seen)


def test_a_stream_has_an_id(api: Api, topic: str) -> None:
    ok(api.put(topic), 201)
    url = session(api, [topic])["stream_url"]
    headers = [f"{name}: {value}" for name, value in TRACED.items()]
    with Stream(api.address, url, headers=headers) as stream:
        named = {name.lower(): value for name, value in stream.headers}
        assert (named["x-request-id"], named["traceparent"]) == ("mine-1", PARENT)
    with Stream(api.address, url) as stream:
        assert MADE.fullmatch(dict(stream.headers)["x-request-id"])


def test_a_websocket_has_an_id(api: Api) -> None:
    headers = [f"{name}: {value}" for name, value in TRACED.items()]
    with Socket(api.address, headers=headers) as socket:
        assert socket.headers["x-request-id"] == "mine-1"


def test_an_answer_to_what_is_not_http_has_an_id(wire: Wire) -> None:
    wire.send(b"NONSENSE\r\n\r\n")
    answer = wire.answer()
    assert answer.status == 400
    assert MADE.fullmatch(answer.headers["x-request-id"])
