"""The access log of a real server: on stderr, one JSON object for each request."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.api import Api, ok
from tests.support.server import Server
from tests.support.sse import CAUGHT_UP, Stream, session
from tests.support.ws import Socket

KEYS = "log-secret,reader-secret:read"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data_dir = tmp_path_factory.mktemp("access-log") / "data"
    with Server(data_dir, access_log="all", api_keys=KEYS) as server:
        yield server


@pytest.fixture
def owner(logged: Server) -> Iterator[Api]:
    with Api(logged.address, token="log-secret") as api:
        yield api


def lines(server: Server) -> list[dict[str, Any]]:
    assert server.log is not None
    return [event for event in server.log.events() if event["event"] == "request"]


def line(server: Server, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Wait for the line of a request. The server writes it after it has sent the response."""
    deadline = time.monotonic() + 10
    while not (found := [one for one in lines(server) if wanted(one)]):
        assert time.monotonic() < deadline, lines(server)
        time.sleep(0.01)
    assert len(found) == 1
    return found[0]


def test_each_request_is_logged_on_one_line(logged: Server, owner: Api, topic: str) -> None:
    answer = owner.call("PUT", f"/v0/topics/{topic}?server_timing=true", {})
    ok(answer, 201)
    found = line(logged, lambda one: one["request_id"] == answer.headers["x-request-id"])
    assert found["process"] == "front 0"
    assert (found["method"], found["route"], found["topic"]) == ("PUT", "topic.put", topic)
    assert (found["status"], found["level"]) == (201, "info")
    assert found["bytes_in"] > 100
    assert found["bytes_out"] > len(answer.body)
    assert found["ms"] > 0
    assert found["peer"].startswith("127.0.0.1:")
    assert len(found["key"]) == 8


def test_a_stream_is_logged_when_it_ends(logged: Server, owner: Api, topic: str) -> None:
    ok(owner.append(topic, "x" * 1000), 201)
    url = session(owner, [topic])["stream_url"]
    headers = ["Accept: text/event-stream", f"X-Request-Id: stream-{topic}"]

    def is_of_request(one: dict[str, Any]) -> bool:
        return bool(one["request_id"] == f"stream-{topic}")

    with Stream(logged.address, url, token="log-secret", headers=headers) as stream:
        while stream.event().event != CAUGHT_UP:
            pass
        time.sleep(0.05)
        assert not [one for one in lines(logged) if is_of_request(one)]
    found = line(logged, is_of_request)
    assert (found["route"], found["status"]) == ("watch.open", 200)
    assert found["ms"] >= 50
    assert found["bytes_out"] > 1000


def test_no_log_line_contains_a_secret(logged: Server, owner: Api) -> None:
    wid = "wid_of-somebody"
    for token in ("log-secret", "reader-secret", "wrong-secret", None):
        with Api(logged.address, token=token) as api:
            api.call("GET", "/v0/topics?prefix=query-secret")
            api.call("POST", "/v0/topics/a", {"records": [{"data": "body-secret"}]})
            api.call("GET", f"/v0/watch/{wid}?token=token-secret")
            api.call("GET", "/v0/path-secret")
    answer = owner.call("GET", "/v0/health", None, {"X-Request-Id": "last"})
    line(logged, lambda one: one["request_id"] == answer.headers["x-request-id"])
    assert logged.log is not None
    text = logged.log.text
    for secret in ("-secret", wid, "Bearer", "token"):
        assert secret not in text


def test_the_audit_log_contains_only_changes_and_refusals(tmp_path: Path) -> None:
    with Server(tmp_path / "data", access_log="audit", api_keys=KEYS) as server:
        with Api(server.address, token="log-secret") as api:
            ok(api.put("a"), 201)
            ok(api.append("a", 1))
            ok(api.append("b", 1), 201)
            ok(api.diff("a"))
            ok(api.call("POST", "/v0/topics/a/delete", {"before_seq": 9}))
        with Api(server.address, token="reader-secret") as api:
            ok(api.get("a"))
            assert api.append("a", 2).status == 403
        with Socket(server.address, token="reader-secret") as socket:
            publish = socket.request("publish", "1", topic="a", records=[{"data": 2}])
            assert publish["code"] == "forbidden"
        line(server, lambda one: one["route"] == "ws")
        with Api(server.address) as api:
            assert api.get("a").status == 401
            assert api.call("GET", "/v0/health").status == 200
        with Api(server.address, token="log-secret") as api:
            ok(api.delete("a"))
        line(server, lambda one: one["route"] == "topic.delete")
        entries = [(one["route"], one["status"]) for one in lines(server)]
        keys = [one.get("key") for one in lines(server)]
    assert entries == [
        ("topic.put", 201),
        ("append", 201),
        ("topic.delete_records", 200),
        ("append", 403),
        ("ws", 101),
        ("topic.get", 401),
        ("topic.delete", 200),
    ]
    assert keys[0] == keys[1] == keys[2] == keys[6]
    assert keys[3] == keys[4] != keys[0]
    assert keys[3] is not None
    assert keys[5] is None
