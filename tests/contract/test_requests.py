"""Names, content types, compression and request ids: rules for all endpoints (§0.3 to §1.1)."""

from __future__ import annotations

import gzip
import json
import re
from typing import Any

import pytest

from tests.support.api import Answer, Api, Wire, ok, refused, request
from tests.support.server import Server
from tests.support.sse import Stream, session
from tests.support.ws import Socket

ONE = b'{"records":[{"data":1}]}'

# --- paths and methods


@pytest.mark.parametrize("query", ["prefix=%C3%A9", "prefix=%F0%9F%98%80", "x=%C3%A9"])
def test_a_query_may_contain_percent_encoded_unicode(api: Api, query: str) -> None:
    assert ok(api.call("GET", f"/v0/topics?{query}")).keys() >= {"topics"}
    refused(api.call("GET", f"/v0/watch/ANY?{query}"), 404, "not_found")


# --- names (§1.1)

GOOD_NAMES = ["0", "9.a_b:c-d", "a..b", "null", "diff", "topics", "a" * 255]


@pytest.mark.parametrize("name", GOOD_NAMES, ids=lambda name: f"1.1 {name[:30]}")
def test_a_valid_name_is_accepted_in_a_path(api: Api, name: str) -> None:
    ok(api.delete(name))
    assert ok(api.put(name), 201)["topic"] == name
    assert ok(api.append(name, 1))["topic"] == name
    assert ok(api.diff(name))["topic"] == name
    assert api.state(name)["topic"] == name
    assert ok(api.delete(name))["deleted"] is True


def test_names_are_compared_after_percent_decoding(api: Api, topic: str) -> None:
    name = f"{topic}:a.b"
    ok(api.append(name, 1), 201)
    for spelling in (
        name.replace(":", "%3A"),
        name.replace(":", "%3a"),
        name.replace(".", "%2E"),
        "".join(f"%{ord(letter):02x}" for letter in name),
    ):
        assert api.state(spelling)["topic"] == name
        assert ok(api.append(spelling, 2))["created"] is False
        assert ok(api.diff(spelling))["topic"] == name
        assert ok(api.put(spelling))["created"] is False
    assert api.state(name)["count"] == 5


@pytest.mark.parametrize("path", ["/v0/topics/aé", "/v0/topics/aé/diff"])
def test_raw_bytes_in_a_path_are_refused(server: Server, path: str) -> None:
    for method in ("POST", "PUT"):
        with Wire(server.address) as wire:
            wire.send(request(method, path, b"{}"))
            answer = wire.answer()
            assert answer.status in (400, 405), str(answer)


def test_a_query_is_not_part_of_the_name(api: Api, topic: str) -> None:
    ok(api.call("PUT", f"/v0/topics/{topic}?x=/a/b&y=%3F", b"{}"), 201)
    ok(api.call("POST", f"/v0/topics/{topic}?x=/diff", ONE))
    ok(api.call("POST", f"/v0/topics/{topic}/diff?limit=0", b"{}"))
    assert api.state(topic)["count"] == 1


# --- content types (§0.3)

BODY_ROUTES = [("PUT", "", b'{"ttl_ms":0}'), ("POST", "", ONE), ("POST", "/diff", b"{}")]
GOOD_TYPES = [
    *("application/json", "application/json; charset=utf-8", "application/json;charset=utf-8"),
    *('application/json; charset="utf-8"', "application/json; charset=UTF-8", "Application/JSON"),
    "application/json ; charset=utf-8",
]


@pytest.mark.parametrize("kind", GOOD_TYPES, ids=lambda kind: f"0.3 {kind}")
def test_a_json_body_is_accepted_with_each_media_type(api: Api, topic: str, kind: str) -> None:
    ok(api.put(topic), 201)
    for method, tail, body in BODY_ROUTES:
        ok(api.call(method, f"/v0/topics/{topic}{tail}", body, {"Content-Type": kind}))


# --- compression (§0.3)


def zipped(body: bytes, **headers: str) -> dict[str, Any]:
    return {
        "body": gzip.compress(body),
        "headers": {"Content-Encoding": "gzip", "Content-Type": "application/json", **headers},
    }


def test_gzip_bodies_are_accepted(api: Api, topic: str) -> None:
    path = f"/v0/topics/{topic}"
    ok(api.call("PUT", path, **zipped(b'{"ttl_ms":123456789}')), 201)
    ok(
        api.call(
            "POST", path, **zipped(json.dumps({"records": [{"data": "x" * 100_000}]}).encode())
        )
    )
    assert (
        ok(api.call("POST", f"{path}/diff", **zipped(b'{"from_seq":0}')))["records"][0]["data"]
        == "x" * 100_000
    )
    assert api.state(topic)["config"]["ttl_ms"] == 123456789


@pytest.mark.parametrize("coding", ["identity", "GZIP"], ids=lambda coding: f"0.3 {coding}")
def test_a_content_coding_is_accepted_in_other_spellings(api: Api, topic: str, coding: str) -> None:
    body = ONE if coding == "identity" else gzip.compress(ONE)
    ok(api.call("POST", f"/v0/topics/{topic}", body, {"Content-Encoding": coding}), 201)


def plain(answer: Answer) -> Answer:
    """Return the response without its gzip coding."""
    if answer.headers.get("content-encoding") != "gzip":
        return answer
    return Answer(answer.status, answer.headers, gzip.decompress(answer.body))


@pytest.mark.parametrize(
    "accept", ["gzip", "GZIP", "deflate, gzip;q=0.5", "*"], ids=lambda accept: f"0.3 {accept}"
)
def test_large_responses_are_compressed_on_request(api: Api, topic: str, accept: str) -> None:
    ok(api.append(topic, *["x" * 1000] * 100), 201)
    answer = api.call("POST", f"/v0/topics/{topic}/diff", b"{}", {"Accept-Encoding": accept})
    if accept != "*":
        assert answer.headers.get("content-encoding") == "gzip"
        assert len(answer.body) < 20_000
    assert ok(plain(answer))["records"] == ok(api.diff(topic))["records"]


@pytest.mark.parametrize(
    "accept",
    ["", "identity", "br", "gzip;q=0", "gzip;q=0.0, identity"],
    ids=lambda accept: f"0.3 {accept}",
)
def test_responses_are_not_compressed_without_a_request(api: Api, topic: str, accept: str) -> None:
    ok(api.append(topic, *["x" * 1000] * 100), 201)
    answer = api.call("POST", f"/v0/topics/{topic}/diff", b"{}", {"Accept-Encoding": accept})
    assert "content-encoding" not in answer.headers
    assert len(ok(answer)["records"]) == 100


def test_every_response_can_be_read_by_a_client_that_accepts_gzip(api: Api, topic: str) -> None:
    accept_gzip = {"Accept-Encoding": "gzip"}
    path = f"/v0/topics/{topic}"
    ok(plain(api.call("PUT", path, b"{}", accept_gzip)), 201)
    ok(plain(api.call("POST", path, ONE, accept_gzip)))
    ok(plain(api.call("POST", f"{path}/diff", b"{}", accept_gzip)))
    ok(plain(api.call("GET", path, None, accept_gzip)))
    ok(plain(api.call("GET", "/v0/topics", None, accept_gzip)))
    refused(plain(api.call("GET", "/v0/nope", None, accept_gzip)), 404, "not_found")
    refused(plain(api.call("POST", path, b"{", accept_gzip)), 400, "invalid_request")
    ok(plain(api.call("DELETE", path, None, accept_gzip)))


def test_a_compressed_diff_contains_the_same_bytes(api: Api, topic: str) -> None:
    ok(
        api.call(
            "POST",
            f"/v0/topics/{topic}",
            b'{"records":[{"data":{ "b" : 1.10, "a":"\\u0041"}}]}' + b" " * 5000,
        ),
        201,
    )
    answer = plain(api.call("POST", f"/v0/topics/{topic}/diff", b"{}", {"Accept-Encoding": "gzip"}))
    assert b'"data":{ "b" : 1.10, "a":"\\u0041"}' in answer.body


PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
TRACED = {"X-Request-Id": "mine-1", "traceparent": PARENT}
GENERATED_ID = re.compile(r"[0-9a-f]{12}-[0-9a-f]+")


@pytest.mark.parametrize("traced", [True, False], ids=["traced", "plain"])
def test_every_response_has_a_request_id(api: Api, topic: str, traced: bool) -> None:
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
        assert all(GENERATED_ID.fullmatch(one) for one in seen)


def test_a_stream_has_a_request_id(api: Api, topic: str) -> None:
    ok(api.put(topic), 201)
    url = session(api, [topic])["stream_url"]
    headers = [f"{name}: {value}" for name, value in TRACED.items()]
    with Stream(api.address, url, headers=headers) as stream:
        named = {name.lower(): value for name, value in stream.headers}
        assert (named["x-request-id"], named["traceparent"]) == ("mine-1", PARENT)
    with Stream(api.address, url) as stream:
        assert GENERATED_ID.fullmatch(dict(stream.headers)["x-request-id"])


def test_a_websocket_has_a_request_id(api: Api) -> None:
    headers = [f"{name}: {value}" for name, value in TRACED.items()]
    with Socket(api.address, headers=headers) as socket:
        assert socket.headers["x-request-id"] == "mine-1"


def test_the_response_to_invalid_http_has_a_request_id(wire: Wire) -> None:
    wire.send(b"NONSENSE\r\n\r\n")
    answer = wire.answer()
    assert answer.status == 400
    assert GENERATED_ID.fullmatch(answer.headers["x-request-id"])
