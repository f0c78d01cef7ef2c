"""Paths, methods and names: what comes before any endpoint (§0.5, §0.6, §1.1)."""

from __future__ import annotations

import pytest

from tests.support.api import Api, Wire, ok, refused, request
from tests.support.server import Server

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
