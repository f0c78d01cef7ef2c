"""Paths, methods, names, content types and encodings: what comes before any endpoint (§0.3, §0.5,
§0.6, §1.1).
"""

from __future__ import annotations

import gzip
import json
import time
import zlib
from typing import Any

import pytest

from tests.contract.api import Answer, Api, Wire, listed, ok, refused, request
from tests.server import Server

MIB = 2**20
ONE = b'{"records":[{"data":1}]}'

# --- paths and methods

UNKNOWN = [
    "/v0",
    "/v0/nope",
    "/v1/topics",
    "/topics",
    "/v0/Topics",
    "/v0/topic/x",
    "/v0/topics/x/nope",
    "/v0/topics/x/diff/more",
    "/v0/topics/x/y/z",
    "/v0/topics/x/diff/",
    "/v0/health/x",
    "/health",
    "//v0/topics",
]


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
@pytest.mark.parametrize("path", UNKNOWN, ids=lambda path: f"0.6 {path}")
def test_an_unknown_path_is_a_404(api: Api, method: str, path: str) -> None:
    refused(api.call(method, path, b"{}" if method in ("POST", "PUT") else None), 404, "not_found")


@pytest.mark.parametrize("query", ["prefix=%C3%A9", "prefix=%F0%9F%98%80", "x=%C3%A9"])
def test_a_query_need_not_be_ascii(api: Api, query: str) -> None:
    assert ok(api.call("GET", f"/v0/topics?{query}")).keys() >= {"topics"}
    refused(api.call("GET", f"/v0/watch/ANY?{query}"), 404, "not_found")


METHODS = [
    ("/v0/topics", {"GET"}),
    ("/v0/topics/some-topic", {"GET", "PUT", "POST", "DELETE"}),
    ("/v0/topics/some-topic/diff", {"POST"}),
    ("/v0/health", {"GET"}),
    ("/healthz", {"GET"}),
    ("/v0/ready", {"GET"}),
    ("/readyz", {"GET"}),
]
NOT_ALLOWED = [
    (method, path, allowed)
    for path, allowed in METHODS
    for method in ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS")
    if method not in allowed
]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    NOT_ALLOWED,
    ids=[f"0.6 {method} {path}" for method, path, _ in NOT_ALLOWED],
)
def test_a_wrong_method_is_a_405_that_names_the_right_ones(
    api: Api, method: str, path: str, allowed: set[str]
) -> None:
    answer = api.call(method, path, b"{}" if method in ("POST", "PUT", "PATCH") else None)
    refused(answer, 405, "method_not_allowed")
    named = {name.strip() for name in answer.headers["allow"].split(",")}
    assert allowed <= named <= allowed | {"HEAD", "OPTIONS"}
    assert method not in named


CHECKS: list[tuple[str, str, str, bytes, dict[str, str], int, str]] = [
    (
        "path before type",
        "POST",
        "/v0/nope",
        b"x",
        {"Content-Type": "text/plain"},
        404,
        "not_found",
    ),
    (
        "method before type",
        "PATCH",
        "/v0/topics/x",
        b"x",
        {"Content-Type": "text/plain"},
        405,
        "method_not_allowed",
    ),
    (
        "type before topic",
        "POST",
        "/v0/topics/absent-topic/diff",
        b"{}",
        {"Content-Type": "text/plain"},
        415,
        "unsupported_media_type",
    ),
    ("body before topic", "POST", "/v0/topics/absent-topic/diff", b"{", {}, 400, "invalid_request"),
    (
        "field before topic",
        "POST",
        "/v0/topics/absent-topic/diff",
        b'{"limit":-1}',
        {},
        400,
        "invalid_request",
    ),
    (
        "record before topic",
        "POST",
        "/v0/topics/absent-topic",
        b'{"create":false,"records":[{}]}',
        {},
        400,
        "invalid_request",
    ),
]


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status", "code"),
    [row[1:] for row in CHECKS],
    ids=[f"0.6 {row[0]}" for row in CHECKS],
)
def test_the_order_of_checks(
    api: Api, method: str, path: str, body: bytes, headers: dict[str, str], status: int, code: str
) -> None:
    refused(api.call(method, path, body, headers), status, code)


# --- names (§1.1)

GOOD_NAMES = [
    "0",
    "Z",
    "9.a_b:c-d",
    "a..b",
    "a::b",
    "a-",
    "a.",
    "CON",
    "null",
    "diff",
    "topics",
    "a" * 255,
    "render-queue:tenantA",
]


@pytest.mark.parametrize("name", GOOD_NAMES, ids=lambda name: f"1.1 {name[:30]}")
def test_a_good_name(api: Api, name: str) -> None:
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


BAD_NAMES = [
    "a%0A",
    "a%0a",
    "%0Aa",
    "a%0D",
    "a%00",
    "a%20b",
    "a+b",
    "-a",
    ".a",
    "_a",
    ":a",
    "%2E%2E",
    "a@b",
    "a%3Eb",
    "a*",
    "a~b",
    "a!b",
    "a%25b",
    "a%C3%A9",
    "%C3%A9",
    "a%EF%BC%A1",
    "%D9%A1",
    "a%FF",
    "a%C3",
    "a" * 256,
    "a" * 300,
    "x" * 5000,
]
ROUTES = [
    ("GET", "", None),
    ("PUT", "", b"{}"),
    ("POST", "", ONE),
    ("DELETE", "", None),
    ("POST", "/diff", b"{}"),
]


@pytest.mark.parametrize("name", BAD_NAMES, ids=lambda name: f"1.1 {name[:30]}")
def test_a_bad_name_is_a_400_everywhere(api: Api, name: str) -> None:
    for method, tail, body in ROUTES:
        refused(api.call(method, f"/v0/topics/{name}{tail}", body), 400, "invalid_request")


@pytest.mark.parametrize(
    "name", ["a%2Fb", "a%", "a%zz", "a%2", "%2F", ".."], ids=lambda name: f"1.1 {name}"
)
def test_a_name_that_is_hardly_a_path_is_refused(api: Api, name: str) -> None:
    for method, tail, body in ROUTES:
        answer = api.call(method, f"/v0/topics/{name}{tail}", body)
        refused(answer, answer.status, "invalid_request", "not_found")
        assert answer.status in (400, 404)


@pytest.mark.parametrize("path", ["/v0/topics/aé", "/v0/topics/aé/diff"])
def test_raw_bytes_in_a_path_are_refused(server: Server, path: str) -> None:
    for method in ("POST", "PUT"):
        with Wire(server.address) as wire:
            wire.send(request(method, path, b"{}"))
            answer = wire.answer()
            assert answer.status in (400, 405), str(answer)


def test_a_query_does_not_belong_to_the_name(api: Api, topic: str) -> None:
    ok(api.call("PUT", f"/v0/topics/{topic}?x=/a/b&y=%3F", b"{}"), 201)
    ok(api.call("POST", f"/v0/topics/{topic}?x=/diff", ONE))
    ok(api.call("POST", f"/v0/topics/{topic}/diff?limit=0", b"{}"))
    assert api.state(topic)["count"] == 1


# --- content types (§0.3)

BODY_ROUTES = [("PUT", "", b'{"ttl_ms":0}'), ("POST", "", ONE), ("POST", "/diff", b"{}")]
GOOD_TYPES = [
    "application/json",
    "application/json; charset=utf-8",
    "application/json;charset=utf-8",
    'application/json; charset="utf-8"',
    "application/json; charset=UTF-8",
    "Application/JSON",
    "application/json ; charset=utf-8",
]
BAD_TYPES = [
    "",
    "text/plain",
    "application/x-www-form-urlencoded",
    "application/jsonx",
    "application/json-seq",
    "xapplication/json",
    "json",
    "*/*",
    "multipart/form-data; boundary=x",
]


@pytest.mark.parametrize("kind", GOOD_TYPES, ids=lambda kind: f"0.3 {kind}")
def test_a_json_body_is_taken(api: Api, topic: str, kind: str) -> None:
    ok(api.put(topic), 201)
    for method, tail, body in BODY_ROUTES:
        ok(api.call(method, f"/v0/topics/{topic}{tail}", body, {"Content-Type": kind}))


@pytest.mark.parametrize("kind", BAD_TYPES, ids=lambda kind: f"0.3 {kind or 'none'}")
def test_another_body_is_a_415(api: Api, topic: str, kind: str) -> None:
    ok(api.put(topic), 201)
    for method, tail, body in BODY_ROUTES:
        refused(
            api.call(method, f"/v0/topics/{topic}{tail}", body, {"Content-Type": kind}),
            415,
            "unsupported_media_type",
        )
    assert api.state(topic)["head_seq"] == 0


# --- compression (§0.3)


def zipped(body: bytes, **headers: str) -> dict[str, Any]:
    return {
        "body": gzip.compress(body),
        "headers": {"Content-Encoding": "gzip", "Content-Type": "application/json", **headers},
    }


def test_gzip_bodies_are_taken(api: Api, topic: str) -> None:
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
def test_other_spellings_of_a_coding(api: Api, topic: str, coding: str) -> None:
    body = ONE if coding == "identity" else gzip.compress(ONE)
    ok(api.call("POST", f"/v0/topics/{topic}", body, {"Content-Encoding": coding}), 201)


CORRUPT = [
    ("not gzip", b"hello"),
    ("the plain body", ONE),
    ("zlib", zlib.compress(ONE)),
    ("cut", gzip.compress(ONE)[:-9]),
    ("head only", gzip.compress(ONE)[:10]),
    ("without checksum", gzip.compress(ONE)[:-8]),
    ("wrong checksum", gzip.compress(ONE)[:-8] + b"\x00\x01\x02\x03" + gzip.compress(ONE)[-4:]),
    ("wrong length", gzip.compress(ONE)[:-1] + b"\x01"),
]


@pytest.mark.parametrize(
    "body", [body for _, body in CORRUPT], ids=[f"0.3 {name}" for name, _ in CORRUPT]
)
def test_a_corrupt_gzip_body_is_a_400(api: Api, topic: str, body: bytes) -> None:
    for method, tail in (("POST", ""), ("PUT", ""), ("POST", "/diff")):
        refused(
            api.call(method, f"/v0/topics/{topic}{tail}", body, {"Content-Encoding": "gzip"}),
            400,
            "invalid_request",
        )
    refused(api.get(topic), 404, "topic_not_found")


@pytest.mark.parametrize(
    "coding", ["br", "deflate", "zstd", "nonsense", "gzip, br"], ids=lambda coding: f"0.3 {coding}"
)
def test_an_unknown_coding_is_a_415(api: Api, topic: str, coding: str) -> None:
    for method, tail in (("POST", ""), ("PUT", ""), ("POST", "/diff")):
        refused(
            api.call(method, f"/v0/topics/{topic}{tail}", ONE, {"Content-Encoding": coding}),
            415,
            "unsupported_media_type",
        )


def test_a_body_that_grows_beyond_64_mib_is_a_413(api: Api, topic: str) -> None:
    bomb = gzip.compress(b'{"records":[{"data":1}]' + b" " * (64 * MIB) + b"}", compresslevel=1)
    assert len(bomb) < MIB
    for method, tail in (("POST", ""), ("PUT", ""), ("POST", "/diff")):
        refused(
            api.call(method, f"/v0/topics/{topic}{tail}", bomb, {"Content-Encoding": "gzip"}),
            413,
            "payload_too_large",
        )
    refused(api.get(topic), 404, "topic_not_found")


def plain(answer: Answer) -> Answer:
    """The answer with its gzip coding undone."""
    if answer.headers.get("content-encoding") != "gzip":
        return answer
    return Answer(answer.status, answer.headers, gzip.decompress(answer.body))


@pytest.mark.parametrize(
    "accept", ["gzip", "GZIP", "deflate, gzip;q=0.5", "*"], ids=lambda accept: f"0.3 {accept}"
)
def test_large_answers_are_zipped_on_request(api: Api, topic: str, accept: str) -> None:
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
def test_answers_are_plain_without_the_wish(api: Api, topic: str, accept: str) -> None:
    ok(api.append(topic, *["x" * 1000] * 100), 201)
    answer = api.call("POST", f"/v0/topics/{topic}/diff", b"{}", {"Accept-Encoding": accept})
    assert "content-encoding" not in answer.headers
    assert len(ok(answer)["records"]) == 100


def test_every_answer_can_be_read_with_gzip_on(api: Api, topic: str) -> None:
    wish = {"Accept-Encoding": "gzip"}
    path = f"/v0/topics/{topic}"
    ok(plain(api.call("PUT", path, b"{}", wish)), 201)
    ok(plain(api.call("POST", path, ONE, wish)))
    ok(plain(api.call("POST", f"{path}/diff", b"{}", wish)))
    ok(plain(api.call("GET", path, None, wish)))
    ok(plain(api.call("GET", "/v0/topics", None, wish)))
    refused(plain(api.call("GET", "/v0/nope", None, wish)), 404, "not_found")
    refused(plain(api.call("POST", path, b"{", wish)), 400, "invalid_request")
    ok(plain(api.call("DELETE", path, None, wish)))


def test_a_zipped_diff_holds_the_same_bytes(api: Api, topic: str) -> None:
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


# --- probes (§8.1, §8.2)


@pytest.mark.parametrize("path", ["/v0/health", "/healthz"], ids=lambda path: f"8.1 {path}")
def test_health(api: Api, path: str) -> None:
    answers = [api.call("GET", path) for _ in range(2)]
    first, second = [answer.json() for answer in answers]
    assert [answer.status for answer in answers] == [200, 200]
    assert answers[0].headers["content-type"].split(";")[0] == "application/json"
    assert first["status"] == "ok"
    assert isinstance(first["version"], str)
    assert isinstance(first["uptime_ms"], int)
    assert 0 <= first["uptime_ms"] <= second["uptime_ms"]


@pytest.mark.parametrize("path", ["/v0/ready", "/readyz"], ids=lambda path: f"8.2 {path}")
def test_ready(api: Api, path: str) -> None:
    answer = api.call("GET", path)
    assert answer.status == 200
    body = answer.json()
    assert (body["status"], body["wal_replay_complete"]) == ("ready", True)
    assert isinstance(body["topics"], int)


def test_ready_counts_the_topics(server: Server, api: Api, topic: str) -> None:
    """A probe may lag behind the writes a little."""
    ok(api.put(topic), 201)
    names = listed(api, page_size=1000)
    assert topic in names
    deadline = time.monotonic() + 5
    while (count := api.call("GET", "/v0/ready").json()["topics"]) != len(names):
        assert time.monotonic() < deadline, f"{count} topics, there are {len(names)}"
        time.sleep(0.02)
